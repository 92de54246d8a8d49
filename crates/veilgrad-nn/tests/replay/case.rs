//! A random round: model, plan, sampler, and two neighbouring datasets.

use std::collections::BTreeMap;
use std::num::{NonZeroU32, NonZeroU64};

use veilgrad_events::{
    Adjacency, BudgetShare, ClipNorm, FixedBatch, JointScale, NoiseMultiplier, PublicCount,
    SampleRate, Sampling, TruncatedPoisson, WeightBound,
};
use veilgrad_mechanism::{Group, Metric, Quantile};
use veilgrad_nn::{
    Clipping, Contribution, Conv2d, EmbeddedColumn, Layer, Loss, Model, Padding, Performance,
    TrainingPlan, Unit,
};

use crate::common::SplitMix64;
use crate::data::{Data, Input, Record, Shape};

/// How a group clips: determines how much of the sensitivity a record above the clip norm must reach.
#[derive(Clone, Copy)]
pub(crate) struct Rule {
    /// Whether records below the clip norm are scaled up to it.
    pub(crate) normalised: bool,
    /// Weight 1 as a fraction of the largest weight.
    pub(crate) weight: f64,
    pub(crate) kind: &'static str,
}

pub(crate) struct Case {
    pub(crate) model: Model,
    pub(crate) loss: Loss,
    pub(crate) plan: TrainingPlan,
    /// The same plan with clip norms [`ROOM`] times as large, to measure norms before clipping.
    pub(crate) unclipped: TrainingPlan,
    pub(crate) rules: BTreeMap<String, Rule>,
    pub(crate) adjacency: Adjacency,
    pub(crate) sampling: Sampling,
    /// Two settings of threads and tiles.
    pub(crate) performance: [Performance; 2],
    /// The record in which the neighbours differ, in the first and in the second; `None` where it is absent.
    pub(crate) before: Option<Record>,
    pub(crate) after: Option<Record>,
    /// Whether `after` must contribute zero.
    pub(crate) is_unusable: bool,
    /// The features of the case, for the tally.
    pub(crate) kinds: Vec<String>,
    others: Vec<Record>,
    blanks: Vec<Record>,
    sampled: Vec<bool>,
    place: usize,
    canaries: usize,
}

/// How much larger the clip norms of the unclipped plan are.
pub(crate) const ROOM: f64 = 64.0;

