//! Where transforms end: rounds that are bounded without one.

use crate::cumulant::LEAST_NOISE;
use crate::{Composition, Sampled, Step, Unsupported};

/// Rounding errors of a few 1e-16 per round add up: beyond this many rounds transforms have too few digits left.
const MOST_TRANSFORMED_ROUNDS: f64 = 1e12;
/// If all noise multipliers are larger, single losses are about 1e-4, and Rényi's bound is within ten percent.
const MOST_NOISE: f64 = 1e4;

/// At least the probability that a record is ever sampled, which bounds delta at every epsilon; 1 with rounds that
/// need no sample.
pub(crate) fn ever_sampled(composition: &Composition) -> f64 {
    let log_never: f64 = composition.steps().iter().map(log_never_sampled).sum();
    if composition.steps().is_empty() {
        return 0.0;
    }
    // Not 0, even if a tiny rate underflows.
    (-libm::expm1(log_never * (1.0 + 1e-12)) * (1.0 + 1e-12)).clamp(f64::MIN_POSITIVE, 1.0)
}

/// The log of the probability that these rounds never sample a record.
fn log_never_sampled((step, count): &(Step, u64)) -> f64 {
    *count as f64 * libm::log1p(-step.rate())
}

/// The rounds whose noise is not tiny, and at least the probability that the others ever sample a record: if they do
/// not, they cost nothing, so that this probability adds to delta. `None` if there are no others.
pub(crate) fn without_tiny_noise(composition: &Composition) -> Option<(Composition, f64)> {
    let is_tiny = |step: &Step| step.z < LEAST_NOISE && step.sampled != Sampled::Always;
    if !composition.steps().iter().any(|(step, _)| is_tiny(step)) {
        return None;
    }
    let (tiny, rest) = composition.split(is_tiny);
    Some((rest, ever_sampled(&tiny)))
}

/// An error where transforms are not worth a try: rounding would exceed the profile, or Rényi's bound is as tight.
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
