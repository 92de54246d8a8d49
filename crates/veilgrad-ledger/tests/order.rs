//! A charge is on disk before its permit exists, checked in the trace of system calls.

mod common;

use std::path::PathBuf;
use std::process::Command;

use common::{Directory, create, round, run};

/// The environment variable with the directory of the traced process.
const TRACED_DIRECTORY: &str = "VEILGRAD_TRACED";

/// Charges one round, then writes a file in place of a release.
fn charge_and_release(directory: PathBuf) {
    let mut run = run(create(&directory.join("ledger.db"), 8.0));
    run.reserve(&round(0.01, 1.0), 1).unwrap();
    std::fs::write(directory.join("released"), "x").unwrap();
}

/// `cargo run -p veilgrad-durability -- order` traces long runs, several threads and killed processes.
#[test]
fn the_anchor_is_synced_between_a_charge_and_its_release() {
    if let Some(directory) = std::env::var_os(TRACED_DIRECTORY) {
        return charge_and_release(directory.into());
    }
    let directory = Directory::new();
    let log = directory.path().join("trace");
    let status = Command::new("strace")
        .args(["-f", "-y", "-e", "trace=write,pwrite64,fsync,fdatasync", "-o"])
        .arg(&log)
        .arg(std::env::current_exe().unwrap())
        .env(TRACED_DIRECTORY, directory.path())
        .output();
    let trace = std::fs::read_to_string(&log).unwrap_or_default();
    if status.is_err() || trace.is_empty() {
        // strace is missing or may not trace.
        assert!(std::env::var_os("CI").is_none(), "strace is missing");
        return;
    }
    let lines: Vec<&str> = trace.lines().collect();
    let last = |calls: [&str; 2], file: &str| {
        let matches = |line: &&str| line.contains(file) && calls.iter().any(|c| line.contains(c));
        lines.iter().rposition(matches).unwrap_or_else(|| panic!("no {calls:?} of {file}: {trace}"))
    };
    let charged = last(["write(", "pwrite64("], "ledger.db.anchor>");
    let synced = last(["fsync(", "fdatasync("], "ledger.db.anchor>");
    let released = last(["write(", "pwrite64("], "/released>");
    assert!(charged < synced && synced < released, "{charged} {synced} {released}: {trace}");
    assert!(lines[synced].ends_with("= 0"), "{}", lines[synced]);
}
