//! `veilgrad ledger`: inspect, verify and move ledgers.

use std::io::Read;
use std::path::Path;

use serde_json::{Value, json};
use veilgrad_accounting::Tightest;
use veilgrad_accounting::display::up;
use veilgrad_events::{Event, Mode, Rounds, RoundsFile, run_length};
use veilgrad_ledger::{Author, Dataset, Entry, Ledger, MIGRATION, StoreError, with_head};

use crate::argument::{
    Backup, Common, Export, Format, Import, Ledger as Command, Move, Repair, Verify,
};
use crate::budget::bar;
use crate::error::Error;
use crate::output::{csv_cell, file_error, print, print_answer, print_exact, print_json, say};

pub(crate) fn run(command: &Command, common: &Common) -> Result<(), Error> {
    match command {
        Command::List(path) => list(&Ledger::read(&path.ledger, common.options())?, common),
        Command::Show(path) => show(&Ledger::read(&path.ledger, common.options())?, common),
        Command::Head(path) => head(&Ledger::read(&path.ledger, common.options())?, common),
        Command::Verify(arguments) => verify(arguments, common),
        Command::Export(arguments) => export(arguments, common),
        Command::Import(arguments) => import(arguments, common),
        Command::Backup(arguments) => backup(arguments, common),
        Command::Move(arguments) => relocate(arguments, common),
        Command::Migration => print_exact(MIGRATION),
        Command::Repair(arguments) => repair(arguments, common),
    }
}

/// The content of a file, or of stdin if it is called '-'.
pub(crate) fn read_bytes(path: &Path) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    let result = if path.as_os_str() == "-" {
        std::io::stdin().lock().read_to_end(&mut bytes).map(|_| ())
    } else {
        std::fs::read(path).map(|read| bytes = read)
    };
    result.map(|()| bytes).map_err(|cause| file_error(path, cause))
}

/// The first bytes of a ledger database.
pub(crate) const DATABASE: &[u8] = b"SQLite format 3\0";

/// The dataset of this name; without a name the only one.
pub(crate) fn dataset<'a>(ledger: &'a Ledger, name: Option<&str>) -> Result<&'a Dataset, Error> {
    let datasets = ledger.state().datasets();
    let found = match name {
        Some(name) => ledger.state().find(name),
        None if datasets.len() == 1 => {
            datasets.values().next().ok_or_else(|| "no dataset".to_owned())
        }
        None => {
            let names: Vec<&str> = datasets.keys().map(String::as_str).collect();
            let (count, names) = (datasets.len(), names.join(", "));
            Err(format!("the ledger has {count} datasets; name one with --dataset: {names}"))
        }
    };
    found.map_err(Error::Usage)
}

/// Visits all charges of a dataset in order, with the run that charged them.
fn visit_charges(
    ledger: &Ledger,
    name: &str,
    mut visit: impl FnMut(String, Rounds),
) -> Result<(), Error> {
    ledger.visit_rows(&mut |_, bytes, _| {
        let entry = Entry::from_bytes(bytes).map_err(StoreError::Damaged)?.original();
        if let Entry::Run { dataset, run, event: Event::Reserve(reservation), .. } = entry
            && dataset == name
        {
            visit(run, reservation.charge);
        }
        Ok(())
    })?;
    Ok(())
}

/// All rounds that these runs charged to a dataset, or that all runs did if none is named.
pub(crate) fn charges(ledger: &Ledger, name: &str, by: &[String]) -> Result<Vec<Rounds>, Error> {
    let mut rounds = Vec::new();
    visit_charges(ledger, name, |run, charge| {
        if by.is_empty() || by.contains(&run) {
            rounds.push(charge);
        }
    })?;
    Ok(run_length(rounds))
}

/// The rounds of every run, in the order in which runs began.
fn charged_runs(ledger: &Ledger, name: &str) -> Result<Vec<Vec<Rounds>>, Error> {
    let mut runs: Vec<(String, Vec<Rounds>)> = Vec::new();
    visit_charges(ledger, name, |run, charge| match runs.iter_mut().find(|(id, _)| *id == run) {
        Some((_, rounds)) => rounds.push(charge),
        None => runs.push((run, vec![charge])),
    })?;
    Ok(runs.into_iter().map(|(_, rounds)| run_length(rounds)).collect())
}

/// A file from which `veilgrad account` computes the same epsilon as from the ledger.
fn rounds_file(ledger: &Ledger, dataset: &Dataset) -> Result<RoundsFile, Error> {
    let name = &dataset.budget.dataset;
    if let Some(reason) = dataset.insecure() {
        return Err(Error::Usage(format!(
            "a run of {name:?} protects nothing ({reason}), which a rounds file cannot express"
        )));
    }
    if dataset.runs.values().any(|run| !run.apart.is_empty()) {
        return Err(Error::Usage(format!(
            "a run of {name:?} was charged by two branches of the ledger, which a rounds file cannot express; \
             account for the ledger itself"
        )));
    }
    if dataset.runs.values().any(|run| run.header.tuning.is_some()) {
        return Err(Error::Usage(format!(
            "a run of {name:?} is a tuning, which a rounds file cannot express; account for the ledger itself"
        )));
    }
    let terms = dataset.terms(&Tightest);
    let planned = terms.mode == Mode::Planned && dataset.runs.values().all(|run| run.is_planned());
    let (mode, order) = if planned { (Mode::Planned, None) } else { (Mode::Adaptive, terms.order) };
    Ok(RoundsFile { mode: Some(mode), order, runs: charged_runs(ledger, name)? })
}

