//! Words and numbers of Python, checked.

use std::num::NonZeroU32;

use pyo3::prelude::*;
use veilgrad_accounting::{Accountant, Pld, Rdp, Tightest};
use veilgrad_events::{Adjacency, Delta, Epsilon, Numerics, RecordUnit};

use crate::error::invalid;

pub(crate) fn adjacency(name: &str) -> PyResult<Adjacency> {
    let all = [Adjacency::AddRemove, Adjacency::ReplaceOne, Adjacency::ZeroOut];
    let found = all.into_iter().find(|adjacency| adjacency.name() == name);
    found.ok_or_else(|| {
        invalid(format!("adjacency {name:?} is none of 'add-remove', 'replace-one', 'zero-out'"))
    })
}

pub(crate) fn accountant(name: &str) -> PyResult<&'static (dyn Accountant + Send + Sync)> {
    match name {
        "best" => Ok(&Tightest),
        "pld" => Ok(&Pld),
        "rdp" => Ok(&Rdp),
        _ => Err(invalid(format!("accountant {name:?} is none of 'best', 'pld', 'rdp'"))),
    }
}

pub(crate) fn record_unit(name: &str) -> PyResult<RecordUnit> {
    let microbatch = name.strip_prefix("microbatch:").map(str::parse::<NonZeroU32>);
    match (name, microbatch) {
        ("example", _) => Ok(RecordUnit::Example),
        ("user", _) => Ok(RecordUnit::User),
        ("node", _) => Ok(RecordUnit::Node),
        (_, Some(Ok(examples))) => Ok(RecordUnit::Microbatch { examples }),
        _ => Err(invalid(format!(
            "record unit {name:?} is none of 'example', 'user', 'node', 'microbatch:N'"
        ))),
    }
}

pub(crate) fn numerics(name: &str) -> PyResult<Numerics> {
    match name {
        "exact" => Ok(Numerics::Exact),
        "unverified" => Ok(Numerics::Unverified),
        _ => Err(invalid(format!("numerics {name:?} is neither 'exact' nor 'unverified'"))),
    }
}

pub(crate) fn delta(value: f64) -> PyResult<Delta> {
    Delta::new(value).map_err(invalid)
}

pub(crate) fn epsilon(value: f64) -> PyResult<Epsilon> {
    Epsilon::new(value).map_err(invalid)
}
