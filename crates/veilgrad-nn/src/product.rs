//! Rounds the two factors of a record's gradient to integers and adds their outer product to an exact sum.

use veilgrad_mechanism::OuterProducts;
use veilgrad_mechanism::exact::{self, Part, round_down};
use zeroize::Zeroize;

use crate::outer::{LEFT_MAX, OuterSum, RIGHT_MAX, round};
use veilgrad_mechanism::exact::vectorised;

/// Sums of outer products whose factors are rounded to integers of 13 and 14 bits.
pub(crate) struct RoundedProducts {
    sum: OuterSum,
    /// The target norm of the left factor as integers.
    length: f64,
    left: Vec<i16>,
    right: Vec<i16>,
    /// The scale of the current record's left factor, and its exact squared norm as integers.
    scale: f32,
    squares: u64,
}

/// An accumulator for outer products of vectors of lengths `left` and `right`, in a group with sensitivity `s_int` in
/// grid units: for [`Sample::begin_part`](veilgrad_mechanism::Sample::begin_part) in training engines outside of this
/// crate. A linear layer's gradient is passed as its two factors and never written out.
#[must_use]
pub fn outer_products(left: usize, right: usize, s_int: u32) -> Box<dyn OuterProducts> {
    Box::new(RoundedProducts::new(left, right, s_int))
}

impl RoundedProducts {
    /// Products of `inputs` by `outputs` numbers, in a group with this sensitivity in grid units.
    pub(crate) fn new(inputs: usize, outputs: usize, s_int: u32) -> Self {
        // Both factors have the same resolution: |A|/sqrt(inputs) = |B|/sqrt(outputs) for a record with all
        // of the group's norm, |A||B| = S_int. |A| is at least S_int/16383, so that such a B fits its bits.
        let s_int = f64::from(s_int);
        let length = (s_int * (inputs as f64 / outputs as f64).sqrt()).sqrt();
        let length = length.max(s_int / f64::from(RIGHT_MAX));
        let (left, right) = (vec![0; inputs], vec![0; outputs]);
        Self { sum: OuterSum::new(inputs, outputs), length, left, right, scale: 1.0, squares: 0 }
    }
}

/// Wipes the factors of the last record.
impl Drop for RoundedProducts {
    fn drop(&mut self) {
        self.left.zeroize();
        self.right.zeroize();
    }
}

impl OuterProducts for RoundedProducts {
    fn lengths(&self) -> (usize, usize) {
        (self.left.len(), self.right.len())
    }

    fn squared_norm(&mut self, left: &[f32], right: &[f32]) -> f64 {
        let largest = largest(left);
        let squared = exact::squared_norm(left);
        if !squared.is_finite() {
            return f64::NAN;
        }
        // The cap of 1e30 keeps the scale finite for a factor of zeros, which is zero at any scale.
        let scale = (self.length / squared.sqrt()).min(f64::from(LEFT_MAX / largest)).min(1e30);
        self.scale = round_down(scale).max(f32::MIN_POSITIVE);
        self.squares = round(left, self.scale, LEFT_MAX, &mut self.left);
        let scale = f64::from(self.scale);
        self.squares as f64 / (scale * scale) * exact::squared_norm(right)
    }

    fn slack(&self) -> f64 {
        // Rounding moves each coordinate of the right factor by at most 1/2.
        self.squares as f64 * self.right.len() as f64 / 4.0
    }

    fn round(&mut self, right: &[f32], factor: f64) -> u128 {
        let factor = round_down((factor / f64::from(self.scale)).min(f64::from(f32::MAX)));
        let squares = round(right, factor, RIGHT_MAX, &mut self.right);
        u128::from(self.squares) * u128::from(squares)
    }

    fn add(&mut self) {
        self.sum.push(&self.left, &self.right);
    }

    fn finish(&mut self) {
        self.sum.finish();
    }

    fn sum(&self) -> Part<'_> {
        self.sum.sum()
    }

    fn restart(&mut self) {
        self.sum.restart();
    }
}

/// The largest absolute value. The bits of nonnegative floats have the order of their values.
fn largest(x: &[f32]) -> f32 {
    vectorised(
        #[inline(always)]
        || f32::from_bits(x.iter().map(|x| x.abs().to_bits()).fold(0, u32::max)),
    )
}

#[cfg(test)]
mod tests;
