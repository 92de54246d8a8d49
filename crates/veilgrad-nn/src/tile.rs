//! A tile: a batch of examples in the forward and backward pass.

use std::sync::Arc;

use crate::layer::{Backward, Gradients, Parameter, Spare, TableGradients};
use crate::loss::{Judgement, class};
use crate::model::Prepared;
use crate::round::Performance;
use crate::{Loss, Model};
use veilgrad_mechanism::RecordVector;
use veilgrad_mechanism::exact::vectorised;

/// Buffers for a fixed number of examples: inputs, activations, and gradients.
///
/// # Guarantee
/// Row i of every buffer depends on example i and on the model alone, not on the other examples or
/// their number; see [`Operation`](crate::layer::Operation). (In a summed tile, gradients of
/// parameters are sums over the examples.)
pub(crate) struct Tile {
    pub(crate) capacity: usize,
    count: usize,
    /// The rows that hold examples, also of earlier tiles.
    used: usize,
    /// The input of every step, and the output of the last.
    pub(crate) values: Vec<Vec<f32>>,
    /// The gradients by `values`; that by the input is not needed and empty.
    pub(crate) slopes: Vec<Vec<f32>>,
    /// The gradients by the parameters: a row per example, or one for all.
    pub(crate) gradients: Vec<Vec<f32>>,
    pub(crate) targets: Vec<f32>,
    pub(crate) judgements: Vec<Option<Judgement>>,
    lengths: Vec<usize>,
    /// The step of each parameter whose gradients are outer products.
    outer: Vec<Option<usize>>,
    /// The step of each parameter that is a table, and the gradients of its rows.
    tables: Vec<Option<(usize, TableGradients)>>,
    summed: bool,
    target: usize,
    loss: Loss,
    /// What the loss of an example of each class is multiplied by; none if all are 1.
    pub(crate) class_weights: Arc<[f32]>,
    /// The first step whose gradients are needed.
    first: usize,
    spare: Spare,
}

impl Tile {
    /// A tile for `capacity` examples. Parameters that are tables or whose gradients are outer products get no gradient
    /// rows unless gradients are `summed`.
    pub(crate) fn new(model: &Model, loss: Loss, capacity: usize, summed: bool) -> Self {
        let network = &model.network;
        let mut widths = vec![network.inputs()];
        widths.extend(network.steps.iter().map(|step| step.outputs));
        let zeros = |width: &usize| vec![0.0; width * capacity];
        let slopes = std::iter::once(Vec::new()).chain(widths.iter().skip(1).map(zeros));
        let lengths: Vec<usize> = network.parameters.iter().map(Parameter::length).collect();
        let mut rows: Vec<usize> = vec![if summed { 1 } else { capacity }; lengths.len()];
        let mut outer = vec![None; lengths.len()];
        let first = model.first_trained();
        let mut tables: Vec<_> = lengths.iter().map(|_| None).collect();
        for (index, step) in network.steps.iter().enumerate() {
            if index < first {
                rows[step.parameters.clone()].fill(0);
                continue;
            }
            if !summed && step.operation.outer().is_some() {
                outer[step.parameters.start] = Some(index);
                rows[step.parameters.start] = 0;
            }
            if !summed && step.operation.table().is_some() {
                tables[step.parameters.start] = Some((index, TableGradients::default()));
                rows[step.parameters.start] = 0;
            }
        }
        let gradients = lengths.iter().zip(rows).map(|(length, rows)| vec![0.0; length * rows]);
        let target = loss.targets(network.outputs());
        Self {
            capacity,
            count: 0,
            used: 0,
            slopes: slopes.collect(),
            values: widths.iter().map(zeros).collect(),
            gradients: gradients.collect(),
            targets: vec![0.0; target * capacity],
            judgements: vec![None; capacity],
            lengths,
            outer,
            tables,
            summed,
            target,
            loss,
            class_weights: Arc::default(),
            first,
            spare: Spare::default(),
        }
    }

    /// Overwrites everything that was computed from examples.
    pub(crate) fn wipe(&mut self) {
        // Rows that were never used are zero, and take no memory until they are written to.
        let (capacity, used) = (self.capacity, self.used);
        let wipe_rows = |values: &mut Vec<f32>| {
            let end = values.len() / capacity * used;
            values[..end].fill(0.0);
        };
        let rows = self.values.iter_mut().chain(&mut self.slopes).chain([&mut self.targets]);
        rows.for_each(wipe_rows);
        match self.summed {
            true => self.gradients.iter_mut().for_each(|sum| sum.fill(0.0)),
            false => self.gradients.iter_mut().for_each(wipe_rows),
        }
        self.judgements.fill(None);
        self.tables.iter_mut().flatten().for_each(|(_, gradients)| gradients.wipe());
        self.spare.wipe();
        (self.count, self.used) = (0, 0);
    }

