//! Fuzzing of everything that reads a file, a ledger or a command line.
//!
//! Each [`Target`] is a function of bytes that panics when a reader panics, or when a property of what was read fails: values
//! survive a round trip, an altered ledger never has fewer charges, numbers are within their declared bounds. The program
//! `veilgrad-fuzz` runs them on altered copies of a saved corpus, in a process with at most 1 GiB; `cargo test -p
//! veilgrad-fuzz` is the short form.

pub mod corpus;
pub mod drive;
pub mod mutate;
pub mod random;
mod reader;
pub mod saved;
mod scratch;

pub use reader::{TARGETS, Target};
