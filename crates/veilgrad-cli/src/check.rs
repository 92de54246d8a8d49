//! `veilgrad check`: lists all problems of a configuration, without touching a budget.

mod parts;

use std::path::Path;

use serde_json::{Value, json};
use veilgrad_accounting::claim::Attacker;
use veilgrad_accounting::{Composition, Tightest};
use veilgrad_events::RunRounds;
use veilgrad_ledger::{Ledger, Location, StoreError};

use crate::advice::{self, Note};
use crate::argument::{Check, Common};
use crate::error::Error;
use crate::ledger_place;
use crate::output::{print, print_json, say};
use crate::problem::{Problem, similar};
use crate::train::check::Source;
use crate::train::config::Config;
use crate::train::data;
use crate::train::job::{self, Job};
use parts::{Cost, Readable};

/// The first line of output that depends on private records.
const PRIVATE: &str =
    "FOR THE DATA OWNER'S EYES: what follows depends on private records; do not publish it.";

/// How many defects are listed; the rest are only counted.
const MOST_LISTED: usize = 1000;

/// The exit code of files that are not there.
const DATA: u8 = 5;

pub(crate) fn run(arguments: &Check, common: &Common) -> Result<(), Error> {
    let mut source = Source::read(&arguments.config)?;
    let is_valid = source.problems().is_empty();
    for problem in missing_files(&source) {
        source.add_later(problem, DATA);
    }
    let Some(config) = source.config().cloned() else { return refuse(&source, None, common) };
    if arguments.show_rows {
        // Rows are listed for their owner whatever is left of the budget.
        return match source.problems() {
            [] => show_rows(&config, common),
            _ => refuse(&source, None, common),
        };
    }
    let (job, cost) = parts::plan(&mut source, &config);
    let readable = Readable::new(&source, &config);
    let ledger = arguments.ledger.as_ref();
    let covers =
        cost.as_ref().map_or(Ok(true), |cost| covers(&mut source, &config, cost, ledger, common));
    // Training would not open a file before the budget covers the run, and private ones only if it has a plan.
    if matches!(covers, Ok(true)) {
        let has_plan = is_valid && job.is_some();
        parts::check_files(&mut source, &config, &readable, has_plan);
    }
    let ledger = covers.err();
    if !source.problems().is_empty() || ledger.is_some() {
        return refuse(&source, ledger, common);
    }
    let notes = job.map_or(Vec::new(), |job| advice_on(&job));
    if common.json {
        return print_json(&json!({
            "schema": 1, "valid": true, "problems": [], "advice": advice::json(&notes),
        }));
    }
    let name = arguments.config.display();
    let advice = advice::table(&notes);
    print(&format!("{name}: nothing is wrong with it; no budget was touched\n{advice}"))
}

/// The files that a configuration names and that are not there, each with a similar name.
fn missing_files(source: &Source) -> Vec<Problem> {
    let Some(config) = source.config() else { return Vec::new() };
    let init = config.model.init.iter().map(|file| ("model.init".to_owned(), file.as_path()));
    let missing = config.data.files().chain(init).filter_map(|(key, file)| {
        let cause = std::fs::metadata(file).err()?;
        let (table, name) = key.split_once('.').unwrap_or((&key, ""));
        let text = format!("[{table}] {}: {}: {cause}", name.replace('.', ": "), file.display());
        Some(Problem { suggestion: similar_file(file), ..Problem::new(key, text) })
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

/// Whether the budget of the dataset covers the run beside those that are running now. Adds a problem if it does not, or has
/// other terms. The ledger is only read.
///
/// # Errors
/// When the ledger cannot be read.
fn covers(
    source: &mut Source,
    config: &Config,
    cost: &Cost,
    ledger: Option<&Location>,
    common: &Common,
) -> Result<bool, Error> {
    let path = ledger_place::to_read(ledger)?;
    // A ledger that is not there has no budgets yet.
    if !Ledger::exists(&path, &common.options())? {
        return Ok(true);
    }
    let name = config.dataset();
    let ledger = Ledger::read(&path, common.options())?;
    let Some(dataset) = ledger.state().datasets().get(&name) else { return Ok(true) };
    if let Err(error) = job::check_terms(config, cost.delta, &dataset.budget) {
        parts::add(source, error, "data.record");
        return Ok(false);
    }
    let plan = RunRounds { planned: true, rounds: &cost.rounds, tuning: None };
    if let Err(why) = dataset.covers(&Tightest, &[plan], &ledger.holding(&name)) {
        let why = format!("{why}, for {name:?} in {path}; nothing was charged");
        let key = match config.privacy.epsilon {
            Some(_) => "privacy.epsilon",
            None => "privacy.noise_multiplier",
        };
        parts::add(source, Error::Ledger(StoreError::BudgetExhausted(why)), key);
        return Ok(false);
    }
    Ok(true)
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

/// Reports all problems. The first kind that was found decides the exit code: rules of the configuration, missing files, the
/// plan, the budget, the content of files. A ledger that cannot be read is no problem of the configuration.
fn refuse(source: &Source, ledger: Option<Error>, common: &Common) -> Result<(), Error> {
    if common.json {
        let ledger = ledger.iter().map(|error| Problem::new("", error.to_string()));
        let problems: Vec<Problem> = source.problems().iter().cloned().chain(ledger).collect();
        print_json(&json!({ "schema": 1, "valid": false, "problems": problems }))?;
    }
    match ledger {
        Some(error) if source.problems().is_empty() => Err(error),
        error => {
            error.iter().for_each(|error| say(&format!("error: {error}\n")));
            Err(source.refused())
        }
    }
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
