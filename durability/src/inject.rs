//! Kills and fails a charging process at every system call that changes a file, by strace.

use std::path::Path;
use std::process::{Command, Stdio};

use veilgrad_ledger::{Ledger, Options};

use crate::Found;
use crate::scratch::{Directory, charged, create, released, text};

/// System calls that change files or make them durable.
const CALLS: [&str; 8] =
    ["write", "pwrite64", "fdatasync", "fsync", "ftruncate", "rename", "unlink", "openat"];
/// How much the victim does.
const ROUNDS: u64 = 96;
const BLOCK: u64 = 8;

/// Kills a run at every such call.
pub(crate) fn kill(quick: bool) -> Found {
    let points = points(quick)?;
    let (mut over, mut unfinished) = (0, 0);
    for (call, number) in &points {
        let directory = Directory::new()?;
        drop(create(&directory.ledger(), 1e3)?);
        let out = directory.path().join("out");
        let inject = format!("inject={call}:signal=KILL:when={number}");
        let code = victim(directory.path(), Some(&inject), ROUNDS)?;
        unfinished += u64::from(code != Some(0));
        let what = format!("killed at {call} number {number}");
        over = over.max(check(directory.path(), &what)?);
        goes_on(directory.path(), &what)?;
        if released(&out) < 1 {
            return Err(format!("{what}: the next run released nothing"));
        }
    }
    println!(
        "kill: {} points, {unfinished} runs cut short, 0 ledgers refused, 0 rounds released without a \
         charge, over-charge at most {over} rounds (a block is {BLOCK})",
        points.len()
    );
    Ok(())
}

/// Fails every such call with an error of the disk.
pub(crate) fn errors(quick: bool) -> Found {
    let points = points(quick)?;
    let (mut tried, mut failed) = (0, 0);
    for error in ["EIO", "ENOSPC"] {
        for (call, number) in &points {
            let directory = Directory::new()?;
            drop(create(&directory.ledger(), 1e3)?);
            let inject = format!("inject={call}:error={error}:when={number}");
            let code = victim(directory.path(), Some(&inject), ROUNDS)?;
            let what = format!("{error} at {call} number {number}");
            tried += 1;
            if code == Some(0) {
                // A call that did not matter: then everything must have been done.
                if released(&directory.path().join("out")) != ROUNDS {
                    return Err(format!("{what}: exit 0 without all releases"));
                }
            } else {
                failed += 1;
            }
            check(directory.path(), &what)?;
            goes_on(directory.path(), &what)?;
        }
    }
    println!(
        "errors: {tried} failing calls, {failed} runs ended with an error, {} where the call did not \
         matter, 0 rounds released without a charge, 0 ledgers damaged",
        tried - failed
    );
    Ok(())
}

/// Lets the disk fill up at every size.
pub(crate) fn full(quick: bool) -> Found {
    let step = if quick { 32 } else { 4 };
    let mut tried = 0;
    let mut cut_short = 0;
    for kilobytes in (48..=256).step_by(step) {
        let directory = Directory::new()?;
        let mount = directory.path().join("disk");
        std::fs::create_dir(&mount).map_err(text)?;
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={kilobytes}k"), "tmpfs"])
            .arg(&mount)
            .stderr(Stdio::null())
            .status();
        if !mounted.is_ok_and(|status| status.success()) {
            println!("full: skipped, because a small disk needs the right to mount one");
            return Ok(());
        }
        let outcome = fill(&mount);
        let unmounted = Command::new("umount").arg(&mount).status().map_err(text)?;
        if !unmounted.success() {
            return Err("could not unmount the small disk".to_owned());
        }
        tried += 1;
        cut_short += u64::from(outcome.map_err(|why| format!("{kilobytes} kB: {why}"))?);
    }
    println!(
        "full: {tried} sizes of disk, {cut_short} runs ended with an error, 0 rounds released without a \
         charge, 0 ledgers damaged"
    );
    Ok(())
}

