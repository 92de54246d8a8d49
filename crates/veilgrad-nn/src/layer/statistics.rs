//! Private batch norm: normalisation by released running statistics.

use super::group_norm::scale_and_shift;
use super::operation::{
    Backward, Compiled, Initial, Operation, Packed, Parameter, Role, Spare, last_axis,
};
use crate::error::ModelError;

struct BatchNorm {
    positions: usize,
    channels: usize,
    /// Added to the variance.
    epsilon: f32,
}

pub(super) fn compile(shape: &[usize], epsilon: f32) -> Result<Compiled, ModelError> {
    let (positions, channels) = last_axis(shape)?;
    Ok((Some(Box::new(BatchNorm { positions, channels, epsilon })), shape.to_vec()))
}

impl BatchNorm {
    /// The mean and the inverse standard deviation of a channel, from the running statistics alone.
    fn constants(&self, packed: Packed<'_>, channel: usize) -> (f32, f32) {
        let (mean, mean_square) = (packed.values[2][channel], packed.values[3][channel]);
        // Noise may make the difference negative.
        let variance = (mean_square - mean * mean).max(0.0);
        (mean, 1.0 / (variance + self.epsilon).sqrt())
    }
}

impl Operation for BatchNorm {
    fn parameters(&self) -> Vec<Parameter> {
        let statistic = |name, value| {
            Parameter::new(name, vec![self.channels], Role::Statistic, Initial::Constant(value))
        };
        let mut parameters = scale_and_shift(self.channels);
        parameters.extend([statistic("mean", 0.0), statistic("mean_square", 1.0)]);
        parameters
    }

    fn forward(&self, packed: Packed<'_>, _: usize, x: &[f32], y: &mut [f32], spare: &mut Spare) {
        // y = x * factor + offset
        let channels = self.channels;
        spare.values.clear();
        spare.more.clear();
        for channel in 0..channels {
            let (mean, inverse) = self.constants(packed, channel);
            let factor = inverse * packed.values[0][channel];
            spare.values.push(factor);
            spare.more.push(packed.values[1][channel] - mean * factor);
        }
        for (x, y) in x.chunks_exact(channels).zip(y.chunks_exact_mut(channels)) {
            let constants = spare.values.iter().zip(&spare.more);
            for ((x, y), (factor, offset)) in x.iter().zip(y).zip(constants) {
                *y = x * factor + offset;
            }
        }
    }

    fn backward(&self, mut pass: Backward<'_>) {
        let channels = self.channels;
        let length = self.positions * channels;
        let constants: Vec<_> = (0..channels).map(|c| self.constants(pass.packed, c)).collect();
        let rows = pass.x.chunks_exact(length).zip(pass.dy.chunks_exact(length));
        for (record, (x, dy)) in rows.enumerate() {
            let mut sum = |parameter: usize, value: &dyn Fn(usize) -> f32| {
                let row = pass.gradients.accumulator(parameter, record);
                for i in 0..length {
                    row[i % channels] += value(i);
                }
            };
            sum(0, &|i| dy[i] * (x[i] - constants[i % channels].0) * constants[i % channels].1);
            sum(1, &|i| dy[i]);
            let share = 1.0 / self.positions as f32;
            sum(2, &|i| x[i] * share);
            sum(3, &|i| x[i] * x[i] * share);
            if let Some(dx) = pass.dx.as_deref_mut() {
                let dx = &mut dx[record * length..][..length];
                for (i, dx) in dx.iter_mut().enumerate() {
                    let channel = i % channels;
                    *dx = dy[i] * pass.packed.values[0][channel] * constants[channel].1;
                }
            }
        }
    }
}
