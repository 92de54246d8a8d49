//! Layer norm: normalises the channels at each position.

use veilgrad_mechanism::exact::vectorised;

use super::group_norm::scale_and_shift;
use super::lanes::{sum, sum_of_pairs};
use super::operation::{Backward, Compiled, Operation, Packed, Parameter, Spare, last_axis};
use crate::error::ModelError;

struct LayerNorm {
    positions: usize,
    channels: usize,
    /// Added to the variance.
    epsilon: f32,
}

pub(super) fn compile(shape: &[usize], epsilon: f32) -> Result<Compiled, ModelError> {
    let (positions, channels) = last_axis(shape)?;
    Ok((Some(Box::new(LayerNorm { positions, channels, epsilon })), shape.to_vec()))
}

impl LayerNorm {
    /// The mean and the inverse standard deviation of a position.
    #[inline(always)]
    fn moments(&self, x: &[f32]) -> (f32, f32) {
        let share = 1.0 / self.channels as f32;
        let mean = sum(x, |x| x) * share;
        let variance = sum(x, |x| (x - mean) * (x - mean)) * share;
        (mean, 1.0 / (variance + self.epsilon).sqrt())
    }
}

impl Operation for LayerNorm {
    fn parameters(&self) -> Vec<Parameter> {
        scale_and_shift(self.channels)
    }

    fn forward(&self, packed: Packed<'_>, _: usize, x: &[f32], y: &mut [f32], _: &mut Spare) {
        let [scale, shift] = packed.values else { return };
        vectorised(
            #[inline(always)]
            || {
                let rows = x.chunks_exact(self.channels).zip(y.chunks_exact_mut(self.channels));
                for (x, y) in rows {
                    let (mean, inverse) = self.moments(x);
                    for (((y, x), scale), shift) in y.iter_mut().zip(x).zip(scale).zip(shift) {
                        *y = (x - mean) * inverse * scale + shift;
                    }
                }
            },
        );
    }

    fn backward(&self, mut pass: Backward<'_>) {
        let Some(scale) = pass.packed.values.first() else { return };
        let (channels, share) = (self.channels, 1.0 / self.channels as f32);
        let length = self.positions * channels;
        let records = pass.x.chunks_exact(length).zip(pass.dy.chunks_exact(length)).enumerate();
        let Spare { values: normal, more: slope, .. } = pass.spare;
        normal.resize(channels, 0.0);
        slope.resize(channels, 0.0);
        for (record, (x, dy)) in records {
            let mut dx = pass.dx.as_deref_mut().map(|dx| &mut dx[record * length..][..length]);
            pass.gradients.add_rows(1, record, dy);
            let by_scale = pass.gradients.accumulator(0, record);
            vectorised(
                #[inline(always)]
                || {
                    let rows = x.chunks_exact(channels).zip(dy.chunks_exact(channels));
                    for (position, (x, dy)) in rows.enumerate() {
                        let (mean, inverse) = self.moments(x);
                        for (normal, x) in normal.iter_mut().zip(x) {
                            *normal = (x - mean) * inverse;
                        }
                        for ((sum, dy), normal) in by_scale.iter_mut().zip(dy).zip(&normal[..]) {
                            *sum += dy * normal;
                        }
                        let Some(dx) = dx.as_deref_mut() else { continue };
                        for ((slope, dy), scale) in slope.iter_mut().zip(dy).zip(scale) {
                            *slope = dy * scale;
                        }
                        // The gradient by the normalised values, minus its mean and its component along them.
                        let mean = sum(slope, |x| x) * share;
                        let along = sum_of_pairs(slope, normal, |a, b| a * b) * share;
                        let dx = &mut dx[position * channels..][..channels];
                        for ((dx, slope), normal) in dx.iter_mut().zip(&slope[..]).zip(&normal[..])
                        {
                            *dx = (slope - mean - normal * along) * inverse;
                        }
                    }
                },
            );
        }
    }
}
