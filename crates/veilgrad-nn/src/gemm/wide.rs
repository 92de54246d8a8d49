//! Rows or columns times wide panels, for AVX-512.

use std::ops::Range;

use pulp::x86::V4;
use pulp::{cast, f32x16};

use super::{Blocks, DEPTH, Left, Shape, Start, WIDE, WIDE_HEIGHT, WIDTH};

/// A part of a matrix is copied if more rows of `a` than these use it.
const COPIED: usize = 16;

// With indices, the compiler sees that all rows have the same length.
#[allow(clippy::needless_range_loop)]
impl<K> Blocks<'_, K> {
    /// Computes the columns in wide panels; returns the blocks that are left.
    #[inline(always)]
    pub(super) fn wide(mut self, v4: V4) -> Self {
        let Shape { m, n, k } = self.shape;
        if n < WIDE * WIDTH {
            return self;
        }
        let may_copy = match self.a {
            Left::Rows(_) => m > COPIED,
            Left::Columns(_) => false,
            Left::Patches(_) | Left::PatchColumns(_) => return self,
        };
        let mut copy = None;
        while n - self.column >= WIDE * WIDTH
            && self.b.panel(self.shape, self.column).1 >= WIDE * WIDTH
        {
            let (panel, stride) = self.b.panel(self.shape, self.column);
            for first in (0..k).step_by(DEPTH) {
                let part = first..(first + DEPTH).min(k);
                let mut b = (&panel[part.start * stride..], stride);
                // Rows that are far apart compete for the same few sets of the L1 cache.
                if stride > WIDE * WIDTH && may_copy {
                    let copy = copy.get_or_insert([0.0; DEPTH * WIDE * WIDTH]);
                    let to = copy.as_chunks_mut::<{ WIDE * WIDTH }>().0.iter_mut();
                    for (to, from) in to.zip(b.0.chunks(stride)).take(part.len()) {
                        to.copy_from_slice(&from[..WIDE * WIDTH]);
                    }
                    b = (&copy[..], WIDE * WIDTH);
                }
                let mut row = 0;
                while row < m {
                    row += match m - row {
                        1 => self.wide_block::<1>(v4, b, row, &part),
                        2 | 3 => self.wide_block::<2>(v4, b, row, &part),
                        4 | 5 => self.wide_block::<4>(v4, b, row, &part),
                        _ => self.wide_block::<WIDE_HEIGHT>(v4, b, row, &part),
                    };
                }
            }
            self.column += WIDE * WIDTH;
        }
        // Weights, in most layers; but the keys of attention are computed from records.
        if let Some(copy) = &mut copy {
            copy.fill(0.0);
            std::hint::black_box(copy);
        }
        self
    }

    /// Computes H rows of a wide panel; returns H.
    #[inline(always)]
    fn wide_block<const H: usize>(
        &mut self,
        v4: V4,
        (b, stride): (&[f32], usize),
        row: usize,
        part: &Range<usize>,
    ) -> usize {
        let (Shape { m, n, k }, column) = (self.shape, self.column);
        let is_first = part.start == 0;
        let start = if is_first { self.start } else { Start::Zero };
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
        let length = part.len();
        let b = b.chunks(stride).take(length);
        match self.a {
            Left::Rows(rows) => {
                // Slices of the same length: the inner loop has no bounds checks.
                let mut a: [&[f32]; H] = [&[]; H];
                for i in 0..H {
                    a[i] = &rows[(row + i) * k + part.start..][..length];
                }
                for (p, numbers) in (0..length).zip(b) {
                    add_products(v4, &mut sums, numbers, |i| a[i][p]);
                }
            }
            Left::Columns(columns) => {
                for (p, numbers) in part.clone().zip(b) {
                    let Some(a) = columns[p * m + row..].first_chunk::<H>() else { break };
                    add_products(v4, &mut sums, numbers, |i| a[i]);
                }
            }
            Left::Patches(_) | Left::PatchColumns(_) => {}
        }
        for i in 0..H {
            let to = &mut self.c[(row + i) * n + column..][..WIDE * WIDTH];
            for (to, sums) in to.as_chunks_mut::<WIDTH>().0.iter_mut().zip(sums[i]) {
                *to = cast(if is_first { sums } else { v4.add_f32x16(vector(to), sums) });
            }
        }
        H
    }
}

/// Continues the chains of a block with one row of a wide panel.
#[allow(clippy::needless_range_loop)]
#[inline(always)]
fn add_products<const H: usize>(
    v4: V4,
    sums: &mut [[f32x16; WIDE]; H],
    numbers: &[f32],
    left: impl Fn(usize) -> f32,
) {
    let numbers = &numbers[..WIDE * WIDTH];
    let mut right = [v4.splat_f32x16(0.0); WIDE];
    for j in 0..WIDE {
        right[j] = vector(&numbers[j * WIDTH..]);
    }
    for i in 0..H {
        let left = v4.splat_f32x16(left(i));
        for j in 0..WIDE {
            sums[i][j] = v4.mul_add_f32x16(left, right[j], sums[i][j]);
        }
    }
}

#[inline(always)]
fn vector(numbers: &[f32]) -> f32x16 {
    let mut vector = [0.0; WIDTH];
    vector.copy_from_slice(&numbers[..WIDTH]);
    cast(vector)
}
