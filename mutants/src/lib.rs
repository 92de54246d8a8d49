//! Privacy bugs that a test must notice: the list, and how they get into a copy of the source.
//!
//! Every mutant is a small change that breaks one promise. All of them are compiled into one switched build, in a copy of
//! the source below `target`, and an environment variable chooses the one that is active. The project's own source has no
//! switches, so no release can contain one.

pub mod mutant;
pub mod run;
pub mod scratch;

/// Any error of this program: it is for developers, who read it and stop.
pub type Error = Box<dyn std::error::Error>;
