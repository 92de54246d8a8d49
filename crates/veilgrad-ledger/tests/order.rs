//! A charge is on disk before its permit exists, as the kernel sees it.

mod common;

use std::path::PathBuf;
use std::process::Command;

use common::{Directory, create, round, run};

/// Names the directory in which the traced process charges.
const PLACE: &str = "VEILGRAD_TRACED";

/// Charges once and writes what a permit allows to be released.
fn charge_and_release(place: PathBuf) {
    let mut run = run(create(&place.join("ledger.db"), 8.0));
    run.reserve(&round(0.01, 1.0), 1).unwrap();
    std::fs::write(place.join("released"), "x").unwrap();
}

/// `cargo run -p veilgrad-durability -- order` watches long runs, several threads and processes that were killed.
#[test]
fn the_anchor_is_synced_between_a_charge_and_its_release() {
    if let Some(place) = std::env::var_os(PLACE) {
        return charge_and_release(place.into());
    }
    let directory = Directory::new();
    let log = directory.path().join("trace");
    let status = Command::new("strace")
        .args(["-f", "-y", "-e", "trace=write,pwrite64,fsync,fdatasync", "-o"])
        .arg(&log)
        .arg(std::env::current_exe().unwrap())
        .env(PLACE, directory.path())
        .output();
    let trace = std::fs::read_to_string(&log).unwrap_or_default();
    if status.is_err() || trace.is_empty() {
        // Without the tool, or the right to trace, there is nothing to see.
        assert!(std::env::var_os("CI").is_none(), "strace is missing");
        return;
    }
    let lines: Vec<&str> = trace.lines().collect();
    let last = |calls: [&str; 2], file: &str| {
        let wanted = |line: &&str| line.contains(file) && calls.iter().any(|c| line.contains(c));
        lines.iter().rposition(wanted).unwrap_or_else(|| panic!("no {calls:?} of {file}: {trace}"))
    };
    let charged = last(["write(", "pwrite64("], "ledger.db.anchor>");
    let synced = last(["fsync(", "fdatasync("], "ledger.db.anchor>");
    let released = last(["write(", "pwrite64("], "/released>");
    assert!(charged < synced && synced < released, "{charged} {synced} {released}: {trace}");
    assert!(lines[synced].ends_with("= 0"), "{}", lines[synced]);
}
