//! The command `veilgrad`, and the main job, in the process of Python.

use std::ffi::OsString;
use std::sync::Arc;

use pyo3::prelude::*;
use veilgrad_cli::Watch;

use crate::error::{BudgetExhausted, Unsupported, invalid, refused};
use crate::interrupt::watched;

/// Runs the command with these words, the program's name first, and returns its exit code.
#[pyfunction]
pub(crate) fn command(py: Python<'_>, words: Vec<OsString>) -> u8 {
    py.detach(|| match veilgrad_cli::run(words, None) {
        Ok(()) => 0,
        Err(failure) => {
            failure.print();
            failure.code()
        }
    })
}

/// Runs a command that trains. `progress` is called with the rounds that are done and the number of all; Ctrl-C stops
/// training in order, and the run can be resumed.
#[pyfunction]
#[pyo3(signature = (words, progress=None))]
pub(crate) fn run_training(
    py: Python<'_>,
    words: Vec<OsString>,
    progress: Option<&Bound<'_, PyAny>>,
) -> PyResult<()> {
    let watch = Arc::new(Watch::default());
    let (theirs, mut shown) = (Arc::clone(&watch), 0);
    let mut show = |_: Python<'_>| {
        let (done, rounds) = watch.progress();
        if let Some(progress) = progress
            && done != shown
        {
            shown = done;
            progress.call1((done, rounds))?;
        }
        Ok(())
    };
    let stop = || {
        watch.stop();
        true
    };
    let outcome = watched(py, move || veilgrad_cli::run(words, Some(theirs)), &mut show, stop)?;
    show(py)?;
    outcome.map_err(|failure| match failure.code() {
        2 => invalid(failure),
        3 => BudgetExhausted::new_err(failure.to_string()),
        7 => Unsupported::new_err(failure.to_string()),
        _ => refused(failure),
    })
}

/// A configuration, given as JSON, in TOML. Keys without a value are left out.
#[pyfunction]
pub(crate) fn toml(json: &str) -> PyResult<String> {
    let mut value: serde_json::Value = serde_json::from_str(json).map_err(invalid)?;
    without_null(&mut value);
    ::toml::to_string(&value).map_err(invalid)
}

fn without_null(value: &mut serde_json::Value) {
    match value {
        serde_json::Value::Object(map) => {
            map.retain(|_, value| !value.is_null());
            map.values_mut().for_each(without_null);
        }
        serde_json::Value::Array(list) => list.iter_mut().for_each(without_null),
        _ => {}
    }
}
