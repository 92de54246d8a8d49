//! The native engine on arrays: what scikit-learn's estimators train with.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use numpy::{PyArray1, PyArrayDyn, PyArrayMethods};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use veilgrad_accounting::{Accountant, Composition, PrivacyTarget, Tightest, of_ledger};
use veilgrad_events::{
    Adjacency, ClipNorm, Delta, Epsilon, Folded, NoiseMultiplier, PublicCount, Rounds, SampleRate,
    Sampling,
};
use veilgrad_mechanism::PoissonSampler;
use veilgrad_nn::{
    Adam, Clipping, DriveError, Hooks, InMemory, Layer, Loss, Model, Optimizer, Pace, Performance,
    Progress, Schedule, Sgd, Trainer, TrainingPlan, drive,
};

use crate::array::Array;
use crate::error::{Raise, invalid, refused};
use crate::interrupt::watched;
use crate::run::{Claim, Store, Terms, claim_of};

/// Rounds that are charged at once; as many are lost at most in a crash.
const BLOCK: u64 = 32;

/// A training job: everything public.
struct Job {
    inputs: usize,
    outputs: usize,
    hidden: Vec<usize>,
    loss: Loss,
    seed: u64,
    epsilon: Option<Epsilon>,
    noise_multiplier: Option<NoiseMultiplier>,
    delta: Delta,
    rate: SampleRate,
    batch: PublicCount,
    rounds: u64,
    clip: ClipNorm,
    learning_rate: f64,
    momentum: f32,
    adam: bool,
    average: Option<f32>,
    threads: Option<usize>,
    terms: Terms,
}

type Weights = BTreeMap<String, (Vec<usize>, Vec<f32>)>;

impl Job {
    fn model(&self) -> PyResult<Model> {
        let hidden = self.hidden.iter().flat_map(|width| [Layer::linear(*width), Layer::Relu]);
        let layers = hidden.chain([Layer::linear(self.outputs)]);
        let mut model = Model::new(&[self.inputs], layers, self.seed).map_err(invalid)?;
        if self.hidden.is_empty() {
            // Convex: zero is as good a start as any.
            let names: Vec<String> = model.parameters().map(|(name, ..)| name.to_owned()).collect();
            for name in names {
                if let Some(values) = model.parameter_mut(&name) {
                    values.fill(0.0);
                }
            }
        }
        Ok(model)
    }

    /// The noise that was asked for, or that the budget needs.
    fn noise(&self) -> PyResult<NoiseMultiplier> {
        let (count, sampling) = (self.rounds, Sampling::Poisson { rate: self.rate });
        match (self.noise_multiplier, self.epsilon) {
            (Some(noise), _) => Ok(noise),
            (None, Some(epsilon)) => {
                let target = PrivacyTarget { epsilon, delta: self.delta, accountant: &Tightest };
                let with = |noise_multiplier| {
                    let folded = Folded { count, sampling, noise_multiplier };
                    Composition::of([folded], Adjacency::AddRemove)
                };
                target.noise_multiplier(with).map_err(Raise::raise)
            }
            (None, None) => Err(invalid("give epsilon or noise_multiplier")),
        }
    }

    fn trainer(&self, noise: NoiseMultiplier) -> PyResult<Trainer<Box<dyn Optimizer>>> {
        let plan = TrainingPlan::new(Clipping::Flat(self.clip), noise, self.batch);
        let optimizer: Box<dyn Optimizer> = match self.adam {
            true => Box::new(Adam::standard()),
            false => Box::new(Sgd::with_momentum(self.momentum)),
        };
        let performance = match self.threads {
            Some(threads) => Performance { threads: threads.max(1), ..Performance::default() },
            None => Performance::default(),
        };
        let rate = Schedule::Constant(self.learning_rate);
        let trainer = Trainer::new(self.model()?, self.loss, plan, optimizer, rate, performance);
        let trainer = trainer.map_err(Raise::raise)?;
        Ok(match self.average {
            Some(decay) => trainer.averaging(decay),
            None => trainer,
        })
    }

    fn run(&self, records: &InMemory, watch: &Arc<Watching>) -> PyResult<(Weights, Claim)> {
        let mut sampler = PoissonSampler::new(self.rate);
        let mut noise = self.noise()?;
        // Groups are rounded to their grids; a little more noise makes up for it.
        let (mut trainer, plan) = loop {
            let trainer = self.trainer(noise)?;
            let round = trainer.event(&sampler).map_err(Raise::raise)?;
            let plan = vec![Rounds { count: self.rounds, round }];
            let composition =
                Composition::fold(&plan, Adjacency::AddRemove).map_err(Raise::raise)?;
            let cost = Tightest.epsilon(&composition, self.delta).map_err(Raise::raise)?.epsilon;
            match self.epsilon {
                Some(target) if cost > target.get() => {
                    noise = NoiseMultiplier::new(noise.get() * (1.0 + 1e-7)).map_err(invalid)?;
                }
                _ => break (trainer, plan),
            }
        };
        let header = trainer.header(Adjacency::AddRemove).with_plan(plan);
        let store = self.terms.open(&header)?;
        let mut run = veilgrad_events::Run::open(store, header).map_err(Raise::raise)?;
        let pace = Pace { rounds: self.rounds, block: BLOCK, checkpoint_rounds: None };
        let hooks = &mut WatchHooks(Arc::clone(watch));
        let left = drive(&mut trainer, &mut run, &mut sampler, records, &pace, hooks);
        let left = left.map_err(|error| match error {
            DriveError::Train(error) => error.raise(),
            other => refused(other),
        })?;
        if left > 0 {
            return Err(refused("interrupted; what was charged stays charged"));
        }
        let claim = match run.close().map_err(Raise::raise)? {
            Store::Memory(ledger) => {
                of_ledger(&ledger, self.delta).map(Claim::new).map_err(Raise::raise)?
            }
            Store::Durable(store) => {
                let dataset = self.terms.dataset.as_deref().unwrap_or_default();
                claim_of(store.ledger(), dataset, None)?
            }
        };
        let model = trainer.averaged_model().unwrap_or_else(|| trainer.model().clone());
        let weights = model
            .parameters()
            .map(|(name, shape, values)| (name.to_owned(), (shape.to_vec(), values.to_vec())));
        Ok((weights.collect(), claim))
    }
}

