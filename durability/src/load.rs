//! How much a ledger holds, and how fast it is.

use std::io::Write;
use std::time::Instant;

use veilgrad_accounting::{Accountant, Best, Composition};
use veilgrad_events::{Delta, Rounds};
use veilgrad_ledger::{Ledger, Options};

use crate::Found;
use crate::scratch::{Directory, charged, create, open_run, round, text};

/// Many distinct rounds; very many identical ones.
pub(crate) fn load(quick: bool) -> Found {
    let rounds: u64 = if quick { 20_000 } else { 1_000_000 };
    let directory = Directory::new()?;
    let mut run = open_run(create(&directory.ledger(), 1e6)?)?;
    let mut appending = 0.0;
    let blocks = 20;
    for block in 0..blocks {
        let size = rounds / blocks;
        let charges: Vec<Rounds> = (0..size)
            .map(|i| {
                let part = (block * size + i) as f64 / rounds as f64;
                Ok(Rounds { count: 1, round: round(0.001 + 0.001 * part, 1.0 + 0.5 * part)? })
            })
            .collect::<Result<_, String>>()?;
        let start = Instant::now();
        drop(run.reserve_each(&charges).map_err(text)?);
        appending += start.elapsed().as_secs_f64();
    }
    drop(run);
    let start = Instant::now();
    let ledger = Ledger::read(&directory.ledger(), Options::default()).map_err(text)?;
    let verifying = start.elapsed().as_secs_f64();
    if charged(&ledger) != rounds {
        return Err(format!("{} of {rounds} rounds", charged(&ledger)));
    }
    let start = Instant::now();
    let dataset = ledger.state().datasets().values().next().ok_or("no dataset")?;
    let composition = Composition::of(dataset.rounds(), dataset.budget.adjacency).map_err(text)?;
    let epsilon =
        Best.epsilon(&composition, Delta::new(1e-5).map_err(text)?).map_err(text)?.epsilon;
    let accounting = start.elapsed().as_secs_f64();
    println!(
        "load: {rounds} distinct rounds in {blocks} blocks: append {appending:.2} s, verify {verifying:.2} s, account \
         {accounting:.2} s (epsilon {epsilon:.4}), peak memory {} MB",
        peak_megabytes()
    );
    // The limits are for an idle machine and the whole size.
    let slow = [appending, verifying, accounting].into_iter().any(|seconds| seconds > 10.0);
    if !quick && (slow || peak_megabytes() > 300) {
        return Err("above 10 s or 300 MB".to_owned());
    }
    drop(ledger);
    let directory = Directory::new()?;
    let mut run = open_run(create(&directory.ledger(), 1e6)?)?;
    let start = Instant::now();
    drop(run.reserve(&round(0.001, 1.0)?, 10_000_000).map_err(text)?);
    let appending = start.elapsed().as_secs_f64();
    drop(run);
    let start = Instant::now();
    let ledger = Ledger::read(&directory.ledger(), Options::default()).map_err(text)?;
    println!(
        "load: {} identical rounds: append {:.3} s, verify {:.3} s",
        charged(&ledger),
        appending,
        start.elapsed().as_secs_f64()
    );
    Ok(())
}

/// The most memory that this process ever had, where the system tells.
fn peak_megabytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmHWM:"));
    let kilobytes =
        line.and_then(|line| line.split_whitespace().nth(1)).and_then(|n| n.parse().ok());
    kilobytes.unwrap_or(0u64) / 1024
}

/// Durable rounds per second beside a bare loop of small writes with a sync each, in turns.
pub(crate) fn rate(quick: bool) -> Found {
    let turns = if quick { 2 } else { 10 };
    let writes = if quick { 20 } else { 100 };
    let directory = Directory::new()?;
    let mut file = std::fs::File::create(directory.path().join("bare")).map_err(text)?;
    let mut run = open_run(create(&directory.ledger(), 1e6)?)?;
    let round = round(0.001, 1.0)?;
    let (mut bare, mut one, mut many) = (0.0, 0.0, 0.0);
    for _ in 0..turns {
        let start = Instant::now();
        for _ in 0..writes {
            file.write_all(&[7; 400]).map_err(text)?;
            file.sync_data().map_err(text)?;
        }
        bare += start.elapsed().as_secs_f64();
        for (block, time) in [(1, &mut one), (32, &mut many)] {
            let start = Instant::now();
            for _ in 0..writes {
                drop(run.reserve(&round, block).map_err(text)?);
            }
            *time += start.elapsed().as_secs_f64();
        }
    }
    let all = f64::from(turns * writes);
    println!(
        "rate: bare write and sync {:.0}/s; block 1: {:.0} rounds/s ({:.2} of it); block 32: {:.0} rounds/s",
        all / bare,
        all / one,
        bare / one,
        32.0 * all / many
    );
    Ok(())
}
