//! Collects per-record gradients from the tape of a tile.

use veilgrad_mechanism::RecordVector;
use veilgrad_nn::adapter::{Kernel, TableGradients};
use veilgrad_nn::round::Vector;

use crate::inspect::Parameter;
use crate::layer_pass::LayerPass;
use crate::tape::Use;

/// The gradients of a tile: a row per record for each parameter, the two factors of a row, or some rows of a table.
pub(crate) struct TileGradients {
    vectors: Vec<Source>,
}

enum Source {
    Dense { rows: Vec<f32>, length: usize },
    Outer { found: Box<LayerPass>, inputs: usize, outputs: usize },
    Table(Box<TableGradients>),
}

/// The form of each parameter's gradient: an outer product if it is used once, as the first parameter of a
/// layer whose gradient is an outer product; otherwise dense.
pub(crate) fn vectors(uses: &[Use], parameters: &[Parameter]) -> Vec<Vector> {
    let vector = |parameter: &Parameter| Vector {
        name: parameter.name.clone(),
        length: parameter.length,
        outer: only_use(uses, parameter).and_then(|index| uses[index].prepared.kernel.outer()),
    };
    parameters.iter().map(vector).collect()
}

/// The bytes that a tile holds per record: gradients that are written out, and inputs, outputs and their gradients.
pub(crate) fn held(uses: &[Use], parameters: &[Parameter]) -> usize {
    let written_out = |parameter: &&Parameter| {
        let kernel = only_use(uses, parameter).map(|index| &uses[index].prepared.kernel);
        kernel.is_none_or(|kernel| kernel.outer().is_none() && !kernel.is_table())
    };
    let gradients: usize = parameters.iter().filter(written_out).map(|p| p.length).sum();
    let kernels = uses.iter().map(|one| &one.prepared.kernel);
    let values = kernels.map(|kernel| kernel.inputs() + kernel.output().iter().product::<usize>());
    4 * (gradients + 2 * values.sum::<usize>())
}

/// The use of a parameter, if it is used once and as the first parameter of a layer.
fn only_use(uses: &[Use], parameter: &Parameter) -> Option<usize> {
    let mut using = (0..uses.len()).filter(|index| place(&uses[*index], parameter).is_some());
    let first = using.next().filter(|_| using.next().is_none());
    first.filter(|index| place(&uses[*index], parameter) == Some(0))
}

/// The index of a parameter among those of a layer's kernel.
fn place(one: &Use, parameter: &Parameter) -> Option<usize> {
    one.targets.iter().position(|target| target.is_some_and(|t| t.id == parameter.id))
}

impl TileGradients {
    /// Takes the gradients off a tape. `None` if they do not have the form of `vectors`: then the model's
    /// control flow differs between these records and made-up ones.
    pub(crate) fn take(
        uses: &[Use],
        parameters: &[Parameter],
        vectors: &[Vector],
        records: usize,
    ) -> Option<Self> {
        let mut found: Vec<Option<LayerPass>> = uses.iter().map(|one| one.slot.take()).collect();
        let mut sources = Vec::new();
        // Outer products last: they take the whole pass, and the bias of the same layer still needs its part.
        for outer in [false, true] {
            let wanted = parameters.iter().zip(vectors).enumerate();
            for (index, (parameter, vector)) in
                wanted.filter(|(_, (_, v))| v.outer.is_some() == outer)
            {
                let source = match vector.outer {
                    Some(factors) => outer_source(uses, &mut found, parameter, factors)?,
                    None => table_source(uses, &found, parameter)
                        .unwrap_or_else(|| dense_source(uses, &mut found, parameter, records)),
                };
                sources.push((index, source));
            }
        }
        sources.sort_by_key(|(index, _)| *index);
        Some(Self { vectors: sources.into_iter().map(|(_, source)| source).collect() })
    }

