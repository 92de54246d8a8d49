//! The types of a differential-privacy ledger: sampling policies, Gaussian sum queries, rounds, runs and permits.
//!
//! A private training run is a sequence of **rounds**. Each round draws one **sample** of the
//! records and asks a number of Gaussian **sum queries** of that sample; a query is described
//! completely by its *privacy tuple* `(S, sigma)` (McMahan et al., section 2). The **ledger** is the
//! list of those events, written before the round runs; an accountant reads it afterwards.
//!
//! - [`Sampling`], [`SumQuery`], [`Round`], [`Rounds`]: what a round did, as plain data.
//! - [`IntegerGrid`]: the two integers that describe an exact Gaussian sum.
//! - [`BandedStrategy`]: how the noise of a round is correlated with that of earlier rounds.
//! - [`RecordUnit`], [`Adjacency`]: what the guarantee protects.
//! - [`LedgerStore`], [`Run`], [`RoundPermit`]: charge a round first, then get the permit to release its sums.
//! - [`TuningRun`], [`RunCount`]: charge the best of a secret number of runs, of which only that one is released.
//! - [`ClipNorm`], [`NoiseStd`], [`SampleRate`], …: numbers with units, checked once.
//! - [`ProcessIdentity`]: which process made a permit, a sample, noise or a key; a forked child may not use them.
//!
//! This crate writes no files, draws no randomness and depends on no ML framework. The only thing it reads from
//! the operating system is the identity of the current process.
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
