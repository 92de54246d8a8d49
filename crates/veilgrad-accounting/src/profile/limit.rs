//! The limits of transforms, and bounds that need none.

use crate::cumulant::LEAST_NOISE;
use crate::{Composition, Sampled, Step, Unsupported};

/// Transforms of more rounds than this have too few accurate digits: each round adds a rounding error of a few 1e-16.
const MOST_TRANSFORMED_ROUNDS: f64 = 1e12;
/// If all noise multipliers are larger than this, single losses are about 1e-4, and the RDP bound is within ten percent.
const MOST_NOISE: f64 = 1e4;

/// An upper bound on the probability that a record is ever sampled, which bounds delta at every epsilon; 1 if any round is
/// without sampling.
pub(crate) fn ever_sampled(composition: &Composition) -> f64 {
    let log_never: f64 = composition.steps().iter().map(log_never_sampled).sum();
    if composition.steps().is_empty() {
        return 0.0;
    }
    // Above 0, even if a tiny rate underflows.
    (-libm::expm1(log_never * (1.0 + 1e-12)) * (1.0 + 1e-12)).clamp(f64::MIN_POSITIVE, 1.0)
}

/// The log of the probability that these rounds never sample a record.
fn log_never_sampled((step, count): &(Step, u64)) -> f64 {
    *count as f64 * libm::log1p(-step.rate())
}

/// The composition without its rounds of tiny noise, and an upper bound on the probability that those ever sample a record.
/// Without such a sample they release nothing, so that this probability adds to delta. `None` if no noise is tiny.
pub(crate) fn without_tiny_noise(composition: &Composition) -> Option<(Composition, f64)> {
    let is_tiny = |step: &Step| step.z < LEAST_NOISE && step.sampled != Sampled::Always;
    if !composition.steps().iter().any(|(step, _)| is_tiny(step)) {
        return None;
    }
    let (tiny, rest) = composition.split(is_tiny);
    Some((rest, ever_sampled(&tiny)))
}

/// An error where no transform is tried: its rounding error would exceed the profile, or the RDP bound is as tight.
pub(crate) fn beyond_transforms(composition: &Composition) -> Result<(), Unsupported> {
    if composition.rounds() > MOST_TRANSFORMED_ROUNDS {
        return Err(Unsupported::new(format!(
            "more than {MOST_TRANSFORMED_ROUNDS:e} rounds: their rounding errors add up to more than the profile"
        )));
    }
    if composition.steps().iter().all(|(step, _)| step.z > MOST_NOISE) {
        return Err(Unsupported::new(format!(
            "noise multipliers above {MOST_NOISE:e}: losses are too small for transforms"
        )));
    }
    Ok(())
}
