//! Errors of reading files. They never quote a file's content.

use std::path::Path;

/// A file cannot be read, or is malformed as a whole. No message depends on a single record.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// The file could not be read.
    #[error("{path}: {cause}")]
    File {
        /// The file.
        path: String,
        /// The error of the operating system.
        cause: std::io::Error,
    },
    /// The file as a whole is malformed.
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
