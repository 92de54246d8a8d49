//! What a ledger of rounds is worth: epsilon for a delta.
//!
//! - [`Composition`]: rounds folded to one Gaussian each, with their sampling, under an adjacency.
//! - [`rdp`]: Rényi differential privacy, at any real order.
//! - [`pld`]: certified bounds from privacy loss distributions.
//!
//! Pure computation: no files, threads or clocks. Policies without an analysis here are refused.
//!
//! # Guarantee
//! A number that is called an epsilon here is an upper bound that accounts for its own numerical
//! error; what cannot be bounded is an error that says why.
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

mod composition;
mod loss;
mod moment;
pub mod pld;
pub mod rdp;

pub use composition::{Composition, Sampled, Step, Unsupported};
