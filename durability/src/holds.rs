//! Many processes with plans share one budget: only whole plans are granted, and every granted plan can be finished.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;

use veilgrad_accounting::{Accountant, Composition, Tightest};
use veilgrad_events::{Adjacency, Delta, LedgerError, RecordUnit, Rounds, Run, RunHeader};
use veilgrad_ledger::{Ledger, Location, Options};

use crate::scratch::{Directory, Found, charged, create, round, text};

/// The number of rounds of every plan, and of a block.
pub(crate) const PLAN: u64 = 12;
const BLOCK: u64 = 3;

/// The epsilon of `count` rounds.
pub(crate) fn cost(count: u64) -> Result<f64, String> {
    let rounds = [Rounds { count, round: round(0.01, 1.0)? }];
    let composition = Composition::fold(&rounds, Adjacency::AddRemove).map_err(text)?;
    let delta = Delta::new(1e-5).map_err(text)?;
    Ok(Tightest.epsilon(&composition, delta).map_err(text)?.epsilon)
}

/// Runs a plan until all of it is charged. The exit code is 3 if the plan is refused, 1 if a charge fails. With `stop` it
/// charges one block and waits to be killed.
pub(crate) fn run(ledger: &str, begun: &str, stop: &str) -> ExitCode {
    match work(&Location::parse(ledger), Path::new(begun), stop == "stop") {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(3),
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn work(ledger: &Location, begun: &Path, stop: bool) -> Result<bool, String> {
    let step = round(0.01, 1.0)?;
    let store = Ledger::open(ledger, Options::default()).map_err(text)?;
    let store = store.dataset("data", Arc::new(Tightest)).map_err(text)?;
    let mut header = RunHeader::new(RecordUnit::Example, Adjacency::AddRemove);
    header.plan = Some(vec![Rounds { count: PLAN, round: step.clone() }]);
    let mut run = match Run::open(store, header) {
        Ok(run) => run,
        Err(LedgerError::BudgetExhausted(_)) => return Ok(false),
        Err(error) => return Err(error.to_string()),
    };
    for _ in 0..PLAN / BLOCK {
        drop(run.reserve(&step, BLOCK).map_err(text)?);
        if stop {
            std::fs::write(begun, "").map_err(text)?;
            loop {
                std::thread::sleep(std::time::Duration::from_secs(60));
            }
        }
    }
    run.close().map_err(text)?;
    Ok(true)
}

fn start(directory: &Directory, number: usize, how: &str) -> Result<Child, String> {
    Command::new(std::env::current_exe().map_err(text)?)
        .arg("plan")
        .arg(directory.ledger())
        .arg(directory.path().join(format!("begun-{number}")))
        .arg(how)
        .stderr(Stdio::inherit())
        .spawn()
        .map_err(text)
}

/// Starts `processes` processes at once and counts their exit codes.
fn exit_codes(
    directory: &Directory,
    processes: usize,
) -> Result<BTreeMap<Option<i32>, usize>, String> {
    let children: Vec<Child> = (0..processes)
        .map(|number| start(directory, number, "finish"))
        .collect::<Result<_, _>>()?;
    let mut codes = BTreeMap::new();
    for mut child in children {
        *codes.entry(child.wait().map_err(text)?.code()).or_default() += 1;
    }
    Ok(codes)
}

pub(crate) fn sweep(quick: bool) -> Found {
    let (processes, plans, killed) = if quick { (16, 5, 2) } else { (64, 20, 8) };
    let directory = Directory::new()?;
    let rounds = PLAN * plans;
    // Budget for `plans` plans and most of another one.
    drop(create(&directory.ledger(), cost(rounds + PLAN - 1)?)?);
    // Some processes hold a plan, charge one block, and are killed. Their holds end, their charges stay.
    for number in 0..killed {
        let mut child = start(&directory, 1000 + number, "stop")?;
        let begun = directory.path().join(format!("begun-{}", 1000 + number));
        while !begun.exists() {
            if child.try_wait().map_err(text)?.is_some() {
                return Err("a process with a plan ended early".to_owned());
            }
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        child.kill().map_err(text)?;
        child.wait().map_err(text)?;
    }
    let ledger = Ledger::read(directory.ledger(), Options::default()).map_err(text)?;
    let charged_by_killed = killed as u64 * BLOCK;
    if (charged(&ledger), ledger.holding("data").len()) != (charged_by_killed, 0) {
        return Err(format!("{} rounds after {killed} kills", charged(&ledger)));
    }
    let codes = exit_codes(&directory, processes)?;
    let whole = codes.get(&Some(0)).copied().unwrap_or(0);
    let refused = codes.get(&Some(3)).copied().unwrap_or(0);
    let ledger = Ledger::read(directory.ledger(), Options::default()).map_err(text)?;
    let expected = (rounds + PLAN - 1 - charged_by_killed) / PLAN;
    if whole + refused != processes {
        return Err(format!("processes ended with {codes:?}"));
    }
    if whole as u64 != expected || charged(&ledger) != charged_by_killed + expected * PLAN {
        return Err(format!("{whole} plans granted, {} rounds charged", charged(&ledger)));
    }
    println!(
        "holds: {processes} processes with plans at once after {killed} killed holders: {whole} whole plans granted \
         and finished, {refused} refused before they started, none died"
    );
    Ok(())
}
