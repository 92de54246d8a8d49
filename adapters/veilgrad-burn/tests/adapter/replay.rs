//! Compares rounds on neighbouring datasets with the same noise. The contribution of a record to the released integers has
//! at most the certified sensitivity. It is the same alone and beside other records, for any number of threads and tile size.
//!
//! One seed determines a pair. `VEILGRAD_REPLAY_PAIRS=1000 cargo test --test adapter replay -- --nocapture` compares
//! that many; `VEILGRAD_REPLAY_SEED` is the first seed.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use burn::module::Module;
use burn::tensor::Device;
use veilgrad_burn::{Outcome, PerRecordModel, Records, Trainer, TrainingPlan, cross_entropy};
use veilgrad_events::{
    Adjacency, BudgetShare, ClipNorm, JointScale, MemoryLedger, NoiseMultiplier, Numerics,
    PublicCount, RoundPermit, Run, SampleRate, Sampling, TruncatedPoisson, WeightBound,
};
use veilgrad_mechanism::insecure::{released_integers, seeded_noise};
use veilgrad_mechanism::{
    Allocation, Group, Metric, Quantile, RoundPlan, SampleError, Sampler, Selection, Structure,
};
use veilgrad_nn::{Clipping, Contribution, Loss, Performance, Unit};

use crate::common::{
    Bag, Batch, Classify, Convs, Images, Mlp, Points, Sequence, Text, Tied, backends, clip,
    example, judge, numbers,
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

/// A sampler that returns a given sample.
#[derive(Clone)]
struct Chosen(Sampling, Vec<u64>);

impl Sampler for Chosen {
    fn policy(&self) -> Sampling {
        self.0
    }

    fn select(&mut self, _: &RoundPermit, records: u64) -> Result<Selection, SampleError> {
        Ok(match self.0 {
            Sampling::All {} => Selection::all(records),
            _ => Selection::ids(self.1.clone()),
        })
    }
}

/// The integers of each group.
type Integers = Vec<Vec<i64>>;

/// What a round released, and the name and sensitivity of every group.
#[derive(PartialEq, Debug)]
struct Sums {
    integers: Integers,
    groups: Vec<(String, u32)>,
}

/// Runs a round that fails after its records were added, and then one that succeeds.
fn released<M, R, F>(
    mut trainer: Trainer<M, R, F>,
    model: &M,
    seed: u64,
    mut sampler: Chosen,
) -> Sums
where
    M: Module + Sync,
    R: Records + Sync,
    F: Fn(&M, R::Batch) -> Outcome + Sync,
{
    assert_eq!(trainer.numerics(), Numerics::Exact);
    let plan = trainer.plan().clone();
    let adjacency = match sampler.0.records() {
        None => Adjacency::AddRemove,
        Some(_) => Adjacency::ReplaceOne,
    };
    let header = trainer.header(adjacency);
    let mut run = Run::open_insecure(MemoryLedger::new(), header, "test").unwrap();
    let mut permits = run.reserve(&trainer.event(&sampler).unwrap(), 2).unwrap();
    let foreign = seeded_noise(&other_plan(), seed).unwrap();
    let permit = permits.next().unwrap();
    trainer.round_insecure(model, permit, &mut sampler, foreign).unwrap_err();
    let noise = seeded_noise(&plan, seed).unwrap();
    let permit = permits.next().unwrap();
    trainer.round_insecure(model, permit, &mut sampler, noise).unwrap();
    let group = |name: &str| (name.to_owned(), plan.grid(name).unwrap().s_int());
    Sums {
        integers: released_integers(trainer.estimates().unwrap()).to_vec(),
        groups: plan.group_names().map(group).collect(),
    }
}

/// A plan that differs from all others.
fn other_plan() -> RoundPlan {
    let group = Group::new("other", ["other"], clip(1.0));
    let noise = Allocation::Proportional(NoiseMultiplier::new(1.0).unwrap());
    RoundPlan::new(Structure::new([("other", 7)]).unwrap(), vec![group], noise).unwrap()
}

fn difference(a: &Sums, b: &Sums) -> Integers {
    let groups = a.integers.iter().zip(&b.integers);
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
    /// Groups of which its gradient has all of the sensitivity.
    long: Vec<String>,
    is_unusable: bool,
    sampling: Sampling,
    /// Which of the other records are in the sample; the record itself always is.
    sampled: Vec<bool>,
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
        (plan, long): (&TrainingPlan, Vec<String>),
        points: Points,
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
        let sampled = (0..others.len() / size).map(|_| words.below(4) > 0).collect::<Vec<_>>();
        let rate = SampleRate::new(0.25).unwrap();
        let size = 1 + sampled.iter().filter(|is_sampled| **is_sampled).count();
        let truncated = TruncatedPoisson::new(rate, sampled.len() as u64 + 1, size as u64);
        let sampling = match words.below(3) {
            0 => Sampling::All {},
            // The number of records is public, and so the record replaces another one.
            1 if !other.is_empty() && truncated.is_ok() => {
                Sampling::TruncatedPoisson(truncated.unwrap())
            }
            _ => Sampling::Poisson { rate },
        };
        Self {
            seed,
            kind: format!("{kind}, {what}"),
            plan: format!("{plan:?}"),
            long: if what == "ordinary" { long } else { Vec::new() },
            is_unusable: what == "unusable",
            sampling,
            sampled,
            before: with([others, &other].concat()),
            after: with([others, &after].concat()),
            before_alone: with([blank_others.as_slice(), &other].concat()),
            after_alone: with([blank_others.as_slice(), &after].concat()),
            nothing: with([blank_others.as_slice(), &zero].concat()),
        }
    }

    /// The sample of a dataset that begins with the other records.
    fn sample(&self, points: &Points) -> Chosen {
        let all = (points.rows.len() / points.examples) as u64;
        let is_sampled = |id: &u64| self.sampled.get(*id as usize).is_none_or(|sampled| *sampled);
        Chosen(self.sampling, (0..all).filter(is_sampled).collect())
    }

    /// Compares them; `sums` runs a round on a sample of some records. Returns the record's contribution to each group, as
    /// a fraction of the sensitivity.
    fn check(
        &self,
        sums: impl Fn(&Points, Chosen, Performance) -> Sums,
        words: &mut Words,
    ) -> Vec<(String, f64)> {
        let mut performance =
            || Performance { threads: 1 + words.below(3), tile: [0, 1, 3, 8][words.below(4)] };
        let mut sums = |points: &Points| sums(points, self.sample(points), performance());
        let what = format!(
            "VEILGRAD_REPLAY_SEED={}: {}, {:?}, {}",
            self.seed, self.kind, self.sampling, self.plan
        );
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
        let mut reached = Vec::new();
        for (contribution, times) in [
            (difference(&before_alone, &nothing), 1),
            (moved, if replaced { 2 } else { 1 }),
            (difference(&after_alone, &nothing), 1u32),
        ] {
            reached.clear();
            for (values, (group, s_int)) in contribution.iter().zip(&nothing.groups) {
                let square = |value: &i64| u128::from(value.unsigned_abs()).pow(2);
                let squared: u128 = values.iter().map(square).sum();
                assert!(squared <= u128::from(times * s_int).pow(2), "{what}: beyond S in {group}");
                reached.push((group.clone(), (squared as f64).sqrt() / f64::from(*s_int)));
            }
        }
        for (group, ratio) in &reached {
            assert!(!self.is_unusable || *ratio == 0.0, "{what}: contributes {ratio} to {group}");
            assert!(
                !self.long.contains(group) || *ratio >= 0.99,
                "{what}: {ratio} of S in {group}"
            );
        }
        reached
    }
}

