//! The round engine: permit, sample, noise, per-record gradients, certified sums, release, adaptive clipping.

use std::sync::atomic::{AtomicUsize, Ordering};

use veilgrad_events::{Adjacency, Numerics, Round, RoundPermit, RunHeader, Sampling};
use veilgrad_mechanism::{
    CanaryLane, ClippedSum, Estimates, Metric, Noise, NoiseError, OuterMemory, OuterProducts,
    PartialSum, RecordVector, Released, RoundPlan, Sample, Sampler, SumError,
};

use super::backend::{Backend, ExampleId};
use super::error::TrainError;
use super::plan::{Contribution, TrainingPlan, Unit};
use super::quiet::quietly;
use super::vector::{Vector, Vectors};
use crate::product::RoundedProducts;

/// Performance settings: they never change a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Performance {
    /// How many threads share the records of a round; at most a few per core are used.
    pub threads: usize,
    /// The tile size: how many examples go through the model at once. Memory depends on it, not on the sample.
    /// Zero chooses a size for the model. The setting is ignored where a record has several examples: their gradients
    /// are averaged in floating point, tile by tile, so the tile size would change the result.
    pub tile: usize,
}

impl Performance {
    /// The number of worker threads: at most a few per core, since more only take memory.
    pub(crate) fn workers(self) -> usize {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        self.threads.clamp(1, (4 * cores).max(16))
    }
}

impl Default for Performance {
    fn default() -> Self {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        Self { threads, tile: 0 }
    }
}

/// Runs charged rounds of a plan on any [`Backend`]. `M` is the backend's memory.
///
/// # Guarantee
/// A record adds an integer vector of certified norm ([`PartialSum`]) to a round. The vector is a function of the record
/// and public state alone if the backend keeps its promise. An unusable record (an input, loss or gradient that is not
/// finite, a target out of range, a panic while it is read) contributes zero to every group; an unusable example of a
/// microbatch or a user is left out. No output depends on it otherwise. Sums of a failed round are wiped and enter no
/// other round.
pub struct Engine<M> {
    pub(super) plan: RoundPlan,
    /// The names of the gradient groups.
    pub(super) groups: Vec<String>,
    pub(super) round: u64,
    training: TrainingPlan,
    vectors: Vectors,
    metrics: Vec<Metric>,
    performance: Performance,
    numerics: Numerics,
    pub(super) lane: Option<CanaryLane>,
    /// Empty during a round, and after one that failed.
    workers: Vec<Worker<M>>,
    pub(super) estimates: Option<Released<Estimates>>,
}

/// The metrics that a round released.
#[derive(Debug, Clone)]
pub struct Progress {
    /// The number of the round, from 1, counted over all runs of the trainer.
    pub round: u64,
    metrics: Vec<(String, Vec<f64>)>,
}

impl Progress {
    /// The differentially private estimate of a metric: one number, or one per class.
    #[must_use]
    pub fn metric(&self, name: &str) -> Option<&[f64]> {
        self.metrics.iter().find(|(n, _)| n == name).map(|(_, values)| values.as_slice())
    }
}

impl<M: Send> Engine<M> {
    /// An engine for this plan and the vectors of a model.
    ///
    /// # Errors
    /// When the plan's groups do not fit the vectors.
    pub fn new(
        training: TrainingPlan,
        vectors: Vectors,
        performance: Performance,
        numerics: Numerics,
    ) -> Result<Self, TrainError> {
        if vectors.statistics.is_empty() == training.statistics.is_some() {
            return Err(TrainError::Statistics);
        }
        let lane = match training.canaries {
            0 => None,
            count => Some(CanaryLane::new(count).map_err(NoiseError::Random)?),
        };
        let (plan, groups) = training.resolve(&vectors, lane.as_ref())?;
        let metrics = training.metrics().cloned().collect();
        let (workers, estimates) = (Vec::new(), None);
        let round = 0;
        Ok(Self {
            plan,
            groups,
            round,
            training,
            vectors,
            metrics,
            performance,
            numerics,
            lane,
            workers,
            estimates,
        })
    }

    /// The header of a run: the record unit, the adjacency, and whether records are proven to be isolated.
    #[must_use]
    pub fn header(&self, adjacency: Adjacency) -> RunHeader {
        let mut header = RunHeader::new(self.training.record().record(), adjacency);
        header.numerics = self.numerics;
        header
    }

