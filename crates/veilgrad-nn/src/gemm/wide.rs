//! Rows times wide panels, for AVX-512.

use std::ops::Range;

use pulp::x86::V4;
use pulp::{cast, f32x16};

use super::{Blocks, Shape, Start, WIDE, WIDE_HEIGHT, WIDTH};

/// Rows of a wide panel that all rows of `a` use before the next ones: 32 KB, which stay in the L1 cache.
const DEPTH: usize = 128;
/// A part of a matrix is copied if more rows of `a` than these use it.
const COPIED: usize = 16;

// With indices, the compiler sees that all rows have the same length.
#[allow(clippy::needless_range_loop)]
impl<K> Blocks<'_, K> {
    /// Computes the columns in wide panels; returns the blocks that are left.
    #[inline(always)]
    pub(super) fn wide(mut self, v4: V4, rows: &[f32]) -> Self {
        let Shape { m, n, k } = self.shape;
        if n < WIDE * WIDTH {
            return self;
        }
        let mut copy = [0.0; DEPTH * WIDE * WIDTH];
        while n - self.column >= WIDE * WIDTH
            && self.b.panel(self.shape, self.column).1 >= WIDE * WIDTH
        {
            let (panel, stride) = self.b.panel(self.shape, self.column);
            for first in (0..k).step_by(DEPTH) {
                let part = first..(first + DEPTH).min(k);
                let mut b = (&panel[part.start * stride..], stride);
                // Rows that are far apart compete for the same few sets of the L1 cache.
                if stride > WIDE * WIDTH && m > COPIED {
                    let to = copy.as_chunks_mut::<{ WIDE * WIDTH }>().0.iter_mut();
                    for (to, from) in to.zip(b.0.chunks(stride)).take(part.len()) {
                        to.copy_from_slice(&from[..WIDE * WIDTH]);
                    }
                    b = (&copy, WIDE * WIDTH);
                }
                let mut row = 0;
                while row < m {
                    row += match m - row {
                        1 => self.wide_block::<1>(v4, rows, b, row, &part),
                        2 | 3 => self.wide_block::<2>(v4, rows, b, row, &part),
                        4 | 5 => self.wide_block::<4>(v4, rows, b, row, &part),
                        _ => self.wide_block::<WIDE_HEIGHT>(v4, rows, b, row, &part),
                    };
                }
            }
            self.column += WIDE * WIDTH;
        }
        self
    }

    /// Computes H rows of a wide panel; returns H.
    #[inline(always)]
    fn wide_block<const H: usize>(
        &mut self,
        v4: V4,
        rows: &[f32],
        (b, stride): (&[f32], usize),
        row: usize,
        part: &Range<usize>,
    ) -> usize {
        let (Shape { n, k, .. }, column) = (self.shape, self.column);
        let start = if part.start == 0 { self.start } else { Start::Existing };
        let mut sums = [[v4.splat_f32x16(0.0); WIDE]; H];
        for i in 0..H {
            let from = match start {
                Start::Zero => break,
                Start::Bias(bias) => &bias[column..],
                Start::Existing => &self.c[(row + i) * n + column..],
            };
            let from = &from[..WIDE * WIDTH];
            for j in 0..WIDE {
                sums[i][j] = vector(&from[j * WIDTH..]);
            }
        }
        // Slices of the same length: the inner loop has no bounds checks.
        let length = part.len();
        let mut a: [&[f32]; H] = [&[]; H];
        for i in 0..H {
            a[i] = &rows[(row + i) * k + part.start..][..length];
        }
        for (p, numbers) in (0..length).zip(b.chunks(stride)) {
            let numbers = &numbers[..WIDE * WIDTH];
            let mut right = [v4.splat_f32x16(0.0); WIDE];
            for j in 0..WIDE {
                right[j] = vector(&numbers[j * WIDTH..]);
            }
            for i in 0..H {
                let left = v4.splat_f32x16(a[i][p]);
                for j in 0..WIDE {
                    sums[i][j] = v4.mul_add_f32x16(left, right[j], sums[i][j]);
                }
            }
        }
        for i in 0..H {
            let to = &mut self.c[(row + i) * n + column..][..WIDE * WIDTH];
            for (to, sums) in to.as_chunks_mut::<WIDTH>().0.iter_mut().zip(sums[i]) {
                *to = cast(sums);
            }
        }
        H
    }
}

#[inline(always)]
fn vector(numbers: &[f32]) -> f32x16 {
    let mut vector = [0.0; WIDTH];
    vector.copy_from_slice(&numbers[..WIDTH]);
    cast(vector)
}
