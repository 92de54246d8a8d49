//! Many processes that share one budget.

use std::ffi::OsStr;
use std::process::{Child, Command, Stdio};

use veilgrad_accounting::{Composition, Tightest, rdp};
use veilgrad_events::{Adjacency, Delta, Epsilon, Pricing, Rounds};
use veilgrad_ledger::{Ledger, Options};

use crate::scratch::{Directory, Found, charged, create, released, round, text};

/// Many processes create, charge and read one ledger at the same time.
pub(crate) fn processes(quick: bool) -> Found {
    creators(quick)?;
    chargers(quick)
}

/// Starts a victim process.
pub(crate) fn start(
    ledger: impl AsRef<OsStr>,
    directory: &Directory,
    task: &str,
    number: u64,
    rounds: [&str; 2],
) -> Result<Child, String> {
    Command::new(std::env::current_exe().map_err(text)?)
        .arg(task)
        .arg(ledger)
        .arg(directory.path().join(format!("out-{number}")))
        .args(rounds)
        .stderr(Stdio::inherit())
        .spawn()
        .map_err(text)
}

/// Many processes create the same ledger at once, and charge it.
fn creators(quick: bool) -> Found {
    let (processes, times) = if quick { (8, 1) } else { (32, 4) };
    for _ in 0..times {
        let directory = Directory::new()?;
        let children: Vec<Child> = (0..processes)
            .map(|number| start(directory.ledger(), &directory, "create", number, ["4", "2"]))
            .collect::<Result<_, _>>()?;
        for mut child in children {
            let code = child.wait().map_err(text)?.code();
            if code != Some(0) {
                return Err(format!("one of many creators ended with {code:?}"));
            }
        }
        let ledger = Ledger::read(directory.ledger(), Options::default()).map_err(text)?;
        if charged(&ledger) != 4 * processes {
            return Err(format!("{} rounds are charged", charged(&ledger)));
        }
    }
    println!("processes: {times} times {processes} created one ledger at once and charged it");
    Ok(())
}

/// A budget that covers at least `at_least` rounds without a plan, and the exact number that it covers. Rounds are priced
/// at the Rényi order of the budget, from a finite list, so not every number of rounds has its own budget.
pub(crate) fn budget_for(at_least: u64) -> Result<(f64, u64), String> {
    let delta = Delta::new(1e-5).map_err(text)?;
    let fits = |cap: f64, count: u64| -> Result<bool, String> {
        let rounds = [Rounds { count, round: round(0.01, 1.0)? }];
        let composition = Composition::fold(&rounds, Adjacency::AddRemove).map_err(text)?;
        let Some(order) = Tightest.order(Epsilon::new(cap).map_err(text)?, delta) else {
            return Ok(false);
        };
        let cost = rdp::epsilon_on_orders(&composition, delta, &[order]).map_err(text)?;
        Ok(cost.epsilon.get() <= cap)
    };
    let mut cap = 0.5;
    while !fits(cap, at_least)? {
        cap += 1e-3;
    }
    let mut count = at_least;
    while fits(cap, count + 1)? {
        count += 1;
    }
    Ok((cap, count))
}

/// Many processes charge single rounds until the budget is spent.
fn chargers(quick: bool) -> Found {
    let (processes, at_least) = if quick { (8, 40) } else { (32, 320) };
    let (budget, granted) = budget_for(at_least)?;
    let directory = Directory::new()?;
    drop(create(&directory.ledger(), budget)?);
    let children: Vec<Child> = (0..processes)
        .map(|number| start(directory.ledger(), &directory, "charge", number, ["100000", "1"]))
        .collect::<Result<_, _>>()?;
    let read = || Ledger::read(directory.ledger(), Options::default()).map_err(text);
    spend(children, &directory, granted, "processes", &read)
}

/// Waits until chargers have spent the budget, which grants exactly `granted` rounds.
pub(crate) fn spend(
    mut children: Vec<Child>,
    directory: &Directory,
    granted: u64,
    name: &str,
    read: &dyn Fn() -> Result<Ledger, String>,
) -> Found {
    let processes = children.len();
    // A reader sees a ledger that always verifies, with a growing number of charges.
    let (mut reads, mut last) = (0, 0);
    while !children.is_empty() {
        let now = charged(&read().map_err(|error| format!("a reader met writers: {error}"))?);
        if now < last {
            return Err(format!("a reader saw {now} charged after {last}"));
        }
        (reads, last) = (reads + 1, now);
        let mut running = Vec::new();
        for mut child in children {
            match child.try_wait().map_err(text)? {
                None => running.push(child),
                Some(status) if status.code() == Some(3) => {}
                Some(status) => {
                    return Err(format!("a process ended with {status} instead of a spent budget"));
                }
            }
        }
        children = running;
    }
    let charged = charged(&read()?);
    let sum: u64 =
        (0..processes).map(|n| released(&directory.path().join(format!("out-{n}")))).sum();
    if (charged, sum) != (granted, granted) {
        return Err(format!("{sum} released, {charged} charged, {granted} allowed"));
    }
    println!(
        "{name}: {processes} at once, exactly {granted} rounds granted, chain valid; {reads} reads meanwhile, all \
         verified"
    );
    Ok(())
}
