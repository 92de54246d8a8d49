//! Reads private examples from files, and computes features that cost no privacy budget.
//!
//! - [`idx`], [`npy`], [`table`]: IDX and NumPy files, tables in CSV and JSON Lines (Parquet with the feature `parquet`).
//!   Classes, categories, bounds and shapes are declared, never inferred from private data.
//! - [`RowRanges`]: some rows of a file, so that a process need not read the others.
//! - [`ids`]: the users of examples in arrays. [`double`]: their labels, if these are numbers.
//! - [`Scattering`], [`GroupNorm`], [`scale_to_norm`]: functions of one record alone, so that protecting the record protects its
//!   features.
//! - [`opponent_colours`]: brightness and differences of colours.
//! - [`ImageCopy`]: shifted and mirrored copies of images.
//! - [`Partition`]: made-up federations of public examples, for experiments.
//! - [`CompactRows`]: features in 16 bits a number.
//!
//! # Guarantee
//! A record that is not as declared contributes zero and is never an error. Errors concern a file as a whole and never
//! quote its content. Nothing here prints.
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

mod array;
mod augment;
mod colour;
mod compact;
pub mod double;
mod error;
mod federation;
mod file;
pub mod ids;
pub mod idx;
mod line;
mod normal;
pub mod npy;
mod number;
mod parallel;
mod rows;
mod scattering;
pub mod table;
mod wavelet;

pub use array::Array;
pub use augment::ImageCopy;
pub use colour::opponent_colours;
pub use compact::CompactRows;
pub use error::DataError;
pub use federation::Partition;
pub use normal::{GroupNorm, scale_to_norm};
pub use rows::RowRanges;
pub use scattering::{LevelOperators, Operators, Pool, Scattering, ScatteringError};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
