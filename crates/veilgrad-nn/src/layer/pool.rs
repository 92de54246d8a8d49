//! Max and average pooling.

use super::operation::{Backward, Compiled, Operation, Packed, Spare, image, last_axis};
use crate::error::ModelError;
use veilgrad_mechanism::exact::vectorised;

/// The square window of a pooling layer, and its stride.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// Height and width.
    pub size: usize,
    /// Stride in height and width.
    pub stride: usize,
}

/// Kinds of pooling, as const generic parameters of the kernels. `RECTIFIED_MAX` is ReLU and max pooling at once.
pub(super) const MAX: u8 = 0;
const RECTIFIED_MAX: u8 = 1;
pub(super) const AVERAGE: u8 = 2;

struct Pool {
    kind: u8,
    window: Window,
    /// Height, width and channels of input and output.
    from: [usize; 3],
    to: [usize; 3],
    /// Offsets of a window's pixels from its corner.
    offsets: Vec<usize>,
}

pub(super) fn compile(shape: &[usize], window: Window, kind: u8) -> Result<Compiled, ModelError> {
    let from @ [height, width, channels] = image(shape)?;
    let Window { size, stride } = window;
    if size == 0 || stride == 0 || size > height || size > width {
        return Err(ModelError::Shape(format!("{window:?} does not fit an image of {shape:?}")));
    }
    let to = [(height - size) / stride + 1, (width - size) / stride + 1, channels];
    let offsets = (0..size * size).map(|i| (i / size * width + i % size) * channels).collect();
    Ok((Some(Box::new(Pool { kind, window, from, to, offsets })), to.to_vec()))
}

/// ReLU and max pooling as one operation.
pub(crate) fn rectified_max_pool(shape: &[usize], window: Window) -> Result<Compiled, ModelError> {
    compile(shape, window, RECTIFIED_MAX)
}

/// Channels that are computed at once.
const LANES: usize = 16;

impl Pool {
    /// Calls `visit` with the offset of each output pixel and the offset of its window's corner.
    #[inline(always)]
    fn for_each_window(&self, mut visit: impl FnMut(usize, usize)) {
        let ([_, width, channels], [rows, columns, _]) = (self.from, self.to);
        let stride = self.window.stride;
        for row in 0..rows {
            for column in 0..columns {
                let corner = (row * stride * width + column * stride) * channels;
                visit((row * columns + column) * channels, corner);
            }
        }
    }

    #[inline(always)]
    fn forward_record<const KIND: u8>(&self, x: &[f32], y: &mut [f32]) {
        let channels = self.from[2];
        let scale = 1.0 / (self.window.size * self.window.size) as f32;
        let first = if KIND == MAX { f32::NEG_INFINITY } else { 0.0 };
        self.for_each_window(
            #[inline(always)]
            |to, corner| {
                let y = &mut y[to..to + channels];
                for (block, y) in y.chunks_mut(LANES).enumerate() {
                    let mut lanes = [first; LANES];
                    for offset in &self.offsets {
                        let x = &x[corner + offset + block * LANES..][..y.len()];
                        if let Some(x) = x.first_chunk::<LANES>() {
                            accumulate::<KIND>(x, &mut lanes);
                        } else {
                            accumulate::<KIND>(x, &mut lanes);
                        }
                    }
                    for (y, lane) in y.iter_mut().zip(lanes) {
                        *y = if KIND == AVERAGE { lane * scale } else { lane };
                    }
                }
            },
        );
    }

    #[inline(always)]
    fn backward_record<const KIND: u8>(
        &self,
        (x, y, dy): (&[f32], &[f32], &[f32]),
        dx: &mut [f32],
    ) {
        let channels = self.from[2];
        dx.fill(0.0);
        self.for_each_window(
            #[inline(always)]
            |to, corner| {
                for first in (0..channels).step_by(LANES) {
                    let lanes = LANES.min(channels - first);
                    let output = to + first..to + first + lanes;
                    let (y, dy) = (&y[output.clone()], &dy[output]);
                    let corner = corner + first;
                    if let Some((y, dy)) = y.first_chunk().zip(dy.first_chunk()) {
                        self.add_to_window::<KIND, LANES>(x, y, dy, &mut dx[corner..], corner);
                    } else {
                        for (lane, (y, dy)) in y.iter().zip(dy).enumerate() {
                            let corner = corner + lane;
                            let dx = &mut dx[corner..];
                            self.add_to_window::<KIND, 1>(x, &[*y], &[*dy], dx, corner);
                        }
                    }
                }
            },
        );
    }

