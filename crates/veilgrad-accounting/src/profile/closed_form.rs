//! Profiles in closed form: that of Gaussians without sampling, and that of a single sampled step.

use super::certified::DeltaBounds;
use crate::number::{UNIT, upper_tail};
use crate::pair::{Direction, step_delta};
use crate::{Composition, Interval, Sampled, Step};

/// The profile of a composition in one direction, where it has a closed form.
pub(crate) enum ClosedForm {
    /// All steps compose to one Gaussian; the means of neighbours differ by this many standard deviations.
    Gaussian(f64),
    OneStep(Step, Direction),
}

impl ClosedForm {
    pub(crate) fn new(composition: &Composition, direction: Direction) -> Option<Self> {
        match (composition.mu_of_steps(), composition.steps()) {
            (Some(mu), _) => Some(Self::Gaussian(mu)),
            // The profile of an epoch of random allocation has no closed form.
            (None, [(Step { sampled: Sampled::Allocated(_), .. }, 1)]) => None,
            (None, [(step, 1)]) => Some(Self::OneStep(*step, direction)),
            (None, _) => None,
        }
    }
}

impl DeltaBounds for ClosedForm {
    fn delta(&self, epsilon: f64) -> Interval {
        match self {
            Self::Gaussian(mu) => gaussian_delta(*mu, epsilon),
            Self::OneStep(step, direction) => step_delta(*step, *direction, epsilon),
        }
    }
}

/// `P(y > a) - e^eps P(y > b)` with `a = eps/mu - mu/2`, `b = eps/mu + mu/2`: the profile of a
/// Gaussian whose neighbours are mu standard deviations apart.
fn gaussian_delta(mu: f64, epsilon: f64) -> Interval {
    if mu == 0.0 {
        return Interval { lower: 0.0, upper: 0.0 };
    }
    let (a, b) = (epsilon / mu - 0.5 * mu, epsilon / mu + 0.5 * mu);
    let first = upper_tail(a);
    // In logs, because far out the tail underflows and e^eps overflows.
    let second = libm::exp(epsilon + log_tail(b));
    let value = first - second;
    // The relative error of a tail grows with the square of its argument, in which eps/mu and mu/2 may cancel.
    let digits = 64.0 + 4.0 * ((epsilon / mu).abs() + mu) * (a.abs() + b.abs()) + 4.0 * epsilon;
    let error = digits * UNIT * (first + second);
    let upper = (value + error).min(first * (1.0 + digits * UNIT) + f64::MIN_POSITIVE);
    Interval { lower: value - error, upper: if upper.is_nan() { f64::INFINITY } else { upper } }
}

/// The log of `P(y > x)`, also where it underflows.
fn log_tail(x: f64) -> f64 {
    if x < 20.0 {
        return upper_tail(x).ln();
    }
    // Laplace's continued fraction of Mills' ratio, evaluated backwards from its fortieth term: from x = 20 on, its
    // truncation error is far below rounding.
    let mut fraction = x;
    for k in (1..=40).rev() {
        fraction = x + f64::from(k) / fraction;
    }
    -0.5 * x * x - 0.5 * (2.0 * std::f64::consts::PI).ln() - fraction.ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reference values, computed with 40 digits: `Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu)`.
    #[test]
    fn the_profile_of_a_gaussian_is_enclosed() {
        for (mu, epsilon, exact) in [
            (1.0, 1.0, 0.126_936_737_506_643_95),
            (0.1, 0.0, 0.039_877_611_676_744_92),
            (4.0, 10.0, 0.233_698_807_862_186_17),
        ] {
            let found = gaussian_delta(mu, epsilon);
            assert!(found.lower <= exact && exact <= found.upper, "{mu} {epsilon}: {found:?}");
            assert!(found.upper - found.lower < 1e-12, "{mu} {epsilon}: {found:?}");
        }
    }
}
