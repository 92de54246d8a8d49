//! A random round: model, plan, sampler, records, and two neighbours that differ in one of them.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use veilgrad_events::{
    Adjacency, BudgetShare, ClipNorm, FixedBatch, JointScale, NoiseMultiplier, PublicCount,
    SampleRate, Sampling, TruncatedPoisson, WeightBound,
};
use veilgrad_mechanism::{Group, Metric, Quantile};
use veilgrad_nn::{
    Clipping, Contribution, Conv2d, Layer, Loss, Model, Padding, Performance, TrainingPlan, Unit,
};

use crate::common::Words;
use crate::data::{Data, Record, Shape};

/// What a group makes of a long record: how much of the sensitivity it must reach.
#[derive(Clone, Copy)]
pub(crate) struct Rule {
    /// Whether short records are lengthened as well.
    pub(crate) normalised: bool,
    /// What a record of weight 1 has of the largest weight.
    pub(crate) weight: f64,
    pub(crate) kind: &'static str,
}

pub(crate) struct Case {
    pub(crate) model: Model,
    pub(crate) loss: Loss,
    pub(crate) plan: TrainingPlan,
    /// The same with clip norms that are [`ROOM`] times as large, to see how long records are before clipping.
    pub(crate) unclipped: TrainingPlan,
    pub(crate) rules: BTreeMap<String, Rule>,
    pub(crate) adjacency: Adjacency,
    pub(crate) sampling: Sampling,
    /// Two ways to share the work: threads and tiles.
    pub(crate) performance: [Performance; 2],
    /// The record in which neighbours differ, before and after; `None` where it is not there.
    pub(crate) before: Option<Record>,
    pub(crate) after: Option<Record>,
    /// Whether the record after must contribute zero.
    pub(crate) is_unusable: bool,
    /// All that the case is about, for the tally.
    pub(crate) kinds: Vec<String>,
    others: Vec<Record>,
    blanks: Vec<Record>,
    sampled: Vec<bool>,
    place: usize,
}

/// How much larger clip norms are where nothing is to be clipped.
pub(crate) const ROOM: f64 = 64.0;

impl Case {
    pub(crate) fn new(seed: u64) -> Self {
        let words = &mut Words(seed.wrapping_mul(0x2545_f491_4f6c_dd1d));
        let (model, entries, mut kinds) = model(words);
        let losses = [Loss::SoftmaxCrossEntropy, Loss::Logistic, Loss::SquaredError];
        let loss = losses[words.below(5).saturating_sub(2)];
        let shape = Shape::new(&model, entries, loss);
        let (unit, materialised) = unit(words, &mut kinds);
        // Mostly a few; sometimes enough to fill the buffers of exact sums.
        let others = if words.below(40) == 0 { 200 } else { 1 + words.below(20) };
        let sampled: Vec<bool> = (0..others).map(|_| words.below(4) > 0).collect();
        let record = |words: &mut Words, example: fn(&Shape, &mut Words) -> _| -> Record {
            let count = match unit {
                Unit::Example => 1,
                Unit::Microbatch { examples } => 1 + words.below(examples.get() as usize),
                Unit::User { examples, .. } => words.below(examples.get() as usize + 3),
                _ => 1,
            };
            (0..count).map(|_| example(&shape, words)).collect()
        };
        let all: Vec<Record> = (0..others).map(|_| record(words, Shape::example)).collect();
        let blanks = (0..=others).map(|_| record(words, Shape::unusable)).collect::<Vec<_>>();
        let what = ["ordinary", "extreme", "unusable", "mixed"][words.below(4)];
        kinds.push(format!("record: {what}"));
        let mut after = match what {
            "extreme" => record(words, Shape::extreme),
            "unusable" => record(words, Shape::unusable),
            _ => record(words, Shape::example),
        };
        if what == "mixed" {
            // One bad example among good ones.
            let place = words.below(after.len() + 1);
            after.insert(place, shape.unusable(words));
            if unit == Unit::Example {
                after.truncate(1);
            }
        }
        let other = if words.below(2) == 0 {
            record(words, Shape::extreme)
        } else {
            record(words, Shape::example)
        };
        let is_unusable = what == "unusable";
        let size = sampled.iter().filter(|is_sampled| **is_sampled).count() as u64 + 1;
        let records = others as u64 + 1;
        let rate = SampleRate::new(0.25).unwrap();
        let batch = FixedBatch::new(records, size).unwrap();
        let truncated = TruncatedPoisson::new(rate, records, size);
        let (sampling, adjacency, sampled) = match words.below(5) {
            0 => (Sampling::All {}, Adjacency::AddRemove, vec![true; others]),
            1 => (Sampling::Fixed(batch), Adjacency::ReplaceOne, sampled),
            2 => (Sampling::Shuffle(batch), Adjacency::ReplaceOne, sampled),
            3 if truncated.is_ok() => {
                (Sampling::TruncatedPoisson(truncated.unwrap()), Adjacency::ZeroOut, sampled)
            }
            _ => (Sampling::Poisson { rate }, Adjacency::AddRemove, sampled),
        };
        kinds.push(format!("adjacency: {}", adjacency.name()));
        let before = match adjacency {
            Adjacency::AddRemove => None,
            Adjacency::ZeroOut => blanks.last().cloned(),
            _ => Some(other),
        };
        // A plan is made twice from the same numbers.
        let plan_words = words.next();
        let expected = PublicCount::new(size as f64).unwrap();
        let make = |room| plan(&mut Words(plan_words), &model, loss, expected, room);
        let (plan, rules) = make(1.0);
        let (unclipped, _) = make(ROOM);
        let with_unit = |plan: TrainingPlan| {
            let plan = plan.unit(unit);
            if materialised { plan.materialised() } else { plan }
        };
        let mut performance = || Performance {
            threads: 1 + words.below(3),
            tile: [0, 1, 2, 3, 5, 8, 16][words.below(7)],
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
            place: words.below(others + 1),
        }
    }

