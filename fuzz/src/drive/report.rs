//! The limits of a process, and what it found.

use std::time::Duration;

/// Threads of a process.
pub const THREADS: usize = 2;
/// The address space that a process may have, all of it: code, stacks and both threads.
pub const MEMORY: u64 = 1 << 30;

/// What was found of a target.
#[derive(Debug, Default)]
pub struct Report {
    /// Inputs that were run.
    pub executions: u64,
    /// The most CPU time that one of them took, and which.
    pub slowest: (Duration, u64),
    /// The most memory that a process had at one time: `VmHWM`.
    pub memory: u64,
    /// How long all of it took.
    pub seconds: f64,
    /// Inputs that broke something, with what.
    pub failures: Vec<(u64, String)>,
}
