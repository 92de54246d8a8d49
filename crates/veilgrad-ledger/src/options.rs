//! Options for opening a ledger.

use std::time::Duration;

use crate::witness::Witness;

/// The default time to wait for another process that writes.
const PATIENCE: Duration = Duration::from_secs(60);

/// Options for opening a ledger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Allow a network file system, whose locks and syncs may not be reliable.
    pub allow_network: bool,
    /// How long to wait for another process that holds the ledger. After that the result is
    /// [`StoreError::Busy`](crate::StoreError::Busy), and nothing is appended. 60 seconds by default.
    pub patience: Duration,
    /// Where to write the head after every charge, in addition to the ledger.
    pub witness: Option<Witness>,
}

impl Default for Options {
    fn default() -> Self {
        Self { allow_network: false, patience: PATIENCE, witness: None }
    }
}