    /// Fills the tile: `read` writes the input and the target of example i.
    pub(crate) fn load(
        &mut self,
        count: usize,
        mut read: impl FnMut(usize, &mut [f32], &mut [f32]),
    ) {
        self.count = count.min(self.capacity);
        self.used = self.used.max(self.count);
        let width = self.values[0].len() / self.capacity;
        let inputs = self.values[0].chunks_exact_mut(width);
        let rows = inputs.zip(self.targets.chunks_exact_mut(self.target)).take(self.count);
        for (index, (input, target)) in rows.enumerate() {
            input.fill(0.0);
            target.fill(0.0);
            read(index, input, target);
        }
    }

    /// The forward pass alone. The output of an example that is not finite is meaningless.
    pub(crate) fn run(&mut self, model: &Model, prepared: &Prepared) {
        let count = self.count;
        for (index, step) in model.network.steps.iter().enumerate() {
            let (before, after) = self.values.split_at_mut(index + 1);
            let x = &before[index][..count * step.inputs];
            let y = &mut after[0][..count * step.outputs];
            let parameters = prepared.packed(model, index);
            step.operation.forward(parameters, count, x, y, &mut self.spare);
        }
    }

    /// The forward pass and the losses.
    pub(crate) fn forward(&mut self, model: &Model, prepared: &Prepared) {
        self.run(model, prepared);
        let count = self.count;
        let last = model.network.steps.len();
        let outputs = model.network.outputs();
        for row in 0..count {
            let input = self.row(&self.values[0], row);
            let output = &self.values[last][row * outputs..][..outputs];
            let slope = &mut self.slopes[last][row * outputs..][..outputs];
            let target = &self.targets[row * self.target..][..self.target];
            let sound = all_finite(input) && all_finite(target);
            let judgement = if sound { self.loss.judge(output, target, slope) } else { None };
            let judgement = judgement.and_then(|judgement| {
                if self.class_weights.is_empty() {
                    return Some(judgement);
                }
                let class = class(target, self.class_weights.len())?;
                let weight = self.class_weights[class];
                slope.iter_mut().for_each(|slope| *slope *= weight);
                let loss = judgement.loss * weight;
                loss.is_finite().then_some(Judgement { loss, ..judgement })
            });
            self.judgements[row] = judgement;
            if judgement.is_none() {
                // An unusable example must not change a sum over the tile.
                slope.fill(0.0);
                for values in &mut self.values {
                    let width = values.len() / self.capacity;
                    values[row * width..][..width].fill(0.0);
                }
            }
        }
    }

    /// The backward pass: writes a row of gradients per example; in a summed tile, adds the gradients of all examples to
    /// `gradients`.
    pub(crate) fn backward(&mut self, model: &Model, prepared: &Prepared) {
        let count = self.count;
        for (index, step) in model.network.steps.iter().enumerate().skip(self.first).rev() {
            let (before, after) = self.slopes.split_at_mut(index + 1);
            step.operation.backward(Backward {
                packed: prepared.packed(model, index),
                records: count,
                x: &self.values[index][..count * step.inputs],
                y: &self.values[index + 1][..count * step.outputs],
                dy: &after[0][..count * step.outputs],
                // The gradient by the model's input, or by the outputs of frozen steps, is not needed.
                dx: (index > self.first).then(|| &mut before[index][..count * step.inputs]),
                gradients: Gradients {
                    buffers: &mut self.gradients[step.parameters.clone()],
                    lengths: &self.lengths[step.parameters.clone()],
                    summed: self.summed,
                },
                spare: &mut self.spare,
            });
        }
        for (index, gradients) in self.tables.iter_mut().flatten() {
            let step = &model.network.steps[*index];
            let Some(table) = step.operation.table() else { continue };
            let x = &self.values[*index][..count * step.inputs];
            let dy = &self.slopes[*index + 1][..count * step.outputs];
            gradients.compute(table, count, x, dy);
        }
    }

    pub(crate) fn input(&self, row: usize) -> &[f32] {
        self.row(&self.values[0], row)
    }

