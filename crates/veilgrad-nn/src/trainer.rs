//! The round loop: permit, sample, tiles, certified sums, release, optimizer.

use std::sync::atomic::{AtomicUsize, Ordering};

use veilgrad_events::{Adjacency, LedgerError, RecordUnit, Round, RoundPermit, RunHeader};
use veilgrad_mechanism::{
    ClippedSum, Estimates, Metric, Noise, NoiseError, PlanError, ReleaseError, Released, RoundPlan,
    Sample, SampleError, Sampler, StructureError, SumError,
};

use crate::layer::Role;
use crate::model::Prepared;
use crate::optimizer::{Optimizer, Schedule, WeightAverage, Weights};
use crate::worker::{Shared, Worker};
use crate::{Model, ModelError, Records, TrainingPlan};

/// How fast a round runs. Nothing in it can change a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Performance {
    /// How many threads share the records of a round. Of more than a few per core, the rest is not used.
    pub threads: usize,
    /// How many examples go through the model at once; memory is bounded by it, not by the sample.
    /// Zero lets the model decide.
    pub tile: usize,
}

impl Performance {
    /// How many workers share a round: at most a few per core, since more only take memory.
    pub(crate) fn workers(self) -> usize {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        self.threads.clamp(1, (4 * cores).max(16))
    }

    /// The tile for a model: its values should stay in the nearest cache, and should not be read
    /// less often than the weights; and gradients that are held per record should not fill memory.
    pub(crate) fn tile(self, model: &Model) -> usize {
        const CACHE: usize = 256 << 10;
        const HELD: usize = 64 << 20;
        if self.tile > 0 {
            return self.tile;
        }
        let steps = model.network.steps.iter();
        let values: usize = steps.map(|step| 2 * 4 * step.outputs).sum::<usize>().max(1);
        let weights = 4 * model.size();
        let tile = (CACHE / values).max(weights / values).clamp(8, 128) / 8 * 8;
        let outer = model.network.steps.iter().filter_map(|step| step.operation.outer());
        let held = weights - outer.map(|(inputs, outputs)| 4 * inputs * outputs).sum::<usize>();
        tile.min(HELD / held.max(1)).max(1)
    }
}

impl Default for Performance {
    fn default() -> Self {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        Self { threads, tile: 0 }
    }
}