    /// The records, with this one at its place; all others contribute zero if they are `blank`. And the sample, which
    /// is the same for the others in any case.
    pub(crate) fn data(&self, record: Option<&Record>, blank: bool) -> (Data, Vec<u64>) {
        let others = if blank { &self.blanks[..self.others.len()] } else { &self.others[..] };
        let mut records = others.to_vec();
        let mut sampled = self.sampled.clone();
        if let Some(record) = record {
            records.insert(self.place, record.clone());
            sampled.insert(self.place, true);
        }
        let ids = (0..).zip(sampled).filter(|(_, is_sampled)| *is_sampled).map(|(id, _)| id);
        let ids = ids.collect();
        (Data(records), ids)
    }

    /// Whether the neighbour has a record of zero in its place.
    pub(crate) fn is_zeroed(&self) -> bool {
        self.adjacency == Adjacency::ZeroOut
    }

    /// A record that contributes zero, where there must be one.
    pub(crate) fn blank(&self) -> Option<&Record> {
        self.before.as_ref().and(self.blanks.last())
    }
}

fn number(n: usize) -> NonZeroU32 {
    NonZeroU32::new(n as u32).unwrap()
}

fn unit(words: &mut Words, kinds: &mut Vec<String>) -> (Unit, bool) {
    // Sometimes more than go through a model at once.
    let examples = number(if words.below(20) == 0 { 140 } else { 1 + words.below(6) });
    let (batch, epochs) = (number(1 + words.below(3)), number(1 + words.below(2)));
    let local = Contribution::LocalSgd { rate: 0.05, batch, epochs };
    let (name, unit, materialised) = match words.below(8) {
        0..3 => ("example", Unit::Example, false),
        3 => ("example, materialised", Unit::Example, true),
        4 | 5 => ("microbatch", Unit::Microbatch { examples }, false),
        6 => ("user", Unit::User { examples, contribution: Contribution::Average }, false),
        _ => ("user, local steps", Unit::User { examples, contribution: local }, false),
    };
    kinds.push(format!("unit: {name}"));
    (unit, materialised)
}

/// A model of every kind of layer, the entries of its embedding, and what is in it.
fn model(words: &mut Words) -> (Model, Option<usize>, Vec<String>) {
    loop {
        let (input, entries) = match words.below(3) {
            0 => (vec![4 + words.below(4), 4 + words.below(4), 1 + words.below(2)], None),
            1 => (vec![1 + words.below(12)], None),
            _ => (vec![1 + words.below(5)], Some(2 + words.below(9))),
        };
        let mut layers = Vec::new();
        if let Some(entries) = entries {
            layers.push(Layer::Embedding { entries, dimension: 1 + words.below(4) });
        }
        let spatial = input.len() == 3 || entries.is_some();
        for _ in 0..words.below(4) {
            layers.push(layer(words));
        }
        if spatial {
            layers.push([Layer::Flatten, Layer::GlobalAverage][words.below(2)].clone());
        }
        for _ in 0..words.below(2) {
            layers.push(Layer::linear(1 + words.below(8)));
            layers.push(layer(words));
        }
        layers.push(Layer::linear(2 + words.below(3)));
        let Ok(model) = Model::new(&input, layers.clone(), words.next()) else { continue };
        if model.output().len() == 1 {
            let name = |layer: &Layer| {
                let text = format!("{layer:?}");
                format!("layer: {}", text.split([' ', '(']).next().unwrap_or_default())
            };
            return (model, entries, layers.iter().map(name).collect());
        }
    }
}

