//! `veilgrad check`: lists all problems of a configuration, without touching a budget.

use std::path::Path;

use serde_json::{Value, json};
use veilgrad_accounting::claim::Attacker;
use veilgrad_accounting::{Composition, Tightest};
use veilgrad_events::{Folded, RunRounds};
use veilgrad_ledger::{Ledger, Location, StoreError};

use crate::advice::{self, Note};
use crate::argument::{Check, Common};
use crate::error::Error;
use crate::ledger_place;
use crate::output::{print, print_json, say};
use crate::problem::{Problem, similar};
use crate::train::check::Source;
use crate::train::config::Config;
use crate::train::data::{self, Process};
use crate::train::job::Job;

/// The first line of output that depends on private records.
const PRIVATE: &str =
    "FOR THE DATA OWNER'S EYES: what follows depends on private records; do not publish it.";

/// How many defects are listed; the rest are only counted.
const MOST_LISTED: usize = 1000;

pub(crate) fn run(arguments: &Check, common: &Common) -> Result<(), Error> {
    let mut source = Source::read(&arguments.config)?;
    let files = missing_files(&source);
    let mut others = Vec::new();
    // What is wrong with the configuration itself would be wrong with its plan, too.
    let job = match source.checked().ok().map(|config| Job::new(config, Some(1))) {
        Some(Ok(job)) => {
            others.extend(check_budget(&job, arguments.ledger.as_ref(), common).err());
            if files.is_empty() {
                // Errors are those of `train`.
                others.extend(data::private_and_public(&job.config, Process::ALONE).err());
            }
            Some(job)
        }
        // Model files that are missing are listed with the other files.
        Some(Err(Error::File { .. })) if !files.is_empty() => None,
        Some(Err(error)) => {
            others.push(source.locate(error));
            None
        }
        None => None,
    };
    for (key, text, suggestion) in files {
        source.add_file(&key, text, suggestion);
    }
    if !source.problems().is_empty() || !others.is_empty() {
        return refuse(&source, others, common);
    }
    let config = source.checked()?;
    let notes = job.map_or(Vec::new(), |job| advice_on(&job));
    if arguments.show_rows {
        return show_rows(&config, common);
    }
    if common.json {
        return print_json(&json!({
            "schema": 1, "valid": true, "problems": [], "advice": advice::json(&notes),
        }));
    }
    let name = arguments.config.display();
    let advice = advice::table(&notes);
    print(&format!("{name}: nothing is wrong with it; no budget was touched\n{advice}"))
}

/// The files that a configuration names and that are not there: the place of the key, the problem, and a similar name.
fn missing_files(source: &Source) -> Vec<(String, String, Option<String>)> {
    let Some(config) = source.config() else { return Vec::new() };
    let init = config.model.init.iter().map(|file| ("model.init".to_owned(), file.as_path()));
    let missing = config.data.files().chain(init).filter_map(|(key, file)| {
        let cause = std::fs::metadata(file).err()?;
        let (table, name) = key.split_once('.').unwrap_or((&key, ""));
        let text = format!("[{table}] {}: {}: {cause}", name.replace('.', ": "), file.display());
        Some((key, text, similar_file(file)))
    });
    missing.collect()
}

/// A file of the same directory with a similar name.
fn similar_file(file: &Path) -> Option<String> {
    let directory = file.parent().filter(|path| *path != Path::new("")).unwrap_or(Path::new("."));
    let names = std::fs::read_dir(directory).ok()?.flatten();
    let names: Vec<String> =
        names.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    let name = similar(file.file_name()?.to_str()?, names.iter().map(String::as_str))?;
    Some(format!("did you mean {name}?"))
}

