//! Many processes, one budget.

use std::process::{Command, Stdio};

use veilgrad_accounting::{Accountant, Best, Composition};
use veilgrad_events::{Adjacency, Delta, Rounds};
use veilgrad_ledger::{Ledger, Options};

use crate::Found;
use crate::scratch::{Directory, charged, create, released, round, text};

/// 32 processes charge single rounds until the budget is spent.
pub(crate) fn processes(quick: bool) -> Found {
    let (processes, granted) = if quick { (8, 40) } else { (32, 320) };
    let cost = |count: u64| -> Result<f64, String> {
        let rounds = [Rounds { count, round: round(0.01, 1.0)? }];
        let composition = Composition::fold(&rounds, Adjacency::AddRemove).map_err(text)?;
        let delta = Delta::new(1e-5).map_err(text)?;
        Ok(Best.epsilon(&composition, delta).map_err(text)?.epsilon)
    };
    // A budget between that many rounds and one more.
    let budget = 0.5 * (cost(granted)? + cost(granted + 1)?);
    let directory = Directory::new()?;
    drop(create(&directory.ledger(), budget)?);
    let program = std::env::current_exe().map_err(text)?;
    let mut children = Vec::new();
    for number in 0..processes {
        let child = Command::new(&program)
            .arg("charge")
            .arg(directory.ledger())
            .arg(directory.path().join(format!("out-{number}")))
            .args(["100000", "1"])
            .stderr(Stdio::inherit())
            .spawn()
            .map_err(text)?;
        children.push(child);
    }
    for mut child in children {
        let code = child.wait().map_err(text)?.code();
        if code != Some(3) {
            return Err(format!("a process ended with {code:?} instead of a spent budget"));
        }
    }
    let ledger = Ledger::read(&directory.ledger(), Options::default()).map_err(text)?;
    let sum: u64 =
        (0..processes).map(|n| released(&directory.path().join(format!("out-{n}")))).sum();
    if (charged(&ledger), sum) != (granted, granted) {
        return Err(format!("{sum} released, {} charged, {granted} allowed", charged(&ledger)));
    }
    println!("processes: {processes} at once, exactly {granted} rounds granted, chain valid");
    Ok(())
}
