//! Privacy audits: lower bounds on epsilon and mu from what a mechanism released about canaries.
//!
//! A canary is an artificial record that the auditor puts into the data or leaves out, at random. An auditor who guesses
//! from the releases which canaries are in, more often than the claim allows, has refuted the claim. This module is pure
//! computation: it turns counts and scores into bounds with a stated confidence.
//!
//! - [`releases`]: one canary in each of many independent releases, to audit an installation. The bounds are tight.
//! - [`RunAudit`]: many canaries in one training run. The bounds are looser, and no extra run is needed.
//!
//! # Guarantee
//! If a mechanism is as private as claimed, an audit contradicts the claim with probability at most `1 - confidence`. This
//! assumes nothing about the distribution of the releases; the proofs are in the documentation of the functions. A bound
//! below the claim proves nothing: a better auditor might find more.
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
