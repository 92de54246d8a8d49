//! The round engine: permit, sample, noise, per-record gradients, certified sums, release, adaptive clipping.

use std::sync::atomic::{AtomicUsize, Ordering};

use veilgrad_events::{Adjacency, Numerics, Round, RoundPermit, RunHeader, Sampling};
use veilgrad_mechanism::{
    CanaryLane, ClippedSum, CorrelatedNoise, Dropouts, Estimates, Metric, Noise, NoiseError,
    PartialSum, Released, RoundPlan, Sample, Sampler, SumError,
};
use zeroize::Zeroizing;

use super::backend::Backend;
use super::error::TrainError;
use super::peers::{EMPTY_SLOT, Peers, SharedRound};
use super::plan::TrainingPlan;
use super::vector::Vectors;
use super::worker::{Origin, Shared, Worker};

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
    dropouts: Option<Dropouts>,
    /// Empty during a round, and after one that failed.
    workers: Vec<Worker<M>>,
    pub(super) estimates: Option<Released<Estimates>>,
    /// The noise of the current segment, if the plan correlates it between rounds. Never saved.
    segment: Option<CorrelatedNoise>,
    /// The other processes that add up records, if there are any.
    peers: Option<Box<dyn Peers>>,
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
    /// When the plan's groups do not fit the vectors, or 64 bits may not hold its correlated noise.
    pub fn new(
        training: TrainingPlan,
        vectors: Vectors,
        performance: Performance,
        numerics: Numerics,
    ) -> Result<Self, TrainError> {
        if vectors.statistics.is_empty() == training.statistics.is_some() {
            return Err(TrainError::Statistics);
        }
        if training.correlated.is_some() && training.canaries > 0 {
            return Err(TrainError::CorrelatedCanaries);
        }
        let lane = match training.canaries {
            0 => None,
            count => Some(CanaryLane::new(count).map_err(NoiseError::Random)?),
        };
        let (plan, groups) = training.resolve(&vectors, lane.as_ref())?;
        if let Some((_, rounds)) = &training.correlated {
            // A strategy that 64 bits cannot hold is refused here, before any round is charged.
            CorrelatedNoise::new(&plan, *rounds)?;
        }
        let metrics = training.metrics().cloned().collect();
        let dropouts = training.answering.map(Dropouts::new);
        let (workers, estimates) = (Vec::new(), None);
        let (round, peers) = (0, None);
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
            dropouts,
            workers,
            estimates,
            segment: None,
            peers,
        })
    }

    /// Shares the records of all later rounds with other processes. No result depends on their number.
    pub fn share_with(&mut self, peers: Box<dyn Peers>) {
        self.peers = Some(peers);
    }

    /// Refuses more rounds than correlated noise was planned for, before any of them is charged.
    pub(super) fn check_rounds(&self, rounds: u64) -> Result<(), TrainError> {
        match self.training.correlated {
            Some((_, most)) if rounds > most => Err(NoiseError::SegmentEnd(most).into()),
            _ => Ok(()),
        }
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
        let mut segment = self.segment_of(&permit)?;
        let progress = self.round_with(backend, permit, sampler, |plan, sample, old| {
            match (&mut segment, old) {
                (None, Some(old)) => Noise::draw_over(plan, 1, old),
                (None, None) => Noise::draw_on(plan, 1),
                (Some(segment), Some(old)) => segment.draw_over(sample, 1, old),
                (Some(segment), None) => segment.draw(sample, 1),
            }
        });
        self.segment = segment;
        progress
    }

    /// The correlated noise of the permit's segment, if the plan has some. The first round of a segment begins it; any other
    /// round continues what this engine has, and is refused by it if it is not the next one.
    fn segment_of(&mut self, permit: &RoundPermit) -> Result<Option<CorrelatedNoise>, NoiseError> {
        let Some((_, rounds)) = &self.training.correlated else { return Ok(None) };
        match permit.round().sampling() {
            Sampling::CyclicPoisson { first_round, .. } if first_round != permit.number() => {
                self.segment.take().map(Some).ok_or(NoiseError::SegmentOrder)
            }
            _ => CorrelatedNoise::new(&self.plan, *rounds).map(Some),
        }
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
        self.round_with(backend, permit, sampler, move |_, _, _| Ok(noise))
    }

    fn round_with<B: Backend<Memory = M>>(
        &mut self,
        backend: &B,
        permit: RoundPermit,
        sampler: &mut impl Sampler,
        noise: impl FnOnce(
            &RoundPlan,
            &Sample,
            Option<Released<Estimates>>,
        ) -> Result<Noise, NoiseError>,
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
        let noise = move |sample: &Sample| noise(&plan, sample, old);
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

    /// The sampled records that take part: all of them, unless dropouts are simulated. Canaries always do.
    fn answering(&self, sample: &Sample, real: u64) -> Result<Zeroizing<Vec<u64>>, TrainError> {
        // Their number is known before, so that no copy is left behind.
        let mut ids = Zeroizing::new(sample.ids().collect::<Vec<u64>>());
        if let Some(dropouts) = &self.dropouts {
            let canaries = canaries_of(&mut ids, real);
            dropouts.keep_answering(&mut ids).map_err(NoiseError::Random)?;
            ids = joined(&ids, &canaries);
        }
        Ok(ids)
    }

    /// The noisy sums over the sample. A partial sum has no noise until it is added to the total, and is then wiped.
    fn sum<B: Backend<Memory = M>>(
        &mut self,
        backend: &B,
        real: u64,
        sample: &Sample,
        slots: Option<usize>,
        noise: impl FnOnce(&Sample) -> Result<Noise, NoiseError>,
    ) -> Result<ClippedSum, TrainError> {
        let mut ids = self.answering(sample, real)?;
        let mut slots = slots;
        if let Some(peers) = &mut self.peers {
            let canaries = canaries_of(&mut ids, real);
            // Every process computes its share of the public number of rows.
            ids = padded(&ids, slots, EMPTY_SLOT);
            let (tag, adapted) = (sample.tag(&self.plan), self.plan.adapted());
            let round = SharedRound::new(tag, adapted, slots.is_some(), backend.weights());
            ids = peers.scatter(round, ids, real).map_err(TrainError::Peers)?;
            let rows = take_slots(&mut ids);
            slots = slots.map(|_| rows + canaries.len());
            ids = joined(&ids, &canaries);
        }
        let (mut workers, noise, parts) =
            self.parts(backend, real, Origin::Sample(sample), (&ids, slots), || noise(sample))?;
        let mut total = sample.begin(&self.plan);
        total.add_noise(noise)?;
        for (worker, part) in workers.iter_mut().zip(parts) {
            worker.outer = total.absorb(part)?;
        }
        if let Some(peers) = &mut self.peers {
            total = peers.reduce(total).map_err(TrainError::Peers)?;
        }
        self.workers = workers;
        Ok(total)
    }

    /// Adds up this process's records of a round that another process charged and will release.
    ///
    /// # Errors
    /// When the round is for another plan. Never because of a record.
    pub fn part<B: Backend<Memory = M>>(
        &mut self,
        backend: &B,
        round: &SharedRound,
        mut ids: Zeroizing<Vec<u64>>,
    ) -> Result<PartialSum, TrainError> {
        self.plan.restore(&round.adapted)?;
        let mut sum = PartialSum::begin(&self.plan, &round.tag, |_| None)
            .map_err(|_| TrainError::DifferentPlan)?;
        let (origin, rows) = (Origin::Tag(&round.tag), take_slots(&mut ids));
        let slots = round.by_place.then_some(rows);
        let (mut workers, (), parts) =
            self.parts(backend, backend.records(), origin, (&ids, slots), || Ok(()))?;
        for (worker, part) in workers.iter_mut().zip(parts) {
            worker.outer = sum.absorb(part)?;
        }
        self.workers = workers;
        Ok(sum)
    }

    /// The partial sums of all threads over some records, with what `first` returns: the first thread calls it before it
    /// processes any record. If that fails, the other threads stop after their current tile.
    ///
    /// With a number of slots, which is public, as many rows are computed, in tiles of the same sizes, however many records there
    /// are: empty slots run the first record into a sum that is dropped. So shapes, memory and the number of operations do not
    /// depend on the sample if every record is one example (users run as many as they have), and the result has the same bits as
    /// without slots.
    #[allow(clippy::type_complexity)]
    fn parts<B: Backend<Memory = M>, T>(
        &mut self,
        backend: &B,
        real: u64,
        origin: Origin<'_>,
        (ids, slots): (&[u64], Option<usize>),
        first: impl FnOnce() -> Result<T, NoiseError>,
    ) -> Result<(Vec<Worker<M>>, T, Vec<PartialSum>), TrainError> {
        let mut workers = std::mem::take(&mut self.workers);
        if workers.is_empty() {
            let worker = |_| Worker::new(backend.memory());
            workers = (0..self.performance.workers()).map(worker).collect();
        }
        let (training, plan, vectors) = (&self.training, &self.plan, &self.vectors);
        let (metrics, lane) = (&self.metrics[..], self.lane.as_ref());
        let lanes = lane.map_or(0, |_| self.groups.len());
        let shared = Shared { backend, training, plan, vectors, metrics, lane, lanes, real };
        let taken = ids.len();
        let ids = padded(ids, slots.filter(|_| real > 0), 0);
        // At least two tiles per thread, so that none waits long for the others.
        let share = ids.len().div_ceil(2 * workers.len().max(1)).next_multiple_of(8);
        let share = if workers.len() > 1 { share } else { usize::MAX };
        let capacity = workers.first().map_or(1, |worker| backend.capacity(&worker.memory));
        let size = capacity.min(share).max(1);
        let (next, tiles) = (AtomicUsize::new(0), ids.chunks(size).collect::<Vec<_>>());
        let work = |worker: &mut Worker<M>| -> Result<PartialSum, SumError> {
            let mut part = shared.begin(origin, std::mem::take(&mut worker.outer))?;
            let mut dropped = match slots {
                Some(_) => Some(shared.begin(origin, Vec::new())?),
                None => None,
            };
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
        let Some((leading, others)) = workers.split_first_mut() else {
            return Err(TrainError::Worker);
        };
        let (found, parts) = std::thread::scope(|scope| {
            let others: Vec<_> =
                others.iter_mut().map(|worker| scope.spawn(|| work(worker))).collect();
            let found = first();
            if found.is_err() {
                next.store(tiles.len(), Ordering::Relaxed);
            }
            let mut parts = vec![Ok(work(leading))];
            parts.extend(others.into_iter().map(|other| other.join()));
            (found, parts)
        });
        let found = found?;
        let parts = parts.into_iter().map(|part| Ok(part.map_err(|_| TrainError::Worker)??));
        let parts = parts.collect::<Result<_, TrainError>>()?;
        Ok((workers, found, parts))
    }
}

/// Takes the canaries out of ids, which ascend: they come after all records.
fn canaries_of(ids: &mut Vec<u64>, real: u64) -> Zeroizing<Vec<u64>> {
    Zeroizing::new(ids.split_off(ids.partition_point(|id| *id < real)))
}

/// All of these ids, in memory of their own: ids that outgrow theirs would leave a copy behind.
fn joined(ids: &[u64], more: &[u64]) -> Zeroizing<Vec<u64>> {
    Zeroizing::new([ids, more].concat())
}

/// The ids and as many fillers as are missing to a number of slots.
fn padded(ids: &[u64], slots: Option<usize>, filler: u64) -> Zeroizing<Vec<u64>> {
    let size = ids.len().max(slots.unwrap_or(0));
    let mut all = Zeroizing::new(Vec::with_capacity(size));
    all.extend_from_slice(ids);
    all.resize(size, filler);
    all
}

/// Removes empty slots. Returns how many rows there were with them.
fn take_slots(ids: &mut Vec<u64>) -> usize {
    let rows = ids.len();
    ids.retain(|id| *id != EMPTY_SLOT);
    rows
}

/// How many rows a round computes, whatever its sample: the public maximum of a truncated sample.
fn slots(policy: Sampling) -> Option<usize> {
    match policy {
        Sampling::TruncatedPoisson(policy) => usize::try_from(policy.maximum()).ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
