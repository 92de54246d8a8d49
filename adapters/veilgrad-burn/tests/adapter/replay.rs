//! Compares rounds on neighbouring datasets with the same noise. The contribution of a record to the released integers has
//! at most the certified sensitivity. It is the same alone and beside other records, for any number of threads and tile size.
//!
//! One seed determines a pair. `VEILGRAD_REPLAY_PAIRS=1000 cargo test --test adapter replay -- --nocapture` compares
//! that many; `VEILGRAD_REPLAY_SEED` is the first seed.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use burn::module::Module;
use burn::tensor::Device;
use veilgrad_burn::{Outcome, PerRecordModel, Records, Trainer, TrainingPlan};
use veilgrad_events::{
    Adjacency, BudgetShare, JointScale, MemoryLedger, NoiseMultiplier, Numerics, PublicCount, Run,
};
use veilgrad_mechanism::insecure::{released_integers, seeded_noise};
use veilgrad_mechanism::{AllRecords, Allocation, Group, Metric, RoundPlan, Structure};
use veilgrad_nn::{Clipping, Contribution, Loss, Performance, Unit};

use crate::common::{
    Bag, Classify, Convs, Images, Mlp, Points, Sequence, Text, Tied, backends, clip, example,
    judge, numbers,
};

/// Integers below a bound, from a seed.
struct Words(u64);

impl Words {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(1);
        let unit = (numbers(self.0 ^ 0x5bd1_e995, 3)[2] + 1.0) / 2.0;
        (f64::from(unit) * bound as f64) as usize % bound.max(1)
    }
}

/// The integers of each group, and the sensitivity of each.
type Integers = (Vec<Vec<i64>>, Vec<u32>);

/// Runs a round that fails after its records were added, and then one that succeeds.
fn released<M, R, F>(mut trainer: Trainer<M, R, F>, model: &M, seed: u64) -> Integers
where
    M: Module + Sync,
    R: Records + Sync,
    F: Fn(&M, R::Batch) -> Outcome + Sync,
{
    assert_eq!(trainer.numerics(), Numerics::Exact);
    let plan = trainer.plan().clone();
    let header = trainer.header(Adjacency::AddRemove);
    let mut run = Run::open_insecure(MemoryLedger::new(), header, "test").unwrap();
    let mut permits = run.reserve(&trainer.event(&AllRecords).unwrap(), 2).unwrap();
    let foreign = seeded_noise(&other_plan(), seed).unwrap();
    let permit = permits.next().unwrap();
    trainer.round_insecure(model, permit, &mut AllRecords, foreign).unwrap_err();
    let noise = seeded_noise(&plan, seed).unwrap();
    let permit = permits.next().unwrap();
    trainer.round_insecure(model, permit, &mut AllRecords, noise).unwrap();
    let sensitivities = plan.group_names().map(|name| plan.grid(name).unwrap().s_int());
    (released_integers(trainer.estimates().unwrap()).to_vec(), sensitivities.collect())
}

/// A plan that differs from all others.
fn other_plan() -> RoundPlan {
    let group = Group::new("other", ["other"], clip(1.0));
    let noise = Allocation::Proportional(NoiseMultiplier::new(1.0).unwrap());
    RoundPlan::new(Structure::new([("other", 7)]).unwrap(), vec![group], noise).unwrap()
}

fn difference(a: &Integers, b: &Integers) -> Vec<Vec<i64>> {
    let groups = a.0.iter().zip(&b.0);
    groups.map(|(a, b)| a.iter().zip(b).map(|(a, b)| a.wrapping_sub(*b)).collect()).collect()
}

/// A row that must contribute zero. (Models written with tensors convert indices to integers, and NaN to 0, before any
/// layer sees them: such a row is valid.)
fn spoil(row: &mut (Vec<f32>, i64), are_entries: bool, words: &mut Words) {
    let place = words.below(row.0.len());
    match words.below(if are_entries { 3 } else { 5 }) {
        0 => row.1 = 99,
        1 => row.1 = -1,
        2 => drop(row.0.pop()),
        3 => row.0.fill(f32::NAN),
        _ => row.0[place] = f32::INFINITY,
    }
}

/// Two neighbouring datasets, and the record in which they differ.
struct Pair {
    seed: u64,
    kind: String,
    plan: String,
    /// Whether its gradient is far above the clip norm; there is one group.
    is_long: bool,
    is_unusable: bool,
    before: Points,
    after: Points,
    before_alone: Points,
    after_alone: Points,
    nothing: Points,
}

