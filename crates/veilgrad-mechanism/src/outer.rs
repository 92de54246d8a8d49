//! A record's value for one vector, and the trait for sums of outer products kept by a training engine.

use crate::kernel::Part;

/// A record's value for one vector of the structure: coordinates, or the factors of an outer product.
#[derive(Debug, Clone, Copy)]
pub enum RecordVector<'a> {
    /// The coordinates.
    Values(&'a [f32]),
    /// The two factors of an outer product `left[i] * right[j]`, row by row: the gradient of a linear layer.
    Outer(&'a [f32], &'a [f32]),
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