fn list(ledger: &Ledger, common: &Common) -> Result<(), Error> {
    let runs = ledger.state().datasets().iter().flat_map(|(name, dataset)| {
        dataset.runs.iter().map(move |(number, run)| (name, number, run))
    });
    let authors = ledger.authors()?;
    if common.json {
        let runs: Vec<Value> = runs
            .map(|(dataset, number, run)| {
                json!({
                    "dataset": dataset,
                    "run": number,
                    "id": run.id,
                    "source": run.source,
                    "rounds": run.charged(),
                    "closed": run.closed,
                    "insecure": run.insecure,
                    "numerics": run.header.numerics,
                    "mode": run.header.mode,
                    "role": authors.get(number).map(|author| &author.role),
                    "host": authors.get(number).map(|author| &author.host),
                })
            })
            .collect();
        return print_json(&json!({ "schema": 1, "runs": runs }));
    }
    let mut text = format!("{:<8}{:<24}{:>14}  state\n", "run", "dataset", "rounds");
    for (dataset, number, run) in runs {
        let state = match (&run.insecure, run.closed) {
            (Some(why), _) => format!("INSECURE: {why}"),
            (None, true) => "closed".to_owned(),
            (None, false) => "open".to_owned(),
        };
        let by = authors
            .get(number)
            .map_or(String::new(), |Author { role, host, .. }| format!(", by {role} on {host}"));
        text.push_str(&format!("{number:<8}{dataset:<24}{:>14}  {state}{by}\n", run.charged()));
    }
    print(&text)
}

fn show(ledger: &Ledger, common: &Common) -> Result<(), Error> {
    let datasets = ledger.state().datasets();
    if common.json {
        let all: Vec<Value> = datasets
            .iter()
            .map(|(name, dataset)| {
                let claim = crate::claim::of(dataset);
                let spent = claim.as_ref().ok().map(|claim| claim.spent);
                json!({
                    "dataset": name,
                    "epsilon": dataset.budget.epsilon,
                    "guarantee": crate::claim::json(&claim),
                    "running": spent,
                    "spent": spent,
                    "valid": claim.is_ok(),
                    "reason": claim.as_ref().err().map(ToString::to_string),
                })
            })
            .collect();
        let head = ledger.head();
        let ledger = json!({ "id": head.id, "sequence": head.sequence, "head": head.to_string() });
        let document = json!({ "schema": 1, "ledger": ledger, "datasets": all });
        return print_json(&document);
    }
    let mut text = format!("ledger {}, {} rows\n", ledger.head().id, ledger.head().sequence);
    for (name, dataset) in datasets {
        let cap = dataset.budget.epsilon.get();
        text.push_str(&match crate::claim::of(dataset) {
            Ok(claim) => format!(
                "{name:<24}{} running epsilon {}, guarantee {}: {}\n",
                bar(claim.spent, cap),
                up(claim.spent),
                up(claim.epsilon),
                claim.why()
            ),
            Err(reason) => format!("{name:<24}running epsilon unknown, guarantee none: {reason}\n"),
        });
    }
    print(&text)
}

fn head(ledger: &Ledger, common: &Common) -> Result<(), Error> {
    let head = ledger.head();
    let text = head.to_string();
    let document = json!({ "schema": 1, "id": head.id, "sequence": head.sequence, "head": text });
    print_answer(common.json, &document, &format!("{head}\n"))
}

fn verify(arguments: &Verify, common: &Common) -> Result<(), Error> {
    let ledger = Ledger::read(&arguments.ledger, common.options())?;
    if let Some(head) = &arguments.against {
        ledger.contains(head)?;
    }
    let warnings = ledger.audit()?;
    for warning in &warnings {
        say(&format!("warning: {warning}\n"));
    }
    let runs = ledger.state().datasets().values().flat_map(|dataset| dataset.runs.values());
    let rounds = runs.fold(0u64, |sum, run| sum.saturating_add(run.charged()));
    let head = ledger.head();
    let document = json!({
        "schema": 1,
        "valid": true,
        "rows": head.sequence,
        "rounds": rounds,
        "head": head.to_string(),
        "warnings": warnings,
    });
    let text = format!("verified: {} rows, {rounds} rounds charged\nhead {head}\n", head.sequence);
    print_answer(common.json, &document, &text)
}