impl Pair {
    fn new(
        seed: u64,
        kind: String,
        plan: &TrainingPlan,
        points: Points,
        is_long: bool,
        words: &mut Words,
    ) -> Self {
        let (size, are_entries) = (points.examples, points.entries.is_some());
        let (others, record) = points.rows.split_at(points.rows.len() - size);
        let with = |rows: Vec<(Vec<f32>, i64)>| Points { rows, ..points.clone() };
        let mut blank = |rows: &[(Vec<f32>, i64)]| {
            let mut rows = rows.to_vec();
            rows.iter_mut().for_each(|row| spoil(row, are_entries, words));
            rows
        };
        let (blank_others, blank_record) = (blank(others), blank(record));
        let mut after = record.to_vec();
        let what = ["ordinary", "huge", "unusable", "partly unusable"][words.below(4)];
        match what {
            "huge" => {
                let factor = [1e2, 1e10, 1e19, 1e30, f32::MAX][words.below(5)];
                let large = |x: &mut f32| *x = (*x * factor).clamp(f32::MIN, f32::MAX);
                // Indices cannot be huge.
                after.iter_mut().flat_map(|row| &mut row.0).for_each(large);
            }
            "unusable" => after = blank_record.clone(),
            "partly unusable" => spoil(&mut after[0], are_entries, words),
            _ => {}
        }
        // The record replaces another one, or is added.
        let other = if words.below(2) == 0 { record.to_vec() } else { Vec::new() };
        let zero = if other.is_empty() { Vec::new() } else { blank_record };
        Self {
            seed,
            kind: format!("{kind}, {what}"),
            plan: format!("{plan:?}"),
            is_long: is_long && what == "ordinary",
            is_unusable: what == "unusable",
            before: with([others, &other].concat()),
            after: with([others, &after].concat()),
            before_alone: with([blank_others.as_slice(), &other].concat()),
            after_alone: with([blank_others.as_slice(), &after].concat()),
            nothing: with([blank_others.as_slice(), &zero].concat()),
        }
    }

    /// Compares them; `sums` runs a round on some records. Returns the record's largest contribution to a group, as a
    /// fraction of the sensitivity.
    fn check(&self, sums: impl Fn(&Points, Performance) -> Integers, words: &mut Words) -> f64 {
        let mut performance =
            || Performance { threads: 1 + words.below(3), tile: [0, 1, 3, 8][words.below(4)] };
        let mut sums = |points: &Points| sums(points, performance());
        let what = format!("VEILGRAD_REPLAY_SEED={}: {}, {}", self.seed, self.kind, self.plan);
        let (before, after) = (sums(&self.before), sums(&self.after));
        let (before_alone, after_alone) = (sums(&self.before_alone), sums(&self.after_alone));
        let nothing = sums(&self.nothing);
        let moved = difference(&after, &before);
        assert_eq!(
            difference(&after_alone, &before_alone),
            moved,
            "{what}: not alike among others"
        );
        assert_eq!(sums(&self.after), after, "{what}: threads or tiles change a sum");
        let replaced = self.before.rows.len() == self.after.rows.len();
        let mut largest = 0.0;
        for (contribution, times) in [
            (difference(&before_alone, &nothing), 1),
            (moved, if replaced { 2 } else { 1 }),
            (difference(&after_alone, &nothing), 1u32),
        ] {
            largest = 0.0;
            for (values, s_int) in contribution.iter().zip(&nothing.1) {
                let square = |value: &i64| u128::from(value.unsigned_abs()).pow(2);
                let squared: u128 = values.iter().map(square).sum();
                assert!(squared <= u128::from(times * s_int).pow(2), "{what}: beyond S");
                largest = f64::max(largest, (squared as f64).sqrt() / f64::from(*s_int));
            }
        }
        assert!(!self.is_unusable || largest == 0.0, "{what}: contributes {largest}");
        assert!(!self.is_long || largest >= 0.99, "{what}: has {largest} of S");
        largest
    }
}

fn plan(words: &mut Words, statistics: bool) -> (TrainingPlan, bool) {
    // Ordinary gradients are far above the smallest clip norm.
    let norm = [1e-4, 1e-2, 1.0, 100.0][words.below(4)];
    let scale = JointScale::new([0.01, 1.0, 30.0][words.below(3)]).unwrap();
    let joint = || Group::joint("gradient", [("*", scale)], clip(norm));
    let (clipping, is_long) = match words.below(5) {
        0 => (Clipping::Flat(clip(norm)), norm < 1e-3),
        1 => (Clipping::PerLayer(clip(norm)), false),
        2 => (Clipping::DimensionAware(clip(norm)), false),
        3 => (Clipping::Groups(vec![joint()]), norm < 1e-3 && scale.get() <= 1.0),
        _ => (Clipping::Groups(vec![joint().normalised()]), true),
    };
    let noise = NoiseMultiplier::new([0.5, 1.0, 4.0][words.below(3)]).unwrap();
    let plan = TrainingPlan::new(clipping, noise, PublicCount::new(8.0).unwrap());
    let share = BudgetShare::new(0.1).unwrap();
    (if statistics { plan.statistics(clip(norm), share) } else { plan }, is_long)
}

