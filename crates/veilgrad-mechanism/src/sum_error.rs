//! Why a record or a partial sum is refused.

use veilgrad_random::RandomError;

/// A record or a sum has the wrong shape, plan or round. Errors never depend on the values of records.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SumError {
    /// A record has too many or too few vectors.
    #[error("a record of {found} vectors does not fit a structure of {expected}")]
    Count {
        /// Vectors in the structure.
        expected: usize,
        /// Vectors in the record.
        found: usize,
    },
    /// A vector has the wrong length.
    #[error("'{name}' has {found} coordinates, not {expected}")]
    Dimension {
        /// The vector or group.
        name: String,
        /// Coordinates in the structure.
        expected: usize,
        /// Coordinates in the record.
        found: usize,
    },
    /// A vector is given as an outer product where the sum expects coordinates, or the other way round.
    #[error(
        "all records of a sum must give '{0}' in the same form: coordinates or an outer product"
    )]
    Form(String),
    /// A sum of outer products is larger than its certified records allow.
    #[error("the sum of '{0}' is larger than its certified records allow")]
    Uncertified(String),
    /// The two sums belong to different plans or rounds.
    #[error("the two sums belong to different plans or rounds")]
    Foreign,
    /// The partial sum was already added.
    #[error("the partial sum was already added")]
    Duplicate,
    /// The bytes are not a partial sum that this version can read.
    #[error("the bytes are not a partial sum of this version: {0}")]
    Unreadable(&'static str),
    /// The bytes were altered on their way.
    #[error("the partial sum was altered on its way: its checksum does not match")]
    Altered,
    /// A partial sum needs a random number to be told apart from others.
    #[error(transparent)]
    Random(#[from] RandomError),
    /// A sum that already has noise cannot be added to another.
    #[error("a sum that already has noise can be released, but not added to another")]
    HasNoise,
}
