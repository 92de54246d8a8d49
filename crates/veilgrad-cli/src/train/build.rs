//! Models, plans and optimizers from a configuration.

use std::collections::BTreeMap;

use veilgrad_events::{
    Adjacency, BudgetShare, ClipNorm, FixedBatch, NoiseMultiplier, PublicCount, RoundPermit,
    SampleRate, Sampling,
};
use veilgrad_mechanism::{
    Estimates, FixedSampler, Group, Metric, PoissonSampler, Released, SampleError, Sampler,
    Selection, ShuffleSampler,
};
use veilgrad_nn::{
    Adagrad, Adam, Clipping, Contribution, Conv2d, Layer, Model, ModelError, Optimizer, Padding,
    RmsProp, Schedule, Sgd, TrainingPlan, Unit, Weights,
};

use super::config::{self, Config, Declaration, Kind, Record};
use super::data;
use crate::error::Error;

fn usage(error: impl std::fmt::Display) -> Error {
    Error::Usage(error.to_string())
}

/// How many threads a run uses: as many as it is asked to, but not more than the machine has. The result does
/// not depend on it.
pub(crate) fn threads(asked: Option<usize>) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    asked.map_or(cores, |asked| asked.min(cores))
}

/// How many parameters a model may have.
const MOST_PARAMETERS: u128 = 1 << 30;

/// The untrained model.
pub(crate) fn model(declaration: &Declaration) -> Result<Model, Error> {
    if most_parameters(declaration)? > MOST_PARAMETERS {
        return Err(usage("the model would have more than 2^30 parameters"));
    }
    let shape = data::shape(declaration)?;
    let (config, classes) = (&declaration.model, declaration.classes.count());
    let mut layers = Vec::new();
    let mut hidden = config.hidden.as_slice();
    if config.kind == Kind::Cnn {
        let conv = |filters, size, padding| {
            Layer::Conv2d(Conv2d { filters, kernel: (size, size), stride: (2, 2), padding })
        };
        let [first, second] = config.filters.unwrap_or([16, 32]);
        layers.push(conv(first, 8, Padding::Same));
        layers.push(Layer::Relu);
        layers.push(Layer::max_pool(2, 1));
        layers.push(conv(second, 4, Padding::Valid));
        layers.push(Layer::Relu);
        layers.push(Layer::max_pool(2, 1));
        layers.push(Layer::Flatten);
        if hidden.is_empty() {
            hidden = &[32];
        }
    }
    for width in hidden {
        layers.push(Layer::linear(*width));
        if config.batch_norm {
            layers.push(Layer::BatchNorm);
        }
        layers.push(Layer::Relu);
    }
    layers.push(Layer::linear(classes));
    let mut model = Model::new(&shape, layers, config.seed).map_err(usage)?;
    if config.kind == Kind::Linear {
        // Convex: zero is as good a start as any, and the same for everybody.
        let names: Vec<String> = model.parameters().map(|(name, ..)| name.to_owned()).collect();
        for name in names {
            if let Some(values) = model.parameter_mut(&name) {
                values.fill(0.0);
            }
        }
    }
    Ok(model)
}

/// At least as many weights as the model has, before any memory is taken for them. Behind its convolutions,
/// an image has at most half of its sides.
pub(crate) fn most_parameters(declaration: &Declaration) -> Result<u128, Error> {
    let (shape, model) = (data::shape(declaration)?, &declaration.model);
    let wide = |width: usize| width as u128;
    let mut inputs: u128 = shape.iter().map(|side| wide(*side)).product();
    let (mut sum, mut hidden) = (0, model.hidden.as_slice());
    if let (Kind::Cnn, [rows, columns, channels]) = (model.kind, &shape[..]) {
        let [first, second] = model.filters.unwrap_or([16, 32]).map(wide);
        sum += 64 * wide(*channels) * first + 16 * first * second;
        inputs = wide(rows.div_ceil(4)) * wide(columns.div_ceil(4)) * second;
        if hidden.is_empty() {
            hidden = &[32];
        }
    }
    for width in hidden.iter().copied().chain([declaration.classes.count()]) {
        sum += inputs * wide(width);
        inputs = wide(width);
    }
    Ok(sum)
}

/// What a round asks of its sample.
pub(crate) fn plan(config: &Config, noise: NoiseMultiplier) -> Result<TrainingPlan, Error> {
    let privacy = &config.privacy;
    let expected = PublicCount::new(privacy.expected_batch).map_err(usage)?;
    let (mut gradients, mut metrics, mut statistics) = (Vec::new(), Vec::new(), None);
    for group in &privacy.groups {
        let clip = ClipNorm::new(group.clip).map_err(usage)?;
        let name = group.vectors.first().map(String::as_str).filter(|_| group.vectors.len() == 1);
        let share = || {
            let share = group.share.ok_or_else(|| {
                usage(format!("group {:?} needs share = its part of the budget", group.vectors))
            })?;
            BudgetShare::new(share).map_err(usage)
        };
        match name {
            Some("accuracy") => metrics.push((Metric::accuracy().map_err(usage)?, share()?)),
            Some("loss") => metrics.push((Metric::loss(group.clip).map_err(usage)?, share()?)),
            Some("classes") => {
                let classes = config.data.classes.count();
                metrics.push((Metric::class_counts("classes", classes), share()?));
            }
            Some("statistics") => statistics = Some((clip, share()?)),
            _ => {
                let number = gradients.len();
                let name = group.name.clone().unwrap_or_else(|| match number {
                    0 => "gradient".to_owned(),
                    number => format!("gradient-{number}"),
                });
                let made = Group::new(name, group.vectors.clone(), clip);
                gradients.push(match group.share {
                    Some(share) => made.share(BudgetShare::new(share).map_err(usage)?),
                    None => made,
                });
            }
        }
    }
    let clipping = match (gradients.is_empty(), privacy.clip) {
        (true, clip) => Clipping::Flat(ClipNorm::new(clip.unwrap_or(1.0)).map_err(usage)?),
        (false, None) => Clipping::Groups(gradients),
        (false, Some(_)) => {
            return Err(usage("[privacy] has both clip and groups of parameters; give one"));
        }
    };
    let mut plan = TrainingPlan::new(clipping, noise, expected).unit(unit(config));
    if let Some((clip, share)) = statistics {
        plan = plan.statistics(clip, share);
    }
    for (metric, share) in metrics {
        plan = plan.metric(metric, share);
    }
    Ok(plan)
}

