//! The round backend of this crate's own models.

use std::sync::Arc;

use veilgrad_mechanism::{Metric, RecordVector};

use crate::loss::class;
use crate::model::{Model, Prepared};
use crate::records::Records;
use crate::round::{
    Averages, Backend, Contribution, ExampleId, TrainError, TrainingPlan, Vector, Vectors, average,
};
use crate::tile::Tile;
use crate::{Loss, layer::Role};

/// What a metric measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Measured {
    Accuracy,
    Loss,
    Class { classes: usize },
}

impl Measured {
    /// What each metric of a plan measures, by its name: `accuracy`, `loss` or `classes`.
    pub(crate) fn of_plan(plan: &TrainingPlan) -> Result<Vec<Self>, TrainError> {
        let measured = |metric: &Metric| match (metric.vector().0.as_str(), metric.vector().1) {
            ("accuracy", 1) => Ok(Self::Accuracy),
            ("loss", 1) => Ok(Self::Loss),
            ("classes", classes) => Ok(Self::Class { classes }),
            (name, _) => Err(TrainError::Metric(name.to_owned())),
        };
        plan.metrics().map(measured).collect()
    }
}

/// Settings that are the same in all rounds.
pub(crate) struct Setup {
    pub(crate) loss: Loss,
    pub(crate) metrics: Vec<Measured>,
    /// How many examples go through the model at once.
    pub(crate) tile: usize,
    /// Whether gradients are summed over the examples of a record.
    pub(crate) summed: bool,
    /// The parameter of each vector: weights, then statistics.
    pub(crate) order: Vec<usize>,
    /// The weights of classes; none if all are 1.
    pub(crate) class_weights: Arc<[f32]>,
}

/// A native model and its records.
#[derive(Clone, Copy)]
pub(crate) struct Native<'a> {
    pub(crate) model: &'a Model,
    pub(crate) prepared: &'a Prepared,
    pub(crate) records: &'a dyn Records,
    pub(crate) setup: &'a Setup,
}

/// The memory of one thread: a tile, and what local SGD needs.
pub struct Memory {
    tile: Tile,
    local: Option<Local>,
}

/// The model of a user during local SGD, and the gradient of a step.
struct Local {
    model: Model,
    prepared: Prepared,
    sums: Vec<Vec<f32>>,
}

impl Native<'_> {
    fn load_and_forward(&self, tile: &mut Tile, examples: &[ExampleId]) {
        tile.load(examples.len(), |index, input, target| {
            let ExampleId { record, example } = examples[index];
            self.records.read(record, example, input, target);
        });
        tile.forward(self.model, self.prepared);
    }
}