/// The names of the parameters that a model trains.
fn parameter_names<M: Classify>(model: &M, points: Points, statistics: bool) -> Vec<String> {
    let plan = TrainingPlan::new(
        Clipping::PerLayer(clip(1.0)),
        NoiseMultiplier::new(1.0).unwrap(),
        PublicCount::new(1.0).unwrap(),
    );
    let plan = if statistics { plan.statistics(clip(1.0), share()) } else { plan };
    let trainer = Trainer::with(model, points, plan, judge, Performance { threads: 1, tile: 1 });
    let plan = trainer.unwrap().plan().clone();
    let names = plan.group_names().filter(|name| *name != "statistics");
    names.map(str::to_owned).collect()
}

fn share() -> BudgetShare {
    BudgetShare::new(0.05).unwrap()
}

/// Two groups of parameters, of random kinds.
fn two_groups(words: &mut Words, names: &[String], norm: f64) -> Vec<Group> {
    let is_first: Vec<bool> = names.iter().map(|_| words.below(2) == 0).collect();
    let scale = JointScale::new([0.01, 1.0, 30.0][words.below(3)]).unwrap();
    let bound = WeightBound::new([0.5, 1.0][words.below(2)]).unwrap();
    // Of different kinds, because that is their name.
    let mut kind = words.below(4);
    let mut group = |which: bool| {
        kind = (kind + 1) % 4;
        let names = names.iter().zip(&is_first).filter(|(_, is_first)| **is_first == which);
        let names: Vec<&str> = names.map(|(name, _)| name.as_str()).collect();
        if names.is_empty() {
            return None;
        }
        let scales = names.iter().map(|name| (*name, scale)).collect::<Vec<_>>();
        Some(match kind {
            0 => Group::new("separate", names, clip(norm)),
            1 => Group::joint("joint", scales, clip(norm)),
            2 => Group::joint("normalised", scales, clip(norm)).normalised(),
            _ => Group::new("weighted", names, clip(norm)).weighted(bound),
        })
    };
    let first = group(true);
    first.into_iter().chain(group(false)).collect()
}

