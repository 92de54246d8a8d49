//! Tests on made-up records whether a model isolates records.

use burn::module::{Flag, Module, ModuleMapper, Param};
use burn::tensor::Device;
use veilgrad_events::Numerics;

use crate::error::ModelError;
use crate::tape::Tape;
use crate::tile::{STEP, Shape};
use crate::{Outcome, Records};

/// Relative differences above this cannot be rounding errors.
const ROUNDING: f64 = 1e-3;

/// Runs tiles of made-up examples through the model, with some examples replaced and in another order. The
/// loss, metrics and gradients of an example must have the same bits in all of them. If they also have them in
/// smaller tiles, smaller tiles are allowed.
///
/// This finds mistakes. It is not a proof: private records may take branches that made-up ones do not (`losses /
/// losses.max().clamp_min(10)` couples no records whose losses are below 10). So the result counts as exact only
/// if records are also isolated by construction ([`PerRecord`](crate::PerRecord)), or alone in their tile.
///
/// # Errors
/// When an example changes the results of another by more than rounding errors.
pub(crate) fn check<M: Module, R: Records>(
    shape: &mut Shape,
    model: &M,
    records: &R,
    loss: &impl Fn(&M, R::Batch) -> Outcome,
) -> Result<Numerics, ModelError> {
    let (without_randomness, random) = RandomnessOff::default().apply(model.clone());
    let rows = |numbers: &[u64]| -> Result<Vec<Vec<f32>>, ModelError> {
        let examples = numbers.iter().map(|number| records.made_up(*number)).collect();
        let tile = shape.run(&without_randomness, records, loss, examples, &mut Tape::default());
        let tile = tile.ok_or(ModelError::MadeUp)?;
        Ok((0..numbers.len()).map(|row| tile.row(row)).collect())
    };
    let count = shape.capacity as u64;
    let numbers: Vec<u64> = (0..count).collect();
    let reference = rows(&numbers)?;
    // Every second example replaced; all but the first replaced; the order reversed.
    let every_other = numbers.iter().map(|i| if i % 2 == 0 { *i } else { i + count }).collect();
    let but_first = numbers.iter().map(|i| if *i == 0 { 0 } else { i + 2 * count }).collect();
    let turned = numbers.iter().rev().copied().collect();
    let orders: [Vec<u64>; 4] = [numbers.clone(), every_other, but_first, turned];
    let mut exact = is_known(&shape.device) && !random;
    for order in orders {
        for (number, row) in order.iter().zip(rows(&order)?) {
            let Some(reference) = reference.get(*number as usize) else { continue };
            if bits(reference) != bits(&row) {
                exact = false;
                if distance(reference, &row) > ROUNDING {
                    return Err(ModelError::CrossRecord);
                }
            }
        }
    }
    let same = |(row, reference): (Vec<f32>, &Vec<f32>)| bits(&row) == bits(reference);
    let partial = (STEP..shape.capacity).step_by(STEP).all(|size| {
        // The last examples of a tile, so that their rows differ as well.
        let first = shape.capacity - size;
        let rows = rows(&numbers[first..]);
        rows.is_ok_and(|rows| rows.into_iter().zip(&reference[first..]).all(same))
    });
    shape.partial = exact && partial;
    Ok(if exact { Numerics::Exact } else { Numerics::Unverified })
}

/// The numerics of a model that sees one record at a time: exact on known backends, without random layers.
pub(crate) fn of_single_records<M: Module>(model: &M, device: &Device) -> Numerics {
    let (_, random) = RandomnessOff::default().apply(model.clone());
    if is_known(device) && !random { Numerics::Exact } else { Numerics::Unverified }
}

/// Whether a backend is deterministic: its operations do not depend on earlier ones, as with autotuning or
/// its own threads.
pub(crate) fn is_known(device: &Device) -> bool {
    let inner = device.clone().inner();
    inner == Device::flex() || is_ndarray(&inner)
}

#[allow(deprecated)] // Burn deprecates ndarray, but still ships it.
fn is_ndarray(device: &Device) -> bool {
    *device == Device::ndarray()
}

fn bits(row: &[f32]) -> impl PartialEq {
    row.iter().map(|value| value.to_bits()).collect::<Vec<u32>>()
}

/// The largest difference, relative to the largest reference value.
fn distance(reference: &[f32], row: &[f32]) -> f64 {
    let largest = |values: &mut dyn Iterator<Item = f64>| values.fold(0.0, f64::max);
    let scale = largest(&mut reference.iter().map(|x| f64::from(x.abs())));
    let pairs = reference.iter().zip(row);
    let apart = largest(&mut pairs.map(|(a, b)| (f64::from(*a) - f64::from(*b)).abs()));
    if reference.iter().chain(row).all(|x| x.is_finite()) {
        apart / scale.max(f64::MIN_POSITIVE)
    } else {
        f64::INFINITY
    }
}

/// Turns off the randomness of layers (dropout), and records whether there was any.
#[derive(Default)]
struct RandomnessOff {
    random: bool,
}

impl RandomnessOff {
    fn apply<M: Module>(mut self, model: M) -> (M, bool) {
        let model = model.map(&mut self);
        (model, self.random)
    }
}

impl ModuleMapper for RandomnessOff {
    fn map_flag(&mut self, flag: Param<Flag>) -> Param<Flag> {
        self.random |= flag.is_enabled();
        flag.map(|flag| flag.with(false))
    }
}
