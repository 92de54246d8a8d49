//! Why a ledger is not served.

use veilgrad_events::LedgerError;

/// A ledger that cannot be read, does not verify, or does not take an event.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The file is not a ledger that this version understands.
    #[error("{path} is no ledger: {why}")]
    NotALedger {
        /// The file.
        path: String,
        /// What is wrong with it.
        why: String,
    },
    /// The ledger was altered, lost events, or is older than its anchor.
    #[error("the ledger does not verify: {0}")]
    Damaged(String),
    /// What was asked for is against the rules.
    #[error("{0}")]
    Refused(String),
    /// The budget does not cover a charge; nothing was charged.
    #[error("the budget does not cover this charge: {0}")]
    BudgetExhausted(String),
    /// The database failed.
    #[error("the database failed: {0}")]
    Database(#[from] rusqlite::Error),
    /// A file could not be read or written.
    #[error("{path}: {cause}")]
    File {
        /// The file.
        path: String,
        /// What the system said.
        cause: std::io::Error,
    },
}

impl From<StoreError> for LedgerError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::BudgetExhausted(why) => Self::BudgetExhausted(why),
            other => Self::Refused(other.to_string()),
        }
    }
}