    pub(crate) fn row(&self, row: usize) -> Vec<f32> {
        let mut numbers = Vec::new();
        for index in 0..self.vectors.len() {
            match self.vector(index, row) {
                RecordVector::Values(values) => numbers.extend(values),
                RecordVector::Outer(left, right) => {
                    numbers.extend(left);
                    numbers.extend(right);
                }
                RecordVector::Rows(table) => {
                    // Entries are below 2^24, so that f32 holds them exactly.
                    numbers.extend(table.rows.iter().map(|row| *row as f32));
                    numbers.extend(table.values);
                }
            }
        }
        numbers
    }

    pub(crate) fn vector(&self, vector: usize, row: usize) -> RecordVector<'_> {
        match &self.vectors[vector] {
            Source::Dense { rows, length } => {
                RecordVector::Values(&rows[row * length..][..*length])
            }
            Source::Outer { found, inputs, outputs } => {
                let row = |width: usize| row * width..(row + 1) * width;
                let (left, right) = (found.x.slice(), found.dy.slice());
                RecordVector::Outer(&left[row(*inputs)], &right[row(*outputs)])
            }
            Source::Table(gradients) => gradients.record(row),
        }
    }
}

fn outer_source(
    uses: &[Use],
    found: &mut [Option<LayerPass>],
    parameter: &Parameter,
    (inputs, outputs): (usize, usize),
) -> Option<Source> {
    let mut using = uses.iter().zip(found).filter(|(one, _)| place(one, parameter).is_some());
    let (one, found) = using.next()?;
    if using.next().is_some() || one.prepared.kernel.outer() != Some((inputs, outputs)) {
        return None;
    }
    Some(Source::Outer { found: Box::new(found.take()?), inputs, outputs })
}

/// The rows of a table that is used once.
fn table_source(
    uses: &[Use],
    found: &[Option<LayerPass>],
    parameter: &Parameter,
) -> Option<Source> {
    let index = only_use(uses, parameter)?;
    let LayerPass { x, dy, .. } = found[index].as_ref()?;
    let gradients = uses[index].prepared.kernel.table_gradients(x.slice(), dy.slice())?;
    Some(Source::Table(Box::new(gradients)))
}

/// The gradient rows of a parameter, summed over all of its uses; zeros if the loss does not depend on it.
fn dense_source(
    uses: &[Use],
    found: &mut [Option<LayerPass>],
    parameter: &Parameter,
    records: usize,
) -> Source {
    let length = parameter.length;
    let mut rows: Option<Vec<f32>> = None;
    for (one, found) in uses.iter().zip(found) {
        let (Some(place), Some(found)) = (place(one, parameter), found) else { continue };
        let order = one.targets[place].map(|target| target.order);
        let kernel = &one.prepared.kernel;
        let part = match kernel.outer() {
            Some((inputs, outputs)) if place == 0 => materialise(found, inputs, outputs),
            _ if place == 0 && kernel.is_table() => whole_tables(found, kernel, length),
            _ => std::mem::take(&mut found.back.parameters[place]),
        };
        let part = order.map_or_else(Vec::new, |order| order.to_burn(part));
        match &mut rows {
            None => rows = Some(part),
            Some(rows) => {
                for (sum, part) in rows.iter_mut().zip(part) {
                    *sum += part;
                }
            }
        }
    }
    Source::Dense { rows: rows.unwrap_or_else(|| vec![0.0; records * length]), length }
}

/// The gradients of a table, written out: a whole table per record.
fn whole_tables(found: &LayerPass, kernel: &Kernel, length: usize) -> Vec<f32> {
    let (x, dy) = (found.x.slice(), found.dy.slice());
    let mut rows = vec![0.0; x.len() / kernel.inputs() * length];
    if let Some(gradients) = kernel.table_gradients(x, dy) {
        for (record, row) in rows.chunks_exact_mut(length).enumerate() {
            gradients.add_to(record, row);
        }
    }
    rows
}

/// The outer products of a tile, written out as rows.
fn materialise(found: &LayerPass, inputs: usize, outputs: usize) -> Vec<f32> {
    let rows = found.x.slice().chunks_exact(inputs).zip(found.dy.slice().chunks_exact(outputs));
    rows.flat_map(|(x, dy)| x.iter().flat_map(move |x| dy.iter().map(move |dy| x * dy))).collect()
}
