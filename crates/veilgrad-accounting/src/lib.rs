//! What a ledger of rounds is worth: epsilon for a delta, and all that follows from it.
//!
//! - [`Composition`]: rounds folded to one Gaussian each, with their sampling, under an adjacency.
//! - [`Accountant`]: who tells what it costs; [`Best`] gives the smallest sound bound there is.
//! - [`pld`]: the privacy profile itself, between certified bounds; [`rdp`]: Rényi differential
//!   privacy at any real order, and its filter.
//! - [`Profile`], [`spent`]: the profile, trade-off curve, advantage and epsilon after every round.
//! - [`Target`]: noise, rate or rounds that keep a budget.
//! - [`claim`], [`of_ledger`]: what may be claimed, and why; [`statement`]: the same in plain words.
//! - [`display`]: numbers for people, rounded to the side that promises less.
//! - [`Envelope`], [`adaptive`]: rounds whose parameters were chosen from earlier outputs.
//!
//! Pure computation: no files, threads or clocks. Policies without an analysis here are refused.
//! The proofs are in [`proof`].
//!
//! # Guarantee
//! A number that is called an epsilon here is an upper bound that accounts for its own numerical
//! error; what cannot be bounded is an error that says why.
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]
// What is no number must fail every check, so checks are written as what must hold, negated.
#![allow(clippy::neg_cmp_op_on_partial_ord)]

#[cfg(doc)]
#[doc = include_str!("../docs/accounting.md")]
pub mod proof {}

mod account;
pub mod adaptive;
mod aided;
mod attack;
mod calibrate;
pub mod claim;
mod composed;
mod composition;
mod contour;
mod convex;
mod cumulant;
mod curve;
mod cut;
pub mod display;
mod gaussian;
mod joined;
mod lattice;
mod ledger;
mod limit;
mod loss;
mod losses;
mod many;
mod number;
mod output;
mod participation;
pub mod pld;
mod price;
pub mod rdp;
mod series;
mod smooth;
pub mod statement;
mod tilted;
pub mod work;

pub use account::{Accountant, Best, Guarantee, Pld, Rdp, check_accountant};
pub use adaptive::Envelope;
pub use attack::{advantage, true_positive_rate};
pub use calibrate::Target;
pub use composition::{Composition, Sampled, Step, Unsupported};
pub use curve::{Profile, spent};
pub use ledger::of_ledger;