/// A random plan with some of these metrics, and the groups of which an ordinary gradient has all of the sensitivity.
fn plan(
    words: &mut Words,
    names: &[String],
    statistics: bool,
    metrics: Vec<Metric>,
) -> (TrainingPlan, Vec<String>) {
    // Ordinary gradients are far above the smallest clip norm.
    let norm = [1e-4, 1e-2, 1.0, 100.0][words.below(4)];
    let scale = JointScale::new([0.01, 1.0, 30.0][words.below(3)]).unwrap();
    let joint = || Group::joint("gradient", [("*", scale)], clip(norm));
    let (clipping, is_long) = match words.below(7) {
        0 => (Clipping::Flat(clip(norm)), norm < 1e-3),
        1 => (Clipping::PerLayer(clip(norm)), false),
        2 => (Clipping::DimensionAware(clip(norm)), false),
        3 => (Clipping::Groups(vec![joint()]), norm < 1e-3 && scale.get() <= 1.0),
        4 => (Clipping::Groups(vec![joint().normalised()]), true),
        _ => (Clipping::Groups(two_groups(words, names, norm)), false),
    };
    let long = if is_long { vec!["gradient".to_owned()] } else { Vec::new() };
    let groups: Vec<String> = match &clipping {
        Clipping::Groups(groups) => groups.iter().map(|group| group.name().to_owned()).collect(),
        Clipping::Flat(_) => vec!["gradient".to_owned()],
        _ => names.to_vec(),
    };
    let noise = NoiseMultiplier::new([0.5, 1.0, 4.0][words.below(3)]).unwrap();
    let expected = PublicCount::new(8.0).unwrap();
    let mut plan = TrainingPlan::new(clipping, noise, expected);
    if statistics {
        plan = plan.statistics(clip(norm), share());
    }
    for metric in metrics.into_iter().filter(|_| words.below(2) == 0).collect::<Vec<_>>() {
        let (name, length) = metric.vector();
        plan = plan.metric(metric, share());
        if length == 1 && words.below(2) == 0 {
            let quantile = Quantile::of_value(&name, 0.5, expected, 0.1).unwrap();
            plan =
                plan.group(Group::quantile(format!("quantile of {name}"), quantile).share(share()));
        }
    }
    if words.below(2) == 0 {
        let floor = ClipNorm::new(1e-12).unwrap();
        let group = &groups[words.below(groups.len())];
        let quantile = Quantile::of_norm(group, 0.5, expected, floor).unwrap();
        plan = plan.group(Group::quantile("quantile of norm", quantile).share(share()));
    }
    if words.below(2) == 0 {
        let bound = WeightBound::new([1.0, 2.0][words.below(2)]).unwrap();
        plan = plan.group(Group::weight("weights", bound).share(share()));
    }
    (plan, long)
}

/// A pair's description, and the record's contribution to each group.
type Reached = (String, Vec<(String, f64)>);

