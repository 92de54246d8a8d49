//! The CPU time that a process spends within MPI, for the feature `clock`.

use std::cell::Cell;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

thread_local! {
    static WITHIN_MPI: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// The CPU time of this thread.
fn cpu_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

/// Counts the CPU time of a call of MPI.
pub(crate) fn within_mpi<T>(call: impl FnOnce() -> T) -> T {
    let start = cpu_time();
    let result = call();
    let spent = cpu_time().saturating_sub(start);
    WITHIN_MPI.set(WITHIN_MPI.get().saturating_add(spent));
    result
}

/// The CPU time that this thread has spent within calls of MPI so far. Most of it is waiting: MPI waits for messages without
/// sleeping, so that the CPU time of a rank says little about its work. The rest copies messages and adds integers.
#[must_use]
pub fn cpu_time_within_mpi() -> Duration {
    WITHIN_MPI.get()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_within_calls_counts_and_time_between_them_does_not() {
        let busy = || {
            let start = cpu_time();
            while cpu_time() - start < Duration::from_millis(20) {}
        };
        within_mpi(busy);
        let counted = cpu_time_within_mpi();
        assert!(counted >= Duration::from_millis(20), "{counted:?}");
        busy();
        assert_eq!(cpu_time_within_mpi(), counted);
    }
}
