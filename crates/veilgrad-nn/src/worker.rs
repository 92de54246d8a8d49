//! What one thread does with records: through the model, into the sums.

use veilgrad_mechanism::{ClippedSum, Metric, RoundPlan, SumError};

use crate::book::Book;
use crate::layer::Role;
use crate::loss::class;
use crate::model::Prepared;
use crate::plan::{Contribution, Unit, Watch};
use crate::tile::Tile;
use crate::{Model, Records, TrainingPlan};

/// What all threads of a round share; all of it public but the records.
#[derive(Clone, Copy)]
pub(crate) struct Shared<'a> {
    pub(crate) model: &'a Model,
    pub(crate) prepared: &'a Prepared,
    pub(crate) training: &'a TrainingPlan,
    pub(crate) plan: &'a RoundPlan,
    pub(crate) metrics: &'a [Metric],
    /// The groups of gradients.
    pub(crate) groups: &'a [String],
    pub(crate) records: &'a dyn Records,
}

/// One thread's memory: bounded by the tile and the model, whatever the sample.
pub(crate) struct Worker {
    tile: Tile,
    book: Book,
    norms: Vec<f64>,
    encoded: Vec<Vec<f32>>,
    local: Option<(Model, Prepared)>,
}

impl Worker {
    pub(crate) fn new(
        model: &Model,
        training: &TrainingPlan,
        plan: &RoundPlan,
        groups: &[String],
        capacity: usize,
    ) -> Self {
        let materialised = training.is_materialised();
        let outside = if materialised { &[] } else { groups };
        let local = match training.unit {
            Unit::User { contribution: Contribution::LocalSgd { .. }, .. } => {
                Some((model.clone(), Prepared::default()))
            }
            _ => None,
        };
        Self {
            tile: Tile::new(model, training.loss, capacity, materialised),
            book: Book::new(&crate::tile::vectors(model), plan, outside),
            norms: Vec::new(),
            encoded: Vec::new(),
            local,
        }
    }

    /// How many records are taken at once.
    pub(crate) fn capacity(&self) -> usize {
        self.tile.capacity()
    }

    /// Adds some records: gradients to the book, the rest (or all) to the sum.
    pub(crate) fn add(
        &mut self,
        shared: Shared<'_>,
        ids: &[u64],
        sum: &mut ClippedSum,
    ) -> Result<(), SumError> {
        if shared.training.is_materialised() {
            return ids.iter().try_for_each(|id| self.add_materialised(shared, *id, sum));
        }
        let Shared { model, prepared, plan, .. } = shared;
        let read = |index: usize, input: &mut [f32], target: &mut [f32]| {
            shared.records.read(ids[index], 0, input, target);
        };
        self.tile.load(ids.len(), read);
        self.tile.forward(model, prepared);
        self.tile.backward(model, prepared);
        for row in 0..self.tile.count() {
            // Statistics may overflow where the loss does not, and a record counts in all groups or
            // in none.
            if self.tile.judgements[row].is_none() || !sound_statistics(model, &self.tile, row) {
                continue;
            }
            self.book.add(plan, &self.tile, row, &mut self.norms);
            self.encoded.clear();
            let encode = shared.metrics.iter().zip(&shared.training.watches);
            self.encoded.extend(encode.map(|(m, watch)| m.encode(value(*watch, &self.tile, row))));
            let vectors = vectors(model, &self.encoded, |parameter, role| match role {
                Role::Weight => &[],
                Role::Statistic => self.tile.gradient(parameter, row),
            });
            let norms = shared.groups.iter().zip(&self.norms);
            let norm = |name: &str| norms.clone().find(|(n, _)| *n == name).map(|(_, norm)| *norm);
            sum.add_beside(&vectors, 1.0, norm)?;
        }
        Ok(())
    }

    /// Empties the book into 64-bit sums; a part of the work that threads can share.
    pub(crate) fn finish(&mut self) {
        self.book.finish();
    }

    /// Hands the book's sums to the round's.
    pub(crate) fn hand_over(&mut self, sum: &mut ClippedSum) -> Result<(), SumError> {
        self.book.hand_over(sum)
    }

    /// Adds one record as vectors: the average over its examples, or where training on them leads.
    fn add_materialised(
        &mut self,
        shared: Shared<'_>,
        id: u64,
        sum: &mut ClippedSum,
    ) -> Result<(), SumError> {
        let Shared { model, prepared, training, .. } = shared;
        let examples = shared.records.examples(id).min(training.unit.examples());
        self.encoded = shared.metrics.iter().map(|m| vec![0.0; m.vector().1]).collect();
        if !self.average(shared, (model, prepared), id, 0..examples) {
            return Ok(());
        }
        let mut moved = Vec::new();
        if let Unit::User { contribution, .. } = training.unit
            && let Contribution::LocalSgd { rate, batch, epochs } = contribution
        {
            moved = self.local_steps(shared, id, examples, (rate, batch.get(), epochs.get()));
        }
        let vectors = vectors(model, &self.encoded, |parameter, role| match role {
            Role::Weight if !moved.is_empty() => &moved[parameter],
            _ => self.tile.gradient(parameter, 0),
        });
        sum.add(&vectors)
    }

