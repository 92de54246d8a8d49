//! Long work beside the interpreter: it runs without the lock of Python, and Ctrl-C ends the wait for it.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use pyo3::prelude::*;

use crate::error::panicked;

/// How often signals are looked for. Finished work is noticed at once.
const PAUSE: Duration = Duration::from_millis(50);

/// Does work that takes no longer than seconds. After Ctrl-C its thread ends by itself, and its result is dropped.
pub(crate) fn interruptible<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> T + Send + 'static,
) -> PyResult<T> {
    watched(py, work, |_| Ok(()), || false)
}

/// Does work that may take hours, and calls `show` every so often. After Ctrl-C, or when `show` raises, `stop` is called;
/// if it returns true, the work will end in order and is waited for.
pub(crate) fn watched<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> T + Send + 'static,
    mut show: impl FnMut(Python<'_>) -> PyResult<()>,
    stop: impl Fn() -> bool,
) -> PyResult<T> {
    let (send, mut receive) = channel();
    std::thread::spawn(move || {
        // Nobody may be waiting any more.
        let _ = send.send(work());
    });
    let mut interrupted = None;
    loop {
        let outcome;
        (receive, outcome) = py.detach(move || {
            let outcome = receive.recv_timeout(PAUSE);
            (receive, outcome)
        });
        match outcome {
            Ok(done) => {
                py.check_signals()?;
                return interrupted.map_or(Ok(done), Err);
            }
            Err(RecvTimeoutError::Disconnected) => return Err(panicked()),
            Err(RecvTimeoutError::Timeout) => {}
        }
        if interrupted.is_none()
            && let Err(error) = py.check_signals().and_then(|()| show(py))
        {
            if !stop() {
                return Err(error);
            }
            interrupted = Some(error);
        }
    }
}
