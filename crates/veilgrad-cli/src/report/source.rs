//! Reads reports. They are always computed from the ledger; a directory of results only names it.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;
use veilgrad_accounting::audit::RunVerdict;
use veilgrad_events::{Event, Insecure};
use veilgrad_ledger::{Entry, Head as LedgerHead, Ledger, Location, Options, StoreError};

use super::compute::{Facts, of_run};
use super::document::{Audit, LedgerPlace, Metric, Model, Newer, Report, Start, TunedResult};
use crate::argument::{Common, RunOf};
use crate::error::Error;
use crate::hash::sha256;
use crate::path;

/// What is read from `report.json`: which ledger, dataset and runs, and facts that do not affect the guarantee.
#[derive(Deserialize)]
struct Stored {
    dataset: String,
    ledger: LedgerPlace,
    #[serde(default)]
    run_ids: Vec<String>,
    records: Option<u64>,
    rounds: u64,
    test_accuracy: Option<f64>,
    test_mean_absolute_error: Option<f64>,
    temperature: Option<f64>,
    start: Option<Start>,
    #[serde(default)]
    metrics: Vec<Metric>,
    model: Option<Model>,
    date: Option<String>,
    configuration: Option<Value>,
    audit: Option<Audit>,
    tuning: Option<TunedResult>,
}

/// The report of a run's directory, of its `report.json`, or of a ledger.
pub(crate) fn read(of: &RunOf, common: &Common) -> Result<Report, Error> {
    read_with_ledger(of, common).map(|(report, _)| report)
}

/// Whether the ledger that results name is where they say. True for a ledger itself.
pub(crate) fn has_ledger(run: &Path, options: &Options) -> Result<bool, Error> {
    let file = report_file(run);
    if Ledger::anchor_path(&file).exists() {
        return Ok(true);
    }
    let bytes = crate::ledger::read_bytes(&file)?;
    if bytes.starts_with(crate::ledger::DATABASE) {
        return Ok(true);
    }
    let stored: Stored = serde_json::from_slice(&bytes).map_err(|error| Error::Data {
        path: file.display().to_string(),
        cause: error.to_string(),
    })?;
    Ok(Ledger::exists(&named_ledger(&stored, directory_of(&file)), options)?)
}

fn report_file(run: &Path) -> PathBuf {
    if run.is_dir() { run.join("report.json") } else { run.to_owned() }
}

/// The directory of a file. The parent of a bare name is the working directory.
fn directory_of(file: &Path) -> &Path {
    let directory = file.parent().filter(|parent| *parent != Path::new(""));
    directory.unwrap_or(Path::new("."))
}

/// The report, and the ledger that it was computed from; no ledger if it was not computed again.
pub(crate) fn read_with_ledger(
    of: &RunOf,
    common: &Common,
) -> Result<(Report, Option<Ledger>), Error> {
    let Some(run) = of.run.file() else { return of_ledger(&of.run, of, common) };
    let file = report_file(run);
    if Ledger::anchor_path(&file).exists() {
        return of_ledger(&file.into(), of, common);
    }
    let bytes = crate::ledger::read_bytes(&file)?;
    if bytes.starts_with(crate::ledger::DATABASE) {
        return of_ledger(&file.into(), of, common);
    }
    let name = file.display().to_string();
    if of.dataset.is_some() {
        return Err(Error::Usage(format!("--dataset is for ledgers, and {name} is none")));
    }
    let data_error = |cause: String| Error::Data { path: name.clone(), cause };
    if of.unverified {
        let report =
            serde_json::from_slice(&bytes).map_err(|error| data_error(error.to_string()))?;
        return Ok((labelled(report), None));
    }
    let stored: Stored =
        serde_json::from_slice(&bytes).map_err(|error| data_error(error.to_string()))?;
    let written: LedgerHead = stored.ledger.head.head.parse().map_err(data_error)?;
    let directory = directory_of(&file);
    let ledger = find_ledger(&stored, &name, directory, of, common)?;
    let ledger = Ledger::read(ledger, common.options())?;
    ledger.contains(&written)?;
    check_runs(&ledger, &stored, &name)?;
    let other_model = other_model(&stored, directory);
    let newer = newer(&ledger, &stored.dataset, written.sequence)?;
    let mut report = of_run(&Facts {
        ledger: &ledger,
        dataset: &stored.dataset,
        runs: &stored.run_ids,
        done: Some(stored.rounds),
        records: stored.records,
        directory: Some(directory),
        newer,
        test_accuracy: stored.test_accuracy,
        test_mean_absolute_error: stored.test_mean_absolute_error,
        temperature: stored.temperature,
        start: stored.start,
        metrics: stored.metrics.into_iter().map(|metric| (metric.name, metric.values)).collect(),
        model: stored.model,
        date: stored.date,
        configuration: stored.configuration,
        audit: stored.audit.map(RunVerdict::from),
        setting: stored.tuning.as_ref().and_then(|tuning| tuning.setting.clone()),
    })?;
    report.warnings.extend(other_model);
    Ok((report, Some(ledger)))
}

