//! Errors of ledgers.

use std::path::Path;

use veilgrad_events::{LedgerError, UnknownProcess};

/// A ledger cannot be read, does not verify, or refuses an event.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The file is not a ledger that this version understands.
    #[error("{path} is not a ledger: {why}")]
    NotALedger {
        /// The file.
        path: String,
        /// The reason.
        why: String,
    },
    /// The ledger was altered, lost events, or is older than its anchor.
    #[error("the ledger does not verify: {0}")]
    Damaged(String),
    /// The request is not allowed.
    #[error("{0}")]
    Refused(String),
    /// The budget does not cover a charge; nothing was charged.
    #[error("the budget does not cover this charge: {0}")]
    BudgetExhausted(String),
    /// Another process held the ledger too long; nothing was changed.
    #[error("the ledger is busy: {0}")]
    Busy(String),
    /// The database failed.
    #[error("the database failed: {0}")]
    Database(#[from] rusqlite::Error),
    /// A server failed or could not be reached.
    #[error("the ledger's server failed: {0}")]
    Server(String),
    /// A file could not be read or written.
    #[error("{path}: {cause}")]
    File {
        /// The file.
        path: String,
        /// The error of the operating system.
        cause: std::io::Error,
    },
}

impl From<StoreError> for LedgerError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::BudgetExhausted(why) => Self::BudgetExhausted(why),
            StoreError::Busy(why) => Self::Busy(why),
            other => Self::Refused(other.to_string()),
        }
    }
}

impl From<LedgerError> for StoreError {
    fn from(error: LedgerError) -> Self {
        match error {
            LedgerError::BudgetExhausted(why) => Self::BudgetExhausted(why),
            LedgerError::Busy(why) => Self::Busy(why),
            other => Self::Refused(other.to_string()),
        }
    }
}

impl From<UnknownProcess> for StoreError {
    fn from(error: UnknownProcess) -> Self {
        Self::Refused(error.to_string())
    }
}

pub(crate) fn not_a_ledger(path: &Path, why: &str) -> StoreError {
    StoreError::NotALedger { path: path.display().to_string(), why: why.to_owned() }
}

pub(crate) fn file_error(path: &Path, cause: std::io::Error) -> StoreError {
    StoreError::File { path: path.display().to_string(), cause }
}

/// Classifies an error while reading rows: a busy database or a failing disk is not damage.
pub(crate) fn while_reading(error: rusqlite::Error) -> StoreError {
    use rusqlite::ErrorCode as Code;
    match error.sqlite_error_code() {
        Some(
            Code::DatabaseBusy
            | Code::SystemIoFailure
            | Code::DiskFull
            | Code::OutOfMemory
            | Code::CannotOpen
            | Code::ReadOnly
            | Code::PermissionDenied,
        ) => StoreError::Database(error),
        _ => StoreError::Damaged(error.to_string()),
    }
}

/// Classifies an error at the start of a transaction: a database held by another process is busy.
pub(crate) fn while_beginning(error: rusqlite::Error) -> StoreError {
    match error.sqlite_error_code() {
        Some(rusqlite::ErrorCode::DatabaseBusy) => StoreError::Busy(error.to_string()),
        _ => StoreError::Database(error),
    }
}

/// The error of creating a ledger where there is one.
#[cfg_attr(not(feature = "postgres"), allow(dead_code))]
pub(crate) fn exists_already(location: &str) -> StoreError {
    let cause = std::io::Error::new(std::io::ErrorKind::AlreadyExists, "has a ledger already");
    StoreError::File { path: location.to_owned(), cause }
}