    /// The round that the ledger must charge.
    ///
    /// # Errors
    /// When a clip norm has become so extreme that its event cannot be represented.
    pub fn event(&self, sampler: &impl Sampler) -> Result<Round, TrainError> {
        Ok(self.plan.round(sampler)?)
    }

    /// The privacy settings.
    #[must_use]
    pub const fn training(&self) -> &TrainingPlan {
        &self.training
    }

    /// The mechanism's plan: groups, clip norms, noise.
    #[must_use]
    pub const fn plan(&self) -> &RoundPlan {
        &self.plan
    }

    /// Whether a record's contribution is proven to be a function of this record alone.
    #[must_use]
    pub const fn numerics(&self) -> Numerics {
        self.numerics
    }

    /// Everything that the last round released.
    #[must_use]
    pub const fn estimates(&self) -> Option<&Released<Estimates>> {
        self.estimates.as_ref()
    }

    /// The canaries of an audit, with their scores so far; `None` unless the plan has some.
    #[must_use]
    pub const fn canaries(&self) -> Option<&CanaryLane> {
        self.lane.as_ref()
    }

    /// The number of rounds so far, over all runs.
    #[must_use]
    pub const fn rounds(&self) -> u64 {
        self.round
    }

    /// Runs one charged round and adapts clip norms to what it released.
    ///
    /// # Errors
    /// When the operating system gives no randomness, or the permit is for another round, another record unit, or exact
    /// numerics that this engine does not have. Never because of a record.
    pub fn round<B: Backend<Memory = M>>(
        &mut self,
        backend: &B,
        permit: RoundPermit,
        sampler: &mut impl Sampler,
    ) -> Result<Progress, TrainError> {
        self.round_with(backend, permit, sampler, |plan, old| match old {
            Some(old) => Noise::draw_over(plan, 1, old),
            None => Noise::draw_on(plan, 1),
        })
    }

    /// Runs one charged round with given noise, for tests, in a run that is stamped INSECURE.
    ///
    /// # Errors
    /// As for [`round`](Self::round), and when the run is not stamped.
    #[cfg(feature = "insecure-testing")]
    pub fn round_insecure<B: Backend<Memory = M>>(
        &mut self,
        backend: &B,
        permit: RoundPermit,
        sampler: &mut impl Sampler,
        noise: Noise,
    ) -> Result<Progress, TrainError> {
        self.round_with(backend, permit, sampler, move |_, _| Ok(noise))
    }

    fn round_with<B: Backend<Memory = M>>(
        &mut self,
        backend: &B,
        permit: RoundPermit,
        sampler: &mut impl Sampler,
        noise: impl FnOnce(&RoundPlan, Option<Released<Estimates>>) -> Result<Noise, NoiseError>,
    ) -> Result<Progress, TrainError> {
        let (run, plan) = (permit.unit(), self.training.record().record());
        if run != plan {
            return Err(TrainError::Unit { run, plan });
        }
        if permit.numerics() == Numerics::Exact && self.numerics != Numerics::Exact {
            return Err(TrainError::Numerics);
        }
        if self.training.trains_locally() && !B::LOCAL_STEPS {
            return Err(TrainError::LocalSteps);
        }
        let (plan, old) = (self.plan.clone(), self.estimates.take());
        let noise = move || noise(&plan, old);
        let (real, policy) = (backend.records(), permit.round().sampling());
        let records = real.saturating_add(self.lane.as_ref().map_or(0, CanaryLane::count));
        let sample = Sample::draw(permit, sampler, records)?;
        let sum = self.sum(backend, real, &sample, slots(policy), noise)?;
        let estimates = sum.release_noisy(sample)?;
        if let Some(lane) = &mut self.lane {
            lane.observe(&estimates, policy);
        }
        self.plan.adapt(&estimates)?;
        self.round = self.round.saturating_add(1);
        let decode = |metric: &Metric| Some((metric.vector().0, metric.decode(&estimates)?));
        let metrics = self.metrics.iter().filter_map(decode).collect();
        self.estimates = Some(estimates);
        Ok(Progress { round: self.round, metrics })
    }

