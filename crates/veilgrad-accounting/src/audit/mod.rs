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
//! If a mechanism is as private as is claimed, an audit contradicts the claim with probability at most
//! `1 - confidence`, whatever the mechanism does: no distribution is assumed of what it releases. The proofs stand beside
//! the functions. A bound below the claim proves nothing: a better auditor might find more.
//!
//! Nasr et al. (arXiv 2302.07956) audit many releases as [`releases`] does, and show how tight that is.

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
