//! The part of a round that one thread does: records to per-record gradients, averages and partial sums.

use veilgrad_mechanism::{
    CanaryLane, Metric, OuterMemory, OuterProducts, PartialSum, RecordVector, RoundPlan, Sample,
    SampleTag, SumError,
};

use super::backend::{Backend, ExampleId};
use super::plan::{Contribution, TrainingPlan, Unit};
use super::quiet::quietly;
use super::vector::{Vector, Vectors};
use crate::product::RoundedProducts;

/// What the partial sums of a round begin with.
#[derive(Clone, Copy)]
pub(super) enum Origin<'a> {
    /// The sample of this process.
    Sample(&'a Sample),
    /// The tag of another process's sample.
    Tag(&'a SampleTag),
}

/// What all threads of a round share. All of it is public except the records.
pub(super) struct Shared<'a, B> {
    pub(super) backend: &'a B,
    pub(super) training: &'a TrainingPlan,
    pub(super) plan: &'a RoundPlan,
    pub(super) vectors: &'a Vectors,
    pub(super) metrics: &'a [Metric],
    pub(super) lane: Option<&'a CanaryLane>,
    /// How many groups have canaries.
    pub(super) lanes: usize,
    /// How many records are not canaries.
    pub(super) real: u64,
}

impl<B: Backend> Shared<'_, B> {
    /// The weight of a record; 1 if the plan has none. One that cannot be read counts as 0.
    fn weight(&self, record: u64) -> f64 {
        match self.training.is_weighted() {
            true => quietly(|| self.backend.weight(record)).unwrap_or(0.0),
            false => 1.0,
        }
    }

    /// The zeros that a real record adds to the coordinates of canaries.
    fn no_canary(&self) -> impl Iterator<Item = RecordVector<'_>> {
        let zeros = self.lane.map_or(&[][..], CanaryLane::zeros);
        std::iter::repeat_n(RecordVector::Values(zeros), self.lanes)
    }

    /// An empty partial sum, reusing the allocations of an earlier one.
    pub(super) fn begin(
        &self,
        origin: Origin<'_>,
        mut memory: OuterMemory,
    ) -> Result<PartialSum, SumError> {
        let materialised = self.training.is_materialised();
        let outer = |name: &str| {
            let matches = |vector: &&Vector| vector.name == name && !materialised;
            let (inputs, outputs) = self.vectors.trained.iter().find(matches)?.outer?;
            if let Some(index) = memory.iter().position(|(used_for, _)| used_for == name) {
                return Some(memory.swap_remove(index).1);
            }
            let s_int = self.plan.grid_of(name).map_or(1, |grid| grid.s_int());
            let products: Box<dyn OuterProducts> =
                Box::new(RoundedProducts::new(inputs, outputs, s_int));
            Some(products)
        };
        match origin {
            Origin::Sample(sample) => Ok(sample.begin_part(self.plan, outer)),
            Origin::Tag(tag) => PartialSum::begin(self.plan, tag, outer),
        }
    }
}

/// The working memory of one thread.
pub(super) struct Worker<M> {
    pub(super) memory: M,
    pub(super) outer: OuterMemory,
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
    pub(super) const fn new(memory: M) -> Self {
        Self { memory, outer: Vec::new(), sums: Vec::new(), encoded: Vec::new() }
    }

    /// Wipes everything computed from records.
    pub(super) fn wipe(&mut self) {
        for values in self.sums.iter_mut().chain(&mut self.encoded) {
            values.fill(0.0);
        }
    }

    /// Adds a tile of records; those of empty slots to `dropped`.
    pub(super) fn add<B: Backend<Memory = M>>(
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
        let materialised = shared.training.is_materialised();
        let is_run = !materialised
            && quietly(|| shared.backend.run(&mut self.memory, &examples)) == Some(true);
        for (row, example) in examples.iter().enumerate() {
            let sum = if row < ids.len() { Some(&mut *part) } else { dropped.as_deref_mut() };
            let Some(sum) = sum else { continue };
            if materialised {
                self.add_average(shared, example.record, sum)?;
            } else if is_run {
                self.add_row(shared, row, example.record, sum)?;
            // Some record could not be run: each is tried alone. The values of a record do not depend on its neighbours, so
            // the others give the same values as before.
            } else if quietly(|| shared.backend.run(&mut self.memory, &[*example])) == Some(true) {
                self.add_row(shared, 0, example.record, sum)?;
            }
        }
        Ok(())
    }

    /// Adds the record of a row.
    fn add_row<B: Backend<Memory = M>>(
        &mut self,
        shared: &Shared<'_, B>,
        row: usize,
        record: u64,
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
        let vectors = gradients.chain(metrics).chain(shared.no_canary());
        part.add_weighted(&vectors.collect::<Vec<_>>(), shared.weight(record))
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
        let local = match training.record() {
            Unit::User { contribution: Contribution::Average, .. } => None,
            Unit::User { contribution, .. } => Some(contribution),
            _ => None,
        };
        // Beside an update of local SGD, averages are needed for statistics and metrics alone.
        let averaged = local.is_none() || !vectors.statistics.is_empty() || !metrics.is_empty();
        if averaged && !self.average(shared, record, examples) {
            return Ok(());
        }
        let mut update = None;
        if let Some(local) = local {
            update = backend.local_steps(&mut self.memory, record, examples, local);
            if update.is_none() {
                return Ok(());
            }
        }
        let trained = vectors.trained.len();
        let weights = update.as_deref().unwrap_or_else(|| self.sums.get(..trained).unwrap_or(&[]));
        let statistics = self.sums.get(trained..).unwrap_or(&[]);
        let values = weights.iter().chain(statistics).chain(&self.encoded);
        let values = values.map(|values| RecordVector::Values(values));
        let vectors = values.chain(shared.no_canary()).collect::<Vec<_>>();
        part.add_weighted(&vectors, shared.weight(record))
    }

    /// Averages vectors and metrics over the examples of a record, into `sums` and `encoded`; see [`average`].
    fn average<B: Backend<Memory = M>>(
        &mut self,
        shared: &Shared<'_, B>,
        record: u64,
        examples: usize,
    ) -> bool {
        let Shared { backend, vectors, metrics, .. } = shared;
        let all_vectors = || vectors.trained.iter().chain(&vectors.statistics);
        self.sums.resize_with(all_vectors().count(), Vec::new);
        for (sum, vector) in self.sums.iter_mut().zip(all_vectors()) {
            sum.clear();
            sum.resize(vector.length, 0.0);
        }
        self.encoded = metrics.iter().map(|metric| vec![0.0; metric.vector().1]).collect();
        let averages = Averages { sums: &mut self.sums, encoded: &mut self.encoded, metrics };
        average(*backend, &mut self.memory, record, 0..examples, averages)
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
