//! Training that another program watches from its own threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// How far a training run is, and whether it is to stop: for a program that runs the command in its own process and has
/// its own signal handlers and progress bars.
#[derive(Debug, Default)]
pub struct Watch {
    stop: Arc<AtomicBool>,
    done: AtomicU64,
    rounds: AtomicU64,
}

impl Watch {
    /// Asks the run to stop in order after the round that is running, as the first Ctrl-C does.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// How many rounds are done, and how many there are; both 0 before the first round.
    #[must_use]
    pub fn progress(&self) -> (u64, u64) {
        (self.done.load(Ordering::Relaxed), self.rounds.load(Ordering::Relaxed))
    }

    pub(crate) fn stop_flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.stop)
    }

    pub(crate) fn show(&self, done: u64, rounds: u64) {
        self.done.store(done, Ordering::Relaxed);
        self.rounds.store(rounds, Ordering::Relaxed);
    }
}
