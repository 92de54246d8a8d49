//! Privacy accounting for subsampled Gaussian mechanisms: epsilon for a delta, privacy profiles, Rényi divergence and
//! calibration, from the rounds of a ledger.
//!
//! - [`Composition`]: rounds folded to one Gaussian each, with their sampling, under an adjacency.
//! - [`Accountant`]: computes epsilon or delta of a composition; [`Tightest`] returns the smallest sound bound.
//! - [`profile`]: the privacy profile itself, between certified bounds; [`rdp`]: Rényi differential
//!   privacy at any real order, and its filter.
//! - [`Profile`], [`spent`]: the profile, trade-off curve, advantage and epsilon after every round.
//! - [`PrivacyTarget`], [`RiskTarget`]: noise, rate or rounds that keep a budget, or limit an attacker.
//! - [`Tuned`]: the cost of a choice among many runs; [`Composition::of_group`]: that of several records of one person.
//! - [`Workload`], [`NoiseChoice`]: the best strategy of noise that is correlated between rounds, and when plain noise is better.
//! - [`claim`], [`of_ledger`]: what may be claimed, and why; [`statement`]: the same in plain words.
//! - [`display`]: numbers for people, rounded to the side that promises less.
//! - [`Envelope`], [`adaptive`]: rounds whose parameters were chosen from earlier outputs.
//! - [`audit`]: lower bounds from what was released about canaries, beside the claim.
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
// NaN must fail every check, so checks are written as what must hold, negated.
#![allow(clippy::neg_cmp_op_on_partial_ord)]

#[cfg(doc)]
#[doc = include_str!("../docs/accounting.md")]
pub mod proof {}

pub mod adaptive;
pub mod audit;
mod binomial;
mod calibration;
mod composition;
mod cumulant;
pub mod display;
mod factorisation;
mod guarantee;
mod guess;
mod interval;
mod number;
mod pair;
pub mod profile;
pub mod rdp;
pub mod work;

pub use adaptive::Envelope;
pub use calibration::{PrivacyTarget, RiskTarget};
pub use composition::{Composition, Sampled, Step, TruncatedSample, Unsupported};
pub use factorisation::{NoiseChoice, Workload, cyclic};
pub use guarantee::{
    Accountant, ByTriangle, Guarantee, Pld, Profile, Rdp, RunLaw, Tightest, Tuned, Tuning,
    advantage, check_accountant, claim, of_ledger, spent, statement, true_positive_rate,
};
pub use interval::Interval;
