//! The process that is killed: it charges blocks and writes a line for every round that it releases.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use veilgrad_events::LedgerError;
use veilgrad_ledger::{Ledger, Options};

use crate::scratch::{open_run, round, text};

/// Charges until `rounds` are released or the budget is spent, which is code 3.
pub(crate) fn run(ledger: &str, out: &str, rounds: &str, block: &str) -> ExitCode {
    match charge(ledger, out, rounds, block) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(3),
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn charge(ledger: &str, out: &str, rounds: &str, block: &str) -> Result<bool, String> {
    let (rounds, block): (u64, u64) = (rounds.parse().map_err(text)?, block.parse().map_err(text)?);
    let mut out = std::fs::OpenOptions::new().append(true).create(true).open(out).map_err(text)?;
    let ledger = Ledger::open(Path::new(ledger), Options::default()).map_err(text)?;
    let mut run = open_run(ledger)?;
    let round = round(0.01, 1.0)?;
    let mut left = rounds;
    while left > 0 {
        let permits = match run.reserve(&round, block.min(left)) {
            Ok(permits) => permits,
            Err(LedgerError::BudgetExhausted(_)) => return Ok(false),
            Err(error) => return Err(error.to_string()),
        };
        for permit in permits {
            // The release: what the world sees of the round.
            writeln!(out, "{}", permit.number()).map_err(text)?;
            left -= 1;
        }
    }
    run.close().map_err(text)?;
    Ok(true)
}