/// A model whose types isolate records, in tiles.
fn typed<M: PerRecordModel + Classify>(
    seed: u64,
    name: &str,
    model: &M,
    points: Points,
    statistics: bool,
) -> Reached {
    let words = &mut Words(1000 * seed);
    let names = parameter_names(model, points.clone(), statistics);
    let metrics = vec![Metric::accuracy().unwrap(), Metric::loss(2.0).unwrap()];
    let (plan, long) = plan(words, &names, statistics, metrics);
    let kind = format!("{name}, by its types");
    let pair = Pair::new(seed, kind, (&plan, long), points, words);
    let sums = |points: &Points, sampler: Chosen, performance: Performance| {
        let (plan, loss) = (plan.clone(), Loss::SoftmaxCrossEntropy);
        let trainer = Trainer::per_record_with(model, points, plan, loss, example, performance);
        released(trainer.unwrap(), model, seed, sampler)
    };
    let reached = pair.check(sums, words);
    (pair.kind, reached)
}

/// The loss of each example, and every metric.
fn judge_all<M: Classify>(model: &M, batch: Batch) -> Outcome {
    let Batch { x, y } = batch;
    let logits = model.logits(x);
    let right = logits.clone().argmax(1).squeeze_dim::<1>(1).equal(y.clone()).float();
    let losses = cross_entropy(logits, y.clone());
    Outcome::new(losses.clone())
        .metric("loss", losses)
        .metric("accuracy", right)
        .metric("classes", y.float())
}

/// Any model, one record at a time: an example, a microbatch, or a user.
fn alone<M: Classify>(
    seed: u64,
    name: &str,
    model: &M,
    mut points: Points,
    is_recorded: bool,
) -> Reached {
    let words = &mut Words(1000 * seed);
    let names = parameter_names(model, points.clone(), false);
    let metrics = vec![
        Metric::accuracy().unwrap(),
        Metric::loss(2.0).unwrap(),
        Metric::class_counts("classes", 3),
    ];
    let (plan, long) = plan(words, &names, false, metrics);
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
    let pair = Pair::new(seed, kind, (&plan, long), points, words);
    let sums = |points: &Points, sampler: Chosen, performance: Performance| {
        let plan = plan.clone().unit(unit);
        // With tiles of 1, private layers record gradients; otherwise Burn's autodiff computes them.
        let (plan, tile) = if is_recorded { (plan, 1) } else { (plan.materialised(), 0) };
        let performance = Performance { tile, ..performance };
        let trainer = Trainer::with(model, points, plan, judge_all, performance).unwrap();
        released(trainer, model, seed, sampler)
    };
    let reached = pair.check(sums, words);
    (pair.kind, reached)
}

/// Compares the pair of a seed: its description, and the record's contribution to each group as a fraction of the
/// sensitivity.
fn compare(seed: u64) -> Reached {
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
    let mut add = |kind: String, ratio: f64| {
        let (count, most) = tally.entry(kind).or_default();
        (*count, *most) = (*count + 1, most.max(ratio));
    };
    for (kind, groups) in (first..first + pairs).map(compare) {
        // The others reach their sensitivity with any model.
        let others = ["accuracy", "loss", "classes", "statistics", "weights"];
        let is_gradient = |name: &str| !others.contains(&name) && !name.starts_with("quantile of ");
        let gradients = groups.iter().filter(|(name, _)| is_gradient(name));
        add(kind, gradients.map(|(_, ratio)| *ratio).fold(0.0, f64::max));
        for (name, ratio) in groups {
            // Those of single layers have the names of parameters.
            let name = if name.contains('.') { "per layer".to_owned() } else { name };
            add(format!("group: {name}"), ratio);
        }
    }
    eprintln!("{pairs} pairs from seed {first}: largest contribution / S_int");
    for (kind, (count, largest)) in &tally {
        eprintln!("{kind:<48}{count:>6}  {largest:.9}");
    }
    // The bound is tight: records reach it, and in every kind of group.
    let (groups, kinds): (Vec<_>, Vec<_>) =
        tally.iter().partition(|(kind, _)| kind.starts_with("group: "));
    let reached = kinds.iter().filter(|(_, (_, largest))| *largest >= 0.99).count();
    assert!(pairs < 40 || 4 * reached >= kinds.len(), "{reached} of {}", kinds.len());
    for (group, (count, largest)) in groups {
        assert!(pairs < 40 || *largest >= 0.99, "{group}: {largest} in {count} pairs");
    }
}
