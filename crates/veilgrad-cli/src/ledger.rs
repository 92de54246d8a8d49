//! `veilgrad ledger`: inspect, verify and move ledgers.

use std::io::{Read, Write};
use std::path::Path;

use serde_json::{Value, json};
use veilgrad_events::{Event, rounds_to_jsonl, run_length};
use veilgrad_ledger::{Entry, Ledger, Options, StoreError};

use crate::answer::up;
use crate::argument::{Common, Export, Format, Import, Ledger as Command, Verify};
use crate::budget::{bar, spent};
use crate::error::Error;

pub(crate) fn run(command: &Command, common: &Common) -> Result<(), Error> {
    match command {
        Command::List(path) => list(&Ledger::read(&path.ledger)?, common),
        Command::Show(path) => show(&Ledger::read(&path.ledger)?, common),
        Command::Head(path) => head(&Ledger::read(&path.ledger)?, common),
        Command::Verify(arguments) => return verify(arguments, common),
        Command::Export(arguments) => return export(arguments),
        Command::Import(arguments) => return import(arguments, common),
    }
    Ok(())
}

/// The content of a file, or of stdin if it is called '-'.
pub(crate) fn read_bytes(path: &Path) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    let result = if path.as_os_str() == "-" {
        std::io::stdin().lock().read_to_end(&mut bytes).map(|_| ())
    } else {
        std::fs::read(path).map(|read| bytes = read)
    };
    result.map_err(|cause| Error::File { path: path.display().to_string(), cause })?;
    Ok(bytes)
}

fn list(ledger: &Ledger, common: &Common) {
    let runs =
        ledger.state().datasets().iter().flat_map(|(name, dataset)| {
            dataset.runs.iter().map(move |(key, run)| (name, key, run))
        });
    if common.json {
        let runs: Vec<Value> = runs
            .map(|(dataset, (source, number), run)| {
                json!({
                    "dataset": dataset,
                    "run": number,
                    "source": source,
                    "rounds": run.charged(),
                    "closed": run.closed,
                    "insecure": run.insecure,
                    "numerics": run.header.numerics,
                    "mode": run.header.mode,
                })
            })
            .collect();
        println!("{}", json!({ "schema": 1, "runs": runs }));
        return;
    }
    println!("{:<8}{:<24}{:>14}  state", "run", "dataset", "rounds");
    for (dataset, (_, number), run) in runs {
        let state = match (&run.insecure, run.closed) {
            (Some(why), _) => format!("INSECURE: {why}"),
            (None, true) => "closed".to_owned(),
            (None, false) => "open".to_owned(),
        };
        println!("{number:<8}{dataset:<24}{:>14}  {state}", run.charged());
    }
}

fn show(ledger: &Ledger, common: &Common) {
    let datasets = ledger.state().datasets();
    if common.json {
        let all: Vec<Value> = datasets
            .iter()
            .map(|(name, dataset)| {
                let price = spent(dataset);
                json!({
                    "dataset": name,
                    "epsilon": dataset.budget.epsilon,
                    "spent": price.as_ref().ok(),
                    "reason": price.as_ref().err(),
                })
            })
            .collect();
        let head = ledger.head();
        println!(
            "{}",
            json!({
                "schema": 1,
                "ledger": { "id": head.id, "sequence": head.sequence, "head": head.to_string() },
                "datasets": all,
            })
        );
        return;
    }
    println!("ledger {}, {} rows", ledger.head().id, ledger.head().sequence);
    for (name, dataset) in datasets {
        let cap = dataset.budget.epsilon.get();
        match spent(dataset) {
            Ok(spent) => println!("{name:<24}{} epsilon {} of {cap}", bar(spent, cap), up(spent)),
            Err(reason) => println!("{name:<24}epsilon unknown: {reason}"),
        }
    }
}

fn head(ledger: &Ledger, common: &Common) {
    let head = ledger.head();
    if common.json {
        println!(
            "{}",
            json!({ "schema": 1, "id": head.id, "sequence": head.sequence, "head": head.to_string() })
        );
    } else {
        println!("{head}");
    }
}

