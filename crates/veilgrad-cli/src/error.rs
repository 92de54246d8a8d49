//! What can go wrong, and the exit code that says so to programs.

use std::process::ExitCode;

use veilgrad_ledger::StoreError;

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
    /// A ledger is not served, or does not take something.
    #[error("{0}")]
    Ledger(#[from] StoreError),
    /// Somebody stopped it; everything is in order.
    #[error("interrupted; go on with --resume")]
    Interrupted,
    /// Anything else.
    #[error("{0}")]
    Failure(String),
}

impl Error {
    pub(crate) fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self {
            Self::File { .. } | Self::Failure(_) => 1,
            Self::Usage(_) => 2,
            Self::Ledger(StoreError::BudgetExhausted(_)) => 3,
            Self::Ledger(_) => 4,
            Self::Data { .. } => 5,
            Self::Interrupted => 130,
        })
    }
}
