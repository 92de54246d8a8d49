//! The native half of the Python package `veilgrad`: what the crates do, with Python's types around it.
//!
//! Every class whose objects carry a right or private data is frozen, keeps it behind a lock that is never waited for,
//! and refuses to be copied, pickled or used in a forked child.

mod account;
mod array;
mod capability;
mod command;
mod error;
mod estimates;
mod factors;
mod fit;
mod group;
mod interrupt;
mod metric;
mod model;
mod plan;
mod round;
mod run;
mod sample;
mod sampler;
mod sum;
mod unit;
mod vectors;

use pyo3::prelude::*;

#[pymodule]
mod _native {
    #[pymodule_export]
    use crate::account::{advantage, calibrate, delta, epsilon, profile, spent, tradeoff};
    #[pymodule_export]
    use crate::capability::{Capability, forked};
    #[pymodule_export]
    use crate::command::{command, run_training, toml};
    #[pymodule_export]
    use crate::error::{BudgetExhausted, Consumed, OtherProcess, Unsupported, VeilgradError};
    #[pymodule_export]
    use crate::estimates::Estimates;
    #[pymodule_export]
    use crate::fit::fit;
    #[pymodule_export]
    use crate::group::Group;
    #[pymodule_export]
    use crate::metric::Metric;
    #[pymodule_export]
    use crate::model::{Model, report};
    #[pymodule_export]
    use crate::plan::Plan;
    #[pymodule_export]
    use crate::run::{Claim, Permit, Permits, Run, affordable, claim};
    #[pymodule_export]
    use crate::sample::Sample;
    #[pymodule_export]
    use crate::sampler::Sampler;
    #[pymodule_export]
    use crate::sum::Sum;

    #[pymodule_export]
    #[allow(non_upper_case_globals)]
    const __version__: &str = env!("CARGO_PKG_VERSION");
}
