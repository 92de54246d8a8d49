//! Scaled dot-product attention within a record.

use veilgrad_mechanism::exact::vectorised;

use super::lanes::{exp_of_negative, largest, sum, sum_of_pairs};
use super::operation::{Backward, Compiled, Operation, Packed, Spare, last_axis};
use crate::error::ModelError;
use crate::gemm::{Left, Panels, Start, multiply_plain};

/// Each position holds a query, a key and a value, each with `width` numbers per head.
struct Attention {
    length: usize,
    heads: usize,
    width: usize,
}

pub(super) fn compile(shape: &[usize], heads: usize) -> Result<Compiled, ModelError> {
    let (length, channels) = last_axis(shape)?;
    if heads == 0 || shape.len() != 2 || channels % (3 * heads) != 0 {
        let message = format!(
            "attention with {heads} heads is for sequences of queries, keys and values of equal \
             length, not for {shape:?}"
        );
        return Err(ModelError::Shape(message));
    }
    let attention = Attention { length, heads, width: channels / (3 * heads) };
    Ok((Some(Box::new(attention)), vec![length, channels / 3]))
}

/// The part of a position that is of interest.
#[derive(Clone, Copy)]
struct Columns {
    /// The numbers of a position.
    of: usize,
    first: usize,
    width: usize,
}

impl Columns {
    fn gather(self, x: &[f32], to: &mut [f32]) {
        for (to, x) in to.chunks_exact_mut(self.width).zip(x.chunks_exact(self.of)) {
            to.copy_from_slice(&x[self.first..][..self.width]);
        }
    }

    /// Gathers a matrix and transposes it.
    fn gather_transposed(self, x: &[f32], to: &mut [f32]) {
        let length = to.len() / self.width;
        for (place, x) in x.chunks_exact(self.of).enumerate() {
            for (column, x) in x[self.first..][..self.width].iter().enumerate() {
                to[column * length + place] = *x;
            }
        }
    }

    fn scatter(self, from: &[f32], x: &mut [f32]) {
        for (from, x) in from.chunks_exact(self.width).zip(x.chunks_exact_mut(self.of)) {
            x[self.first..][..self.width].copy_from_slice(from);
        }
    }
}

/// Splits scratch memory into parts of these lengths.
fn split<const N: usize>(values: &mut Vec<f32>, lengths: [usize; N]) -> [&mut [f32]; N] {
    values.resize(lengths.iter().sum(), 0.0);
    let mut rest = &mut values[..];
    lengths.map(|length| {
        let (part, others) = std::mem::take(&mut rest).split_at_mut(length);
        rest = others;
        part
    })
}

/// The attention weights: the softmax of each row of scores, times `scale`.
fn softmax(scores: &mut [f32], length: usize, scale: f32) {
    vectorised(
        #[inline(always)]
        || {
            for row in scores.chunks_exact_mut(length) {
                let most = largest(row) * scale;
                // Not above 0: multiplication by a positive number keeps the order, and so does rounding.
                row.iter_mut().for_each(|x| *x = exp_of_negative(*x * scale - most));
                let share = 1.0 / sum(row, |x| x);
                row.iter_mut().for_each(|x| *x *= share);
            }
        },
    );
}

/// The gradient by the scores, from that by the weights, in its place.
fn softmax_backward(weights: &[f32], slopes: &mut [f32], length: usize, scale: f32) {
    vectorised(
        #[inline(always)]
        || {
            let rows = weights.chunks_exact(length).zip(slopes.chunks_exact_mut(length));
            for (weights, slopes) in rows {
                let mean = sum_of_pairs(weights, slopes, |weight, slope| weight * slope);
                for (slope, weight) in slopes.iter_mut().zip(weights) {
                    *slope = weight * (*slope - mean) * scale;
                }
            }
        },
    );
}

impl Attention {
    const fn channels(&self) -> usize {
        self.heads * self.width
    }

