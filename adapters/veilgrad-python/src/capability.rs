//! What all classes have in common: they cannot be copied, and belong to one process.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, TryLockError};

use pyo3::PyClass;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyAny;
use veilgrad_events::ProcessIdentity;

use crate::error::{OtherProcess, busy, consumed, refused};

/// The base of all classes whose objects must not be copied, pickled or used in a forked child.
#[pyclass(frozen, subclass, module = "veilgrad")]
pub(crate) struct Capability;

#[pymethods]
impl Capability {
    fn __reduce_ex__(slf: &Bound<'_, Self>, _protocol: &Bound<'_, PyAny>) -> PyResult<()> {
        Err(not_copied(slf))
    }

    fn __reduce__(slf: &Bound<'_, Self>) -> PyResult<()> {
        Err(not_copied(slf))
    }

    fn __copy__(slf: &Bound<'_, Self>) -> PyResult<()> {
        Err(not_copied(slf))
    }

    fn __deepcopy__(slf: &Bound<'_, Self>, _memo: &Bound<'_, PyAny>) -> PyResult<()> {
        Err(not_copied(slf))
    }
}

fn not_copied(slf: &Bound<'_, Capability>) -> PyErr {
    let name = slf.get_type().name().map_or_else(|_| "object".to_owned(), |name| name.to_string());
    PyTypeError::new_err(format!("a {name} cannot be copied or pickled: there is one of each"))
}

/// A new object of a class.
pub(crate) fn object<T>(py: Python<'_>, value: T) -> PyResult<Py<T>>
where
    T: PyClass<BaseType = Capability>,
{
    Py::new(py, PyClassInitializer::from(Capability).add_subclass(value))
}

/// How often this process was forked by Python: the module registers [`forked`] to be called in every child.
static FORKS: AtomicU64 = AtomicU64::new(0);

/// Notes that this process is a fork. Called by `os.register_at_fork`.
#[pyfunction]
pub(crate) fn forked() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// The process that made an object.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Owner {
    process: ProcessIdentity,
    id: u32,
    forks: u64,
}

impl Owner {
    pub(crate) fn this() -> PyResult<Self> {
        let process = ProcessIdentity::current().map_err(refused)?;
        Ok(Self { process, id: std::process::id(), forks: FORKS.load(Ordering::Relaxed) })
    }

    /// Refuses a forked child, however it was forked.
    pub(crate) fn check(&self) -> PyResult<()> {
        self.check_quickly()?;
        if self.process.is_current() { Ok(()) } else { Err(other_process()) }
    }

    /// Refuses a child that Python forked, or one with another process id, in nanoseconds. For calls per record; what
    /// releases anything is [checked](Self::check) in full.
    pub(crate) fn check_quickly(&self) -> PyResult<()> {
        if self.forks == FORKS.load(Ordering::Relaxed) && self.id == std::process::id() {
            return Ok(());
        }
        Err(other_process())
    }
}

fn other_process() -> PyErr {
    OtherProcess::new_err(
        "this object belongs to another process, of which this one is a fork: make it here",
    )
}

/// A lock that is never waited for: a thread that waits could hold the interpreter that the owner of the lock needs.
pub(crate) fn lock<'a, T>(mutex: &'a Mutex<T>, what: &str) -> PyResult<MutexGuard<'a, T>> {
    match mutex.try_lock() {
        Ok(guard) => Ok(guard),
        Err(TryLockError::WouldBlock) => Err(busy(what)),
        Err(TryLockError::Poisoned(_)) => Err(refused(format!("this {what} failed before"))),
    }
}

/// Takes what can be used once.
pub(crate) fn take<T>(slot: &Mutex<Option<T>>, what: &str) -> PyResult<T> {
    lock(slot, what)?.take().ok_or_else(|| consumed(what))
}