/// The report of a dataset of a ledger, whichever program trained on it.
fn of_ledger(
    location: &Location,
    of: &RunOf,
    common: &Common,
) -> Result<(Report, Option<Ledger>), Error> {
    if of.ledger.is_some() || of.unverified {
        return Err(Error::Usage(format!(
            "--ledger and --unverified are for directories of results, and {location} is a ledger"
        )));
    }
    let ledger = Ledger::read(location, common.options())?;
    let dataset = crate::ledger::dataset(&ledger, of.dataset.as_deref())?;
    let report = of_run(&Facts {
        ledger: &ledger,
        dataset: &dataset.budget.dataset,
        runs: &[],
        done: None,
        records: None,
        directory: None,
        newer: None,
        test_accuracy: None,
        test_mean_absolute_error: None,
        temperature: None,
        start: None,
        metrics: Vec::new(),
        model: None,
        date: None,
        configuration: None,
        audit: None,
        setting: None,
    })?;
    Ok((report, Some(ledger)))
}

/// The path of the ledger of results: from `--ledger`, or from the results.
fn find_ledger(
    stored: &Stored,
    name: &str,
    directory: &Path,
    of: &RunOf,
    common: &Common,
) -> Result<Location, Error> {
    if let Some(path) = &of.ledger {
        return Ok(path.clone());
    }
    let location = named_ledger(stored, directory);
    if Ledger::exists(&location, &common.options())? {
        return Ok(location);
    }
    Err(Error::Ledger(StoreError::Refused(format!(
        "{name} names ledger {}, which is not at {location}; pass it with --ledger FILE (or print what is stored, without \
         computing it again, with --unverified)",
        stored.ledger.head.id
    ))))
}

/// Where results say that their ledger is.
fn named_ledger(stored: &Stored, directory: &Path) -> Location {
    let named = stored.ledger.path.as_deref().unwrap_or(Path::new("ledger.db"));
    path::restored(directory, named)
}

/// A warning if the model beside a report is not the one that the report was written with.
fn other_model(stored: &Stored, directory: &Path) -> Option<String> {
    let Model { sha256: written, .. } = stored.model.as_ref()?;
    let bytes = std::fs::read(directory.join("model.safetensors")).ok()?;
    let differs = *written.as_ref()? != sha256(bytes);
    differs.then(|| {
        "model.safetensors in this directory is not the file that the report was written with: the promise is about \
         that one"
            .to_owned()
    })
}

/// Refuses results of runs that the ledger does not have on this dataset, or has with another configuration.
fn check_runs(ledger: &Ledger, stored: &Stored, name: &str) -> Result<(), Error> {
    let dataset = ledger.state().datasets().get(&stored.dataset);
    let find = |run: &String| {
        dataset.and_then(|dataset| dataset.runs.values().find(|known| known.id == *run))
    };
    let refused = |why: String| Err(Error::Ledger(StoreError::Refused(why)));
    let hash = stored.configuration.as_ref().map(|configuration| sha256(configuration.to_string()));
    for run in &stored.run_ids {
        let Some(known) = find(run) else {
            return refused(format!(
                "{name} names run {run} on dataset {:?}, which the ledger does not have",
                stored.dataset
            ));
        };
        if hash.is_some() && hash != known.header.plan_hash {
            return refused(format!(
                "{name} has another configuration than the one that run {run} was opened with"
            ));
        }
    }
    Ok(())
}

/// The changes to a dataset after a row of the ledger; `None` if it is the last row.
fn newer(ledger: &Ledger, dataset: &str, row: u64) -> Result<Option<Newer>, Error> {
    let rows = ledger.head().sequence.saturating_sub(row);
    if rows == 0 {
        return Ok(None);
    }
    let (mut runs, mut rounds, mut imported) = (0u64, 0u64, 0u64);
    let mut changes = Vec::new();
    ledger.visit_rows(&mut |sequence, bytes, _| {
        if sequence <= row {
            return Ok(());
        }
        let mut entry = Entry::from_bytes(bytes).map_err(StoreError::Damaged)?;
        if entry.dataset() != Some(dataset) {
            return Ok(());
        }
        while let Entry::Import { entry: inner, .. } = entry {
            imported += 1;
            entry = *inner;
        }
        match entry {
            Entry::Run { event: Event::Open(_), .. } => runs += 1,
            Entry::Run { event: Event::Reserve(reservation), .. } => {
                rounds = rounds.saturating_add(reservation.charge.count);
            }
            Entry::Run { event: Event::Insecure(Insecure { reason }), .. } => {
                changes.push(format!("a run was stamped INSECURE ({reason})"));
            }
            Entry::Tighten { epsilon, .. } => {
                changes.push(format!("the budget was lowered to epsilon {}", epsilon.get()));
            }
            _ => {}
        }
        Ok(())
    })?;
    let counted = [
        (runs, "more run(s) began on this data"),
        (rounds, "more round(s) were charged to it"),
        (imported, "row(s) of other ledgers were added to it"),
    ];
    let counted = counted.iter().filter(|(count, _)| *count > 0);
    changes.extend(counted.map(|(count, what)| format!("{count} {what}")));
    if changes.is_empty() {
        changes.push(format!(
            "{rows} rows were added, none of which changes what is charged to this data"
        ));
    }
    Ok(Some(Newer { rows, changes }))
}

/// A stored report, marked as not computed from the ledger again.
fn labelled(mut report: Report) -> Report {
    let label = "NOT COMPUTED AGAIN. This is what was stored with the results; it was not checked against the ledger, and \
                 anybody who can write the file can have changed it.";
    report.statement = format!("{label}\n\n{}", report.statement);
    report.warnings.insert(0, label.to_owned());
    report
}