    /// The noisy sums over the sample. The first thread draws the noise before it processes any record; if that fails,
    /// the other threads stop after their current tile. Each thread's partial sum has no noise until it is added to the
    /// total, and is then wiped.
    ///
    /// With a number of slots, which is public, as many rows are computed, in tiles of the same sizes, however many records were
    /// sampled: empty slots run the first record into a sum that is dropped. So shapes, memory and the number of
    /// operations do not depend on the sample, and the result has the same bits as without slots.
    fn sum<B: Backend<Memory = M>>(
        &mut self,
        backend: &B,
        real: u64,
        sample: &Sample,
        slots: Option<usize>,
        noise: impl FnOnce() -> Result<Noise, NoiseError>,
    ) -> Result<ClippedSum, TrainError> {
        let mut workers = std::mem::take(&mut self.workers);
        if workers.is_empty() {
            let worker = |_| Worker::new(backend.memory());
            workers = (0..self.performance.workers()).map(worker).collect();
        }
        let (training, plan, vectors) = (&self.training, &self.plan, &self.vectors);
        let (metrics, lane) = (&self.metrics[..], self.lane.as_ref());
        let lanes = lane.map_or(0, |_| self.groups.len());
        let shared = Shared { backend, training, plan, vectors, metrics, lane, lanes, real };
        let mut ids: Vec<u64> = sample.ids().collect();
        let taken = ids.len();
        if real > 0 {
            ids.resize(taken.max(slots.unwrap_or(0)), 0);
        }
        // At least two tiles per thread, so that none waits long for the others.
        let share = ids.len().div_ceil(2 * workers.len().max(1)).next_multiple_of(8);
        let share = if workers.len() > 1 { share } else { usize::MAX };
        let capacity = workers.first().map_or(1, |worker| backend.capacity(&worker.memory));
        let size = capacity.min(share).max(1);
        let (next, tiles) = (AtomicUsize::new(0), ids.chunks(size).collect::<Vec<_>>());
        let work = |worker: &mut Worker<M>| -> Result<PartialSum, SumError> {
            let mut part = shared.begin(sample, std::mem::take(&mut worker.outer));
            let mut dropped = slots.map(|_| shared.begin(sample, Vec::new()));
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                let Some(tile) = tiles.get(number) else { break };
                let taken = taken.saturating_sub(number.saturating_mul(size)).min(tile.len());
                worker.add(&shared, tile.split_at(taken), &mut part, dropped.as_mut())?;
            }
            backend.end(&mut worker.memory);
            worker.wipe();
            part.finish();
            Ok(part)
        };
        let Some((first, others)) = workers.split_first_mut() else {
            return Err(TrainError::Worker);
        };
        let (noise, parts) = std::thread::scope(|scope| {
            let others: Vec<_> =
                others.iter_mut().map(|worker| scope.spawn(|| work(worker))).collect();
            let noise = noise();
            if noise.is_err() {
                next.store(tiles.len(), Ordering::Relaxed);
            }
            let mut parts = vec![Ok(work(first))];
            parts.extend(others.into_iter().map(|other| other.join()));
            (noise, parts)
        });
        let mut total = sample.begin(plan);
        total.add_noise(noise?)?;
        for (worker, part) in workers.iter_mut().zip(parts) {
            worker.outer = total.absorb(part.map_err(|_| TrainError::Worker)??)?;
        }
        self.workers = workers;
        Ok(total)
    }
}

/// How many rows a round computes, whatever its sample: the public maximum of a truncated sample.
fn slots(policy: Sampling) -> Option<usize> {
    match policy {
        Sampling::TruncatedPoisson(policy) => usize::try_from(policy.maximum()).ok(),
        _ => None,
    }
}

/// What all threads of a round share. All of it is public except the records.
struct Shared<'a, B> {
    backend: &'a B,
    training: &'a TrainingPlan,
    plan: &'a RoundPlan,
    vectors: &'a Vectors,
    metrics: &'a [Metric],
    lane: Option<&'a CanaryLane>,
    /// How many groups have canaries.
    lanes: usize,
    /// How many records are not canaries.
    real: u64,
}

