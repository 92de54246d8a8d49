//! Embedding tables.

use super::operation::{Backward, Compiled, Initial, Operation, Packed, Parameter, Role, Spare};
use super::table::Table;
use crate::error::ModelError;

struct Embedding(Table);

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
    Ok((Some(Box::new(Embedding(Table { entries, dimension }))), shape))
}

impl Operation for Embedding {
    fn parameters(&self) -> Vec<Parameter> {
        let Table { entries, dimension } = self.0;
        let initial = Initial::Uniform((3.0 / dimension as f32).sqrt());
        vec![Parameter::new("weight", vec![entries, dimension], Role::Weight, initial)]
    }

    fn forward(&self, packed: Packed<'_>, _: usize, x: &[f32], y: &mut [f32], _: &mut Spare) {
        let dimension = self.0.dimension;
        for (number, y) in x.iter().zip(y.chunks_exact_mut(dimension)) {
            match self.0.entry(*number) {
                Some(entry) => {
                    y.copy_from_slice(&packed.values[0][entry * dimension..][..dimension]);
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
        if !pass.gradients.summed {
            return;
        }
        let (dimension, sum) = (self.0.dimension, pass.gradients.row(0, 0).0);
        for (number, dy) in pass.x.iter().zip(pass.dy.chunks_exact(dimension)) {
            let Some(entry) = self.0.entry(*number) else { continue };
            for (sum, dy) in sum[entry * dimension..].iter_mut().zip(dy) {
                *sum += dy;
            }
        }
    }

    fn table(&self) -> Option<Table> {
        Some(self.0)
    }
}