impl Case {
    pub(crate) fn new(seed: u64) -> Self {
        let random = &mut SplitMix64(seed.wrapping_mul(0x2545_f491_4f6c_dd1d));
        let (mut model, inputs, mut kinds) = model(random);
        let huber = Loss::Huber { threshold: 0.5 };
        let losses = [Loss::SoftmaxCrossEntropy, Loss::Logistic, Loss::SquaredError, huber];
        let loss = losses[random.below(6).saturating_sub(2)];
        if random.below(4) == 0 && freeze(random, &mut model) {
            kinds.push("frozen parameters".to_owned());
        }
        let shape = Shape::new(&model, inputs, loss);
        let (unit, copies, materialised) = unit(random, &mut kinds);
        // Mostly a few records; sometimes enough to fill the buffers of exact sums.
        let others = if random.below(40) == 0 { 200 } else { 1 + random.below(20) };
        let sampled: Vec<bool> = (0..others).map(|_| random.below(4) > 0).collect();
        let record =
            |random: &mut SplitMix64, example: fn(&Shape, &mut SplitMix64) -> _| -> Record {
                let count = match unit {
                    Unit::Example if copies == 1 => 1,
                    // Sometimes fewer or more than the plan averages.
                    Unit::Example => 1 + random.below(copies + 2),
                    Unit::Microbatch { examples } => 1 + random.below(examples.get() as usize),
                    Unit::User { examples, .. } => random.below(examples.get() as usize + 3),
                    _ => 1,
                };
                (0..count).map(|_| example(&shape, random)).collect()
            };
        let all: Vec<Record> = (0..others).map(|_| record(random, Shape::example)).collect();
        let blanks = (0..=others).map(|_| record(random, Shape::unusable)).collect::<Vec<_>>();
        let what = ["ordinary", "extreme", "unusable", "mixed"][random.below(4)];
        kinds.push(format!("record: {what}"));
        let mut after = match what {
            "extreme" => record(random, Shape::extreme),
            "unusable" => record(random, Shape::unusable),
            _ => record(random, Shape::example),
        };
        if what == "mixed" {
            // One bad example among good ones.
            let place = random.below(after.len() + 1);
            after.insert(place, shape.unusable(random));
            if unit == Unit::Example && copies == 1 {
                after.truncate(1);
            }
        }
        let other = if random.below(2) == 0 {
            record(random, Shape::extreme)
        } else {
            record(random, Shape::example)
        };
        let is_unusable = what == "unusable";
        let canaries = if random.below(4) == 0 { 1 + random.below(5) } else { 0 };
        if canaries > 0 {
            kinds.push("canaries".to_owned());
        }
        let sampled_others = sampled.iter().filter(|is_sampled| **is_sampled).count();
        let size = (sampled_others + 1 + canaries) as u64;
        let records = (others + 1 + canaries) as u64;
        let rate = SampleRate::new(0.25).unwrap();
        let batch = FixedBatch::new(records, size).unwrap();
        let truncated = TruncatedPoisson::new(rate, records, size);
        let few = NonZeroU64::new(1 + random.below(4) as u64).unwrap();
        let cyclic = Sampling::CyclicPoisson { rate, groups: few, first_round: 0 };
        let (sampling, adjacency, sampled) = match random.below(7) {
            0 => (Sampling::All {}, Adjacency::AddRemove, vec![true; others]),
            1 => (Sampling::Fixed(batch), Adjacency::ReplaceOne, sampled),
            2 => (Sampling::Shuffle(batch), Adjacency::ReplaceOne, sampled),
            3 if truncated.is_ok() => {
                (Sampling::TruncatedPoisson(truncated.unwrap()), Adjacency::ZeroOut, sampled)
            }
            4 => (Sampling::Allocation { rounds_per_epoch: few }, Adjacency::AddRemove, sampled),
            5 => (cyclic, Adjacency::AddRemove, sampled),
            _ => (Sampling::Poisson { rate }, Adjacency::AddRemove, sampled),
        };
        kinds.push(format!("adjacency: {}", adjacency.name()));
        let before = match adjacency {
            Adjacency::AddRemove => None,
            Adjacency::ZeroOut => blanks.last().cloned(),
            _ => Some(other),
        };
        // Both plans are made from the same random numbers.
        let plan_seed = random.next();
        let expected = PublicCount::new(size as f64).unwrap();
        let make = |room| plan(&mut SplitMix64(plan_seed), &model, loss, expected, room);
        let (plan, rules) = make(1.0);
        let (unclipped, _) = make(ROOM);
        let with_unit = |plan: TrainingPlan| {
            let plan = plan.unit(unit).copies(number(copies)).canaries(canaries);
            if materialised { plan.materialised() } else { plan }
        };
        let mut performance = || Performance {
            threads: 1 + random.below(3),
            tile: [0, 1, 2, 3, 5, 8, 16][random.below(7)],
        };
        let performance = [performance(), performance()];
        Self {
            model: model.clone(),
            loss,
            plan: with_unit(plan),
            unclipped: with_unit(unclipped),
            rules,
            adjacency,
            sampling,
            performance,
            before,
            after: Some(after),
            is_unusable,
            kinds,
            others: all,
            blanks,
            sampled,
            place: random.below(others + 1),
            canaries,
        }
    }

    /// A dataset that contains `record`, and the sample, with all canaries. The other records contribute zero if `blank`; whether they are
    /// sampled does not depend on `record`.
    pub(crate) fn data(&self, record: Option<&Record>, blank: bool) -> (Data, Vec<u64>) {
        let others = if blank { &self.blanks[..self.others.len()] } else { &self.others[..] };
        let mut records = others.to_vec();
        let mut sampled = self.sampled.clone();
        if let Some(record) = record {
            records.insert(self.place, record.clone());
            sampled.insert(self.place, true);
        }
        sampled.extend(vec![true; self.canaries]);
        let ids = (0..).zip(sampled).filter(|(_, is_sampled)| *is_sampled).map(|(id, _)| id);
        let ids = ids.collect();
        (Data(records), ids)
    }

    /// Whether `before` is a record that contributes zero.
    pub(crate) fn is_zeroed(&self) -> bool {
        self.adjacency == Adjacency::ZeroOut
    }

    /// A record that contributes zero, if the adjacency keeps the number of records.
    pub(crate) fn blank(&self) -> Option<&Record> {
        self.before.as_ref().and(self.blanks.last())
    }
}

fn number(n: usize) -> NonZeroU32 {
    NonZeroU32::new(n as u32).unwrap()
}

