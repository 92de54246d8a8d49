//! Trade-off curves: the error rates of the best test for a record.

use veilgrad_events::{Adjacency, Delta, Epsilon, Folded};

use super::normal::{normal, quantile};
use crate::{Accountant, Composition, Guarantee, Profile, Tightest, Unsupported};

/// Number of (epsilon, delta) points of a curve.
const POINTS: usize = 96;
/// A generous upper bound on the absolute rounding error of a value of the curve.
const ROUNDING: f64 = 1e-12;

/// A trade-off curve: a lower bound on the false positive rate of any test for one record, given its true positive rate.
///
/// # Guarantee
/// The curve of a composition is never above the true one. It allows every test that the rounds allow; a test that it does
/// not allow refutes the accounting.
///
/// # Example
/// ```
/// use veilgrad_accounting::audit::Curve;
///
/// // For mu = 1, a test that finds half of the records has at least 15.8 % false positives.
/// let rate = Curve::gaussian(1.0).false_positive_rate(0.5);
/// assert!((0.158..0.159).contains(&rate));
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Curve {
    shape: Shape,
}

#[derive(Debug, Clone, PartialEq)]
enum Shape {
    Gaussian(f64),
    /// (epsilon, delta) pairs that hold. The true curve lies above two lines for each pair.
    Profile(Vec<(f64, f64)>),
}

impl Curve {
    /// The curve of mu-Gaussian differential privacy.
    #[must_use]
    pub const fn gaussian(mu: f64) -> Self {
        Self { shape: Shape::Gaussian(mu) }
    }

    /// The curve of several (epsilon, delta) guarantees that hold together.
    #[must_use]
    pub const fn of_profile(points: Vec<(f64, f64)>) -> Self {
        Self { shape: Shape::Profile(points) }
    }

    /// The certified curve of a composition, and its guarantee at `delta`.
    ///
    /// # Errors
    /// When no accountant supports the rounds.
    pub fn of(composition: &Composition, delta: Delta) -> Result<(Self, Guarantee), Unsupported> {
        let guarantee = Tightest.epsilon(composition, delta)?;
        if let Some(mu) = composition.mu() {
            return Ok((Self::gaussian(mu), guarantee));
        }
        let last = Epsilon::new(guarantee.epsilon.min(LARGEST_EPSILON))
            .map_err(|error| Unsupported::new(error.to_string()))?;
        let profile = Profile::new(composition, last, POINTS);
        let mut points = profile.points().to_vec();
        points.push((guarantee.epsilon, guarantee.delta));
        Ok((Self::of_profile(points), guarantee))
    }

    /// The certified curve of folded rounds, with the noise of each multiplied by `factor`.
    pub(super) fn of_rounds(
        rounds: &[Folded],
        factor: f64,
        adjacency: Adjacency,
        delta: Delta,
    ) -> Result<(Self, Guarantee), Unsupported> {
        let scaled = |folded: &Folded| {
            let z = veilgrad_events::NoiseMultiplier::new(folded.noise_multiplier.get() * factor)
                .map_err(|error| Unsupported::new(error.to_string()))?;
            Ok(Folded { noise_multiplier: z, ..*folded })
        };
        let scaled = rounds.iter().map(scaled).collect::<Result<Vec<_>, Unsupported>>()?;
        Self::of(&Composition::of(scaled, adjacency)?, delta)
    }

    /// A lower bound on the false positive rate f of any test whose true positive rate is at least t.
    ///
    /// (epsilon, delta) implies `t <= delta + e^eps f` and `1 - f <= delta + e^eps (1 - t)`.
    #[must_use]
    pub fn false_positive_rate(&self, true_positive_rate: f64) -> f64 {
        let t = true_positive_rate;
        let rate = match &self.shape {
            Shape::Gaussian(mu) => normal(quantile(t) - mu) * (1.0 - 1e-9),
            Shape::Profile(points) => {
                let bound = |(epsilon, delta): &(f64, f64)| {
                    let one = (t - delta) * (-epsilon).exp();
                    one.max(1.0 - delta - (1.0 - t) * epsilon.exp())
                };
                points.iter().map(bound).fold(0.0, f64::max)
            }
        };
        // `max` turns NaN into 0, which bounds nothing.
        (rate - ROUNDING).max(0.0)
    }

    /// The largest difference of true and false positive rate that the curve allows, up to rounding error.
    #[must_use]
    pub fn advantage(&self) -> f64 {
        match &self.shape {
            Shape::Gaussian(mu) => 2.0 * normal(0.5 * mu) - 1.0,
            Shape::Profile(points) => {
                let bound = |(epsilon, delta): &(f64, f64)| {
                    // Where the two lines of a pair intersect.
                    (epsilon.exp_m1() + 2.0 * delta) / (epsilon.exp() + 1.0)
                };
                points.iter().map(bound).fold(1.0, f64::min)
            }
        }
    }
}

/// Larger epsilons cannot be tested with a realistic number of guesses: `e^-20` is below 1e-8.
const LARGEST_EPSILON: f64 = 20.0;

#[cfg(test)]
mod tests {
    use veilgrad_events::{NoiseMultiplier, SampleRate};

    use super::*;

    #[test]
    fn the_curve_of_one_pair_is_that_of_epsilon_delta_privacy() {
        let curve = Curve::of_profile(vec![(1.0, 0.1)]);
        for (t, f) in [(0.1, 0.0), (0.5, 0.4 / 1f64.exp()), (0.95, 0.9 - 0.05 * 1f64.exp())] {
            assert!((curve.false_positive_rate(t) - f).abs() < 1e-9, "{t}");
        }
    }

    /// At rates next to 1 sampling has no effect, so the closed form is known.
    #[test]
    fn a_piecewise_linear_curve_is_just_below_the_closed_form() {
        let delta = Delta::new(1e-5).unwrap();
        let (rate, noise) =
            (SampleRate::new(0.999_999).unwrap(), NoiseMultiplier::new(2.0).unwrap());
        let rounds = Composition::poisson(rate, noise, 4, Adjacency::AddRemove).unwrap();
        let (lines, _) = Curve::of(&rounds, delta).unwrap();
        let exact = Curve::gaussian(1.0);
        for t in [1e-3, 0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99] {
            let (low, high) = (lines.false_positive_rate(t), exact.false_positive_rate(t));
            assert!(low <= high * (1.0 + 1e-4) && low > 0.97 * high, "{t}: {low} {high}");
        }
        assert!((lines.advantage() - exact.advantage()).abs() < 1e-4);
        assert!((exact.advantage() - 0.382_924_922_548_026).abs() < 1e-12);
    }
}
