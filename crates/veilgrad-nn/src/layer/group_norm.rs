//! Group norm: normalises groups of channels over all positions of a record.

use super::operation::{
    Backward, Compiled, Initial, Operation, Packed, Parameter, Role, Spare, last_axis,
};
use crate::error::ModelError;

struct GroupNorm {
    positions: usize,
    channels: usize,
    groups: usize,
    /// Added to the variance.
    epsilon: f32,
}

pub(super) fn compile(
    shape: &[usize],
    groups: usize,
    epsilon: f32,
) -> Result<Compiled, ModelError> {
    let (positions, channels) = last_axis(shape)?;
    if groups == 0 || channels % groups != 0 {
        let message = format!("{channels} channels cannot be split into {groups} equal groups");
        return Err(ModelError::Shape(message));
    }
    let norm = GroupNorm { positions, channels, groups, epsilon };
    Ok((Some(Box::new(norm)), shape.to_vec()))
}

/// The parameters scale and shift, with one number per channel.
pub(super) fn scale_and_shift(channels: usize) -> Vec<Parameter> {
    let parameter =
        |name, value| Parameter::new(name, vec![channels], Role::Weight, Initial::Constant(value));
    vec![parameter("scale", 1.0), parameter("shift", 0.0)]
}

impl GroupNorm {
    /// The indices of a group's values, ascending.
    fn group(&self, group: usize) -> impl Iterator<Item = usize> + Clone {
        let channels = self.channels;
        let width = channels / self.groups;
        let first = group * width;
        (0..self.positions * width)
            .map(move |index| first + index / width * channels + index % width)
    }

    /// The mean and the inverse standard deviation of a group.
    fn moments(&self, x: &[f32], group: usize) -> (f32, f32) {
        let count = self.group(group).count() as f64;
        let mean = self.group(group).map(|i| f64::from(x[i])).sum::<f64>() / count;
        let variance =
            self.group(group).map(|i| (f64::from(x[i]) - mean).powi(2)).sum::<f64>() / count;
        (mean as f32, 1.0 / (variance as f32 + self.epsilon).sqrt())
    }
}

impl Operation for GroupNorm {
    fn parameters(&self) -> Vec<Parameter> {
        scale_and_shift(self.channels)
    }

    fn forward(&self, packed: Packed<'_>, _: usize, x: &[f32], y: &mut [f32], _: &mut Spare) {
        let length = self.positions * self.channels;
        for (x, y) in x.chunks_exact(length).zip(y.chunks_exact_mut(length)) {
            for group in 0..self.groups {
                let (mean, inverse) = self.moments(x, group);
                for i in self.group(group) {
                    let channel = i % self.channels;
                    let normal = (x[i] - mean) * inverse;
                    y[i] = normal * packed.values[0][channel] + packed.values[1][channel];
                }
            }
        }
    }

    fn backward(&self, mut pass: Backward<'_>) {
        let length = self.positions * self.channels;
        let rows = pass.x.chunks_exact(length).zip(pass.dy.chunks_exact(length));
        for (record, (x, dy)) in rows.enumerate() {
            pass.gradients.accumulator(0, record);
            pass.gradients.accumulator(1, record);
            for group in 0..self.groups {
                let (mean, inverse) = self.moments(x, group);
                let normal = |i: usize| (x[i] - mean) * inverse;
                let scale = pass.gradients.row(0, record).0;
                for i in self.group(group) {
                    scale[i % self.channels] += dy[i] * normal(i);
                }
                let shift = pass.gradients.row(1, record).0;
                for i in self.group(group) {
                    shift[i % self.channels] += dy[i];
                }
                let Some(dx) = pass.dx.as_deref_mut() else { continue };
                let dx = &mut dx[record * length..][..length];
                // The gradient by the normalised value, minus its mean and its component along the values.
                let scaled = |i: usize| f64::from(dy[i] * pass.packed.values[0][i % self.channels]);
                let count = self.group(group).count() as f64;
                let mean = self.group(group).map(scaled).sum::<f64>() / count;
                let along =
                    self.group(group).map(|i| scaled(i) * f64::from(normal(i))).sum::<f64>()
                        / count;
                for i in self.group(group) {
                    let slope = scaled(i) - mean - f64::from(normal(i)) * along;
                    dx[i] = slope as f32 * inverse;
                }
            }
        }
    }
}
