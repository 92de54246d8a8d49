//! Exact randomness: everything random that a privacy ledger describes.
//!
//! - [`RoundKey`]: a fresh key from the operating system for every use. The streams of random words that
//!   are derived from it depend on nothing else, and a forked process cannot use it.
//! - [`gaussian`]: `floor(2^k Z)` for a standard normal `Z`, with exactly that distribution.
//! - [`subset`]: records drawn by Poisson sampling, without replacement, or in shuffled batches, with
//!   exactly those probabilities.
//!
//! # Guarantee
//! Given ideal random words, every distribution here is exact: floating point only ever takes a
//! decision when a proven error bound says that it is the right one, and big integers take the rest.
//! ChaCha20 in place of ideal words gives computational differential privacy, as the paper says.
//! The proofs are in [`proof`].
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

#[cfg(doc)]
#[doc = include_str!("../docs/randomness.md")]
pub mod proof {}

mod bigexp;
mod chance;
pub mod gaussian;
mod key;
pub mod subset;

pub use key::{Cipher, RandomError, RoundKey};
pub(crate) use key::{KeyStream, Purpose, Streams};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
