//! The cumulant of thousands of distinct steps, one by one.

use super::jet::Jet;
use super::series::{Scratch, StepSeries};
use super::{Cumulant, LEAST_NOISE};
use crate::Composition;
use crate::number::UNIT;
use crate::pair::Direction;

/// At least `K(tilt)` of all steps, each to the digits of its moment, and about its derivatives: one pass over them.
pub(crate) fn cumulant_step_by_step(
    composition: &Composition,
    direction: Direction,
    tilt: f64,
) -> Jet {
    let mut scratch = Scratch::default();
    let (mut sum, mut size) = (Jet::default(), 0.0);
    for (step, count) in composition.steps() {
        let jet = match step.z >= LEAST_NOISE {
            true => StepSeries::jet(*step, direction, tilt, &mut scratch),
            false => None,
        };
        let jet = match jet {
            Some(jet) => jet,
            None => Cumulant::new(&Composition::of_step(*step), direction).at(tilt),
        };
        sum.add_scaled(*count as f64, jet);
        size += *count as f64 * jet.value.abs();
    }
    sum.value += size * UNIT * (4.0 + composition.steps().len() as f64);
    if sum.value.is_nan() {
        sum.value = f64::INFINITY;
    }
    sum
}
