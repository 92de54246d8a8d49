//! Rounds of preconditioning on two neighbouring datasets with the same noise.

use veilgrad_events::{Adjacency, MemoryLedger, NoiseMultiplier, PublicCount, Run, Sampling};
use veilgrad_mechanism::insecure::seeded_noise;
use veilgrad_nn::{Layer, Loss, Model, Performance, PreconditionPlan, Preconditioning};

use crate::common::SplitMix64;
use crate::data::{Data, Input, Record, Shape};
use crate::pair::{other_plan, squared_norm};

/// A random phase, and the noise of its rounds.
struct Case {
    plan: PreconditionPlan,
    performance: [Performance; 2],
    seed: u64,
}

impl Case {
    fn phase(&self, performance: Performance) -> Preconditioning {
        Preconditioning::new(self.plan, performance).unwrap()
    }

    /// The integers of the next round of a phase after `start`, and the phase after it.
    fn round(
        &self,
        which: usize,
        start: &[u8],
        records: Vec<Record>,
    ) -> Result<(Vec<i64>, Preconditioning), String> {
        let mut phase = self.phase(self.performance[which]);
        phase.restore(start).unwrap();
        let header = phase.header(Adjacency::AddRemove);
        let mut run = Run::open_insecure(MemoryLedger::new(), header, "test").unwrap();
        let event = phase.event().unwrap().ok_or("no round is left")?;
        let data = Data(records);
        // A round that fails leaves the phase as it was, and its sums in no other round.
        let permit = run.reserve(&event, 1).unwrap().next().unwrap();
        let noise = seeded_noise(&other_plan(), self.seed).unwrap();
        let failed = phase.round_insecure(permit, &data, None, noise);
        if failed.is_ok() || phase.to_bytes().unwrap() != start {
            return Err("a round that must fail did not, or changed something".to_owned());
        }
        let permit = run.reserve(&event, 1).unwrap().next().unwrap();
        let noise = seeded_noise(&phase.round_plan().unwrap(), self.seed).unwrap();
        let released = phase.round_insecure(permit, &data, None, noise);
        Ok((released.map_err(|error| format!("a round failed: {error}"))?, phase))
    }
}

fn difference(a: &[i64], b: &[i64]) -> Vec<i64> {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| a.wrapping_sub(*b)).collect()
}

/// Compares a random dataset with its neighbours that have one record more, in every round.
pub(crate) fn compare(seed: u64, largest: &mut [f64; 3]) -> Result<(), String> {
    let random = &mut SplitMix64(seed.wrapping_mul(0x9e6c_63d0_876a_68ad));
    let widest = if random.below(10) == 0 { 80 } else { 12 };
    let width = 1 + random.below(widest);
    let count = 1 + random.below(width.min(6));
    // Mostly a few records; sometimes more than a tile.
    let others = if random.below(20) == 0 { 80 } else { random.below(12) };
    let mut noise = || NoiseMultiplier::new(0.2 + 3.0 * f64::from(random.unit())).unwrap();
    let (mean, directions) = (noise(), noise());
    let records = PublicCount::new((others + 1) as f64).unwrap();
    let (rounds, floor) = (1 + random.below(3), 0.1);
    let plan = PreconditionPlan { width, records, mean, directions, count, rounds, floor };
    let mut performance = || Performance { threads: 1 + random.below(3), tile: 0 };
    let case = Case { plan, performance: [performance(), performance()], seed };

    let model = Model::new(&[width], [Layer::linear(2)], 1).unwrap();
    let shape = Shape::new(&model, vec![Input::Number; width], Loss::SoftmaxCrossEntropy);
    let mut all: Vec<Record> = (0..others).map(|_| vec![shape.example(random)]).collect();
    if !all.is_empty() && random.below(3) == 0 {
        let place = random.below(others);
        all[place] = vec![shape.unusable(random)];
    }
    let mut example = match random.below(4) {
        0 => shape.extreme(random),
        1 => shape.unusable(random),
        _ => shape.example(random),
    };
    if random.below(4) == 0 {
        example.shorten(random.below(width));
    }
    let (has_input, is_zero) = (example.has_input(), example.is_zero());
    // Copies of an example that are averaged in training: the phase sees the first.
    let record = vec![example; 1 + random.below(2)];
    let place = random.below(others + 1);
    let mut with = all.clone();
    with.insert(place, record.clone());

    let mut start = case.phase(case.performance[0]).to_bytes().unwrap();
    for number in 0..=rounds {
        let mut begun = case.phase(case.performance[0]);
        begun.restore(&start).unwrap();
        let (event, plan) = (begun.event().unwrap().unwrap(), begun.round_plan().unwrap());
        let stated = if number == 0 { mean } else { directions };
        let [query] = event.queries() else { return Err("not one query".to_owned()) };
        let charged = query.noise().get() / query.clip().get();
        if (charged - stated.get()).abs() > 1e-6 * charged || event.sampling() != (Sampling::All {})
        {
            return Err(format!("round {number} has {charged} times its clip norm as noise"));
        }
        let (without, after) = case.round(0, &start, all.clone())?;
        let (beside, _) = case.round(1, &start, with.clone())?;
        let (nothing, _) = case.round(1, &start, Vec::new())?;
        let (alone, _) = case.round(0, &start, vec![record.clone()])?;
        let moved = difference(&beside, &without);
        if moved != difference(&alone, &nothing) {
            return Err("a record contributes something else beside other records".to_owned());
        }
        if case.round(1, &start, all.clone())?.0 != without {
            return Err("threads change a sum".to_owned());
        }
        let s_int = plan.group_names().next().and_then(|name| plan.grid(name)).unwrap().s_int();
        let squared = squared_norm(&moved);
        let ratio = (squared as f64).sqrt() / f64::from(s_int);
        if squared > u128::from(s_int).pow(2) {
            return Err(format!("round {number}: {ratio} times S"));
        }
        if !has_input && squared != 0 {
            return Err("a record without a finite input contributes".to_owned());
        }
        // Inputs have norm 1 in the first round.
        if number == 0 && has_input && !is_zero && ratio < 0.99 {
            return Err(format!("the mean has {ratio} of its sensitivity"));
        }
        let largest = &mut largest[number.min(2)];
        *largest = largest.max(ratio);
        start = after.to_bytes().unwrap();
    }
    Ok(())
}
