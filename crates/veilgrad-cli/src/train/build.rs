//! Models, plans and optimizers from a configuration.

use std::num::{NonZeroU32, NonZeroU64};

use veilgrad_events::{
    BandedStrategy, BudgetShare, ClipNorm, FixedBatch, NoiseMultiplier, PublicCount, SampleRate,
    Sampling, TruncatedPoisson, WeightBound,
};
use veilgrad_mechanism::{
    AllocationSampler, CyclicSampler, FixedSampler, Group, LearningRate, Metric, PoissonSampler,
    Quantile, Sampler, ShuffleSampler, TruncatedPoissonSampler,
};
use veilgrad_nn::{
    Adagrad, Adam, Clipping, Contribution, Denominator, Loss, Model, Optimizer, Performance,
    RmsProp, Schedule, Sgd, Trainer, TrainingPlan, Unit, Yogi,
};

use super::config::{self, Adaptive, Config, Declaration, Kind, Record};
use super::{inputs, network};
use crate::error::Error;

/// The number of threads of a run: as requested, but not more than the machine has. Results do not depend on it.
pub(crate) fn threads(asked: Option<usize>) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    asked.map_or(cores, |asked| asked.min(cores))
}

/// The model of a declaration, with its initial weights.
pub(crate) fn model(declaration: &Declaration) -> Result<Model, Error> {
    let (shape, layers) = (inputs::shape(declaration)?, network::layers(declaration)?);
    let config = &declaration.model;
    let mut model = Model::new(&shape, layers, config.seed).map_err(Error::usage)?;
    if config.kind == Kind::Linear {
        // The loss is convex, so zero is as good a start as any.
        let names: Vec<String> = model.parameters().map(|(name, ..)| name.to_owned()).collect();
        for name in names {
            if let Some(values) = model.parameter_mut(&name) {
                values.fill(0.0);
            }
        }
    }
    Ok(model)
}

/// A trainer of a configuration's model.
pub(crate) fn trainer(
    config: &Config,
    model: Model,
    noise: NoiseMultiplier,
    strategy: Option<&BandedStrategy>,
    threads: usize,
) -> Result<Trainer<AnyOptimizer>, Error> {
    let performance = Performance { threads, ..Performance::default() };
    let (loss, mut plan) = (loss(config), plan(config, noise)?);
    if let Some(strategy) = strategy {
        plan = plan.correlated(strategy.clone(), config.rounds());
    }
    let trainer = Trainer::new(model, loss, plan, optimizer(config), schedule(config), performance)
        .map_err(Error::usage)?;
    Ok(match &config.train.class_weights {
        Some(weights) => trainer.class_weights(weights),
        None => trainer,
    })
}

/// The loss: of classes, or of a number that is scaled from its bounds to [-1, 1].
fn loss(config: &Config) -> Loss {
    match (config.data.label_bounds, config.train.huber) {
        (None, _) => Loss::SoftmaxCrossEntropy,
        (Some(_), None) => Loss::SquaredError,
        (Some([low, high]), Some(units)) => {
            Loss::Huber { threshold: (units / (0.5 * high - 0.5 * low)) as f32 }
        }
    }
}