/// Training stopped. No message depends on a record.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrainError {
    /// The groups do not make a plan.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The vectors do not make a structure.
    #[error(transparent)]
    Structure(#[from] StructureError),
    /// The model does not fit.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The model has statistics to release, or none, and the plan says otherwise.
    #[error(
        "a model with batch norm needs TrainingPlan::statistics, and no other model may have it"
    )]
    Statistics,
    /// The run was opened for other records than the plan's; see [`Trainer::header`].
    #[error("the run's record is {run}, the plan's {plan}")]
    Unit {
        /// What a record is in the ledger.
        run: RecordUnit,
        /// What a record is in training.
        plan: RecordUnit,
    },
    /// The operating system has no randomness.
    #[error(transparent)]
    Noise(#[from] NoiseError),
    /// The sample could not be drawn.
    #[error(transparent)]
    Sample(#[from] SampleError),
    /// A sum was refused.
    #[error(transparent)]
    Sum(#[from] SumError),
    /// A release was refused.
    #[error(transparent)]
    Release(#[from] ReleaseError),
    /// The ledger did not take a charge.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// A thread died.
    #[error("a worker thread panicked")]
    Worker,
}

/// A model in training.
///
/// # Guarantee
/// The model's parameters and all that a round returns are functions of [`Released`] estimates and of
/// public parameters. A record that makes no sense (not finite, absurd target, overflow on the way)
/// contributes zero to every group, and nothing tells.
pub struct Trainer<O> {
    pub(crate) model: Model,
    pub(crate) optimizer: O,
    pub(crate) schedule: Schedule,
    pub(crate) average: Option<WeightAverage>,
    pub(crate) round: u64,
    pub(crate) plan: RoundPlan,
    pub(crate) groups: Vec<String>,
    training: TrainingPlan,
    metrics: Vec<Metric>,
    prepared: Prepared,
    performance: Performance,
    /// Empty while a round is under way: sums of a round that failed must not enter another.
    workers: Vec<Worker>,
    estimates: Option<Released<Estimates>>,
}

impl<O: Optimizer> Trainer<O> {
    /// Puts model, plan and optimizer together.
    ///
    /// # Errors
    /// When the plan's groups do not fit the model.
    pub fn new(
        model: Model,
        training: TrainingPlan,
        optimizer: O,
        schedule: Schedule,
        performance: Performance,
    ) -> Result<Self, TrainError> {
        let has = model.network.parameters.iter().any(|p| p.role == Role::Statistic);
        if has != training.has_statistics() {
            return Err(TrainError::Statistics);
        }
        let resolved = training.resolve(&model)?;
        let (plan, metrics, groups) = (resolved.plan, resolved.metrics, resolved.gradients);
        let (prepared, average, round) = (Prepared::default(), None, 0);
        Ok(Self {
            model,
            optimizer,
            schedule,
            average,
            round,
            plan,
            groups,
            training,
            metrics,
            prepared,
            performance,
            workers: Vec::new(),
            estimates: None,
        })
    }

    /// Keeps an exponential moving average of the weights: post-processing, and often better than
    /// the weights themselves.
    #[must_use]
    pub fn averaging(mut self, decay: f32) -> Self {
        self.average = Some(WeightAverage::new(decay, &self.model));
        self
    }

    /// The header of a run: what a record is, and which datasets are neighbours.
    #[must_use]
    pub fn header(&self, adjacency: Adjacency) -> RunHeader {
        RunHeader::new(self.training.unit.record(), adjacency)
    }

    /// The round as the ledger is to charge it.
    ///
    /// # Errors
    /// When a clip norm has become so extreme that its event cannot be written.
    pub fn event(&self, sampler: &impl Sampler) -> Result<Round, TrainError> {
        Ok(self.plan.round(sampler)?)
    }

    /// The mechanism's plan: groups, clip norms, noise.
    #[must_use]
    pub const fn plan(&self) -> &RoundPlan {
        &self.plan
    }

    /// The model as it is.
    #[must_use]
    pub const fn model(&self) -> &Model {
        &self.model
    }

    /// The model with averaged weights, if [`averaging`](Self::averaging) was asked for.
    #[must_use]
    pub fn averaged_model(&self) -> Option<Model> {
        Some(self.average.as_ref()?.model(&self.model))
    }

    /// All that the last round released.
    #[must_use]
    pub const fn estimates(&self) -> Option<&Released<Estimates>> {
        self.estimates.as_ref()
    }

    /// The number of rounds so far, of all runs.
    #[must_use]
    pub const fn rounds(&self) -> u64 {
        self.round
    }

    /// Runs one charged round.
    ///
    /// # Errors
    /// When randomness fails or the permit is for another round; never because of a record.
    pub fn round<R: Records>(
        &mut self,
        permit: RoundPermit,
        sampler: &mut impl Sampler,
        records: &R,
    ) -> Result<Progress, TrainError> {
        let (plan, old) = (self.plan.clone(), self.estimates.take());
        let noise = move || match old {
            Some(old) => Noise::draw_over(&plan, 1, old),
            None => Noise::draw_on(&plan, 1),
        };
        self.round_with(permit, sampler, records, noise)
    }

    /// Runs one charged round with noise for tests, in a run that is stamped INSECURE.
    ///
    /// # Errors
    /// As for [`round`](Self::round), and when the run is not stamped.
    #[cfg(feature = "insecure-testing")]
    pub fn round_insecure<R: Records>(
        &mut self,
        permit: RoundPermit,
        sampler: &mut impl Sampler,
        records: &R,
        noise: Noise,
    ) -> Result<Progress, TrainError> {
        self.round_with(permit, sampler, records, move || Ok(noise))
    }

    fn round_with<R: Records>(
        &mut self,
        permit: RoundPermit,
        sampler: &mut impl Sampler,
        records: &R,
        noise: impl FnOnce() -> Result<Noise, NoiseError>,
    ) -> Result<Progress, TrainError> {
        let (run, plan) = (permit.unit(), self.training.unit.record());
        if run != plan {
            return Err(TrainError::Unit { run, plan });
        }
        let sample = Sample::draw(permit, sampler, records.count())?;
        let sum = self.sum(&sample, records, noise)?;
        let estimates = sum.release_covered(sample)?;
        self.step(estimates)
    }

    /// The sums over the sample, on top of their noise. The first thread draws it before it takes any record.
    fn sum<R: Records>(
        &mut self,
        sample: &Sample,
        records: &R,
        noise: impl FnOnce() -> Result<Noise, NoiseError>,
    ) -> Result<ClippedSum, TrainError> {
        self.prepared.prepare(&self.model);
        let mut workers = std::mem::take(&mut self.workers);
        if workers.is_empty() {
            let tile = self.performance.tile(&self.model);
            let worker =
                |_| Worker::new(&self.model, &self.training, &self.plan, &self.groups, tile);
            workers = (0..self.performance.workers()).map(worker).collect();
        }
        let shared = Shared {
            model: &self.model,
            prepared: &self.prepared,
            training: &self.training,
            plan: &self.plan,
            metrics: &self.metrics,
            groups: &self.groups,
            records,
        };
        let ids: Vec<u64> = sample.ids().collect();
        // Two tiles or more for each thread, so that none waits long for the others.
        let share = ids.len().div_ceil(2 * workers.len().max(1)).next_multiple_of(8);
        let share = if workers.len() > 1 { share } else { usize::MAX };
        let capacity = workers.first().map_or(1, Worker::capacity).min(share).max(1);
        let (next, tiles) = (AtomicUsize::new(0), ids.chunks(capacity).collect::<Vec<_>>());
        let work = |worker: &mut Worker| -> Result<ClippedSum, SumError> {
            let mut sum = sample.begin(shared.plan);
            while let Some(tile) = tiles.get(next.fetch_add(1, Ordering::Relaxed)) {
                worker.add(shared, tile, &mut sum)?;
            }
            worker.finish();
            Ok(sum)
        };
        let Some((first, others)) = workers.split_first_mut() else {
            return Err(TrainError::Worker);
        };
        let (noise, sums) = std::thread::scope(|scope| {
            let others: Vec<_> =
                others.iter_mut().map(|worker| scope.spawn(|| work(worker))).collect();
            let noise = noise();
            let mut sums = vec![Ok(work(first))];
            sums.extend(others.into_iter().map(|other| other.join()));
            (noise, sums)
        });
        let mut total = sample.begin(&self.plan);
        total.cover(noise?)?;
        for (worker, sum) in workers.iter_mut().zip(sums) {
            total.merge(sum.map_err(|_| TrainError::Worker)??)?;
            worker.hand_over(&mut total)?;
        }
        self.workers = workers;
        Ok(total)
    }

    /// Post-processing: the optimizer, running statistics, adaptive clip norms, the average.
    fn step(&mut self, estimates: Released<Estimates>) -> Result<Progress, TrainError> {
        let rate = self.schedule.rate(self.round);
        self.round = self.round.saturating_add(1);
        self.optimizer.step(Weights::new(&mut self.model), &estimates, rate, self.round);
        self.model.follow(&estimates, self.training.momentum);
        if let Some(average) = &mut self.average {
            average.add(&self.model, self.round);
        }
        self.plan.adapt(&estimates)?;
        let metrics = self
            .metrics
            .iter()
            .filter_map(|metric| Some((metric.vector().0, metric.decode(&estimates)?)));
        let metrics = metrics.collect();
        self.estimates = Some(estimates);
        Ok(Progress { round: self.round, metrics })
    }
}

/// What a round released.
#[derive(Debug, Clone)]
pub struct Progress {
    /// The number of the round, from 1, over all runs.
    pub round: u64,
    metrics: Vec<(String, Vec<f64>)>,
}

impl Progress {
    /// The private estimate of a metric: `accuracy`, `loss` (one number) or `classes` (one per
    /// class).
    #[must_use]
    pub fn metric(&self, name: &str) -> Option<&[f64]> {
        self.metrics.iter().find(|(n, _)| n == name).map(|(_, values)| values.as_slice())
    }
}
