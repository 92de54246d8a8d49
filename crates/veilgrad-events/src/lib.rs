//! The vocabulary that every part of Veilgrad shares, and nothing else.
//!
//! A private training run is a sequence of **rounds**. Each round draws one **sample** of the
//! records and asks a number of Gaussian **sum queries** of that sample; a query is described
//! completely by its *privacy tuple* `(S, sigma)` (McMahan et al., section 2). The **ledger** is the
//! list of those events, written before the round runs; an accountant reads it afterwards.
//!
//! - [`Sampling`], [`SumQuery`], [`Round`], [`Rounds`]: what happened, as data.
//! - [`IntegerGrid`]: the two integers that describe an exact Gaussian sum.
//! - [`RecordUnit`], [`Adjacency`]: what a guarantee protects.
//! - [`LedgerStore`], [`Run`], [`RoundPermit`]: a charge first, then the right to release.
//! - [`ClipNorm`], [`NoiseStd`], [`SampleRate`], …: numbers with units, checked once.
//! - [`ProcessIdentity`]: which process made a permit, a sample, noise or a key; a fork may not use them.
//!
//! This crate stores nothing, draws no randomness and knows no framework. All it asks of the operating
//! system is which process this is.
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

mod charge;
mod event;

pub use charge::*;
pub use event::*;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
