//! Compile-fail tests: see `tests.rs` and the programs in `cases/`.

// The program in the README must compile. It is tested here because this crate depends on what a user depends on.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
