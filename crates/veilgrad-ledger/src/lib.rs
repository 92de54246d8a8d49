//! A durable, write-ahead privacy ledger.
//!
//! One SQLite database holds many datasets, a budget each, and the events of all their runs in one
//! hash chain. The head of the chain is kept in the database and in an anchor file beside it, so
//! that a lost tail is noticed.
//!
//! - [`Ledger`]: opens, verifies, creates budgets, reads.
//! - [`DatasetLedger`]: the [`LedgerStore`](veilgrad_events::LedgerStore) of one dataset, for a
//!   [`Run`](veilgrad_events::Run): checks the budget and charges in one transaction.
//! - [`Entry`]: what a row says; [`Head`]: what a chain of rows ends with.
//!
//! # Guarantee
//! An event that was appended is on disk before `append` returns, in the database and, as a head, in
//! the anchor. How rows are written, for programs that check them: [`format`](mod@format). Whatever does not verify is refused; [`Ledger::repair`] makes a new ledger of what is proven.
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

#[cfg(doc)]
#[doc = include_str!("../docs/ledger-format.md")]
pub mod format {}

mod anchor;
mod audit;
mod backup;
mod chain;
mod create;
mod database;
mod dataset;
mod entry;
mod error;
mod exchange;
mod hold;
mod ledger;
mod name;
mod open_run;
mod place;
mod recover;
mod repair;
mod run_state;
mod schema;
mod state;
mod tally;
mod witness;

pub use chain::{Chained, Hash, Head};
pub use dataset::DatasetLedger;
pub use entry::Entry;
pub use error::StoreError;
pub use exchange::{Imported, Line, with_head};
pub use ledger::{Ledger, Options};
pub use open_run::Begun;
pub use repair::Repaired;
pub use run_state::RunState;
pub use state::{Dataset, State};
pub use witness::Witness;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