impl<B: Backend> Shared<'_, B> {
    /// The zeros that a real record adds to the coordinates of canaries.
    fn no_canary(&self) -> impl Iterator<Item = RecordVector<'_>> {
        let zeros = self.lane.map_or(&[][..], CanaryLane::zeros);
        std::iter::repeat_n(RecordVector::Values(zeros), self.lanes)
    }

    /// An empty partial sum, reusing the allocations of an earlier one.
    fn begin(&self, sample: &Sample, mut memory: OuterMemory) -> PartialSum {
        let materialised = self.training.is_materialised();
        sample.begin_part(self.plan, |name| {
            let matches = |vector: &&Vector| vector.name == name && !materialised;
            let (inputs, outputs) = self.vectors.trained.iter().find(matches)?.outer?;
            if let Some(index) = memory.iter().position(|(used_for, _)| used_for == name) {
                return Some(memory.swap_remove(index).1);
            }
            let s_int = self.plan.grid_of(name).map_or(1, |grid| grid.s_int());
            let products: Box<dyn OuterProducts> =
                Box::new(RoundedProducts::new(inputs, outputs, s_int));
            Some(products)
        })
    }
}

/// The working memory of one thread.
struct Worker<M> {
    memory: M,
    outer: OuterMemory,
    /// Averages of vectors and metrics over the examples of a record.
    sums: Vec<Vec<f32>>,
    encoded: Vec<Vec<f32>>,
}

impl<M> Drop for Worker<M> {
    fn drop(&mut self) {
        self.wipe();
        std::hint::black_box((&self.sums, &self.encoded));
    }
}

impl<M> Worker<M> {
    const fn new(memory: M) -> Self {
        Self { memory, outer: Vec::new(), sums: Vec::new(), encoded: Vec::new() }
    }

    /// Wipes everything computed from records.
    fn wipe(&mut self) {
        for values in self.sums.iter_mut().chain(&mut self.encoded) {
            values.fill(0.0);
        }
    }

    /// Adds a tile of records; those of empty slots to `dropped`.
    fn add<B: Backend<Memory = M>>(
        &mut self,
        shared: &Shared<'_, B>,
        (ids, empty): (&[u64], &[u64]),
        part: &mut PartialSum,
        mut dropped: Option<&mut PartialSum>,
    ) -> Result<(), SumError> {
        // Ids ascend, and those of canaries follow those of real records.
        let (ids, canaries) = ids.split_at(ids.partition_point(|id| *id < shared.real));
        if let Some(lane) = shared.lane {
            for id in canaries {
                part.add_canary(lane, id.saturating_sub(shared.real))?;
            }
        }
        let rows = ids.iter().chain(empty);
        let examples: Vec<ExampleId> =
            rows.map(|record| ExampleId { record: *record, example: 0 }).collect();
        if examples.is_empty() {
            return Ok(());
        }
        if shared.training.is_materialised() {
            for (row, example) in examples.iter().enumerate() {
                let sum = if row < ids.len() { Some(&mut *part) } else { dropped.as_deref_mut() };
                let Some(sum) = sum else { continue };
                self.add_average(shared, example.record, sum)?;
            }
            return Ok(());
        }
        let is_run = quietly(|| shared.backend.run(&mut self.memory, &examples)) == Some(true);
        for (row, example) in examples.iter().enumerate() {
            let sum = if row < ids.len() { Some(&mut *part) } else { dropped.as_deref_mut() };
            let Some(sum) = sum else { continue };
            if is_run {
                self.add_row(shared, row, sum)?;
            // Some record could not be run: each is tried alone. The values of a record do not depend on its neighbours, so
            // the others give the same values as before.
            } else if quietly(|| shared.backend.run(&mut self.memory, &[*example])) == Some(true) {
                self.add_row(shared, 0, sum)?;
            }
        }
        Ok(())
    }

    /// Adds the record of a row.
    fn add_row<B: Backend<Memory = M>>(
        &mut self,
        shared: &Shared<'_, B>,
        row: usize,
        part: &mut PartialSum,
    ) -> Result<(), SumError> {
        let Shared { backend, metrics, vectors, .. } = shared;
        if !backend.is_sound(&self.memory, row) {
            return Ok(());
        }
        let memory = &self.memory;
        self.encoded.clear();
        let values = metrics.iter().enumerate();
        let encode =
            |(index, metric): (usize, &Metric)| metric.encode(backend.metric(memory, index, row));
        self.encoded.extend(values.map(encode));
        let count = vectors.trained.len() + vectors.statistics.len();
        let gradients = (0..count).map(|vector| backend.vector(memory, vector, row));
        let metrics = self.encoded.iter().map(|values| RecordVector::Values(values));
        part.add(&gradients.chain(metrics).chain(shared.no_canary()).collect::<Vec<_>>())
    }

