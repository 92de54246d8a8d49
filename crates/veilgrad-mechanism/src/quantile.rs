//! Private quantile estimation and adaptive clipping (Andrew et al., arXiv 1905.03871).

use veilgrad_events::{ClipNorm, PublicCount};

/// A private quantile estimate of the records' norms (adaptive clipping) or of a scalar, updated every round.
///
/// Each sampled record contributes one bit, whether its value is at most the current estimate,
/// shifted to `+1/2` or `-1/2` so that the sensitivity is 1/2. The released sum, divided by the
/// public expected number of records, estimates the fraction at or below it, and the estimate moves towards the
/// target quantile. The bit is a group of the round like any other, and its cost is in the ledger.
///
/// # Example
/// ```
/// use veilgrad_events::{ClipNorm, PublicCount};
/// use veilgrad_mechanism::{Group, LearningRate, Quantile};
///
/// // The clip norm of group "gradient" follows the median norm, and never falls below 0.01.
/// let (expected, floor) = (PublicCount::new(256.0)?, ClipNorm::new(0.01)?);
/// let median = Quantile::of_norm("gradient", 0.5, expected, floor)?
///     .learning_rate(LearningRate::constant(0.2)?);
/// let groups = [
///     Group::new("gradient", ["*"], ClipNorm::new(1.0)?).average(expected),
///     Group::quantile("median norm", median),
/// ];
/// assert_eq!(groups.len(), 2);
/// assert!(Quantile::of_norm("gradient", 1.5, expected, floor).is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Quantile {
    pub(crate) source: Source,
    target: f64,
    expected: PublicCount,
    rate: LearningRate,
    geometric: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Source {
    /// The norm of a group; the estimate is the group's clip norm.
    Norm { group: String, floor: ClipNorm },
    /// The value of a one-dimensional vector.
    Value { vector: String, initial: f64 },
}

/// The step size of a quantile update.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LearningRate {
    initial: f64,
    decays: bool,
}

/// A parameter of a quantile is out of range.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum QuantileError {
    /// The quantile is not a fraction.
    #[error("target quantile {0} is not in [0, 1]")]
    Target(f64),
    /// The step size is negative or not finite.
    #[error("learning rate {0} is not finite and at least 0")]
    LearningRate(f64),
    /// The first estimate is not finite.
    #[error("initial estimate {0} is not finite")]
    Initial(f64),
}

impl LearningRate {
    /// The same step size in every round.
    ///
    /// # Errors
    /// When it is negative or not finite.
    pub fn constant(rate: f64) -> Result<Self, QuantileError> {
        if !(rate.is_finite() && rate >= 0.0) {
            return Err(QuantileError::LearningRate(rate));
        }
        Ok(Self { initial: rate, decays: false })
    }

    /// `rate / sqrt(t + 1)` in round t, counted from 0.
    ///
    /// # Errors
    /// When it is negative or not finite.
    pub fn inverse_sqrt(rate: f64) -> Result<Self, QuantileError> {
        Ok(Self { decays: true, ..Self::constant(rate)? })
    }

    fn in_round(self, round: u64) -> f64 {
        if self.decays { self.initial / (round as f64 + 1.0).sqrt() } else { self.initial }
    }
}

impl Quantile {
    /// Adapts the clip norm of `group` to the `target` quantile of its records' norms, never below
    /// `floor`. Without a public floor, the clip norm of well-fitted data would fall to zero.
    ///
    /// `expected` is the public expected number of records in a sample.
    ///
    /// # Errors
    /// When `target` is not in [0, 1].
    pub fn of_norm(
        group: impl Into<String>,
        target: f64,
        expected: PublicCount,
        floor: ClipNorm,
    ) -> Result<Self, QuantileError> {
        Self::new(Source::Norm { group: group.into(), floor }, target, expected)
    }

    /// Estimates the `target` quantile of a one-dimensional vector, starting from `initial`.
    ///
    /// # Errors
    /// When `target` is not in [0, 1] or `initial` is not finite.
    pub fn of_value(
        vector: impl Into<String>,
        target: f64,
        expected: PublicCount,
        initial: f64,
    ) -> Result<Self, QuantileError> {
        if !initial.is_finite() {
            return Err(QuantileError::Initial(initial));
        }
        Self::new(Source::Value { vector: vector.into(), initial }, target, expected)
    }

    fn new(source: Source, target: f64, expected: PublicCount) -> Result<Self, QuantileError> {
        if !(0.0..=1.0).contains(&target) {
            return Err(QuantileError::Target(target));
        }
        // Andrew et al. recommend geometric steps of 0.2.
        let rate = LearningRate { initial: 0.2, decays: false };
        Ok(Self { source, target, expected, rate, geometric: true })
    }

    /// Sets the step size; 0.2 by default.
    #[must_use]
    pub fn learning_rate(mut self, rate: LearningRate) -> Self {
        self.rate = rate;
        self
    }

    /// Updates the estimate by adding instead of multiplying.
    #[must_use]
    pub fn arithmetic(mut self) -> Self {
        self.geometric = false;
        self
    }

    /// Everything but the source: target, expected number of records, first step size; whether steps decay and multiply.
    pub(crate) const fn settings(&self) -> ([f64; 3], [bool; 2]) {
        let Self { source: _, target, expected, rate: LearningRate { initial, decays }, geometric } =
            self;
        ([*target, expected.get(), *initial], [*decays, *geometric])
    }

    /// The fraction of records at or below the estimate, from the noisy sum of shifted bits.
    pub(crate) fn fraction(&self, noisy_sum: f64) -> f64 {
        (noisy_sum / self.expected.get() + 0.5).clamp(0.0, 1.0)
    }

    /// The next estimate: post-processing of released values.
    pub(crate) fn next(&self, estimate: f64, noisy_sum: f64, round: u64) -> f64 {
        let step = self.rate.in_round(round) * (self.fraction(noisy_sum) - self.target);
        let next = if self.geometric { estimate * (-step).exp() } else { estimate - step };
        // A step that overflows is skipped.
        if next.is_finite() { next } else { estimate }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_parameters_are_refused_by_name() {
        let expected = PublicCount::new(2.0).unwrap();
        for target in [-0.1, 1.1, f64::NAN] {
            assert!(Quantile::of_value("x", target, expected, 1.0).is_err());
        }
        assert!(Quantile::of_value("x", 0.5, expected, f64::INFINITY).is_err());
        for rate in [-1.0, f64::NAN, f64::INFINITY] {
            assert!(LearningRate::constant(rate).is_err());
            assert!(LearningRate::inverse_sqrt(rate).is_err());
        }
    }

    #[test]
    fn the_estimate_moves_towards_the_target_and_stays_finite() {
        let expected = PublicCount::new(2.0).unwrap();
        let quantile = Quantile::of_value("x", 0.5, expected, 1.0).unwrap();
        assert!(quantile.next(1.0, 1.0, 0) < 1.0);
        assert!(quantile.next(1.0, -1.0, 0) > 1.0);
        assert_eq!(quantile.next(1.0, 0.0, 0), 1.0);
        assert_eq!(quantile.next(f64::MAX, -1e300, 0), f64::MAX);
        let decaying =
            quantile.learning_rate(LearningRate::inverse_sqrt(1.0).unwrap()).arithmetic();
        assert_eq!(decaying.next(1.0, 1.0, 3), 1.0 - 0.5 * 0.5);
    }
}