/// A model whose types isolate records, in tiles.
fn typed<M: PerRecordModel + Classify>(
    seed: u64,
    name: &str,
    model: &M,
    points: Points,
    statistics: bool,
) -> (String, f64) {
    let words = &mut Words(1000 * seed);
    let (plan, is_long) = plan(words, statistics);
    let share = BudgetShare::new(0.05).unwrap();
    let plan = match words.below(2) {
        0 => plan.metric(Metric::accuracy().unwrap(), share),
        _ => plan,
    };
    let kind = format!("{name}, by its types");
    let pair = Pair::new(seed, kind, &plan, points, is_long, words);
    let sums = |points: &Points, performance: Performance| {
        let (plan, loss) = (plan.clone(), Loss::SoftmaxCrossEntropy);
        let trainer = Trainer::per_record_with(model, points, plan, loss, example, performance);
        released(trainer.unwrap(), model, seed)
    };
    let largest = pair.check(sums, words);
    (pair.kind, largest)
}

/// Any model, one record at a time: an example, a microbatch, or a user.
fn alone<M: Classify>(
    seed: u64,
    name: &str,
    model: &M,
    mut points: Points,
    is_recorded: bool,
) -> (String, f64) {
    let words = &mut Words(1000 * seed);
    let (plan, is_long) = plan(words, false);
    let examples = NonZeroU32::new(1 + words.below(3) as u32).unwrap();
    let units = [
        ("examples", Unit::Example),
        ("microbatches", Unit::Microbatch { examples }),
        ("users", Unit::User { examples, contribution: Contribution::Average }),
    ];
    let (unit_name, unit) = if is_recorded { units[0] } else { units[words.below(3)] };
    if unit != Unit::Example {
        points.examples = examples.get() as usize;
        points.rows.truncate(points.rows.len() / points.examples * points.examples);
    }
    let kind = format!("{name}, {unit_name} alone");
    let pair = Pair::new(seed, kind, &plan, points, is_long, words);
    let sums = |points: &Points, performance: Performance| {
        let plan = plan.clone().unit(unit);
        // With tiles of 1, private layers record gradients; otherwise Burn's autodiff computes them.
        let (plan, tile) = if is_recorded { (plan, 1) } else { (plan.materialised(), 0) };
        let performance = Performance { tile, ..performance };
        released(Trainer::with(model, points, plan, judge, performance).unwrap(), model, seed)
    };
    let largest = pair.check(sums, words);
    (pair.kind, largest)
}

/// Compares the pair of a seed: its description, and the record's largest contribution as a fraction of the sensitivity.
fn compare(seed: u64) -> (String, f64) {
    let words = &mut Words(seed);
    let device: Device = backends()[words.below(2)].1.clone();
    let count = 4 + words.below(9);
    let rows = Points::new(count, 12, None);
    let images = Points::new(count, 36, None);
    let entries = Points::new(count, 6, Some(9));
    match words.below(12) {
        0 => typed(seed, "mlp", &Mlp::new(&device), rows, false),
        1 => typed(seed, "sequence", &Sequence::new(&device), rows, false),
        2 => typed(seed, "embedding", &Bag::new(&device), entries, false),
        3 => typed(seed, "convolutions", &Convs::new(&device), images, true),
        4 => alone(seed, "mlp", &Mlp::new(&device), rows, true),
        5 => alone(seed, "attention", &Text::new(&device), entries, true),
        6 => alone(seed, "images", &Images::new(&device), images, true),
        7 => alone(seed, "mlp", &Mlp::new(&device), rows, false),
        8 => alone(seed, "attention", &Text::new(&device), entries, false),
        9 => alone(seed, "images", &Images::new(&device), images, false),
        10 => typed(seed, "one table, twice", &Tied::new(&device), entries, false),
        _ => typed(seed, "transformer", &Text::new(&device), entries, false),
    }
}

#[test]
fn neighbours_differ_by_at_most_the_sensitivity_in_every_group() {
    let variable =
        |name: &str, default| std::env::var(name).map_or(default, |text| text.parse().unwrap());
    let (pairs, first) =
        (variable("VEILGRAD_REPLAY_PAIRS", 40u64), variable("VEILGRAD_REPLAY_SEED", 1));
    let mut tally: BTreeMap<String, (u64, f64)> = BTreeMap::new();
    for (kind, largest) in (first..first + pairs).map(compare) {
        let (count, most) = tally.entry(kind).or_default();
        (*count, *most) = (*count + 1, most.max(largest));
    }
    eprintln!("{pairs} pairs from seed {first}: largest contribution / S_int");
    for (kind, (count, largest)) in &tally {
        eprintln!("{kind:<48}{count:>6}  {largest:.9}");
    }
    // The bound is tight: records reach it.
    let reached = tally.values().filter(|(_, largest)| *largest >= 0.99).count();
    assert!(pairs < 40 || 4 * reached >= tally.len(), "{reached} of {}", tally.len());
}
