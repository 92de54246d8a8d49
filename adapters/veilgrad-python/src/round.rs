//! Rounds of Python: dicts, objects with `to_dict`, or a file.

use std::path::PathBuf;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};
use veilgrad_accounting::{Composition, Unsupported};
use veilgrad_events::{Adjacency, Folded, Mode, Rounds, RoundsFile};

use crate::error::invalid;

/// How a ledger's database begins.
const DATABASE: &[u8] = b"SQLite format 3\0";

/// Rounds in the form of a rounds file: a path to one, or an iterable of dicts or of objects with `to_dict()`; a single
/// one stands for itself.
pub(crate) fn rounds_file(rounds: &Bound<'_, PyAny>) -> PyResult<RoundsFile> {
    let text = if rounds.is_instance_of::<PyString>() || rounds.hasattr("__fspath__")? {
        read(rounds.extract()?)?
    } else {
        lines(rounds)?
    };
    RoundsFile::from_jsonl(&text).map_err(invalid)
}

fn read(path: PathBuf) -> PyResult<String> {
    let bytes = std::fs::read(&path)?;
    if bytes.starts_with(DATABASE) {
        return Err(invalid(format!(
            "{} is a ledger; veilgrad.claim says what may be claimed about it",
            path.display()
        )));
    }
    String::from_utf8(bytes).map_err(|_| invalid(format!("{} is not text", path.display())))
}

fn lines(rounds: &Bound<'_, PyAny>) -> PyResult<String> {
    let dumps = rounds.py().import("json")?.getattr("dumps")?;
    let mut text = String::new();
    let mut line = |entry: &Bound<'_, PyAny>| -> PyResult<()> {
        let entry =
            if entry.hasattr("to_dict")? { entry.call_method0("to_dict")? } else { entry.clone() };
        text.push_str(&dumps.call1((entry,))?.extract::<String>()?);
        text.push('\n');
        Ok(())
    };
    if rounds.is_instance_of::<PyDict>() || rounds.hasattr("to_dict")? {
        line(rounds)?;
    } else {
        for entry in rounds.try_iter()? {
            line(&entry?)?;
        }
    }
    Ok(text)
}

/// Rounds to account for.
pub(crate) struct Source {
    runs: Vec<Vec<Folded>>,
    /// Rounds that may have been chosen from earlier outputs have a price at an order that was fixed before.
    pub(crate) adaptive: bool,
    pub(crate) order: Option<f64>,
}

impl Source {
    pub(crate) fn new(rounds: &Bound<'_, PyAny>) -> PyResult<Self> {
        let file = rounds_file(rounds)?;
        let fold = |run: &Vec<Rounds>| run.iter().map(Folded::try_from).collect();
        let runs: Result<Vec<_>, _> = file.runs.iter().map(fold).collect();
        let adaptive = file.mode == Some(Mode::Adaptive);
        Ok(Self { runs: runs.map_err(invalid)?, adaptive, order: file.order })
    }

    pub(crate) fn composition(&self, adjacency: Adjacency) -> Result<Composition, Unsupported> {
        let runs = self.runs.iter().map(|rounds| rounds.iter().copied());
        Composition::of_runs(runs, adjacency)
    }

    /// The composition of rounds that were planned; anything else has no privacy profile.
    pub(crate) fn planned(&self, adjacency: Adjacency) -> Result<Composition, Unsupported> {
        if self.adaptive {
            return Err(Unsupported::new(
                "sampling or noise may have been chosen from earlier outputs, which only a Rényi filter at an order \
                 that was fixed before the first round bounds, for a delta",
            ));
        }
        self.composition(adjacency)
    }
}

/// Rounds as Python's dicts.
pub(crate) fn to_python<'py>(py: Python<'py>, rounds: &Rounds) -> PyResult<Bound<'py, PyAny>> {
    let text = serde_json::to_string(rounds).map_err(invalid)?;
    py.import("json")?.call_method1("loads", (text,))
}
