//! Arbitrary input for everything that reads a file, a ledger or a command line.
//!
//! Each [`Target`] is a function of bytes that panics when a reader does, or when what was read breaks a promise: a
//! value that is written and read again is the same, an altered ledger never has fewer charges, numbers are within
//! what is declared. The program `veilgrad-fuzz` runs them on altered copies of a saved corpus, in a process that may
//! not have more than 1 GiB; `cargo test -p veilgrad-fuzz` is the short form.

pub mod corpus;
pub mod drive;
pub mod mutate;
pub mod random;
mod reader;
pub mod saved;
mod scratch;

pub use reader::{TARGETS, Target};
