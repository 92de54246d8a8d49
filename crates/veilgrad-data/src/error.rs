//! What is wrong with a file, without what is in it.

use std::path::Path;

/// A file that is not what it was declared to be. Names places, never contents.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// The file could not be read.
    #[error("{path}: {cause}")]
    File {
        /// The file.
        path: String,
        /// What the system said.
        cause: std::io::Error,
    },
    /// The file as a whole is not what it should be.
    #[error("{path}: {why}")]
    Format {
        /// The file.
        path: String,
        /// The rule that it breaks.
        why: String,
    },
    /// A cell of a table is not what its column was declared to be.
    #[error("{path}: row {row}, column {column}: {rule}")]
    Cell {
        /// The file.
        path: String,
        /// Counted from 1, the header not included.
        row: u64,
        /// The name of the column.
        column: String,
        /// The rule that it breaks.
        rule: &'static str,
    },
}

impl DataError {
    pub(crate) fn file(path: &Path, cause: std::io::Error) -> Self {
        Self::File { path: path.display().to_string(), cause }
    }

    pub(crate) fn format(path: &Path, why: impl Into<String>) -> Self {
        Self::Format { path: path.display().to_string(), why: why.into() }
    }
}