    /// Adds the gradient of one output pixel to its window: to the first pixel with the largest value (to
    /// none if zero was larger), or an equal share to every pixel.
    #[inline(always)]
    fn add_to_window<const KIND: u8, const N: usize>(
        &self,
        x: &[f32],
        y: &[f32; N],
        dy: &[f32; N],
        dx: &mut [f32],
        corner: usize,
    ) {
        let scale = 1.0 / (self.window.size * self.window.size) as f32;
        // For a maximum: what no pixel has received yet.
        let mut share = *dy;
        for lane in 0..N {
            share[lane] = match KIND {
                AVERAGE => share[lane] * scale,
                RECTIFIED_MAX if y[lane] == 0.0 => 0.0,
                _ => share[lane],
            };
        }
        for offset in &self.offsets {
            let Some(x) = x[corner + offset..].first_chunk::<N>() else { return };
            let Some(dx) = dx[*offset..].first_chunk_mut::<N>() else { return };
            if KIND == AVERAGE {
                for lane in 0..N {
                    dx[lane] += share[lane];
                }
            } else {
                for lane in 0..N {
                    // Bit masks instead of conditional stores, which are slow.
                    let is_max = u32::from(x[lane] == y[lane]).wrapping_neg();
                    dx[lane] += f32::from_bits(share[lane].to_bits() & is_max);
                    share[lane] = f32::from_bits(share[lane].to_bits() & !is_max);
                }
            }
        }
    }
}

#[inline(always)]
fn accumulate<const KIND: u8>(x: &[f32], lanes: &mut [f32; LANES]) {
    for (lane, x) in lanes.iter_mut().zip(x) {
        *lane = match KIND {
            AVERAGE => *lane + *x,
            // NaN stays NaN.
            _ if *x <= *lane => *lane,
            _ => *x,
        };
    }
}

impl Operation for Pool {
    fn forward(&self, _: Packed<'_>, _: usize, x: &[f32], y: &mut [f32], _: &mut Spare) {
        let (from, to) = (self.from.iter().product(), self.to.iter().product());
        vectorised(
            #[inline(always)]
            || {
                for (x, y) in x.chunks_exact(from).zip(y.chunks_exact_mut(to)) {
                    match self.kind {
                        MAX => self.forward_record::<MAX>(x, y),
                        RECTIFIED_MAX => self.forward_record::<RECTIFIED_MAX>(x, y),
                        _ => self.forward_record::<AVERAGE>(x, y),
                    }
                }
            },
        );
    }

    fn backward(&self, pass: Backward<'_>) {
        let Some(dx) = pass.dx else { return };
        let (from, to) = (self.from.iter().product(), self.to.iter().product());
        vectorised(
            #[inline(always)]
            || {
                let rows = pass.x.chunks_exact(from).zip(dx.chunks_exact_mut(from));
                let back = pass.y.chunks_exact(to).zip(pass.dy.chunks_exact(to));
                for ((x, dx), (y, dy)) in rows.zip(back) {
                    let back = (x, y, dy);
                    match self.kind {
                        MAX => self.backward_record::<MAX>(back, dx),
                        RECTIFIED_MAX => self.backward_record::<RECTIFIED_MAX>(back, dx),
                        _ => self.backward_record::<AVERAGE>(back, dx),
                    }
                }
            },
        );
    }
}

struct GlobalAverage {
    positions: usize,
    channels: usize,
}

pub(super) fn compile_global(shape: &[usize]) -> Result<Compiled, ModelError> {
    let (positions, channels) = last_axis(shape)?;
    Ok((Some(Box::new(GlobalAverage { positions, channels })), vec![channels]))
}

impl Operation for GlobalAverage {
    fn forward(&self, _: Packed<'_>, _: usize, x: &[f32], y: &mut [f32], _: &mut Spare) {
        let rows = x.chunks_exact(self.positions * self.channels);
        for (x, y) in rows.zip(y.chunks_exact_mut(self.channels)) {
            y.fill(0.0);
            for x in x.chunks_exact(self.channels) {
                for (y, x) in y.iter_mut().zip(x) {
                    *y += x;
                }
            }
            y.iter_mut().for_each(|y| *y /= self.positions as f32);
        }
    }

    fn backward(&self, pass: Backward<'_>) {
        let Some(dx) = pass.dx else { return };
        let rows = dx.chunks_exact_mut(self.positions * self.channels);
        for (dx, dy) in rows.zip(pass.dy.chunks_exact(self.channels)) {
            for dx in dx.chunks_exact_mut(self.channels) {
                for (dx, dy) in dx.iter_mut().zip(dy) {
                    *dx = dy / self.positions as f32;
                }
            }
        }
    }
}