    /// A row of a buffer.
    fn row<'a>(&self, values: &'a [f32], row: usize) -> &'a [f32] {
        let width = values.len() / self.capacity;
        &values[row * width..][..width]
    }

    /// The model's output for an example.
    pub(crate) fn output(&self, row: usize) -> &[f32] {
        self.values.last().map_or(&[], |last| self.row(last, row))
    }

    /// The target of an example.
    pub(crate) fn target(&self, row: usize) -> &[f32] {
        &self.targets[row * self.target..][..self.target]
    }

    /// An example's gradient of a parameter.
    pub(crate) fn vector(&self, parameter: usize, row: usize) -> RecordVector<'_> {
        if let Some((left, right)) = self.factors(parameter, row) {
            return RecordVector::Outer(left, right);
        }
        match &self.tables[parameter] {
            Some((_, gradients)) => gradients.record(row),
            None => RecordVector::Values(self.gradient(parameter, row)),
        }
    }

    /// An example's gradient of a parameter; empty for tables and outer products.
    pub(crate) fn gradient(&self, parameter: usize, row: usize) -> &[f32] {
        let length = self.lengths[parameter];
        self.gradients[parameter].get(row * length..(row + 1) * length).unwrap_or(&[])
    }

    /// The two factors of an example's gradient of a parameter, if it is an outer product.
    pub(crate) fn factors(&self, parameter: usize, row: usize) -> Option<(&[f32], &[f32])> {
        let step = self.outer[parameter]?;
        Some((self.row(&self.values[step], row), self.row(&self.slopes[step + 1], row)))
    }
}

/// Without an early exit, so that it is vectorised.
fn all_finite(values: &[f32]) -> bool {
    vectorised(
        #[inline(always)]
        || values.iter().fold(true, |all, value| all & value.is_finite()),
    )
}

/// The tile size in the settings, or the best one for the model.
pub(crate) fn tile_of(performance: Performance, model: &Model) -> usize {
    if performance.tile > 0 { performance.tile } else { best_tile(model) }
}

/// As [`tile_of`], for gradients that are not summed over a tile: with at most `ROWS` examples and `INPUTS` bytes of inputs.
pub(crate) fn unsummed_tile(performance: Performance, model: &Model) -> usize {
    // Inputs are read several times, and should stay in the L2 cache.
    const INPUTS: usize = 1 << 20;
    // Twice as many take twice the memory and are no quicker.
    const ROWS: usize = 64;
    if performance.tile > 0 {
        return performance.tile;
    }
    let rows = (INPUTS / (4 * model.network.inputs()).max(1)).clamp(8, ROWS) / 8 * 8;
    best_tile(model).min(rows)
}

/// The best tile size for a model: its values fill `CACHE` bytes, or as many as the weights if these are
/// larger, because weights are read once per tile. Gradients that are held per record take at most
/// `HELD` bytes.
pub(crate) fn best_tile(model: &Model) -> usize {
    const CACHE: usize = 256 << 10;
    const HELD: usize = 64 << 20;
    let steps = model.network.steps.iter();
    let values: usize = steps.map(|step| 2 * 4 * step.outputs).sum::<usize>().max(1);
    let weights = 4 * model.network.weights();
    let tile = (CACHE / values).max(weights / values).clamp(8, 128) / 8 * 8;
    let outer = model.network.steps.iter().filter_map(|step| step.operation.outer());
    let tables = model.network.steps.iter().filter_map(|step| step.operation.table());
    let held = weights
        - outer.map(|(inputs, outputs)| 4 * inputs * outputs).sum::<usize>()
        - tables.map(|table| 4 * table.entries * table.dimension).sum::<usize>();
    tile.min(HELD / held.max(1)).max(1)
}

/// A worker that fails or panics drops its tile in the middle of a round.
impl Drop for Tile {
    fn drop(&mut self) {
        self.wipe();
        // Memory that is freed next would not need the zeros.
        std::hint::black_box(self);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Conv2d, Layer};

    #[test]
    fn a_wiped_tile_holds_nothing_of_its_records() {
        let layers = [Conv2d::new(2, 3).into(), Layer::Relu, Layer::Flatten, Layer::linear(4)];
        let model = Model::new(&[5, 5, 1], layers, 1).unwrap();
        let mut prepared = Prepared::default();
        prepared.prepare(&model);
        for summed in [false, true] {
            let mut tile = Tile::new(&model, Loss::SoftmaxCrossEntropy, 3, summed);
            for count in [3, 1] {
                tile.load(count, |row, input, target| {
                    input.fill(0.5 + row as f32);
                    target.fill(1.0);
                });
                tile.forward(&model, &prepared);
                tile.backward(&model, &prepared);
            }
            let kept = |tile: &Tile| {
                let rows = tile.values.iter().chain(&tile.slopes).chain(&tile.gradients);
                let all = rows.chain([&tile.targets]).flatten();
                all.filter(|value| **value != 0.0).count()
            };
            assert!(kept(&tile) > 50 && tile.judgements.iter().all(Option::is_some));
            assert!(!tile.spare.is_wiped());
            tile.wipe();
            assert_eq!(kept(&tile), 0);
            assert!(tile.tables.iter().flatten().all(|(_, gradients)| gradients.is_wiped()));
            assert!(tile.spare.is_wiped() && tile.judgements.iter().all(Option::is_none));
        }
    }
}