    /// Adds one record: the average over its examples, or its update by local SGD.
    fn add_average<B: Backend<Memory = M>>(
        &mut self,
        shared: &Shared<'_, B>,
        record: u64,
        part: &mut PartialSum,
    ) -> Result<(), SumError> {
        let Shared { backend, training, vectors, metrics, .. } = shared;
        let examples = quietly(|| backend.examples(record)).unwrap_or(0);
        let examples = examples.min(training.examples());
        let all_vectors = || vectors.trained.iter().chain(&vectors.statistics);
        self.sums.resize_with(all_vectors().count(), Vec::new);
        for (sum, vector) in self.sums.iter_mut().zip(all_vectors()) {
            sum.clear();
            sum.resize(vector.length, 0.0);
        }
        self.encoded = metrics.iter().map(|metric| vec![0.0; metric.vector().1]).collect();
        let averages = Averages { sums: &mut self.sums, encoded: &mut self.encoded, metrics };
        if !average(*backend, &mut self.memory, record, 0..examples, averages) {
            return Ok(());
        }
        let mut update = None;
        if let Unit::User { contribution, .. } = training.record()
            && contribution != Contribution::Average
        {
            update = backend.local_steps(&mut self.memory, record, examples, contribution);
        }
        let trained = vectors.trained.len();
        let weights = update.as_deref().unwrap_or_else(|| self.sums.get(..trained).unwrap_or(&[]));
        let statistics = self.sums.get(trained..).unwrap_or(&[]);
        let values = weights.iter().chain(statistics).chain(&self.encoded);
        let values = values.map(|values| RecordVector::Values(values));
        part.add(&values.chain(shared.no_canary()).collect::<Vec<_>>())
    }
}

/// Where [`average`] writes its results; must be zeros.
pub(crate) struct Averages<'a> {
    pub(crate) sums: &'a mut [Vec<f32>],
    pub(crate) encoded: &'a mut [Vec<f32>],
    pub(crate) metrics: &'a [Metric],
}

/// Averages vectors and metrics over the valid examples of a record: those with finite inputs, targets in range, and
/// finite losses and gradients. False if there are none.
pub(crate) fn average<B: Backend>(
    backend: &B,
    memory: &mut B::Memory,
    record: u64,
    examples: std::ops::Range<usize>,
    averages: Averages<'_>,
) -> bool {
    let Averages { sums, encoded, metrics } = averages;
    let mut counted = 0u32;
    let mut scratch: Vec<Vec<f32>> = sums.iter().map(|sum| vec![0.0; sum.len()]).collect();
    // Adds a tile of examples, unless their sum is not finite.
    let mut add = |memory: &mut B::Memory, tile: &[ExampleId]| {
        scratch.iter_mut().for_each(|sum| sum.fill(0.0));
        if quietly(|| backend.run_summed(memory, tile, &mut scratch)) != Some(true)
            || scratch.iter().flatten().any(|value| !value.is_finite())
        {
            return false;
        }
        for (sum, part) in sums.iter_mut().zip(&scratch) {
            sum.iter_mut().zip(part).for_each(|(sum, value)| *sum += value);
        }
        for row in (0..tile.len()).filter(|row| backend.is_sound(memory, *row)) {
            counted += 1;
            for (index, (metric, sums)) in metrics.iter().zip(encoded.iter_mut()).enumerate() {
                let values = metric.encode(backend.metric(memory, index, row));
                sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
            }
        }
        true
    };
    let capacity = backend.capacity(memory).max(1);
    for first in examples.clone().step_by(capacity) {
        let tile = first..examples.end.min(first.saturating_add(capacity));
        let tile: Vec<ExampleId> = tile.map(|example| ExampleId { record, example }).collect();
        if !add(memory, &tile) && tile.len() > 1 {
            // One unusable example must not exclude the others.
            for example in &tile {
                add(memory, std::slice::from_ref(example));
            }
        }
    }
    let share = 1.0 / counted.max(1) as f32;
    for values in sums.iter_mut().chain(encoded) {
        values.iter_mut().for_each(|value| *value *= share);
    }
    counted > 0
}

#[cfg(test)]
mod tests;
