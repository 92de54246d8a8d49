//! A tile: a batch of examples in the forward and backward pass.

use burn::module::Module;
use burn::tensor::Device;
use veilgrad_mechanism::Metric;
use veilgrad_nn::round::{Vector, quietly};

use crate::error::ModelError;
use crate::gradients::{TileGradients, held, vectors};
use crate::inspect::{Parameters, check_untracked};
use crate::tape::{self, Tape, numbers};
use crate::{Outcome, Records};

/// The public properties of tiles.
pub(crate) struct Shape {
    pub(crate) device: Device,
    pub(crate) parameters: Parameters,
    pub(crate) metrics: Vec<Metric>,
    pub(crate) capacity: usize,
    /// Whether smaller tiles, in multiples of [`STEP`], give the same bits; otherwise tiles are always full.
    pub(crate) partial: bool,
    /// The form of gradients, and after them statistics; known after the first pass.
    pub(crate) vectors: Vec<Vector>,
    /// The approximate bytes of a tile per record; known after the first pass.
    pub(crate) held: usize,
}

/// The number of examples in a tile is a multiple of this; made-up ones pad it.
pub(crate) const STEP: usize = 8;

/// The results of a tile, row by row.
pub(crate) struct Tile {
    /// Gradients of the trained parameters, and after them statistics.
    pub(crate) gradients: TileGradients,
    pub(crate) losses: Vec<f32>,
    /// A row per metric of the plan.
    pub(crate) metrics: Vec<Vec<f32>>,
}

impl Tile {
    /// All results of a row: loss, metrics, gradients.
    pub(crate) fn row(&self, row: usize) -> Vec<f32> {
        let mut all = vec![self.losses[row]];
        all.extend(self.metrics.iter().map(|values| values[row]));
        all.extend(self.gradients.row(row));
        all
    }
}

/// The losses and metrics of an outcome, if there is one of each per example.
pub(crate) fn judge(
    outcome: &Outcome,
    metrics: &[Metric],
    examples: usize,
) -> Result<(Vec<f32>, Vec<Vec<f32>>), ModelError> {
    let [losses] = outcome.losses.dims();
    if losses != examples {
        return Err(ModelError::Losses { examples, losses });
    }
    let values = |metric: &Metric| {
        let (name, _) = metric.vector();
        let found = outcome.metrics.iter().find(|(n, _)| *n == name);
        let values = found.map(|(_, values)| numbers(values.clone()));
        values.filter(|values| values.len() == examples).ok_or(ModelError::Metric(name))
    };
    let metrics = metrics.iter().map(values).collect::<Result<_, _>>()?;
    Ok((numbers(outcome.losses.clone()), metrics))
}

impl Shape {
    /// The properties before the first pass: every gradient is dense.
    pub(crate) fn new(
        device: Device,
        parameters: Parameters,
        metrics: Vec<Metric>,
        capacity: usize,
    ) -> Self {
        let vectors = vectors(&[], &parameters.all());
        Self { device, parameters, metrics, capacity, partial: false, vectors, held: 0 }
    }

    /// Runs made-up examples to learn the form of gradients, or why there are none.
    pub(crate) fn explore<M: Module, R: Records>(
        &mut self,
        model: &M,
        records: &R,
        loss: &impl Fn(&M, R::Batch) -> Outcome,
    ) -> Result<(), ModelError> {
        let examples: Vec<_> = (0..self.capacity as u64).map(|i| records.made_up(i)).collect();
        let mut tape = Tape::default();
        let batch = records.batch(examples, &self.device);
        let outcome = tape::recorded(&mut tape, self.capacity, || loss(model, batch));
        if let Some(reason) = tape.refused {
            return Err(ModelError::Refused(reason));
        }
        judge(&outcome, &self.metrics, self.capacity)?;
        let total = outcome.sum();
        if !total.is_tracked() {
            return Err(ModelError::NothingTrained);
        }
        let mut gradients = total.backward();
        check_untracked(model, &mut gradients, &self.parameters.trained)?;
        let parameters = self.parameters.all();
        self.vectors = vectors(&tape.uses, &parameters);
        self.held = held(&tape.uses, &parameters);
        Ok(())
    }

    /// The number of examples in a tile for this many records.
    pub(crate) fn size(&self, records: usize) -> usize {
        if self.partial { records.next_multiple_of(STEP).min(self.capacity) } else { self.capacity }
    }

    /// Runs the forward and backward pass on examples. `None` if it fails: then try the examples one by one.
    pub(crate) fn run<M: Module, R: Records>(
        &self,
        model: &M,
        records: &R,
        loss: &impl Fn(&M, R::Batch) -> Outcome,
        examples: Vec<R::Example>,
        tape: &mut Tape,
    ) -> Option<Tile> {
        let count = examples.len();
        let outcome = quietly(|| {
            tape::recorded(tape, count, || loss(model, records.batch(examples, &self.device)))
        })?;
        let (losses, metrics) = quietly(|| {
            let judged = judge(&outcome, &self.metrics, count).ok()?;
            // Records are isolated, so the gradient of the sum by row i is that of loss i.
            drop(outcome.sum().backward());
            Some(judged)
        })??;
        let parameters = self.parameters.all();
        let gradients = TileGradients::take(&tape.uses, &parameters, &self.vectors, count)?;
        Some(Tile { gradients, losses, metrics })
    }
}