/// Whether the disk was too small.
fn fill(mount: &Path) -> Result<bool, String> {
    // A disk too small for an empty ledger has nothing to lose.
    if create(&mount.join("ledger.db"), 1e3).is_err() {
        return Ok(true);
    }
    // Releases go elsewhere, so that only charges fail.
    let code = victim_at(mount, &mount.join("../out"), None, 4000)?;
    let ledger = Ledger::read(&mount.join("ledger.db"), Options::default()).map_err(text)?;
    let (charged, released) = (charged(&ledger), released(&mount.join("../out")));
    if released > charged {
        return Err(format!("{released} rounds released, {charged} charged"));
    }
    Ok(code != Some(0))
}

/// All (call, number) of an undisturbed run.
fn points(quick: bool) -> Result<Vec<(&'static str, u64)>, String> {
    let directory = Directory::new()?;
    drop(create(&directory.ledger(), 1e3)?);
    let log = directory.path().join("strace");
    let status = Command::new("strace")
        .args(["-f", "-qq", "-e", &format!("trace={}", CALLS.join(",")), "-o"])
        .arg(&log)
        .args(charge_command(&directory.ledger(), &directory.path().join("out"), ROUNDS)?)
        .status()
        .map_err(|error| format!("strace: {error}"))?;
    if !status.success() {
        return Err("an undisturbed run failed".to_owned());
    }
    let log = std::fs::read_to_string(&log).map_err(text)?;
    let mut points = Vec::new();
    for call in CALLS {
        let name = format!(" {call}(");
        let count = log.lines().filter(|line| line.contains(&name)).count() as u64;
        let stride = if quick { 17 } else { 1 };
        points.extend((1..=count).step_by(stride).map(|number| (call, number)));
    }
    Ok(points)
}

fn charge_command(ledger: &Path, out: &Path, rounds: u64) -> Result<Vec<String>, String> {
    let program = std::env::current_exe().map_err(text)?;
    Ok(vec![
        program.display().to_string(),
        "charge".to_owned(),
        ledger.display().to_string(),
        out.display().to_string(),
        rounds.to_string(),
        BLOCK.to_string(),
    ])
}

fn victim(directory: &Path, inject: Option<&str>, rounds: u64) -> Result<Option<i32>, String> {
    victim_at(directory, &directory.join("out"), inject, rounds)
}

fn victim_at(
    directory: &Path,
    out: &Path,
    inject: Option<&str>,
    rounds: u64,
) -> Result<Option<i32>, String> {
    let charge = charge_command(&directory.join("ledger.db"), out, rounds)?;
    let mut command = match inject {
        Some(inject) => {
            let mut command = Command::new("strace");
            let call = inject.split(['=', ':']).nth(1).unwrap_or_default();
            command.args(["-f", "-qq", "-o", "/dev/null", "-e", &format!("trace={call}"), "-e"]);
            command.arg(inject);
            command
        }
        None => {
            let mut command = Command::new("env");
            command.arg("--");
            command
        }
    };
    let status = command.args(charge).stderr(Stdio::null()).status().map_err(text)?;
    Ok(status.code())
}

/// The ledger verifies and holds a charge for every release; returns how many more it holds.
fn check(directory: &Path, what: &str) -> Result<u64, String> {
    let ledger = Ledger::read(&directory.join("ledger.db"), Options::default())
        .map_err(|error| format!("{what}: {error}"))?;
    let (charged, released) = (charged(&ledger), released(&directory.join("out")));
    match charged.checked_sub(released) {
        Some(over) if over <= BLOCK => Ok(over),
        _ => Err(format!("{what}: {released} rounds released, {charged} charged")),
    }
}

/// The next run charges and releases as if nothing had happened.
fn goes_on(directory: &Path, what: &str) -> Found {
    let before =
        charged(&Ledger::read(&directory.join("ledger.db"), Options::default()).map_err(text)?);
    let code = victim(directory, None, BLOCK)?;
    let after =
        charged(&Ledger::read(&directory.join("ledger.db"), Options::default()).map_err(text)?);
    if code != Some(0) || after != before + BLOCK {
        return Err(format!(
            "{what}: the next run ended with {code:?}, {before} then {after} charged"
        ));
    }
    Ok(())
}
