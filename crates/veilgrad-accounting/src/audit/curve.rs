//! Trade-off curves: what the best test for a record can achieve.

use veilgrad_events::{Adjacency, Delta, Epsilon, Folded};

use super::normal::{normal, quantile};
use crate::{Accountant, Composition, Guarantee, Profile, Tightest, Unsupported};

/// How many epsilons a curve is drawn through.
const POINTS: usize = 96;
/// Rounding in a value of the curve, relative to 1; far above what it is.
const ROUNDING: f64 = 1e-12;

/// For every true positive rate the smallest false positive rate that a test for one record can have: a trade-off
/// function, read from its other axis.
///
/// # Guarantee
/// A curve that was made of a composition is never above the truth: it allows every test that the rounds allow, and a
/// test that it does not allow refutes the accounting.
#[derive(Debug, Clone, PartialEq)]
pub struct Curve {
    shape: Shape,
}

#[derive(Debug, Clone, PartialEq)]
enum Shape {
    Gaussian(f64),
    /// (epsilon, delta) that hold, each a pair of lines that the curve is above of.
    Profile(Vec<(f64, f64)>),
}

impl Curve {
    /// The curve of mu-Gaussian differential privacy.
    #[must_use]
    pub const fn gaussian(mu: f64) -> Self {
        Self { shape: Shape::Gaussian(mu) }
    }

    /// The curve of (epsilon, delta) pairs that hold together; of one pair, that of (epsilon, delta)-differential
    /// privacy.
    #[must_use]
    pub const fn of_profile(points: Vec<(f64, f64)>) -> Self {
        Self { shape: Shape::Profile(points) }
    }

    /// The certified curve of rounds.
    ///
    /// # Errors
    /// When no accountant can speak about the rounds.
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

    /// The certified curve of folded rounds, each with its noise multiplied by `factor`, under an adjacency.
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

    /// At most the smallest false positive rate of any test with at least this true positive rate.
    ///
    /// Of (epsilon, delta) follows `t <= delta + e^eps f` and `1 - f <= delta + e^eps (1 - t)`.
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
        // NaN is no bound.
        (rate - ROUNDING).max(0.0)
    }

    /// At least how much larger the true than the false positive rate of a test can be.
    #[must_use]
    pub fn advantage(&self) -> f64 {
        match &self.shape {
            Shape::Gaussian(mu) => 2.0 * normal(0.5 * mu) - 1.0,
            Shape::Profile(points) => {
                let bound = |(epsilon, delta): &(f64, f64)| {
                    // Where both lines of a pair meet.
                    (epsilon.exp_m1() + 2.0 * delta) / (epsilon.exp() + 1.0)
                };
                points.iter().map(bound).fold(1.0, f64::min)
            }
        }
    }
}

/// Lines of larger epsilons bound nothing that counts of guesses can show: `e^-20` is below one in 10^8.
const LARGEST_EPSILON: f64 = 20.0;

#[cfg(test)]
mod tests {
    use veilgrad_events::{NoiseMultiplier, SampleRate};

    use super::*;

    #[test]
    fn the_curve_of_one_pair_is_that_of_approximate_privacy() {
        let curve = Curve::of_profile(vec![(1.0, 0.1)]);
        for (t, f) in [(0.1, 0.0), (0.5, 0.4 / 1f64.exp()), (0.95, 0.9 - 0.05 * 1f64.exp())] {
            assert!((curve.false_positive_rate(t) - f).abs() < 1e-9, "{t}");
        }
    }

    /// Poisson samples at rate 1 are no sampling, and a curve of lines is below the closed form, closely.
    #[test]
    fn curves_of_lines_are_just_below_those_they_are_drawn_through() {
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