fn verify(arguments: &Verify, common: &Common) -> Result<(), Error> {
    let ledger = Ledger::read(&arguments.ledger)?;
    if let Some(head) = &arguments.against {
        ledger.contains(head)?;
    }
    let runs = ledger.state().datasets().values().flat_map(|dataset| dataset.runs.values());
    let rounds = runs.fold(0u64, |sum, run| sum.saturating_add(run.charged()));
    let head = ledger.head();
    if common.json {
        println!(
            "{}",
            json!({
                "schema": 1,
                "valid": true,
                "rows": head.sequence,
                "rounds": rounds,
                "head": head.to_string(),
            })
        );
    } else {
        println!("verified: {} rows, {rounds} rounds charged", head.sequence);
        println!("head {head}");
    }
    Ok(())
}

fn export(arguments: &Export) -> Result<(), Error> {
    let ledger = Ledger::read(&arguments.ledger)?;
    let text = match arguments.format {
        Format::Jsonl => ledger.export()?,
        Format::Csv => csv(&ledger)?,
        Format::Rounds => {
            let datasets = ledger.state().datasets();
            if let Some(name) = &arguments.dataset
                && !datasets.contains_key(name)
            {
                return Err(Error::Usage(format!("the ledger has no dataset {name:?}")));
            }
            let mut rounds = Vec::new();
            ledger.visit_rows(&mut |_, bytes, _| {
                let mut entry = Entry::from_bytes(bytes).map_err(StoreError::Damaged)?;
                while let Entry::Import { entry: inner, .. } = entry {
                    entry = *inner;
                }
                if let Entry::Run { dataset, event: Event::Reserve(reservation), .. } = entry
                    && arguments.dataset.as_ref().is_none_or(|only| *only == dataset)
                {
                    rounds.push(reservation.charge);
                }
                Ok(())
            })?;
            let rounds = run_length(rounds);
            rounds_to_jsonl(&rounds).map_err(|error| Error::Failure(error.to_string()))?
        }
    };
    std::io::stdout()
        .write_all(text.as_bytes())
        .map_err(|cause| Error::File { path: "stdout".to_owned(), cause })
}

fn csv(ledger: &Ledger) -> Result<String, Error> {
    let mut text = "sequence,dataset,hash,bytes\n".to_owned();
    ledger.visit_rows(&mut |sequence, bytes, hash| {
        let entry = Entry::from_bytes(bytes).map_err(StoreError::Damaged)?;
        let quote = |value: &str| format!("\"{}\"", value.replace('"', "\"\""));
        let dataset = quote(entry.dataset().unwrap_or(""));
        let bytes = quote(&String::from_utf8_lossy(bytes));
        text.push_str(&format!("{sequence},{dataset},{hash},{bytes}\n"));
        Ok(())
    })?;
    Ok(text)
}

fn import(arguments: &Import, common: &Common) -> Result<(), Error> {
    let path = arguments.file.display().to_string();
    let text = String::from_utf8(read_bytes(&arguments.file)?)
        .map_err(|_| Error::Data { path, cause: "is not UTF-8 text".to_owned() })?;
    let (imported, head) = if arguments.ledger.exists() {
        let mut ledger = Ledger::open(&arguments.ledger, Options::default())?;
        (ledger.import(&text)?, ledger.head().clone())
    } else {
        let ledger = Ledger::restore(&arguments.ledger, &text, Options::default())?;
        let charged = ledger.head().sequence;
        (veilgrad_ledger::Imported { charged, known: 0 }, ledger.head().clone())
    };
    if common.json {
        println!(
            "{}",
            json!({
                "schema": 1,
                "charged": imported.charged,
                "known": imported.known,
                "head": head.to_string(),
            })
        );
    } else {
        println!("{} rows charged, {} known already", imported.charged, imported.known);
    }
    Ok(())
}