    /// Leaves the averages over some examples of a record in the tile's first row (and metrics in
    /// `encoded`, where it has zeros). False if no example makes sense.
    fn average(
        &mut self,
        shared: Shared<'_>,
        (model, prepared): (&Model, &Prepared),
        id: u64,
        examples: std::ops::Range<usize>,
    ) -> bool {
        for gradient in &mut self.tile.gradients {
            gradient.fill(0.0);
        }
        let mut counted = 0u32;
        for first in examples.clone().step_by(self.tile.capacity()) {
            let count = (examples.end - first).min(self.tile.capacity());
            self.tile.load(count, |index, input, target| {
                shared.records.read(id, first + index, input, target);
            });
            self.tile.forward(model, prepared);
            self.tile.backward_summed(model, prepared);
            for row in 0..count {
                if self.tile.judgements[row].is_none() {
                    continue;
                }
                counted += 1;
                let watches = shared.metrics.iter().zip(&shared.training.watches);
                for ((metric, watch), sums) in watches.zip(&mut self.encoded) {
                    let encoded = metric.encode(value(*watch, &self.tile, row));
                    for (sum, value) in sums.iter_mut().zip(encoded) {
                        *sum += value;
                    }
                }
            }
        }
        let share = 1.0 / counted.max(1) as f32;
        for values in self.tile.gradients.iter_mut().chain(&mut self.encoded) {
            values.iter_mut().for_each(|value| *value *= share);
        }
        counted > 0
    }

    /// How far local steps move each weight, in the direction that an optimizer subtracts.
    fn local_steps(
        &mut self,
        shared: Shared<'_>,
        id: u64,
        examples: usize,
        (rate, batch, epochs): (f32, u32, u32),
    ) -> Vec<Vec<f32>> {
        let Some((mut local, mut prepared)) = self.local.take() else { return Vec::new() };
        // The first pass measured statistics and metrics; local passes must not count again.
        let (encoded, measured) = (std::mem::take(&mut self.encoded), self.tile.gradients.clone());
        local.values.clone_from(&shared.model.values);
        let bare = Shared { metrics: &[], ..shared };
        let batch = usize::try_from(batch).unwrap_or(usize::MAX);
        for _ in 0..epochs {
            for first in (0..examples).step_by(batch) {
                prepared.prepare(&local);
                let part = first..(first + batch).min(examples);
                self.average(bare, (&local, &prepared), id, part);
                local.descend(&self.tile.gradients, rate);
            }
        }
        let moved = shared.model.values.iter().zip(&local.values).map(|(before, after)| {
            before.iter().zip(after).map(|(before, after)| before - after).collect()
        });
        let moved = moved.collect();
        (self.encoded, self.tile.gradients, self.local) =
            (encoded, measured, Some((local, prepared)));
        moved
    }
}

/// A record's vectors in the order of the structure: weights, statistics, metrics.
fn vectors<'a>(
    model: &Model,
    encoded: &'a [Vec<f32>],
    vector: impl Fn(usize, Role) -> &'a [f32],
) -> Vec<&'a [f32]> {
    let of = |role: Role| {
        let parameters = model.network.parameters.iter().enumerate();
        parameters.filter(move |(_, p)| p.role == role).map(move |(index, _)| (index, role))
    };
    let parameters = of(Role::Weight).chain(of(Role::Statistic));
    parameters
        .map(|(index, role)| vector(index, role))
        .chain(encoded.iter().map(Vec::as_slice))
        .collect()
}

/// Whether all statistics of a record are finite.
fn sound_statistics(model: &Model, tile: &Tile, row: usize) -> bool {
    let parameters = model.network.parameters.iter().enumerate();
    let mut statistics = parameters.filter(|(_, p)| p.role == Role::Statistic);
    statistics.all(|(index, _)| tile.gradient(index, row).iter().all(|value| value.is_finite()))
}

/// What a metric watches in an example.
fn value(watch: Watch, tile: &Tile, row: usize) -> f64 {
    let Some(judgement) = tile.judgements[row] else { return f64::NAN };
    match watch {
        Watch::Accuracy => f64::from(judgement.right),
        Watch::Loss { .. } => f64::from(judgement.loss),
        Watch::ClassCounts { classes } => {
            class(tile.target(row), classes).map_or(f64::NAN, |class| class as f64)
        }
    }
}
