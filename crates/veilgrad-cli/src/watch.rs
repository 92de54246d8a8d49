//! Progress and stop flag of a training run, for a program that runs the command in its own process.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Progress and stop flag of a training run, for a program that runs the command in its own process and has its own signal
/// handlers and progress bars.
///
/// # Example
/// ```
/// use std::sync::Arc;
/// use veilgrad_cli::Watch;
///
/// let watch = Arc::new(Watch::default());
/// let arguments = ["veilgrad", "train", "missing.toml"].map(Into::into);
/// assert!(veilgrad_cli::run(arguments, Some(Arc::clone(&watch))).is_err());
/// assert_eq!(watch.progress(), (0, 0));
/// ```
#[derive(Debug, Default)]
pub struct Watch {
    stop: Arc<AtomicBool>,
    done: AtomicU64,
    rounds: AtomicU64,
}

impl Watch {
    /// Asks the run to stop cleanly after the current round, as the first Ctrl-C does.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// The number of rounds done and the total; both 0 before the first round.
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
