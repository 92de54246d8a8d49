//! Only the test in `tests.rs` and the programs in `cases/` matter here.

// The program of the front page must compile. Here, because this crate sees what a user sees.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
