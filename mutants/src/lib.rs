//! Mutation testing with hand-written privacy bugs: reads the list of bugs, puts them into a copy of the source, and runs
//! the tests that must notice them.
//!
//! Every mutant is a small change that breaks one promise. All of them are compiled into one build, in a copy of the source
//! under `target`, and an environment variable chooses the active one. The project's own source has no such switches, so no
//! release can contain one.

pub mod mutant;
pub mod run;
pub mod scratch;

/// Any error of this program.
pub type Error = Box<dyn std::error::Error>;
