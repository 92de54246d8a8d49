//! `veilgrad account`: what a file of rounds cost.

use std::io::Read;

use serde_json::json;
use veilgrad_accounting::Composition;
use veilgrad_events::{Adjacency, Rounds, Sampling, rounds_from_jsonl};

use crate::answer::{Answer, Outcome, Parameters, adjacency_name};
use crate::argument::{Account, Common};
use crate::error::Error;

/// The first bytes of a ledger database.
const DATABASE: &[u8] = b"SQLite format 3\0";

pub(crate) fn run(arguments: &Account, common: &Common) -> Result<(), Error> {
    let rounds = read(arguments)?;
    let adjacency = arguments.view.adjacency.adjacency();
    let accountant = arguments.view.accountant();
    let outcome = Composition::fold(&rounds, adjacency).and_then(|composition| {
        let guarantee = match (arguments.delta, arguments.epsilon) {
            (Some(delta), _) => accountant.epsilon(&composition, delta)?,
            (None, Some(epsilon)) => accountant.delta(&composition, epsilon),
            // The parser asks for one of them.
            (None, None) => return Ok(None),
        };
        Ok(Some(Outcome::new(&composition, guarantee)))
    });
    let outcome = match outcome {
        Ok(Some(outcome)) => Ok(outcome),
        Ok(None) => return Err(Error::Usage("--delta or --epsilon is missing".to_owned())),
        Err(error) => Err(error.to_string()),
    };
    let mut parameters = parameters(&rounds, adjacency);
    parameters.delta = arguments.delta.map(|delta| delta.get());
    let answer =
        Answer { parameters, outcome, asked: arguments.view.accountant.map(|_| accountant.name()) };
    if common.json {
        println!("{}", json!(answer.json()));
    } else {
        print!("{}", answer.table(if arguments.delta.is_some() { "epsilon" } else { "delta" }));
    }
    Ok(())
}

fn read(arguments: &Account) -> Result<Vec<Rounds>, Error> {
    let path = arguments.file.display().to_string();
    let mut bytes = Vec::new();
    let result = if path == "-" {
        std::io::stdin().lock().read_to_end(&mut bytes).map(|_| ())
    } else {
        std::fs::read(&arguments.file).map(|read| bytes = read)
    };
    result.map_err(|cause| Error::File { path: path.clone(), cause })?;
    if bytes.starts_with(DATABASE) {
        return Err(Error::Failure(format!(
            "{path}: is a database; this version reads rounds as JSON Lines only"
        )));
    }
    let text = String::from_utf8(bytes)
        .map_err(|_| Error::Data { path: path.clone(), cause: "is not UTF-8 text".to_owned() })?;
    rounds_from_jsonl(&text).map_err(|error| Error::Data { path, cause: error.to_string() })
}

/// What all rounds have in common.
fn parameters(rounds: &[Rounds], adjacency: Adjacency) -> Parameters {
    let rounds: Vec<&Rounds> = rounds.iter().filter(|entry| entry.count > 0).collect();
    let noise = |entry: &&Rounds| entry.round.noise_multiplier().ok().map(|z| z.get());
    let rate = |entry: &&Rounds| rate(entry.round.sampling());
    let names: Vec<&str> = rounds.iter().map(|entry| name(entry.round.sampling())).collect();
    Parameters {
        noise_multiplier: common(rounds.iter().map(noise)).flatten(),
        rate: common(rounds.iter().map(rate)).flatten(),
        steps: rounds.iter().try_fold(0u64, |sum, entry| sum.checked_add(entry.count)),
        sampling: match common(names.iter()) {
            Some(name) => name,
            None if names.is_empty() => "none",
            None => "mixed",
        },
        adjacency: adjacency_name(adjacency),
        ..Parameters::default()
    }
}

/// The value that all have, if there is one.
fn common<T: PartialEq>(mut values: impl Iterator<Item = T>) -> Option<T> {
    let first = values.next()?;
    values.all(|value| value == first).then_some(first)
}

fn rate(sampling: Sampling) -> Option<f64> {
    match sampling {
        Sampling::Poisson { rate } => Some(rate.get()),
        Sampling::Fixed(batch) | Sampling::Shuffle(batch) => {
            Some(batch.batch() as f64 / batch.records() as f64)
        }
        Sampling::All {} => Some(1.0),
        _ => None,
    }
}

fn name(sampling: Sampling) -> &'static str {
    match sampling {
        Sampling::Poisson { .. } => "poisson",
        Sampling::Fixed(_) => "fixed",
        Sampling::Shuffle(_) => "shuffle",
        Sampling::TruncatedPoisson(_) => "truncated-poisson",
        Sampling::All {} => "all",
        _ => "unknown",
    }
}
