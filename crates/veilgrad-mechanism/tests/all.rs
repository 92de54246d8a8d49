//! The tests of the crate in one program: linking one for every file took longer than running most of them.

mod clipping;
mod cohort;
mod common;
mod correlated;
mod restore;
mod rounds;
mod travel;