/// Whether the budget of the dataset covers the run beside those that are running now, if the ledger has one. The ledger is
/// only read.
fn check_budget(job: &Job, ledger: Option<&Location>, common: &Common) -> Result<(), Error> {
    let path = ledger_place::to_read(ledger)?;
    // A ledger that is not there has no budgets yet.
    if !Ledger::exists(&path, &common.options())? {
        return Ok(());
    }
    let name = job.config.dataset();
    let ledger = Ledger::read(&path, common.options())?;
    let Some(dataset) = ledger.state().datasets().get(&name) else { return Ok(()) };
    job.check_terms(&dataset.budget)?;
    let rounds = job.before.iter().chain([&job.rounds]).map(Folded::try_from);
    let rounds = rounds.collect::<Result<Vec<_>, _>>().map_err(Error::failure)?;
    let plan = RunRounds { planned: true, rounds: &rounds, tuning: None };
    dataset.covers(&Tightest, &[plan], &ledger.holding(&name)).map_err(|why| {
        let why = format!("{why}, for {name:?} in {path}; nothing was charged");
        Error::Ledger(StoreError::BudgetExhausted(why))
    })
}

/// Advice on the settings of a run.
fn advice_on(job: &Job) -> Vec<Note> {
    let (config, noise) = (&job.config, job.trainer.plan().noise_multiplier());
    let rounds = [job.before.as_slice(), std::slice::from_ref(&job.rounds)].concat();
    let composition = Composition::fold(&rounds, config.privacy.adjacency);
    advice::on(&advice::Settings {
        epsilon: Some(job.guarantee.epsilon),
        delta: job.delta.get(),
        attacker: composition.ok().map(|composition| Attacker::of(&composition)),
        records: Some(config.data.records),
        batch: Some(config.privacy.expected_batch),
        rounds: Some(job.rounds.count),
        noise_multiplier: noise.ok().map(|noise| noise.get()),
    })
}

/// Reports all problems. Those of the configuration decide the exit code, then those of files.
fn refuse(source: &Source, others: Vec<Error>, common: &Common) -> Result<(), Error> {
    let mut errors = Vec::new();
    if !source.problems().is_empty() {
        errors.push(source.refused());
    }
    errors.extend(others);
    if common.json {
        let of_error = |error: &Error| match error {
            Error::Configuration { problems, .. } => problems.clone(),
            other => {
                let (text, suggestion) = (other.to_string(), None);
                vec![Problem { line: None, key: String::new(), text, suggestion }]
            }
        };
        let problems: Vec<Problem> = errors.iter().flat_map(of_error).collect();
        print_json(&json!({ "schema": 1, "valid": false, "problems": problems }))?;
    }
    let mut errors = errors.into_iter();
    let first = errors.next();
    errors.for_each(|error| say(&format!("error: {error}\n")));
    first.map_or(Ok(()), Err)
}

/// Lists what is not as declared, for the owner of the data.
fn show_rows(config: &Config, common: &Common) -> Result<(), Error> {
    let (mut rows, mut count) = (Vec::new(), 0usize);
    data::defects(config, |path, defect| {
        count += 1;
        if rows.len() < MOST_LISTED {
            rows.push((path.display().to_string(), defect));
        }
    })?;
    let more = count - rows.len();
    if common.json {
        let rows: Vec<Value> = rows
            .iter()
            .map(|(file, defect)| {
                let (row, column, rule) = (defect.row, &defect.column, &defect.rule);
                json!({ "file": file, "row": row, "column": column, "rule": rule })
            })
            .collect();
        let document = json!({
            "schema": 1, "valid": true, "problems": [], "private": PRIVATE, "rows": rows, "more": more,
        });
        return print_json(&document);
    }
    let mut text = format!("{PRIVATE}\n");
    for (file, defect) in rows {
        let column = defect.column.map_or(String::new(), |column| format!(", column {column}"));
        text.push_str(&format!("{file}: row {}{column}: {}\n", defect.row, defect.rule));
    }
    match (count, more) {
        (0, _) => text.push_str("every row is as declared\n"),
        (_, 0) => {}
        (_, more) => text.push_str(&format!("and {more} more\n")),
    }
    print(&text)
}
