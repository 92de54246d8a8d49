//! The limits of a process, and its results.

use std::time::Duration;

/// Threads of a process.
pub const THREADS: usize = 2;
/// The address space that a process may have, all of it: code, stacks and both threads.
pub const MEMORY: u64 = 1 << 30;

/// The results of a target.
#[derive(Debug, Default)]
pub struct Report {
    /// The number of inputs that were run.
    pub executions: u64,
    /// The CPU time of the slowest input, and its number.
    pub slowest: (Duration, u64),
    /// The peak memory of a process: `VmHWM`.
    pub memory: u64,
    /// The total time.
    pub seconds: f64,
    /// The numbers of inputs that failed, with the reason.
    pub failures: Vec<(u64, String)>,
}