/// The record unit, the copies of an example that are averaged, and whether gradients are written out.
fn unit(random: &mut SplitMix64, kinds: &mut Vec<String>) -> (Unit, usize, bool) {
    // Sometimes more than a tile.
    let examples = number(if random.below(20) == 0 { 140 } else { 1 + random.below(6) });
    if random.below(8) == 0 {
        kinds.push("unit: example, copies".to_owned());
        return (Unit::Example, 1 + examples.get() as usize, false);
    }
    let (batch, epochs) = (number(1 + random.below(3)), number(1 + random.below(2)));
    let local = Contribution::LocalSgd { rate: 0.05, batch, epochs };
    let (name, unit, materialised) = match random.below(8) {
        0..3 => ("example", Unit::Example, false),
        3 => ("example, materialised", Unit::Example, true),
        4 | 5 => ("microbatch", Unit::Microbatch { examples }, false),
        6 => ("user", Unit::User { examples, contribution: Contribution::Average }, false),
        _ => ("user, local steps", Unit::User { examples, contribution: local }, false),
    };
    kinds.push(format!("unit: {name}"));
    (unit, 1, materialised)
}

/// Freezes some random parameters; returns whether there are any.
fn freeze(random: &mut SplitMix64, model: &mut Model) -> bool {
    let names = model.parameters().map(|(name, ..)| name.to_owned());
    let names: Vec<String> = names.filter(|name| !is_statistic(name)).collect();
    // The last one is refused: nothing would be trained.
    let frozen = names.iter().filter(|name| random.below(3) == 0 && model.freeze(name).is_ok());
    frozen.count() > 0
}

/// A random model, what its inputs mean, and the names of its layers.
fn model(random: &mut SplitMix64) -> (Model, Vec<Input>, Vec<String>) {
    loop {
        let mut layers = Vec::new();
        let (input, kinds) = match random.below(4) {
            0 => {
                let input = vec![4 + random.below(4), 4 + random.below(4), 1 + random.below(2)];
                let numbers = input.iter().product();
                (input, vec![Input::Number; numbers])
            }
            1 => {
                let width = 1 + random.below(12);
                (vec![width], vec![Input::Number; width])
            }
            2 => {
                let (length, entries) = (1 + random.below(5), 2 + random.below(9));
                layers.push(Layer::Embedding { entries, dimension: 1 + random.below(4) });
                if random.below(2) == 0 {
                    let heads = 1 + random.below(2);
                    layers.push(Layer::linear(3 * heads * (1 + random.below(3))));
                    layers.push(Layer::Attention { heads });
                }
                (vec![length], vec![Input::Token(entries); length])
            }
            _ => {
                let mut kinds = vec![Input::Number; 1 + random.below(6)];
                let mut columns = Vec::new();
                for (column, kind) in kinds.iter_mut().enumerate() {
                    if random.below(2) == 0 {
                        let (entries, dimension) = (1 + random.below(6), 1 + random.below(4));
                        columns.push(EmbeddedColumn { column, entries, dimension });
                        *kind = Input::Category(entries);
                    }
                }
                layers.push(Layer::EmbedColumns(columns));
                (vec![kinds.len()], kinds)
            }
        };
        let spatial = input.len() == 3 || matches!(kinds[0], Input::Token(_));
        for _ in 0..random.below(4) {
            layers.push(layer(random));
        }
        if spatial {
            layers.push([Layer::Flatten, Layer::GlobalAverage][random.below(2)].clone());
        }
        for _ in 0..random.below(2) {
            layers.push(Layer::linear(1 + random.below(8)));
            layers.push(layer(random));
        }
        layers.push(Layer::linear(2 + random.below(3)));
        let Ok(model) = Model::new(&input, layers.clone(), random.next()) else { continue };
        if model.output().len() == 1 {
            let name = |layer: &Layer| {
                let text = format!("{layer:?}");
                format!("layer: {}", text.split([' ', '(']).next().unwrap_or_default())
            };
            return (model, kinds, layers.iter().map(name).collect());
        }
    }
}

fn layer(random: &mut SplitMix64) -> Layer {
    match random.below(12) {
        0 | 1 => {
            let padding = [Padding::Valid, Padding::Same, Padding::Explicit(1, 1)][random.below(3)];
            let conv = Conv2d::new(1 + random.below(5), 1 + random.below(3));
            conv.stride(1 + random.below(2)).padding(padding).into()
        }
        2 => Layer::Relu,
        3 => Layer::Tanh,
        4 => Layer::Gelu,
        5 => Layer::max_pool(1 + random.below(3), 1 + random.below(2)),
        6 => Layer::average_pool(1 + random.below(3), 1 + random.below(2)),
        7 => Layer::GroupNorm { groups: 1 + random.below(3) },
        8 => Layer::LayerNorm,
        9 | 10 => Layer::BatchNorm,
        _ => Layer::linear(1 + random.below(6)),
    }
}

/// Whether a parameter is a running statistic.
fn is_statistic(name: &str) -> bool {
    name.ends_with(".mean") || name.ends_with(".mean_square")
}

