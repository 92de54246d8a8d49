//! What Python programs catch.

use std::fmt::Display;

use pyo3::create_exception;
use pyo3::exceptions::{PyException, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use veilgrad_accounting::Unsupported as NoAnalysis;
use veilgrad_accounting::claim::NoClaim;
use veilgrad_events::LedgerError;
use veilgrad_ledger::StoreError;
use veilgrad_mechanism::{NoiseError, PlanError, ReleaseError, SampleError, SumError};
use veilgrad_nn::TrainError;

create_exception!(veilgrad, VeilgradError, PyException, "Anything that Veilgrad refuses.");
create_exception!(
    veilgrad,
    BudgetExhausted,
    VeilgradError,
    "The budget does not cover a charge; nothing was charged."
);
create_exception!(
    veilgrad,
    Consumed,
    VeilgradError,
    "A permit, sample or sum that was used already: each is good for one round."
);
create_exception!(
    veilgrad,
    OtherProcess,
    VeilgradError,
    "An object of another process, of which this one is a fork."
);
create_exception!(
    veilgrad,
    Unsupported,
    VeilgradError,
    "There is no sound privacy analysis of these events, or no finite bound."
);

/// A parameter is out of range, or the shape of an array is not the declared one.
pub(crate) fn invalid(why: impl Display) -> PyErr {
    PyValueError::new_err(why.to_string())
}

pub(crate) fn refused(why: impl Display) -> PyErr {
    VeilgradError::new_err(why.to_string())
}

pub(crate) fn consumed(what: &str) -> PyErr {
    Consumed::new_err(format!("this {what} was used already, or left its `with` block"))
}

pub(crate) fn busy(what: &str) -> PyErr {
    VeilgradError::new_err(format!("another thread is using this {what}"))
}

pub(crate) fn panicked() -> PyErr {
    PyRuntimeError::new_err("the computation panicked; this is a bug")
}

/// The Python exception of an error.
pub(crate) trait Raise {
    fn raise(self) -> PyErr;
}

impl Raise for NoAnalysis {
    fn raise(self) -> PyErr {
        Unsupported::new_err(self.to_string())
    }
}

impl Raise for NoClaim {
    fn raise(self) -> PyErr {
        Unsupported::new_err(self.to_string())
    }
}

impl Raise for LedgerError {
    fn raise(self) -> PyErr {
        match self {
            Self::BudgetExhausted(_) => BudgetExhausted::new_err(self.to_string()),
            Self::Forked => OtherProcess::new_err(self.to_string()),
            other => refused(other),
        }
    }
}

impl Raise for StoreError {
    fn raise(self) -> PyErr {
        match self {
            Self::BudgetExhausted(_) => BudgetExhausted::new_err(self.to_string()),
            other => refused(other),
        }
    }
}

impl Raise for SampleError {
    fn raise(self) -> PyErr {
        match self {
            Self::OtherProcess => OtherProcess::new_err(self.to_string()),
            other => refused(other),
        }
    }
}

impl Raise for ReleaseError {
    fn raise(self) -> PyErr {
        match self {
            Self::OtherProcess => OtherProcess::new_err(self.to_string()),
            other => refused(other),
        }
    }
}

impl Raise for SumError {
    fn raise(self) -> PyErr {
        match self {
            Self::Count { .. } | Self::Dimension { .. } => invalid(self),
            other => refused(other),
        }
    }
}

impl Raise for PlanError {
    fn raise(self) -> PyErr {
        invalid(self)
    }
}

impl Raise for NoiseError {
    fn raise(self) -> PyErr {
        refused(self)
    }
}

impl Raise for TrainError {
    fn raise(self) -> PyErr {
        match self {
            Self::Ledger(error) => error.raise(),
            other => refused(other),
        }
    }
}
