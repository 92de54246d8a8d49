//! What is served, and in which turn.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use veilgrad_ledger::Options;

use crate::argument::Common;

/// What is served.
pub(super) struct Place<'a> {
    pub(super) directory: &'a Path,
    pub(super) options: Options,
    pub(super) common: &'a Common,
    pub(super) slow: Slow,
}

/// Lets one question at a time take long, and leaves out those that a later one has replaced.
#[derive(Default)]
pub(super) struct Slow {
    latest: AtomicU64,
    turn: Mutex<()>,
}

impl Slow {
    /// `None` if another question came while this one waited.
    pub(super) fn run<T>(&self, answer: impl FnOnce() -> T) -> Option<T> {
        let ticket = self.latest.fetch_add(1, Ordering::Relaxed) + 1;
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        (ticket == self.latest.load(Ordering::Relaxed)).then(answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_that_a_later_one_replaced_is_left_out() {
        let slow = Slow::default();
        assert_eq!(slow.run(|| 1), Some(1));
        std::thread::scope(|scope| {
            let held = slow.turn.lock().unwrap();
            let ask = |ticket: u64| {
                let asked = scope.spawn(|| slow.run(|| 2));
                while slow.latest.load(Ordering::Relaxed) < ticket {
                    std::thread::yield_now();
                }
                asked
            };
            let (first, last) = (ask(2), ask(3));
            drop(held);
            assert_eq!((first.join().unwrap(), last.join().unwrap()), (None, Some(2)));
        });
    }
}
