//! Exact randomness for differential privacy: Gaussian noise and random samples of records.
//!
//! - [`RoundKey`]: a fresh key from the operating system for every use. All random words are derived from it
//!   alone, and a forked process cannot use it.
//! - [`gaussian`]: `floor(2^k Z)` for a standard normal `Z`, with exactly that distribution.
//! - [`subset`]: records drawn by Poisson sampling, without replacement, or in shuffled batches, with
//!   exactly those probabilities.
//!
//! # Guarantee
//! Given ideal random words, every distribution here is exact: a floating-point comparison counts only outside
//! its proven error bound, and big integers decide the rest. With ChaCha20 in place of ideal words the guarantee
//! is computational differential privacy, as in the paper.
//! The proofs are in [`proof`].
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

#[cfg(doc)]
#[doc = include_str!("../docs/randomness.md")]
pub mod proof {}

mod bernoulli;
mod bigexp;
pub mod gaussian;
mod key;
pub mod run_count;
pub mod subset;
// For the other crates of this workspace.
#[doc(hidden)]
pub mod vectorised;

pub use key::{Cipher, RandomError, RoundKey, unique_number};
pub(crate) use key::{KeyStream, Purpose, Streams};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