fn layer(words: &mut Words) -> Layer {
    match words.below(12) {
        0 | 1 => {
            let padding = [Padding::Valid, Padding::Same, Padding::Explicit(1, 1)][words.below(3)];
            let conv = Conv2d::new(1 + words.below(5), 1 + words.below(3));
            conv.stride(1 + words.below(2)).padding(padding).into()
        }
        2 => Layer::Relu,
        3 => Layer::Tanh,
        4 => Layer::Gelu,
        5 => Layer::max_pool(1 + words.below(3), 1 + words.below(2)),
        6 => Layer::average_pool(1 + words.below(3), 1 + words.below(2)),
        7 => Layer::GroupNorm { groups: 1 + words.below(3) },
        8 => Layer::LayerNorm,
        9 | 10 => Layer::BatchNorm,
        _ => Layer::linear(1 + words.below(6)),
    }
}

/// Whether a parameter is a running statistic.
fn is_statistic(name: &str) -> bool {
    name.ends_with(".mean") || name.ends_with(".mean_square")
}

/// A plan with clip norms `room` times as large as they are, and what its groups do.
fn plan(
    words: &mut Words,
    model: &Model,
    loss: Loss,
    expected: PublicCount,
    room: f64,
) -> (TrainingPlan, BTreeMap<String, Rule>) {
    let unclipped = room > 1.0;
    let clip = |words: &mut Words| {
        let norm = 10f64.powf(f64::from(5.0 * words.unit() - 4.0));
        ClipNorm::new(norm * room).unwrap()
    };
    let names = || model.parameters().map(|(name, ..)| name.to_owned());
    let trained: Vec<String> = names().filter(|name| !is_statistic(name)).collect();
    let plain = |kind| Rule { normalised: false, weight: 1.0, kind };
    let mut rules = BTreeMap::new();
    let clipping = match words.below(6) {
        0 => {
            rules.insert("gradient".to_owned(), plain("flat"));
            Clipping::Flat(clip(words))
        }
        1 => {
            rules.extend(trained.iter().map(|name| (name.clone(), plain("per layer"))));
            Clipping::PerLayer(clip(words))
        }
        2 => {
            rules.extend(trained.iter().map(|name| (name.clone(), plain("by dimension"))));
            Clipping::DimensionAware(clip(words))
        }
        _ => {
            let mut groups: Vec<Vec<String>> = vec![Vec::new(); 1 + words.below(3)];
            for name in trained {
                let group = words.below(groups.len());
                groups[group].push(name);
            }
            let groups = (0..).zip(groups).filter(|(_, names)| !names.is_empty());
            let groups = groups.map(|(number, names)| {
                let name: String = format!("group{number}");
                let (clip, scale) = (clip(words), words.below(4));
                let scales = names.iter().map(|name| {
                    let alpha = 10f64.powf(f64::from(6.0 * words.unit() - 3.0));
                    (name.as_str(), JointScale::new(alpha).unwrap())
                });
                let scales: Vec<_> = scales.collect();
                let bound = [0.5, 1.0, 4.0][words.below(3)];
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
    let noise = NoiseMultiplier::new(10f64.powf(f64::from(1.6 * words.unit() - 0.6))).unwrap();
    let mut plan = TrainingPlan::new(clipping, noise, expected);
    if names().any(|name| is_statistic(&name)) {
        plan = plan.statistics(clip(words), share());
        rules.insert("statistics".to_owned(), plain("statistics"));
    }
    let mut metrics = vec![Metric::accuracy().unwrap(), Metric::loss(2.0).unwrap()];
    if loss == Loss::SoftmaxCrossEntropy {
        metrics.push(Metric::class_counts("classes", model.output()[0]));
    }
    metrics.retain(|_| words.below(2) == 0);
    for metric in &metrics {
        plan = plan.metric(metric.clone(), share());
    }
    // Bits and weights have no clip norm.
    if unclipped {
        return (plan, rules);
    }
    let groups: Vec<String> = rules.keys().cloned().collect();
    if words.below(2) == 0 {
        let (group, floor) = (&groups[words.below(groups.len())], ClipNorm::new(1e-12).unwrap());
        let quantile = Quantile::of_norm(group, 0.5, expected, floor).unwrap();
        plan = plan.group(Group::quantile("quantile of norm", quantile).share(share()));
    }
    if let Some(metric) = metrics.iter().find(|metric| metric.vector().1 == 1) {
        let quantile = Quantile::of_value(metric.vector().0, 0.5, expected, 0.1).unwrap();
        plan = plan.group(Group::quantile("quantile of value", quantile).share(share()));
    }
    if words.below(2) == 0 {
        let bound = WeightBound::new([1.0, 2.0][words.below(2)]).unwrap();
        plan = plan.group(Group::weight("weights", bound).share(share()));
    }
    (plan, rules)
}
