//! Windows over images, channel by channel.

use super::{Compiled, Gradients, Operation, Pass, Ready, Spare, fast, image, last_axis};
use crate::ModelError;

/// A square window and its step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// Height and width.
    pub size: usize,
    /// Steps down and to the right.
    pub stride: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Max,
    /// `max(0, …)` of the window.
    RectifiedMax,
    Average,
}

struct Pool {
    kind: Kind,
    window: Window,
    /// Height, width and channels before and after.
    from: [usize; 3],
    to: [usize; 3],
}

pub(super) fn compile(
    shape: &[usize],
    window: Window,
    kind: Kind,
) -> Result<Compiled, ModelError> {
    let from @ [height, width, channels] = image(shape)?;
    let Window { size, stride } = window;
    if size == 0 || stride == 0 || size > height || size > width {
        return Err(ModelError::Shape(format!("{window:?} does not fit an image of {shape:?}")));
    }
    let to = [(height - size) / stride + 1, (width - size) / stride + 1, channels];
    Ok((Some(Box::new(Pool { kind, window, from, to })), to.to_vec()))
}

impl Pool {
    /// Each place of the output with the places under it, as offsets of their channels.
    #[inline(always)]
    fn places(&self) -> impl Iterator<Item = (usize, usize)> {
        let ([_, width, channels], [rows, columns, _]) = (self.from, self.to);
        let stride = self.window.stride;
        (0..rows * columns).map(move |place| {
            let (row, column) = (place / columns, place % columns);
            (place * channels, (row * stride * width + column * stride) * channels)
        })
    }

    #[inline(always)]
    fn under(&self) -> impl Iterator<Item = usize> + Clone {
        let ([_, width, channels], size) = (self.from, self.window.size);
        (0..size * size).map(move |index| (index / size * width + index % size) * channels)
    }

    #[inline(always)]
    fn forward_record(&self, x: &[f32], y: &mut [f32]) {
        let channels = self.from[2];
        let scale = 1.0 / (self.window.size * self.window.size) as f32;
        let first = match self.kind {
            Kind::Max => f32::NEG_INFINITY,
            Kind::RectifiedMax | Kind::Average => 0.0,
        };
        for (to, corner) in self.places() {
            let y = &mut y[to..to + channels];
            y.fill(first);
            for offset in self.under() {
                let x = &x[corner + offset..][..channels];
                for (y, x) in y.iter_mut().zip(x) {
                    *y = match self.kind {
                        Kind::Average => *y + *x,
                        // A value that is no number stays one.
                        _ if *x <= *y => *y,
                        _ => *x,
                    };
                }
            }
            if self.kind == Kind::Average {
                y.iter_mut().for_each(|y| *y *= scale);
            }
        }
    }

    #[inline(always)]
    fn backward_record(&self, (x, y, dy): (&[f32], &[f32], &[f32]), dx: &mut [f32]) {
        const LANES: usize = 16;
        let channels = self.from[2];
        let scale = 1.0 / (self.window.size * self.window.size) as f32;
        dx.fill(0.0);
        for (to, corner) in self.places() {
            if self.kind == Kind::Average {
                for offset in self.under() {
                    let dx = &mut dx[corner + offset..][..channels];
                    for (dx, dy) in dx.iter_mut().zip(&dy[to..to + channels]) {
                        *dx += dy * scale;
                    }
                }
                continue;
            }
            // The first place with the largest value gets all of it; none where zero was larger.
            for first in (0..channels).step_by(LANES) {
                let lanes = LANES.min(channels - first);
                let mut left = [0f32; LANES];
                left[..lanes].copy_from_slice(&dy[to + first..][..lanes]);
                let mut largest = [0f32; LANES];
                largest[..lanes].copy_from_slice(&y[to + first..][..lanes]);
                if self.kind == Kind::RectifiedMax {
                    for (left, largest) in left.iter_mut().zip(&largest) {
                        *left = if *largest == 0.0 { 0.0 } else { *left };
                    }
                }
                for offset in self.under() {
                    let from = corner + offset + first;
                    let (x, dx) = (&x[from..][..lanes], &mut dx[from..][..lanes]);
                    if let (Some(x), Some(dx)) =
                        (x.first_chunk::<LANES>(), dx.first_chunk_mut::<LANES>())
                    {
                        give(x, dx, &largest, &mut left);
                    } else {
                        give(x, dx, &largest[..lanes], &mut left[..lanes]);
                    }
                }
            }
        }
    }
}

/// Hands on what is left where the value is the largest.
#[inline(always)]
fn give<X: AsRef<[f32]> + ?Sized>(x: &X, dx: &mut [f32], largest: &[f32], left: &mut [f32]) {
    for (((x, dx), largest), left) in x.as_ref().iter().zip(dx).zip(largest).zip(left) {
        let here = x == largest;
        *dx += if here { *left } else { 0.0 };
        *left = if here { 0.0 } else { *left };
    }
}

impl Operation for Pool {
    fn forward(&self, _: Ready<'_>, _: usize, x: &[f32], y: &mut [f32], _: &mut Spare) {
        let (from, to) = (self.from.iter().product(), self.to.iter().product());
        fast(|| {
            for (x, y) in x.chunks_exact(from).zip(y.chunks_exact_mut(to)) {
                self.forward_record(x, y);
            }
        });
    }

    fn backward(
        &self,
        _: Ready<'_>,
        pass: Pass<'_>,
        dx: Option<&mut [f32]>,
        _: &mut Gradients<'_>,
        _: &mut Spare,
    ) {
        let Some(dx) = dx else { return };
        let (from, to) = (self.from.iter().product(), self.to.iter().product());
        fast(|| {
            let rows = pass.x.chunks_exact(from).zip(dx.chunks_exact_mut(from));
            let back = pass.y.chunks_exact(to).zip(pass.dy.chunks_exact(to));
            for ((x, dx), (y, dy)) in rows.zip(back) {
                self.backward_record((x, y, dy), dx);
            }
        });
    }
}

/// The mean over positions.
struct Global {
    positions: usize,
    channels: usize,
}

pub(super) fn compile_global(shape: &[usize]) -> Result<Compiled, ModelError> {
    let (positions, channels) = last_axis(shape)?;
    if positions == 0 {
        return Err(ModelError::Shape("there are no positions to average".to_owned()));
    }
    Ok((Some(Box::new(Global { positions, channels })), vec![channels]))
}

impl Operation for Global {
    fn forward(&self, _: Ready<'_>, _: usize, x: &[f32], y: &mut [f32], _: &mut Spare) {
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

    fn backward(
        &self,
        _: Ready<'_>,
        pass: Pass<'_>,
        dx: Option<&mut [f32]>,
        _: &mut Gradients<'_>,
        _: &mut Spare,
    ) {
        let Some(dx) = dx else { return };
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
