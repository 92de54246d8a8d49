//! Whether a model keeps records apart: what made-up records can show, and what they cannot.

use burn::module::{Flag, Module, ModuleMapper, Param};
use burn::tensor::Device;
use veilgrad_events::Numerics;

use crate::error::ModelError;
use crate::tape::Tape;
use crate::tile::{STEP, Shape};
use crate::{Outcome, Records};

/// Relative differences above this cannot come from rounding.
const ROUNDING: f64 = 1e-3;

/// Takes tiles of made-up examples through the model: some examples replaced by others, all in another
/// order. What comes from an example must stay the same, bit for bit. Where it does also in smaller tiles,
/// these may be used.
///
/// This finds mistakes. It is no proof: private records may take ways that made-up ones do not (`losses /
/// losses.max().clamp_min(10)` couples none whose losses are below 10). What it finds to be exact is so only
/// where records are also apart by construction ([`PerRecord`](crate::PerRecord)), or alone in their tile.
///
/// # Errors
/// When an example changes what comes from another by more than rounding.
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
    // Every other one replaced; all of them replaced but one; the order turned round.
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
        // The last ones of a tile, so that their place differs, too.
        let first = shape.capacity - size;
        let rows = rows(&numbers[first..]);
        rows.is_ok_and(|rows| rows.into_iter().zip(&reference[first..]).all(same))
    });
    shape.partial = exact && partial;
    Ok(if exact { Numerics::Exact } else { Numerics::Unverified })
}

/// Whether what a model makes of single records is a function of them: on backends in memory, without
/// layers that draw random numbers.
pub(crate) fn of_single_records<M: Module>(model: &M, device: &Device) -> Numerics {
    let (_, random) = RandomnessOff::default().apply(model.clone());
    if is_known(device) && !random { Numerics::Exact } else { Numerics::Unverified }
}

/// Backends whose operations do not depend on what ran before: no tuning, no threads of their own.
pub(crate) fn is_known(device: &Device) -> bool {
    let inner = device.clone().inner();
    inner == Device::flex() || is_ndarray(&inner)
}

#[allow(deprecated)] // Burn announces its end; while it is there, it is checked.
fn is_ndarray(device: &Device) -> bool {
    *device == Device::ndarray()
}

fn bits(row: &[f32]) -> impl PartialEq {
    row.iter().map(|value| value.to_bits()).collect::<Vec<u32>>()
}

/// The largest difference beside the largest number.
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

/// Turns randomness of layers off (dropout), and notes that there was some.
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