    fn scale(&self) -> f32 {
        1.0 / (self.width as f32).sqrt()
    }

    /// The queries, keys and values of a head, as parts of a position of the input.
    fn parts(&self, head: usize) -> [Columns; 3] {
        let (of, width) = (3 * self.channels(), self.width);
        [0, 1, 2].map(|part| Columns { of, first: part * self.channels() + head * width, width })
    }

    /// A head, as a part of a position of the output.
    const fn output(&self, head: usize) -> Columns {
        Columns { of: self.channels(), first: head * self.width, width: self.width }
    }

    /// The attention weights of a head, from its queries and the transpose of its keys.
    fn weights(&self, query: &[f32], key: &[f32], weights: &mut [f32], panels: &mut Panels) {
        let shape = (self.length, self.width, self.length);
        multiply_plain(shape, Left::Rows(query), key, Start::Zero, weights, panels);
        softmax(weights, self.length, self.scale());
    }
}

impl Operation for Attention {
    fn forward(&self, _: Packed<'_>, _: usize, x: &[f32], y: &mut [f32], spare: &mut Spare) {
        let (length, width, channels) = (self.length, self.width, self.channels());
        let matrix = length * width;
        let parts = split(&mut spare.values, [matrix, matrix, matrix, length * length, matrix]);
        let [query, key, value, weights, out] = parts;
        let records = x.chunks_exact(3 * length * channels);
        for (x, y) in records.zip(y.chunks_exact_mut(length * channels)) {
            for head in 0..self.heads {
                let [queries, keys, values] = self.parts(head);
                queries.gather(x, query);
                keys.gather_transposed(x, key);
                values.gather(x, value);
                self.weights(query, key, weights, &mut spare.panels);
                let (shape, weights) = ((length, length, width), Left::Rows(weights));
                multiply_plain(shape, weights, value, Start::Zero, out, &mut spare.panels);
                self.output(head).scatter(out, y);
            }
        }
    }

    /// Computes the weights again: that costs less than to keep them.
    fn backward(&self, pass: Backward<'_>) {
        let Some(dx) = pass.dx else { return };
        let (length, width, channels) = (self.length, self.width, self.channels());
        let (matrix, square) = (length * width, length * length);
        let spare = pass.spare;
        let inputs = split(&mut spare.values, [matrix, matrix, matrix, matrix, matrix, square]);
        let [query, key, key_transposed, value_transposed, dy_head, weights] = inputs;
        let [slopes, result] = split(&mut spare.more, [square, matrix]);
        let panels = &mut spare.panels;
        // Between positions, and from positions to the numbers of a head.
        let (square, narrow) = ((length, width, length), (length, length, width));
        let records = pass.x.chunks_exact(3 * length * channels);
        let records = records.zip(pass.dy.chunks_exact(length * channels));
        for ((x, dy), dx) in records.zip(dx.chunks_exact_mut(3 * length * channels)) {
            for head in 0..self.heads {
                let [queries, keys, values] = self.parts(head);
                queries.gather(x, query);
                keys.gather(x, key);
                keys.gather_transposed(x, key_transposed);
                values.gather_transposed(x, value_transposed);
                self.output(head).gather(dy, dy_head);
                self.weights(query, key_transposed, weights, panels);
                let turned = Left::Columns(weights);
                multiply_plain(narrow, turned, dy_head, Start::Zero, result, panels);
                values.scatter(result, dx);
                let rows = Left::Rows(dy_head);
                multiply_plain(square, rows, value_transposed, Start::Zero, slopes, panels);
                softmax_backward(weights, slopes, length, self.scale());
                multiply_plain(narrow, Left::Rows(slopes), key, Start::Zero, result, panels);
                queries.scatter(result, dx);
                let turned = Left::Columns(slopes);
                multiply_plain(narrow, turned, query, Start::Zero, result, panels);
                keys.scatter(result, dx);
            }
        }
    }
}
