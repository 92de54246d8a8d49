//! What can go wrong, and the exit code that says so to programs.

use std::process::ExitCode;

/// A command that could not answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum Error {
    /// The command was asked for something that makes no sense.
    #[error("{0}")]
    Usage(String),
    /// A file is not what it should be.
    #[error("{path}: {cause}")]
    Data { path: String, cause: String },
    /// A file could not be read or written.
    #[error("{path}: {cause}")]
    File { path: String, cause: std::io::Error },
    /// Anything else.
    #[error("{0}")]
    Failure(String),
}

impl Error {
    pub(crate) fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self {
            Self::File { .. } | Self::Failure(_) => 1,
            Self::Usage(_) => 2,
            Self::Data { .. } => 5,
        })
    }
}