/// The plan of a round: clipping, metrics, statistics, record unit and canaries.
pub(crate) fn plan(config: &Config, noise: NoiseMultiplier) -> Result<TrainingPlan, Error> {
    let privacy = &config.privacy;
    let expected = PublicCount::new(privacy.expected_batch).map_err(Error::usage)?;
    let (mut gradients, mut metrics, mut statistics) = (Vec::new(), Vec::new(), None);
    for group in &privacy.groups {
        let clip = ClipNorm::new(group.clip).map_err(Error::usage)?;
        let name = group.vectors.first().map(String::as_str).filter(|_| group.vectors.len() == 1);
        let share = || {
            let why =
                || format!("group {:?} needs share = its fraction of the budget", group.vectors);
            let share = group.share.ok_or_else(|| Error::usage(why()))?;
            BudgetShare::new(share).map_err(Error::usage)
        };
        match name {
            Some("accuracy") => metrics.push((Metric::accuracy().map_err(Error::usage)?, share()?)),
            Some("loss") => {
                metrics.push((Metric::loss(group.clip).map_err(Error::usage)?, share()?))
            }
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
                    Some(share) => made.share(BudgetShare::new(share).map_err(Error::usage)?),
                    None => made,
                });
            }
        }
    }
    let mut clip_norms: Vec<String> =
        gradients.iter().map(|group: &Group| group.name().to_owned()).collect();
    if clip_norms.is_empty() {
        // The name of the group of flat clipping.
        clip_norms.push("gradient".to_owned());
    }
    let clipping = match (gradients.is_empty(), privacy.clip) {
        (true, clip) => Clipping::Flat(ClipNorm::new(clip.unwrap_or(1.0)).map_err(Error::usage)?),
        (false, None) => Clipping::Groups(gradients),
        (false, Some(_)) => {
            return Err(Error::usage("[privacy] has both clip and groups of parameters; give one"));
        }
    };
    let canaries = usize::try_from(config.canaries()).map_err(Error::usage)?;
    let copies = u32::try_from(config.copies()).ok().and_then(NonZeroU32::new);
    let mut plan = TrainingPlan::new(clipping, noise, expected)
        .unit(unit(config))
        .copies(copies.unwrap_or(NonZeroU32::MIN))
        .canaries(canaries);
    if let Some((clip, share)) = statistics {
        plan = plan.statistics(clip, share);
    }
    for (metric, share) in metrics {
        plan = plan.metric(metric, share);
    }
    if let Some(adaptive) = privacy.adaptive {
        let count = clip_norms.len();
        for group in clip_norms {
            plan = plan.group(adaptive_clip(adaptive, &group, count, expected)?);
        }
    }
    averaged(config, plan)
}

/// The group that adapts the clip norm of one of `count` groups of parameters.
fn adaptive_clip(
    adaptive: Adaptive,
    group: &str,
    count: usize,
    expected: PublicCount,
) -> Result<Group, Error> {
    let floor = ClipNorm::new(adaptive.floor).map_err(Error::usage)?;
    let rate = LearningRate::constant(adaptive.lr).map_err(Error::usage)?;
    let quantile = Quantile::of_norm(group, adaptive.quantile, expected, floor)
        .map_err(Error::usage)?
        .learning_rate(rate);
    let share = BudgetShare::new(adaptive.share / count as f64).map_err(Error::usage)?;
    Ok(Group::quantile(format!("norms of {group}"), quantile).share(share))
}

/// The weights and the denominator of averages, and how many users answer.
fn averaged(config: &Config, mut plan: TrainingPlan) -> Result<TrainingPlan, Error> {
    let privacy = &config.privacy;
    if let Some(weights) = privacy.weights {
        plan = plan.weighted(WeightBound::new(weights.bound).map_err(Error::usage)?);
        if let Some(expected) = weights.expected {
            let sum = PublicCount::new(privacy.expected_batch * expected).map_err(Error::usage)?;
            plan = plan.denominator(Denominator::Expected(sum));
        }
    }
    if let Some(denominator) = privacy.denominator {
        let floor = PublicCount::new(denominator.floor).map_err(Error::usage)?;
        let share = BudgetShare::new(denominator.share).map_err(Error::usage)?;
        plan = plan.denominator(Denominator::Private { floor, share });
    }
    if let Some(simulate) = config.train.simulate {
        plan = plan.answering(SampleRate::new(simulate.answering()).map_err(Error::usage)?);
    }
    Ok(plan)
}

/// The record unit: what the guarantee protects.
pub(crate) fn unit(config: &Config) -> Unit {
    match &config.data.record {
        Record::Named(config::Named::Example) => Unit::Example,
        Record::Microbatch(microbatch) => Unit::Microbatch { examples: microbatch.microbatch },
        users => {
            let examples = users.user_examples().unwrap_or(NonZeroU32::MIN);
            let contribution = match config.train.local {
                None => Contribution::Average,
                Some(config::Local { lr: rate, batch, epochs }) => {
                    Contribution::LocalSgd { rate, batch, epochs }
                }
            };
            Unit::User { examples, contribution }
        }
    }
}

