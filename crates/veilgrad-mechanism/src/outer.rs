//! A record's value for one vector, and the trait for sums of outer products kept by a training engine.

use crate::kernel::Part;

/// A record's value for one vector of the structure: coordinates, or the factors of an outer product.
#[derive(Debug, Clone, Copy)]
pub enum RecordVector<'a> {
    /// The coordinates.
    Values(&'a [f32]),
    /// The two factors of an outer product `left[i] * right[j]`, row by row: the gradient of a linear layer.
    Outer(&'a [f32], &'a [f32]),
    /// Some rows of a table; all other rows are zero. The same as [`Values`](Self::Values) of the whole table, bit for bit.
    Rows(SparseRows<'a>),
}

/// Some rows of a table, the others being zero: the gradient of an embedding, with a row per token of the record.
///
/// # Guarantee
/// The certificate of a record is that of the whole table, because a row cannot occur twice: a record whose rows do not
/// ascend strictly, are not in the table or do not have `width` coordinates each contributes zero to every group.
#[derive(Debug, Clone, Copy)]
pub struct SparseRows<'a> {
    /// The coordinates of the whole table.
    pub length: usize,
    /// The coordinates of one row.
    pub width: usize,
    /// The indices of the rows, strictly ascending.
    pub rows: &'a [u32],
    /// The coordinates of these rows, one row after the other.
    pub values: &'a [f32],
}

impl SparseRows<'_> {
    /// Whether every row is in the table, no row occurs twice, and each has all of its coordinates.
    pub(crate) fn is_valid(&self) -> bool {
        let width = self.width;
        let ascend = self.rows.windows(2).all(|pair| matches!(pair, [a, b] if a < b));
        // Rows ascend, so that the last is the largest.
        let end = self.rows.last().map_or(Some(0), |last| (*last as usize + 1).checked_mul(width));
        let whole = self.rows.len().checked_mul(width) == Some(self.values.len());
        width > 0 && ascend && whole && end.is_some_and(|end| end <= self.length)
    }

    /// The place of each row in the table, and its coordinates.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, &[f32])> {
        let firsts = self.rows.iter().map(|row| *row as usize * self.width);
        firsts.zip(self.values.chunks_exact(self.width.max(1)))
    }

    /// The first coordinate of the table.
    pub(crate) fn first(&self) -> f32 {
        match (self.rows, self.values) {
            ([0, ..], [first, ..]) => *first,
            _ => 0.0,
        }
    }
}

/// The sum of the records' outer products for one vector of the structure. Implemented by training engines.
///
/// For each record a [`PartialSum`](crate::PartialSum) calls [`squared_norm`](Self::squared_norm) and
/// [`round`](Self::round), certifies the record over all vectors of its group, and calls [`add`](Self::add) only if the
/// record is certified.
///
/// # Guarantee
/// Implementations are trusted, because a record's certificate is computed from what they return:
/// [`round`](Self::round) returns the exact squared norm of an integer matrix that depends on the record's two vectors and
/// the scale factor alone, and [`add`](Self::add) adds exactly this matrix. The contents are private: wipe them on
/// drop.
pub trait OuterProducts: Send {
    /// The lengths of the left and the right factor.
    fn lengths(&self) -> (usize, usize);

    /// Rounds the left factor to integers. Returns the squared norm of its product with the unrounded right factor.
    fn squared_norm(&mut self, left: &[f32], right: &[f32]) -> f64;

    /// An upper bound on the squared norm of the error from rounding the right factor, in integer units.
    fn slack(&self) -> f64;

    /// Scales and rounds the right factor, so that the integer matrix is about `factor` times the record's outer
    /// product. Returns the exact squared norm of the integers.
    fn round(&mut self, right: &[f32], factor: f64) -> u128;

    /// Adds the outer product of the rounded factors to the sum.
    fn add(&mut self);

    /// Adds up products that are only buffered so far. Each thread calls it, so that threads share this work.
    fn finish(&mut self);

    /// The sum, after [`finish`](Self::finish), row by row.
    fn sum(&self) -> Part<'_>;

    /// Resets the sum to zero.
    fn restart(&mut self);
}

/// Reusable memory for sums of outer products, with the name of each vector.
pub type OuterMemory = Vec<(String, Box<dyn OuterProducts>)>;

/// The vectors of one record, in the order of the structure.
pub(crate) trait Record {
    fn count(&self) -> usize;
    fn vector(&self, index: usize) -> Option<RecordVector<'_>>;
}

impl Record for [&[f32]] {
    fn count(&self) -> usize {
        self.len()
    }

    fn vector(&self, index: usize) -> Option<RecordVector<'_>> {
        self.get(index).map(|values| RecordVector::Values(values))
    }
}

impl Record for [RecordVector<'_>] {
    fn count(&self) -> usize {
        self.len()
    }

    fn vector(&self, index: usize) -> Option<RecordVector<'_>> {
        self.get(index).copied()
    }
}
