//! The victim processes of the sweeps: they charge, create or import, and write a line for every released round.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use veilgrad_events::LedgerError;
use veilgrad_ledger::{Ledger, Location, Options};

use crate::scratch::{Random, open_or_create, open_run, round, text};

/// How a victim process ended.
enum Outcome {
    Done,
    BudgetSpent,
    /// A charge was granted after one had failed.
    GrantedAfterFailure,
}

/// Charges until `rounds` are released or the budget is spent (exit code 3).
pub(crate) fn run(ledger: &str, out: &str, rounds: &str, block: &str) -> ExitCode {
    let ledger = Ledger::open(Location::parse(ledger), Options::default()).map_err(text);
    end(ledger.and_then(|ledger| charge(ledger, out, rounds, block, false)))
}

/// The same, with pauses of random length between bursts of charges, so that others are alone meanwhile.
pub(crate) fn bursts(ledger: &str, out: &str, rounds: &str, block: &str) -> ExitCode {
    let ledger = Ledger::open(Location::parse(ledger), Options::default()).map_err(text);
    end(ledger.and_then(|ledger| charge(ledger, out, rounds, block, true)))
}

/// Creates the ledger and its budget if they do not exist, and charges.
pub(crate) fn create(ledger: &str, out: &str, rounds: &str, block: &str) -> ExitCode {
    let ledger = open_or_create(Path::new(ledger), 1e3);
    end(ledger.and_then(|ledger| charge(ledger, out, rounds, block, false)))
}

/// Imports an export into the ledger.
pub(crate) fn import(ledger: &str, export: &str) -> ExitCode {
    let import = || {
        let contents = std::fs::read_to_string(export).map_err(text)?;
        let mut ledger = Ledger::open(Path::new(ledger), Options::default()).map_err(text)?;
        ledger.import(&contents).map_err(text)?;
        Ok(Outcome::Done)
    };
    end(import())
}

fn end(outcome: Result<Outcome, String>) -> ExitCode {
    match outcome {
        Ok(Outcome::Done) => ExitCode::SUCCESS,
        Ok(Outcome::BudgetSpent) => ExitCode::from(3),
        Ok(Outcome::GrantedAfterFailure) => ExitCode::from(GRANTED_AFTER_FAILURE),
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// The exit code of a victim that was granted a charge after a failed one, which must never happen.
pub(crate) const GRANTED_AFTER_FAILURE: u8 = 9;

fn charge(
    ledger: Ledger,
    out: &str,
    rounds: &str,
    block: &str,
    pauses: bool,
) -> Result<Outcome, String> {
    let (rounds, block): (u64, u64) = (rounds.parse().map_err(text)?, block.parse().map_err(text)?);
    let mut out = std::fs::OpenOptions::new().append(true).create(true).open(out).map_err(text)?;
    let mut run = open_run(ledger)?;
    let round = round(0.01, 1.0)?;
    let mut left = rounds;
    let mut random = Random(u64::from(std::process::id()));
    while left > 0 {
        if pauses && random.next().is_multiple_of(12) {
            std::thread::sleep(Duration::from_micros(random.next() % 200_000));
        }
        let permits = match run.reserve(&round, block.min(left)) {
            Ok(permits) => permits,
            Err(LedgerError::BudgetExhausted(_)) => return Ok(Outcome::BudgetSpent),
            Err(_) if run.reserve(&round, 1).is_ok() => return Ok(Outcome::GrantedAfterFailure),
            Err(error) => return Err(error.to_string()),
        };
        for permit in permits {
            // Stands for the release of the round.
            out.write_all(format!("{}\n", permit.number()).as_bytes()).map_err(text)?;
            left -= 1;
        }
    }
    run.close().map_err(text)?;
    Ok(Outcome::Done)
}
