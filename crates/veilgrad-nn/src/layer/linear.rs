//! Linear layers over the last axis.

use super::operation::{
    Backward, Compiled, Initial, Operation, Packed, Parameter, Role, Spare, last_axis,
};
use crate::error::ModelError;
use crate::gemm::{Left, Panels, Start, multiply, multiply_plain, needs_panels};

struct Linear {
    positions: usize,
    inputs: usize,
    outputs: usize,
}

pub(super) fn compile(shape: &[usize], outputs: usize) -> Result<Compiled, ModelError> {
    let (positions, inputs) = last_axis(shape)?;
    if outputs == 0 {
        return Err(ModelError::Shape("a linear layer has no outputs".to_owned()));
    }
    let mut shape = shape.to_vec();
    if let Some(last) = shape.last_mut() {
        *last = outputs;
    }
    Ok((Some(Box::new(Linear { positions, inputs, outputs })), shape))
}

impl Operation for Linear {
    fn parameters(&self) -> Vec<Parameter> {
        let (inputs, outputs) = (self.inputs, self.outputs);
        // Glorot and Bengio 2010.
        let initial = Initial::Uniform((6.0 / (inputs + outputs) as f32).sqrt());
        vec![
            Parameter::new("weight", vec![inputs, outputs], Role::Weight, initial),
            Parameter::new("bias", vec![outputs], Role::Weight, Initial::Constant(0.0)),
        ]
    }

    fn prepare(&self, values: &[Vec<f32>], back: bool, panels: &mut Vec<Panels>) {
        panels.resize_with(2, Panels::default);
        if needs_panels(self.outputs) {
            panels[0].pack(&values[0], self.inputs, self.outputs);
        }
        if back {
            panels[1].pack_transposed(&values[0], self.outputs, self.inputs);
        }
    }

    fn forward(
        &self,
        packed: Packed<'_>,
        records: usize,
        x: &[f32],
        y: &mut [f32],
        spare: &mut Spare,
    ) {
        let (x, bias) = (Left::Rows(x), Start::Bias(&packed.values[1]));
        let rows = records * self.positions;
        if needs_panels(self.outputs) {
            multiply(rows, x, &packed.panels[0], bias, y);
        } else {
            let shape = (rows, self.inputs, self.outputs);
            multiply_plain(shape, x, &packed.values[0], bias, y, &mut spare.panels);
        }
    }

    fn backward(&self, mut pass: Backward<'_>) {
        let (positions, inputs, outputs) = (self.positions, self.inputs, self.outputs);
        if let Some(dx) = pass.dx {
            let rows = Left::Rows(pass.dy);
            multiply(pass.records * positions, rows, &pass.packed.panels[1], Start::Zero, dx);
        }
        let rows = pass.x.chunks_exact(positions * inputs);
        for (record, (x, dy)) in rows.zip(pass.dy.chunks_exact(positions * outputs)).enumerate() {
            pass.gradients.add_rows(1, record, dy);
            if positions > 1 && !pass.gradients.summed {
                let (weight, start) = pass.gradients.row(0, record);
                let shape = (inputs, positions, outputs);
                multiply_plain(shape, Left::Columns(x), dy, start, weight, &mut pass.spare.panels);
            }
        }
        if pass.gradients.summed {
            let shape = (inputs, pass.records * positions, outputs);
            let (weight, start) = pass.gradients.row(0, 0);
            let x = Left::Columns(&pass.x[..shape.1 * inputs]);
            multiply_plain(shape, x, pass.dy, start, weight, &mut pass.spare.panels);
        }
    }

    fn outer(&self) -> Option<(usize, usize)> {
        (self.positions == 1).then_some((self.inputs, self.outputs))
    }
}
