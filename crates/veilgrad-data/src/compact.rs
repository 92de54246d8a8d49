//! Rows of numbers in 16 bits each.

use crate::parallel::limit;

/// Rows of equal width, held as 16-bit integers with one scale per row: half the memory of `f32`. Not `Debug`: the values
/// are private.
///
/// # Guarantee
/// A number is off by at most 2^-16 of the largest magnitude in its row. A row depends on no other row. A row with a value
/// that is not finite reads as NaN throughout.
///
/// # Example
/// ```
/// use veilgrad_data::CompactRows;
///
/// let mut rows = CompactRows::new(2);
/// rows.extend(&[0.5, -1.0, 3.0, 0.0]);
/// let mut row = [0.0; 2];
/// rows.read(0, &mut row);
/// assert!((row[0] - 0.5).abs() < 2e-5 && row[1] == -1.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct CompactRows {
    width: usize,
    values: Vec<i16>,
    scales: Vec<f32>,
}

impl CompactRows {
    /// No rows yet, of this width.
    #[must_use]
    pub fn new(width: usize) -> Self {
        Self { width: width.max(1), values: Vec::new(), scales: Vec::new() }
    }

    /// Reserves memory for this many rows more.
    pub fn reserve(&mut self, rows: usize) {
        self.values.reserve_exact(rows.saturating_mul(self.width));
        self.scales.reserve_exact(rows);
    }

    /// The number of rows.
    #[must_use]
    pub fn count(&self) -> usize {
        self.scales.len()
    }

    /// Appends rows; what is not a whole row is left out.
    pub fn extend(&mut self, rows: &[f32]) {
        for row in rows.chunks_exact(self.width) {
            let start = self.values.len();
            self.values.resize(start + self.width, 0);
            let to = self.values.get_mut(start..).unwrap_or_default();
            self.scales.push(write(row, to));
        }
    }

    /// Copies a row; numbers that `to` has no room for are left out, and it stays as it is if there is no such row.
    pub fn read(&self, row: usize, to: &mut [f32]) {
        let start = row.saturating_mul(self.width);
        let values = self.values.get(start..).and_then(|values| values.get(..self.width));
        let (Some(values), Some(scale)) = (values, self.scales.get(row)) else { return };
        for (to, value) in to.iter_mut().zip(values) {
            *to = f32::from(*value) * scale;
        }
    }

    /// Changes blocks of rows in place, on several threads: `change` gets up to `block` rows, one after the other, and must
    /// treat each on its own.
    pub fn change(&mut self, block: usize, threads: usize, change: impl Fn(&mut [f32]) + Sync) {
        let (width, block) = (self.width, block.max(1));
        let share = self.scales.len().div_ceil(limit(threads)).max(1).next_multiple_of(block);
        std::thread::scope(|scope| {
            let parts = self.values.chunks_mut(share * width).zip(self.scales.chunks_mut(share));
            for (values, scales) in parts {
                let change = &change;
                scope.spawn(move || {
                    let mut rows = vec![0.0; block * width];
                    let blocks = values.chunks_mut(block * width).zip(scales.chunks_mut(block));
                    for (values, scales) in blocks {
                        let Some(rows) = rows.get_mut(..values.len()) else { continue };
                        let each = rows.chunks_exact_mut(width).zip(values.chunks_exact(width));
                        for ((row, values), scale) in each.zip(scales.iter()) {
                            row.iter_mut()
                                .zip(values)
                                .for_each(|(x, v)| *x = f32::from(*v) * scale);
                        }
                        change(rows);
                        let each = rows.chunks_exact(width).zip(values.chunks_exact_mut(width));
                        for ((row, values), scale) in each.zip(scales) {
                            *scale = write(row, values);
                        }
                    }
                    rows.fill(0.0);
                });
            }
        });
    }
}

/// Writes a row as integers, and returns their scale.
fn write(row: &[f32], to: &mut [i16]) -> f32 {
    // The bits of magnitudes have the order of their values; those that are not finite come last.
    let largest = f32::from_bits(row.iter().map(|x| x.abs().to_bits()).fold(0, u32::max));
    if !largest.is_finite() {
        to.fill(0);
        return f32::NAN;
    }
    let scale = largest / 32767.0;
    // The scale of a tiny row is 0: all of it reads as 0.
    let factor = if scale > 0.0 { 1.0 / scale } else { 0.0 };
    for (to, x) in to.iter_mut().zip(row) {
        *to = (x * factor).round_ties_even() as i16;
    }
    scale
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows() -> Vec<f32> {
        let value = |i: u32| (f64::from(i) * 0.7).sin() as f32 * (1.0 + (i % 7) as f32);
        (0..5 * 13).map(value).collect()
    }

    #[test]
    fn numbers_are_off_by_at_most_two_to_the_minus_sixteen_of_the_largest() {
        let mut compact = CompactRows::new(13);
        compact.extend(&rows());
        assert_eq!(compact.count(), 5);
        for (index, row) in rows().chunks_exact(13).enumerate() {
            let largest = row.iter().fold(0.0f32, |most, x| most.max(x.abs()));
            let mut found = [0.0; 13];
            compact.read(index, &mut found);
            for (found, x) in found.iter().zip(row) {
                assert!((found - x).abs() <= largest * 1.01 / 65536.0, "{found} for {x}");
            }
        }
    }

    #[test]
    fn a_row_that_is_not_finite_reads_as_nan_and_leaves_the_others() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut compact = CompactRows::new(2);
            compact.extend(&[1.0, 2.0, bad, 2.0, 0.0, 0.0]);
            let mut row = [5.0; 2];
            compact.read(1, &mut row);
            assert!(row.iter().all(|x| x.is_nan()));
            compact.read(0, &mut row);
            assert!(row[1] == 2.0 && (row[0] - 1.0).abs() < 1e-4);
            compact.read(2, &mut row);
            assert_eq!(row, [0.0, 0.0]);
        }
    }

    #[test]
    fn rows_are_changed_the_same_on_any_number_of_threads() {
        let changed = |block, threads| {
            let mut compact = CompactRows::new(13);
            compact.extend(&rows());
            let double = |rows: &mut [f32]| rows.iter_mut().for_each(|x| *x = 2.0 * *x + 1.0);
            compact.change(block, threads, double);
            (compact.values, compact.scales)
        };
        assert!(changed(1, 1) == changed(2, 3) && changed(1, 1) == changed(64, 2));
        let mut first = [0.0; 13];
        let mut compact = CompactRows::new(13);
        compact.extend(&rows());
        compact.change(2, 2, |rows| rows.iter_mut().for_each(|x| *x *= -1.0));
        compact.read(4, &mut first);
        assert!((first[1] + rows()[4 * 13 + 1]).abs() < 1e-3);
    }
}
