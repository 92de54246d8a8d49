//! The privacy profile of a single step.

use super::group::GroupPair;
use super::likelihood::{Direction, Pair};
use super::output::OutputPair;
use crate::{Interval, Sampled, Step};

/// Bounds on delta of a single step at `epsilon >= 0`. For an epoch of random allocation the upper bound is that of a round
/// without sampling, and there is no lower bound.
pub(crate) fn step_delta(step: Step, direction: Direction, epsilon: f64) -> Interval {
    let delta = match step.sampled {
        Sampled::Truncated(sample) => {
            let part = |(weight, step)| weight * step_delta(step, direction, epsilon).upper;
            let sum: f64 = sample.parts(step.z).map(part).sum();
            Interval { lower: 0.0, upper: sum * (1.0 + 1e-15) }
        }
        Sampled::PoissonGroup { rate, records } => {
            let pair = GroupPair::new(rate, records, step.z, direction);
            pair.delta((epsilon - pair.loss_error()).max(0.0))
        }
        Sampled::Allocated(_) => {
            Interval { lower: 0.0, ..Pair::new(step, direction).delta(epsilon) }
        }
        _ => Pair::of_profile(step, direction).delta(epsilon),
    };
    let upper = if delta.upper.is_nan() { f64::INFINITY } else { delta.upper };
    Interval { lower: delta.lower, upper }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The reference value was computed with 50 digits.
    #[test]
    fn replacement_under_huge_noise_is_not_underestimated() {
        let step = Step {
            sampled: Sampled::PoissonReplaced(0.016_357_015_085_041_438),
            z: 763_489_202_175_905.9,
        };
        let delta = step_delta(step, Direction::Remove, 1.350_104_894_148_826_5e-16);
        assert!(delta.lower <= 9.51e-21 && delta.upper >= 9.5e-21, "{delta:?}");
    }
}
