//! Private examples from files, and features that cost no budget.
//!
//! - [`idx`], [`npy`], [`table`]: files in the formats that people have (Parquet with the feature `parquet`). What private data could decide
//!   (classes, categories, bounds, shapes) is declared, never inferred.
//! - [`Scattering`], [`GroupNorm`]: functions of one record alone, so that the record's protection is the
//!   protection of its features.
//!
//! # Guarantee
//! A record that is not as declared contributes zero and is never an error. Errors are about a file as a whole, and say
//! nothing of what is in it. Nothing here prints.
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

mod array;
mod error;
pub mod idx;
mod line;
mod normal;
pub mod npy;
mod number;
mod parallel;
mod scattering;
pub mod table;
mod wavelet;

pub use array::Array;
pub use error::DataError;
pub use normal::GroupNorm;
pub use scattering::{Scattering, ScatteringError};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