/// What the guarantee protects.
pub(crate) fn unit(config: &Config) -> Unit {
    match &config.data.record {
        Record::Named(config::Named::Example) => Unit::Example,
        Record::User(user) => {
            Unit::User { examples: user.max_examples, contribution: Contribution::Average }
        }
        Record::Microbatch(microbatch) => Unit::Microbatch { examples: microbatch.microbatch },
    }
}

pub(crate) fn adjacency(config: &Config) -> Adjacency {
    match config.privacy.adjacency {
        config::Adjacency::AddRemove => Adjacency::AddRemove,
        config::Adjacency::ReplaceOne => Adjacency::ReplaceOne,
        config::Adjacency::ZeroOut => Adjacency::ZeroOut,
    }
}

/// How records are sampled, from declared numbers alone.
pub(crate) fn sampling(config: &Config) -> Result<Sampling, Error> {
    let (batch, records) = (config.privacy.expected_batch, config.data.records);
    let fixed = || FixedBatch::new(records, batch as u64).map_err(usage);
    Ok(match config.privacy.sampling {
        config::Sampling::Poisson => {
            Sampling::Poisson { rate: SampleRate::new(batch / records as f64).map_err(usage)? }
        }
        config::Sampling::Fixed => Sampling::Fixed(fixed()?),
        config::Sampling::Shuffle => Sampling::Shuffle(fixed()?),
    })
}

pub(crate) fn schedule(config: &Config) -> Schedule {
    let rate = match config.train.optimizer {
        config::Optimizer::Sgd { lr, .. }
        | config::Optimizer::Adam { lr }
        | config::Optimizer::Adamw { lr, .. }
        | config::Optimizer::Adagrad { lr }
        | config::Optimizer::Rmsprop { lr } => lr,
    };
    if config.train.cosine {
        Schedule::Cosine { first: rate, last: 0.0, warmup: 0, rounds: config.train.rounds }
    } else {
        Schedule::Constant(rate)
    }
}

/// Any of the optimizers.
pub(crate) struct AnyOptimizer(Box<dyn Optimizer>);

impl AnyOptimizer {
    pub(crate) fn new(config: &Config) -> Self {
        Self(match config.train.optimizer {
            config::Optimizer::Sgd { momentum, nesterov: true, .. } => {
                Box::new(Sgd::nesterov(momentum))
            }
            config::Optimizer::Sgd { momentum, .. } => Box::new(Sgd::with_momentum(momentum)),
            config::Optimizer::Adam { .. } => Box::new(Adam::standard()),
            config::Optimizer::Adamw { weight_decay, .. } => {
                Box::new(Adam::with_decay(weight_decay))
            }
            config::Optimizer::Adagrad { .. } => Box::new(Adagrad::standard()),
            config::Optimizer::Rmsprop { .. } => Box::new(RmsProp::standard()),
        })
    }
}

impl Optimizer for AnyOptimizer {
    fn step(
        &mut self,
        weights: Weights<'_>,
        released: &Released<Estimates>,
        rate: f64,
        round: u64,
    ) {
        self.0.step(weights, released, rate, round);
    }

    fn state(&self) -> BTreeMap<String, Vec<f32>> {
        self.0.state()
    }

    fn kind(&self) -> String {
        self.0.kind()
    }

    fn restore(
        &mut self,
        state: BTreeMap<String, Vec<f32>>,
        model: &Model,
    ) -> Result<(), ModelError> {
        self.0.restore(state, model)
    }
}

/// Any of the samplers.
pub(crate) enum AnySampler {
    Poisson(PoissonSampler),
    Fixed(FixedSampler),
    Shuffle(ShuffleSampler),
}

impl AnySampler {
    pub(crate) fn new(sampling: Sampling) -> Result<Self, Error> {
        match sampling {
            Sampling::Poisson { rate } => Ok(Self::Poisson(PoissonSampler::new(rate))),
            Sampling::Fixed(batch) => Ok(Self::Fixed(FixedSampler::new(batch))),
            Sampling::Shuffle(batch) => Ok(Self::Shuffle(ShuffleSampler::new(batch))),
            _ => Err(usage("this sampling is not offered here")),
        }
    }
}

impl Sampler for AnySampler {
    fn policy(&self) -> Sampling {
        match self {
            Self::Poisson(sampler) => sampler.policy(),
            Self::Fixed(sampler) => sampler.policy(),
            Self::Shuffle(sampler) => sampler.policy(),
        }
    }

    fn select(&mut self, permit: &RoundPermit, records: u64) -> Result<Selection, SampleError> {
        match self {
            Self::Poisson(sampler) => sampler.select(permit, records),
            Self::Fixed(sampler) => sampler.select(permit, records),
            Self::Shuffle(sampler) => sampler.select(permit, records),
        }
    }
}