impl Backend for Native<'_> {
    type Memory = Memory;
    const LOCAL_STEPS: bool = true;

    fn memory(&self) -> Memory {
        let Setup { loss, tile, summed, .. } = *self.setup;
        let mut tile = Tile::new(self.model, loss, tile, summed);
        tile.class_weights = self.setup.class_weights.clone();
        Memory { tile, local: None }
    }

    fn capacity(&self, memory: &Memory) -> usize {
        memory.tile.capacity
    }

    fn records(&self) -> u64 {
        self.records.count()
    }

    fn examples(&self, record: u64) -> usize {
        self.records.examples(record)
    }

    fn weight(&self, record: u64) -> f64 {
        self.records.weight(record)
    }

    fn run(&self, memory: &mut Memory, examples: &[ExampleId]) -> bool {
        self.load_and_forward(&mut memory.tile, examples);
        memory.tile.backward(self.model, self.prepared);
        true
    }

    fn run_summed(
        &self,
        memory: &mut Memory,
        examples: &[ExampleId],
        sums: &mut [Vec<f32>],
    ) -> bool {
        let tile = &mut memory.tile;
        // The backward pass of a summed tile adds to the tile's gradients: for that time, these are `sums`.
        let mut swap_gradients = |tile: &mut Tile| {
            for (sum, parameter) in sums.iter_mut().zip(&self.setup.order) {
                std::mem::swap(sum, &mut tile.gradients[*parameter]);
            }
        };
        self.load_and_forward(tile, examples);
        swap_gradients(tile);
        tile.backward(self.model, self.prepared);
        swap_gradients(tile);
        true
    }

    fn weights(&self) -> Vec<Vec<f32>> {
        self.model.values.clone()
    }

    fn is_sound(&self, memory: &Memory, row: usize) -> bool {
        memory.tile.judgements[row].is_some()
    }

    fn vector<'m>(&self, memory: &'m Memory, vector: usize, row: usize) -> RecordVector<'m> {
        memory.tile.vector(self.setup.order[vector], row)
    }

    fn metric(&self, memory: &Memory, metric: usize, row: usize) -> f64 {
        let Some(judgement) = memory.tile.judgements[row] else { return f64::NAN };
        match self.setup.metrics[metric] {
            Measured::Accuracy => f64::from(judgement.right),
            Measured::Loss => f64::from(judgement.loss),
            Measured::Class { classes } => {
                class(memory.tile.target(row), classes).map_or(f64::NAN, |class| class as f64)
            }
        }
    }

    fn end(&self, memory: &mut Memory) {
        memory.tile.wipe();
        memory.local = None;
    }

    fn local_steps(
        &self,
        memory: &mut Memory,
        record: u64,
        examples: usize,
        contribution: Contribution,
    ) -> Option<Vec<Vec<f32>>> {
        let Contribution::LocalSgd { rate, batch, epochs } = contribution else { return None };
        let order = &self.setup.order;
        let zeros = |parameter: &usize| vec![0.0; self.model.values[*parameter].len()];
        let fresh = || Local {
            model: self.model.clone(),
            prepared: Prepared::default(),
            sums: order.iter().map(zeros).collect(),
        };
        let mut local = memory.local.take().unwrap_or_else(fresh);
        local.model.values.clone_from(&self.model.values);
        let batch = usize::try_from(batch.get()).unwrap_or(usize::MAX);
        let mut is_sound = false;
        for _ in 0..epochs.get() {
            for first in (0..examples).step_by(batch) {
                let Local { model, prepared, sums } = &mut local;
                prepared.prepare(model);
                sums.iter_mut().for_each(|sum| sum.fill(0.0));
                let backend = Native { model, prepared, ..*self };
                let batch = first..first.saturating_add(batch).min(examples);
                let averages = Averages { sums, encoded: &mut [], metrics: &[] };
                is_sound |= average(&backend, memory, record, batch, averages);
                model.sgd_step(order.iter().copied().zip(&*sums), rate);
            }
        }
        let parameters = &self.model.network.parameters;
        // Frozen ones are not in this order.
        let weights = order.iter().filter(|parameter| parameters[**parameter].role == Role::Weight);
        let moved = weights.map(|parameter| {
            let pairs = self.model.values[*parameter].iter().zip(&local.model.values[*parameter]);
            pairs.map(|(before, after)| before - after).collect()
        });
        let moved = moved.collect();
        memory.local = Some(local);
        is_sound.then_some(moved)
    }
}

/// The vectors that a round estimates for a model, and the index of each one's parameter.
pub(crate) fn vectors(model: &Model) -> (Vectors, Vec<usize>) {
    let network = &model.network;
    let outer = |parameter: usize| {
        let owner = network.steps.iter().find(|step| step.parameters.contains(&parameter))?;
        owner.operation.outer().filter(|_| owner.parameters.start == parameter)
    };
    let with_role = |role: Role| {
        let vector = model.with_role(role).map(|(index, p)| {
            (Vector { name: p.name.clone(), length: p.length(), outer: outer(index) }, index)
        });
        vector.unzip::<_, _, Vec<Vector>, Vec<usize>>()
    };
    let ((trained, mut order), (statistics, statistic_order)) =
        (with_role(Role::Weight), with_role(Role::Statistic));
    order.extend(statistic_order);
    (Vectors { trained, statistics }, order)
}
