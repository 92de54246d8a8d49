//! Embeddings of single columns of a row.

use super::operation::{Backward, Compiled, Initial, Operation, Packed, Parameter, Role, Spare};
use crate::error::ModelError;

/// A column whose number is replaced by a row of a table.
///
/// # Example
/// ```
/// use veilgrad_nn::{EmbeddedColumn, Layer, Model};
///
/// // Three numbers, of which the second is one of 5 categories.
/// let column = EmbeddedColumn { column: 1, entries: 5, dimension: 2 };
/// let model = Model::new(&[3], [Layer::EmbedColumns(vec![column]), Layer::linear(2)], 1)?;
/// let names: Vec<&str> = model.parameters().map(|(name, ..)| name).collect();
/// assert_eq!(names, ["embedding1.weight1", "linear1.weight", "linear1.bias"]);
/// assert_eq!(model.size(), 5 * 2 + 4 * 2 + 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EmbeddedColumn {
    /// The place of the number in a row.
    pub column: usize,
    /// Rows of the table.
    pub entries: usize,
    /// The length of a row of the table.
    pub dimension: usize,
}

struct EmbedColumns {
    /// By ascending place.
    columns: Vec<EmbeddedColumn>,
    inputs: usize,
    outputs: usize,
}

/// A part of a row.
#[derive(Clone, Copy)]
enum Part {
    /// So many numbers that stay as they are.
    Kept(usize),
    /// A number that is replaced by a row of this table.
    Replaced { table: usize, dimension: usize },
}

impl Part {
    /// How many numbers of the input it takes, and of the output it makes.
    const fn lengths(self) -> (usize, usize) {
        match self {
            Self::Kept(count) => (count, count),
            Self::Replaced { dimension, .. } => (1, dimension),
        }
    }
}

pub(super) fn compile(shape: &[usize], columns: &[EmbeddedColumn]) -> Result<Compiled, ModelError> {
    let &[inputs] = shape else {
        return Err(ModelError::Shape(format!("columns are of rows of numbers, not of {shape:?}")));
    };
    let ascending = columns.is_sorted_by(|one, next| one.column < next.column);
    if !ascending || columns.last().is_none_or(|last| last.column >= inputs) {
        let message = format!("the columns must be one or more of {inputs}, ascending");
        return Err(ModelError::Shape(message));
    }
    if let Some(EmbeddedColumn { entries, dimension, .. }) =
        columns.iter().find(|c| c.dimension == 0 || !(1..=1 << 24).contains(&c.entries))
    {
        let message = format!(
            "an embedding has 1 to 2^24 entries of at least one number, not {entries} of {dimension}"
        );
        return Err(ModelError::Shape(message));
    }
    let added: usize = columns.iter().map(|column| column.dimension).sum();
    let outputs = inputs - columns.len() + added;
    let columns = columns.to_vec();
    Ok((Some(Box::new(EmbedColumns { columns, inputs, outputs })), vec![outputs]))
}

impl EmbedColumns {
    /// The parts of a row, in order.
    fn parts(&self) -> impl Iterator<Item = Part> {
        let mut place = 0;
        let replaced = self.columns.iter().enumerate().flat_map(move |(table, column)| {
            let kept = column.column - place;
            place = column.column + 1;
            [Part::Kept(kept), Part::Replaced { table, dimension: column.dimension }]
        });
        let last = self.columns.last().map_or(0, |column| column.column + 1);
        replaced.chain([Part::Kept(self.inputs - last)])
    }

    /// The first weight of a number's row; `None` for -1 or a number without a row.
    fn row(&self, table: usize, number: f32) -> Option<usize> {
        let EmbeddedColumn { entries, dimension, .. } = self.columns[table];
        // The cast saturates and turns NaN into 0; the comparison rejects both.
        let entry = number as usize;
        (entry as f32 == number && entry < entries).then(|| entry * dimension)
    }
}

impl Operation for EmbedColumns {
    fn parameters(&self) -> Vec<Parameter> {
        let parameter = |(number, column): (usize, &EmbeddedColumn)| {
            let shape = vec![column.entries, column.dimension];
            // As for sequences of tokens: each row has a norm of about 1.
            let initial = Initial::Uniform((3.0 / column.dimension as f32).sqrt());
            Parameter::new(&format!("weight{number}"), shape, Role::Weight, initial)
        };
        (1..).zip(&self.columns).map(parameter).collect()
    }

    fn forward(&self, packed: Packed<'_>, _: usize, x: &[f32], y: &mut [f32], _: &mut Spare) {
        let rows = x.chunks_exact(self.inputs).zip(y.chunks_exact_mut(self.outputs));
        for (mut x, mut y) in rows {
            for part in self.parts() {
                let (from, to) = part.lengths();
                let (number, rest) = x.split_at(from);
                let (written, left) = std::mem::take(&mut y).split_at_mut(to);
                (x, y) = (rest, left);
                let Part::Replaced { table, dimension } = part else {
                    written.copy_from_slice(number);
                    continue;
                };
                match self.row(table, number[0]) {
                    Some(first) => {
                        written.copy_from_slice(&packed.values[table][first..][..dimension]);
                    }
                    // No entry.
                    None if number[0] == -1.0 => written.fill(0.0),
                    // NaN makes the loss NaN, so that the record contributes zero.
                    None => written.fill(f32::NAN),
                }
            }
        }
    }

    fn backward(&self, mut pass: Backward<'_>) {
        if let Some(dx) = pass.dx.as_deref_mut() {
            let rows = dx.chunks_exact_mut(self.inputs).zip(pass.dy.chunks_exact(self.outputs));
            for (mut dx, mut dy) in rows {
                for part in self.parts() {
                    let (to, from) = part.lengths();
                    let (written, left) = std::mem::take(&mut dx).split_at_mut(to);
                    let (slopes, rest) = dy.split_at(from);
                    (dx, dy) = (left, rest);
                    match part {
                        Part::Kept(_) => written.copy_from_slice(slopes),
                        // The number of an entry has no slope.
                        Part::Replaced { .. } => written.fill(0.0),
                    }
                }
            }
        }
        let rows = pass.x.chunks_exact(self.inputs).zip(pass.dy.chunks_exact(self.outputs));
        for (record, (mut x, mut dy)) in rows.enumerate() {
            for part in self.parts() {
                let (from, to) = part.lengths();
                let (number, rest) = x.split_at(from);
                let (slopes, left) = dy.split_at(to);
                (x, dy) = (rest, left);
                let Part::Replaced { table, .. } = part else { continue };
                let sums = pass.gradients.accumulator(table, record);
                let Some(first) = self.row(table, number[0]) else { continue };
                sums[first..].iter_mut().zip(slopes).for_each(|(sum, slope)| *sum += slope);
            }
        }
    }
}
