//! Normalisation within one record: group norm and layer norm.

use super::operation::{
    Backward, Compiled, Initial, Operation, Packed, Parameter, Role, Spare, last_axis,
};
use crate::error::ModelError;

/// Normalises sets of values: groups of channels over all positions (group norm), or all channels at
/// each position (layer norm).
struct Normalise {
    positions: usize,
    channels: usize,
    sets: usize,
    per_position: bool,
    /// Added to the variance.
    epsilon: f32,
}

pub(super) fn compile_group(
    shape: &[usize],
    groups: usize,
    epsilon: f32,
) -> Result<Compiled, ModelError> {
    let (positions, channels) = last_axis(shape)?;
    if groups == 0 || channels % groups != 0 {
        let message = format!("{channels} channels cannot be split into {groups} equal groups");
        return Err(ModelError::Shape(message));
    }
    let normalise = Normalise { positions, channels, sets: groups, per_position: false, epsilon };
    Ok((Some(Box::new(normalise)), shape.to_vec()))
}

pub(super) fn compile_layer(shape: &[usize], epsilon: f32) -> Result<Compiled, ModelError> {
    let (positions, channels) = last_axis(shape)?;
    let normalise = Normalise { positions, channels, sets: positions, per_position: true, epsilon };
    Ok((Some(Box::new(normalise)), shape.to_vec()))
}

/// The parameters scale and shift, with one number per channel.
pub(super) fn scale_and_shift(channels: usize) -> Vec<Parameter> {
    let parameter =
        |name, value| Parameter::new(name, vec![channels], Role::Weight, Initial::Constant(value));
    vec![parameter("scale", 1.0), parameter("shift", 0.0)]
}

impl Normalise {
    /// The indices of a set's values, ascending.
    fn set(&self, set: usize) -> impl Iterator<Item = usize> + Clone {
        let channels = self.channels;
        let (rows, width, first) = if self.per_position {
            (1, channels, set * channels)
        } else {
            let width = channels / self.sets;
            (self.positions, width, set * width)
        };
        (0..rows * width).map(move |index| first + index / width * channels + index % width)
    }

    /// The mean and the inverse standard deviation of a set.
    fn moments(&self, x: &[f32], set: usize) -> (f32, f32) {
        let count = self.set(set).count() as f64;
        let mean = self.set(set).map(|i| f64::from(x[i])).sum::<f64>() / count;
        let variance = self.set(set).map(|i| (f64::from(x[i]) - mean).powi(2)).sum::<f64>() / count;
        (mean as f32, 1.0 / (variance as f32 + self.epsilon).sqrt())
    }
}

impl Operation for Normalise {
    fn parameters(&self) -> Vec<Parameter> {
        scale_and_shift(self.channels)
    }

    fn forward(&self, packed: Packed<'_>, _: usize, x: &[f32], y: &mut [f32], _: &mut Spare) {
        let length = self.positions * self.channels;
        for (x, y) in x.chunks_exact(length).zip(y.chunks_exact_mut(length)) {
            for set in 0..self.sets {
                let (mean, inverse) = self.moments(x, set);
                for i in self.set(set) {
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
            for set in 0..self.sets {
                let (mean, inverse) = self.moments(x, set);
                let normal = |i: usize| (x[i] - mean) * inverse;
                let scale = pass.gradients.row(0, record).0;
                for i in self.set(set) {
                    scale[i % self.channels] += dy[i] * normal(i);
                }
                let shift = pass.gradients.row(1, record).0;
                for i in self.set(set) {
                    shift[i % self.channels] += dy[i];
                }
                let Some(dx) = pass.dx.as_deref_mut() else { continue };
                let dx = &mut dx[record * length..][..length];
                // The gradient by the normalised value, minus its mean and its component along the values.
                let scaled = |i: usize| f64::from(dy[i] * pass.packed.values[0][i % self.channels]);
                let count = self.set(set).count() as f64;
                let mean = self.set(set).map(scaled).sum::<f64>() / count;
                let along =
                    self.set(set).map(|i| scaled(i) * f64::from(normal(i))).sum::<f64>() / count;
                for i in self.set(set) {
                    let slope = scaled(i) - mean - f64::from(normal(i)) * along;
                    dx[i] = slope as f32 * inverse;
                }
            }
        }
    }
}
