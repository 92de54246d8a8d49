//! Embedding tables.

use super::operation::{Backward, Compiled, Initial, Operation, Packed, Parameter, Role, Spare};
use crate::error::ModelError;

struct Embedding {
    entries: usize,
    dimension: usize,
}

pub(super) fn compile(
    shape: &[usize],
    entries: usize,
    dimension: usize,
) -> Result<Compiled, ModelError> {
    if entries * dimension == 0 || entries > 1 << 24 {
        let message = format!(
            "an embedding has 1 to 2^24 entries of at least one number, not {entries} of {dimension}"
        );
        return Err(ModelError::Shape(message));
    }
    let mut shape = shape.to_vec();
    shape.push(dimension);
    Ok((Some(Box::new(Embedding { entries, dimension })), shape))
}

impl Embedding {
    /// The entry that a number names: 0, 1, … as an f32.
    fn entry(&self, number: f32) -> Option<usize> {
        // The cast saturates and turns NaN into 0; the comparison rejects both.
        let entry = number as usize;
        (entry as f32 == number && entry < self.entries).then_some(entry)
    }
}

impl Operation for Embedding {
    fn parameters(&self) -> Vec<Parameter> {
        let shape = vec![self.entries, self.dimension];
        let initial = Initial::Uniform((3.0 / self.dimension as f32).sqrt());
        vec![Parameter::new("weight", shape, Role::Weight, initial)]
    }

    fn forward(&self, packed: Packed<'_>, _: usize, x: &[f32], y: &mut [f32], _: &mut Spare) {
        for (number, y) in x.iter().zip(y.chunks_exact_mut(self.dimension)) {
            match self.entry(*number) {
                Some(entry) => {
                    let first = entry * self.dimension;
                    y.copy_from_slice(&packed.values[0][first..][..self.dimension]);
                }
                // NaN makes the loss NaN, so that the record contributes zero.
                None => y.fill(f32::NAN),
            }
        }
    }

    fn backward(&self, mut pass: Backward<'_>) {
        if let Some(dx) = pass.dx {
            dx.fill(0.0);
        }
        let dimension = self.dimension;
        let length = pass.x.len() / pass.records.max(1);
        if length == 0 {
            return;
        }
        let rows = pass.x.chunks_exact(length).zip(pass.dy.chunks_exact(length * dimension));
        for (record, (numbers, dy)) in rows.enumerate() {
            let table = pass.gradients.accumulator(0, record);
            for (number, dy) in numbers.iter().zip(dy.chunks_exact(dimension)) {
                let Some(entry) = self.entry(*number) else { continue };
                for (sum, dy) in table[entry * dimension..].iter_mut().zip(dy) {
                    *sum += dy;
                }
            }
        }
    }
}
