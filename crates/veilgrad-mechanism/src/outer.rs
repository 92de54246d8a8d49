//! What a record brings for one vector, and sums of outer products that are kept where they are computed.

use crate::kernel::Part;

/// What a record brings for one vector of the structure.
#[derive(Debug, Clone, Copy)]
pub enum RecordVector<'a> {
    /// Its coordinates.
    Values(&'a [f32]),
    /// Two factors whose outer product it is, `left[i] * right[j]` row by row: the gradient of a linear layer.
    Outer(&'a [f32], &'a [f32]),
}

/// The sum over records of outer products, one vector of the structure. Open for training engines.
///
/// A sum calls [`squared_norm`](Self::squared_norm) and [`round`](Self::round) for a record, certifies it over all vectors
/// of its group, and then calls [`add`](Self::add), or skips [`add`](Self::add) if the record is not certified.
///
/// # Guarantee
/// Implementations are trusted, because a record's certificate is computed from what they return:
/// [`round`](Self::round) returns the exact squared norm of an integer matrix that depends on the record's two vectors and
/// the scale factor alone, and [`add`](Self::add) adds exactly this matrix. The content is private: it must be wiped
/// when it is dropped.
pub trait OuterProducts: Send {
    /// How many numbers the two factors have.
    fn lengths(&self) -> (usize, usize);

    /// Rounds the left factor to integers. Returns the squared norm of its product with the right factor as it is.
    fn squared_norm(&mut self, left: &[f32], right: &[f32]) -> f64;

    /// How much rounding the right factor may add to the squared norm of the integers.
    fn slack(&self) -> f64;

    /// Scales and rounds the right factor, so that the product is `factor` times the record's. Returns the exact
    /// squared norm of the integers.
    fn round(&mut self, right: &[f32], factor: f64) -> u128;

    /// Adds the product of the rounded factors.
    fn add(&mut self);

    /// Adds up products that were only collected so far, so that threads share this work.
    fn finish(&mut self);

    /// The sum, after [`finish`](Self::finish), row by row.
    fn sum(&self) -> Part<'_>;

    /// Begins another sum.
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