/// The sampling policy, from declared numbers alone.
pub(crate) fn sampling(config: &Config) -> Result<Sampling, Error> {
    let (batch, records) = (config.privacy.expected_batch, config.data.records);
    // Fixed-size batches are drawn from records and canaries together.
    let all = records.saturating_add(u64::from(config.canaries()));
    let fixed = || FixedBatch::new(all, batch as u64).map_err(Error::usage);
    Ok(match config.privacy.sampling {
        config::Sampling::Poisson => Sampling::Poisson {
            rate: SampleRate::new(batch / records as f64).map_err(Error::usage)?,
        },
        config::Sampling::Fixed => Sampling::Fixed(fixed()?),
        config::Sampling::Shuffle => Sampling::Shuffle(fixed()?),
        config::Sampling::Truncated => {
            let rate = SampleRate::new(batch / records as f64).map_err(Error::usage)?;
            let policy = TruncatedPoisson::new(rate, all, config.max_batch());
            Sampling::TruncatedPoisson(policy.map_err(Error::usage)?)
        }
        config::Sampling::Allocation => {
            let rounds = NonZeroU64::new(config.rounds_per_epoch());
            Sampling::Allocation { rounds_per_epoch: rounds.unwrap_or(NonZeroU64::MIN) }
        }
    })
}

pub(crate) fn schedule(config: &Config) -> Schedule {
    let rate = config.train.optimizer.learning_rate();
    let rounds = config.rounds();
    match config.train.schedule {
        Some(config::Schedule::Linear) => Schedule::Linear { first: rate, last: 0.0, rounds },
        Some(config::Schedule::Cosine) => {
            Schedule::Cosine { first: rate, last: 0.0, warmup: 0, rounds }
        }
        None if config.train.cosine => {
            Schedule::Cosine { first: rate, last: 0.0, warmup: 0, rounds }
        }
        Some(config::Schedule::Constant) | None => Schedule::Constant(rate),
    }
}

pub(crate) type AnyOptimizer = Box<dyn Optimizer>;

pub(crate) fn optimizer(config: &Config) -> AnyOptimizer {
    match config.train.optimizer {
        config::Optimizer::Sgd { momentum, nesterov: true, .. } => {
            Box::new(Sgd::nesterov(momentum))
        }
        config::Optimizer::Sgd { momentum, .. } => Box::new(Sgd::with_momentum(momentum)),
        config::Optimizer::Adam { .. } => Box::new(Adam::standard()),
        config::Optimizer::Adamw { weight_decay, .. } => Box::new(Adam::with_decay(weight_decay)),
        config::Optimizer::Yogi { .. } => Box::new(Yogi::standard()),
        config::Optimizer::Adagrad { .. } => Box::new(Adagrad::standard()),
        config::Optimizer::Rmsprop { .. } => Box::new(RmsProp::standard()),
    }
}

pub(crate) fn sampler(sampling: Sampling) -> Result<Box<dyn Sampler>, Error> {
    match sampling {
        Sampling::Poisson { rate } => Ok(Box::new(PoissonSampler::new(rate))),
        Sampling::Fixed(batch) => Ok(Box::new(FixedSampler::new(batch))),
        Sampling::Shuffle(batch) => Ok(Box::new(ShuffleSampler::new(batch))),
        Sampling::CyclicPoisson { rate, groups, first_round } => {
            Ok(Box::new(CyclicSampler::new(rate, groups, first_round)))
        }
        Sampling::TruncatedPoisson(policy) => Ok(Box::new(TruncatedPoissonSampler::new(policy))),
        Sampling::Allocation { rounds_per_epoch } => {
            Ok(Box::new(AllocationSampler::new(rounds_per_epoch)))
        }
        _ => Err(Error::usage("train does not support this sampling")),
    }
}