fn export(arguments: &Export, common: &Common) -> Result<(), Error> {
    let ledger = Ledger::read(&arguments.ledger, common.options())?;
    let text = match arguments.format {
        // Lines are hashed, so their bytes must not change.
        Format::Jsonl => return print_exact(&ledger.export()?),
        Format::Csv => csv(&ledger)?,
        Format::Rounds => {
            let dataset = dataset(&ledger, arguments.dataset.as_deref())?;
            let file = rounds_file(&ledger, dataset)?;
            // Data goes to stdout; this is for people.
            say(&format!(
                "{}: account for these rounds with --adjacency {}\n",
                dataset.budget.dataset,
                dataset.budget.adjacency.name()
            ));
            file.to_jsonl().map_err(Error::failure)?
        }
    };
    print(&text)
}

fn csv(ledger: &Ledger) -> Result<String, Error> {
    let mut text = "sequence,dataset,hash,bytes\n".to_owned();
    ledger.visit_rows(&mut |sequence, bytes, hash| {
        let entry = Entry::from_bytes(bytes).map_err(StoreError::Damaged)?;
        let dataset = csv_cell(entry.dataset().unwrap_or(""));
        let bytes = csv_cell(&String::from_utf8_lossy(bytes));
        text.push_str(&format!("{sequence},{dataset},{hash},{bytes}\n"));
        Ok(())
    })?;
    Ok(text)
}

fn repair(arguments: &Repair, common: &Common) -> Result<(), Error> {
    let (damaged, new) = (&arguments.ledger, &arguments.destination);
    let repaired = Ledger::repair(damaged, new, &common.options())?;
    let file = new.display().to_string();
    if common.json {
        let document = json!({
            "schema": 1,
            "ledger": file,
            "proven": repaired.proven,
            "salvaged": repaired.salvaged,
            "lost": repaired.lost,
            "head": repaired.head.to_string(),
        });
        return print_json(&document);
    }
    let mut text = format!(
        "{file}: {} rows proven, {} of them from the anchor or remnants of the log\n",
        repaired.proven, repaired.salvaged
    );
    text.push_str(&match repaired.lost {
        None => "nothing that was charged is missing\n".to_owned(),
        Some(why) => format!(
            "rows may be lost ({why}): the epsilon of every dataset is infinite from now on, and no dataset \
             begins in this ledger\n"
        ),
    });
    print(&format!("{text}head {}\n{} is unchanged\n", repaired.head, damaged.display()))
}

fn relocate(arguments: &Move, common: &Common) -> Result<(), Error> {
    let (from, to) = (&arguments.from, &arguments.to);
    let head = Ledger::relocate(from, to, &common.options())?;
    let rows = head.sequence;
    let document = json!({
        "schema": 1, "ledger": to.to_string(), "rows": rows, "head": head.to_string(),
    });
    let text = format!("{to}: {rows} rows\nhead {head}\n{from} can be read, and refuses charges\n");
    print_answer(common.json, &document, &text)
}

fn backup(arguments: &Backup, common: &Common) -> Result<(), Error> {
    let ledger = Ledger::read(&arguments.ledger, common.options())?;
    let head = ledger.backup(&arguments.destination, &common.options())?;
    let file = arguments.destination.display().to_string();
    let rows = head.sequence;
    let document = json!({ "schema": 1, "backup": file, "rows": rows, "head": head.to_string() });
    print_answer(common.json, &document, &format!("{file}: {rows} rows\nhead {head}\n"))
}

/// The text of an export, from a file or from a database.
fn export_text(arguments: &Import, common: &Common) -> Result<String, Error> {
    let whole = || Ok(Ledger::read(&arguments.file, common.options())?.export()?);
    let Some(file) = arguments.file.file() else { return whole() };
    let bytes = read_bytes(file)?;
    if bytes.starts_with(DATABASE) {
        return whole();
    }
    let path = file.display().to_string();
    let text = String::from_utf8(bytes)
        .map_err(|_| Error::Data { path, cause: "is not UTF-8 text".to_owned() })?;
    if arguments.allow_no_head { Ok(with_head(&text)?) } else { Ok(text) }
}

fn import(arguments: &Import, common: &Common) -> Result<(), Error> {
    let text = export_text(arguments, common)?;
    let (imported, head) = if Ledger::exists(&arguments.ledger, &common.options())? {
        let mut ledger = Ledger::open(&arguments.ledger, common.options())?;
        (ledger.import(&text)?, ledger.head().clone())
    } else {
        let ledger = Ledger::restore(&arguments.ledger, &text, common.options())?;
        // Data goes to stdout; this is for people.
        say(&format!(
            "{}: is a copy with the id {}; what was charged elsewhere since is not in it: charge one of the \
             two only, or import one into the other\n",
            arguments.ledger,
            ledger.head().id
        ));
        let charged = ledger.head().sequence;
        (veilgrad_ledger::Imported { charged, known: 0 }, ledger.head().clone())
    };
    let (charged, known, head) = (imported.charged, imported.known, head.to_string());
    let document = json!({ "schema": 1, "charged": charged, "known": known, "head": head });
    let text = format!("{charged} rows charged, {known} known already\n");
    print_answer(common.json, &document, &text)
}
