//! A durable, write-ahead privacy ledger on SQLite.
//!
//! One database holds many datasets, each with a budget, and the events of all their runs in one
//! hash chain. The head of the chain is stored in the database and in an anchor file next to it, so
//! that lost rows at the end are detected.
//!
//! - [`Ledger`]: opens, verifies and reads a ledger, and creates budgets.
//! - [`DatasetLedger`]: the [`LedgerStore`](veilgrad_events::LedgerStore) of one dataset, for a
//!   [`Run`](veilgrad_events::Run): checks the budget and charges in one transaction.
//! - [`Entry`]: the content of a row; [`Head`]: the end of the chain.
//!
//! # Guarantee
//! An appended event is on disk before `append` returns, in the anchor or in the database's WAL. A ledger that does not
//! verify is refused; [`Ledger::repair`] makes a new ledger from its provable rows. [`format`](mod@format) describes the
//! file format, for programs that check a ledger.
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

#[cfg(doc)]
#[doc = include_str!("../docs/ledger-format.md")]
pub mod format {}

mod anchor;
mod audit;
mod author;
mod backup;
mod chain;
mod create;
mod database;
mod dataset;
mod entry;
mod error;
mod exchange;
mod files;
mod hold;
mod host;
mod id;
mod ledger;
mod location;
mod name;
mod open_run;
mod options;
#[cfg(feature = "postgres")]
mod postgresql;
#[cfg(not(feature = "postgres"))]
#[path = "without_postgresql.rs"]
mod postgresql;
mod recover;
mod relocate;
mod repair;
mod run_state;
mod schema;
mod sqlite;
mod state;
mod store;
mod tally;
mod witness;

pub use author::Author;
pub use chain::{Chained, Hash, Head};
pub use dataset::DatasetLedger;
pub use entry::Entry;
pub use error::StoreError;
pub use exchange::{Imported, Line, with_head};
pub use ledger::Ledger;
pub use location::{Location, PostgresUrl, without_passwords};
pub use open_run::Begun;
pub use options::Options;
pub use repair::Repaired;
pub use run_state::RunState;
pub use schema::MIGRATION;
pub use state::{Dataset, State};
pub use witness::Witness;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