/// A random plan, with its clip norms multiplied by `room`, and the rules of its groups.
fn plan(
    random: &mut SplitMix64,
    model: &Model,
    loss: Loss,
    expected: PublicCount,
    room: f64,
) -> (TrainingPlan, BTreeMap<String, Rule>) {
    let unclipped = room > 1.0;
    let clip = |random: &mut SplitMix64| {
        let norm = 10f64.powf(f64::from(5.0 * random.unit() - 4.0));
        ClipNorm::new(norm * room).unwrap()
    };
    let names = || model.parameters().map(|(name, ..)| name.to_owned());
    let is_trained = |name: &String| !is_statistic(name) && !model.is_frozen(name);
    let trained: Vec<String> = names().filter(is_trained).collect();
    let plain = |kind| Rule { normalised: false, weight: 1.0, kind };
    let mut rules = BTreeMap::new();
    let clipping = match random.below(6) {
        0 => {
            rules.insert("gradient".to_owned(), plain("flat"));
            Clipping::Flat(clip(random))
        }
        1 => {
            rules.extend(trained.iter().map(|name| (name.clone(), plain("per layer"))));
            Clipping::PerLayer(clip(random))
        }
        2 => {
            rules.extend(trained.iter().map(|name| (name.clone(), plain("by dimension"))));
            Clipping::DimensionAware(clip(random))
        }
        _ => {
            let mut groups: Vec<Vec<String>> = vec![Vec::new(); 1 + random.below(3)];
            for name in trained {
                let group = random.below(groups.len());
                groups[group].push(name);
            }
            let groups = (0..).zip(groups).filter(|(_, names)| !names.is_empty());
            let groups = groups.map(|(number, names)| {
                let name: String = format!("group{number}");
                let (clip, scale) = (clip(random), random.below(4));
                let scales = names.iter().map(|name| {
                    let alpha = 10f64.powf(f64::from(6.0 * random.unit() - 3.0));
                    (name.as_str(), JointScale::new(alpha).unwrap())
                });
                let scales: Vec<_> = scales.collect();
                let bound = [0.5, 1.0, 4.0][random.below(3)];
                let (group, rule) = match scale {
                    0 => (Group::new(&name, names, clip), plain("separate")),
                    1 => (Group::joint(&name, scales, clip), plain("joint")),
                    2 => {
                        let group = Group::joint(&name, scales, clip);
                        let group = if unclipped { group } else { group.normalised() };
                        (group, Rule { normalised: true, ..plain("normalised") })
                    }
                    _ => {
                        let weight = 1.0 / f64::max(bound, 1.0);
                        let bound = WeightBound::new(bound).unwrap();
                        let group = Group::new(&name, names, clip).weighted(bound);
                        (group, Rule { weight, ..plain("weighted") })
                    }
                };
                rules.insert(name, rule);
                group
            });
            Clipping::Groups(groups.collect())
        }
    };
    let share = || BudgetShare::new(0.05).unwrap();
    let noise = NoiseMultiplier::new(10f64.powf(f64::from(1.6 * random.unit() - 0.6))).unwrap();
    let mut plan = TrainingPlan::new(clipping, noise, expected);
    if names().any(|name| is_statistic(&name)) {
        plan = plan.statistics(clip(random), share());
        rules.insert("statistics".to_owned(), plain("statistics"));
    }
    let mut metrics = vec![Metric::accuracy().unwrap(), Metric::loss(2.0).unwrap()];
    if loss == Loss::SoftmaxCrossEntropy {
        metrics.push(Metric::class_counts("classes", model.output()[0]));
    }
    metrics.retain(|_| random.below(2) == 0);
    for metric in &metrics {
        plan = plan.metric(metric.clone(), share());
    }
    // Bits and weights have no clip norm.
    if unclipped {
        return (plan, rules);
    }
    let groups: Vec<String> = rules.keys().cloned().collect();
    if random.below(2) == 0 {
        let (group, floor) = (&groups[random.below(groups.len())], ClipNorm::new(1e-12).unwrap());
        let quantile = Quantile::of_norm(group, 0.5, expected, floor).unwrap();
        plan = plan.group(Group::quantile("quantile of norm", quantile).share(share()));
    }
    if let Some(metric) = metrics.iter().find(|metric| metric.vector().1 == 1) {
        let quantile = Quantile::of_value(metric.vector().0, 0.5, expected, 0.1).unwrap();
        plan = plan.group(Group::quantile("quantile of value", quantile).share(share()));
    }
    if random.below(2) == 0 {
        let bound = WeightBound::new([1.0, 2.0][random.below(2)]).unwrap();
        plan = plan.group(Group::weight("weights", bound).share(share()));
    }
    (plan, rules)
}
