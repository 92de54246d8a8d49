//! Audits: lower bounds of privacy loss from what a mechanism released about canaries.
//!
//! A canary is an artificial record that an auditor puts into the data, or not, by the toss of a coin. Whoever can tell
//! from the releases which way the coins fell more often than a claim allows has refuted the claim. Everything here is
//! pure: it turns counts and scores into bounds, and says with which confidence.
//!
//! - [`releases`]: one canary in each of many independent releases. The bounds are tight: an audit of an installation.
//! - [`RunAudit`]: many canaries in one run. The bounds are looser: an audit of a training run, which costs it nothing.
//!
//! # Guarantee
//! A bound is exceeded by the truth's complement at most as often as its [`Confidence`] says: if a mechanism is as private
//! as a curve says, the audit contradicts that curve with probability at most `1 - confidence`, whatever else the mechanism
//! does. No distribution is assumed of what it releases. The proofs stand beside the functions.

mod binomial;
mod confidence;
mod curve;
mod normal;
mod one_run;
pub mod releases;
mod run;

pub use crate::guarantee::RunVerdict;
pub use confidence::Confidence;
pub use curve::Curve;
pub use one_run::{Guesses, contradicts};
pub use run::RunAudit;
