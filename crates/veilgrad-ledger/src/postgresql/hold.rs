//! Holds on a server: a run that declared its plan reserves budget for all of it, as long as its connection lives.

use std::sync::{Arc, Mutex, PoisonError};

use super::session::Session;
use crate::chain::{Chained, Hash};

/// The hold of a run: a lock of its connection, which the server releases when the connection ends in any way.
pub(super) struct SessionHold {
    pub(super) session: Arc<Mutex<Session>>,
    pub(super) key: i64,
    pub(super) process: String,
}

impl Drop for SessionHold {
    fn drop(&mut self) {
        let mut session = self.session.lock().unwrap_or_else(PoisonError::into_inner);
        // A new connection does not have it, and a forked child must not end its parent's.
        let is_own = session.process == self.process && session.is_own();
        if is_own && session.holds.remove(&self.key) {
            let _ = session.run(&format!("SELECT pg_advisory_unlock({})", self.key));
        }
    }
}

/// The key of a run's lock: locks with a number are all that a session has.
pub(super) fn hold_key(run: &str) -> i64 {
    let hash = Hash::of(format!("veilgrad hold {run}").as_bytes());
    i64::from_be_bytes(hash.0.first_chunk().copied().unwrap_or_default())
}