/// How far training is, and whether it is to stop.
#[derive(Default)]
struct Watching {
    done: AtomicU64,
    stop: AtomicBool,
}

struct WatchHooks(Arc<Watching>);

impl<T> Hooks<T, Store> for WatchHooks {
    fn show(&mut self, _: &T, progress: &Progress) {
        self.0.done.store(progress.round, Ordering::Relaxed);
    }

    fn stop(&mut self) -> bool {
        self.0.stop.load(Ordering::Relaxed)
    }
}

/// Trains a linear model (without `hidden`) or a perceptron privately on arrays, and returns its weights and the claim.
/// Rows that are not finite, and targets out of range, contribute zero.
#[pyfunction]
#[pyo3(signature = (inputs, targets, *, outputs, loss, delta, records, batch, rounds, clip, learning_rate,
    epsilon=None, noise_multiplier=None, hidden=Vec::new(), momentum=0.0, adam=false, average=None, seed=0,
    threads=None, ledger=None, dataset=None, progress=None))]
#[allow(clippy::too_many_arguments)]
pub(crate) fn fit<'py>(
    py: Python<'py>,
    inputs: &Bound<'py, PyAny>,
    targets: &Bound<'py, PyAny>,
    outputs: usize,
    loss: &str,
    delta: f64,
    records: u64,
    batch: f64,
    rounds: u64,
    clip: f64,
    learning_rate: f64,
    epsilon: Option<f64>,
    noise_multiplier: Option<f64>,
    hidden: Vec<usize>,
    momentum: f32,
    adam: bool,
    average: Option<f32>,
    seed: u64,
    threads: Option<usize>,
    ledger: Option<PathBuf>,
    dataset: Option<String>,
    progress: Option<&Bound<'py, PyAny>>,
) -> PyResult<(Bound<'py, PyDict>, Claim)> {
    let loss = match loss {
        "softmax" => Loss::SoftmaxCrossEntropy,
        "squared" => Loss::SquaredError,
        _ => return Err(invalid(format!("loss {loss:?} is neither 'softmax' nor 'squared'"))),
    };
    let (inputs, targets) = (Array::new(inputs)?, Array::new(targets)?);
    let &[count, width] = inputs.shape() else { return Err(invalid("inputs need two axes")) };
    if targets.shape() != [count, loss.targets(outputs)] {
        return Err(invalid("targets do not fit inputs and outputs"));
    }
    let (epsilon_budget, delta_budget) = (epsilon.filter(|_| ledger.is_some()), Some(delta));
    let job = Job {
        inputs: width,
        outputs,
        hidden,
        loss,
        seed,
        epsilon: epsilon.map(Epsilon::new).transpose().map_err(invalid)?,
        noise_multiplier: noise_multiplier
            .map(NoiseMultiplier::new)
            .transpose()
            .map_err(invalid)?,
        delta: Delta::new(delta).map_err(invalid)?,
        rate: SampleRate::new((batch / records as f64).min(1.0)).map_err(invalid)?,
        batch: PublicCount::new(batch).map_err(invalid)?,
        rounds,
        clip: ClipNorm::new(clip).map_err(invalid)?,
        learning_rate,
        momentum,
        adam,
        average,
        threads,
        terms: Terms {
            head: None,
            ledger,
            dataset,
            epsilon: epsilon_budget,
            delta: delta_budget,
            patience: 60.0,
            allow_network: false,
        },
    };
    let targets_width = loss.targets(outputs);
    let data = InMemory::new(inputs.to_singles()?, width, targets.to_singles()?, targets_width);
    let watch = Arc::new(Watching::default());
    let (theirs, mut shown) = (Arc::clone(&watch), 0);
    let mut show = |_: Python<'_>| {
        let done = watch.done.load(Ordering::Relaxed);
        if let Some(progress) = progress
            && done != shown
        {
            shown = done;
            progress.call1((done, rounds))?;
        }
        Ok(())
    };
    let stop = || {
        watch.stop.store(true, Ordering::Relaxed);
        true
    };
    let found = watched(py, move || job.run(&data, &theirs), &mut show, stop)?;
    show(py)?;
    let (found, claim) = found?;
    let weights = PyDict::new(py);
    for (name, (shape, values)) in found {
        weights.set_item(name, shaped(py, values, shape)?)?;
    }
    Ok((weights, claim))
}

/// Numbers as an array of this shape.
pub(crate) fn shaped(
    py: Python<'_>,
    values: Vec<f32>,
    shape: Vec<usize>,
) -> PyResult<Bound<'_, PyArrayDyn<f32>>> {
    PyArray1::from_vec(py, values).reshape(shape)
}
