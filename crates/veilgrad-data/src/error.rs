//! What is wrong with a file, without what is in it.

use std::path::Path;

/// A file that is malformed as a whole. No message depends on a single record.
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
}

impl DataError {
    pub(crate) fn file(path: &Path, cause: std::io::Error) -> Self {
        Self::File { path: path.display().to_string(), cause }
    }

    pub(crate) fn format(path: &Path, why: impl Into<String>) -> Self {
        Self::Format { path: path.display().to_string(), why: why.into() }
    }
}
