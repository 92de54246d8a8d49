//! Durability tests of the ledger: `veilgrad-durability [kill|errors|order|full|read-only|
//! power|corruption|walk|processes|holds|load|rate|all] [--quick]`. Each sweep tries to make the ledger lose a charge
//! and prints what it tried. The exit code is 1 if any sweep fails. With the feature `postgres` there are sweeps of
//! ledgers on a PostgreSQL server, which they start: `postgres` is all of them, postgres-[plans|chargers|clients|server|cuts|rate]
//! is one.
#![allow(clippy::print_stdout)]

mod charge;
mod corruption;
mod crowd;
mod disk;
mod holds;
mod inject;
mod load;
mod order;
#[cfg(feature = "postgres")]
mod postgres;
mod power;
#[cfg(feature = "postgres")]
mod proxy;
mod scratch;
#[cfg(feature = "postgres")]
mod server;
mod walk;

use std::process::ExitCode;

use scratch::Found;

/// The name of a sweep, and what it does.
type Sweep = (&'static str, &'static dyn Fn(bool) -> Found);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let quick = arguments.iter().any(|argument| argument == "--quick");
    let words: Vec<&str> =
        arguments.iter().map(String::as_str).filter(|word| !word.starts_with("--")).collect();
    // A child process of a sweep: runs until it is done or killed.
    match words.as_slice() {
        ["charge", ledger, out, rounds, block] => return charge::run(ledger, out, rounds, block),
        ["charge-in-bursts", ledger, out, rounds, block] => {
            return charge::bursts(ledger, out, rounds, block);
        }
        ["create", ledger, out, rounds, block] => {
            return charge::create(ledger, out, rounds, block);
        }
        ["plan", ledger, begun, how] => return holds::run(ledger, begun, how),
        ["import", ledger, export] => return charge::import(ledger, export),
        _ => {}
    }
    let files: [Sweep; 12] = [
        ("kill", &inject::kill),
        ("errors", &inject::errors),
        ("order", &order::sweep),
        ("full", &disk::full),
        ("read-only", &disk::read_only),
        ("power", &power::sweep),
        ("corruption", &corruption::sweep),
        ("walk", &walk::sweep),
        ("processes", &crowd::processes),
        ("holds", &holds::sweep),
        ("load", &load::load),
        ("rate", &load::rate),
    ];
    #[cfg(feature = "postgres")]
    let servers: [Sweep; 6] = [
        // First: the others leave the disk busy.
        ("postgres-rate", &postgres::rate),
        ("postgres-plans", &postgres::plans),
        ("postgres-chargers", &postgres::chargers),
        ("postgres-clients", &postgres::clients),
        ("postgres-server", &postgres::server),
        ("postgres-cuts", &postgres::cuts),
    ];
    #[cfg(not(feature = "postgres"))]
    let servers: [Sweep; 0] = [];
    let sweeps: Vec<Sweep> = files.into_iter().chain(servers).collect();
    let names: Vec<&str> = sweeps.iter().map(|(name, _)| *name).collect();
    let is_known = |argument: &String| {
        ["--quick", "all", "postgres"].contains(&argument.as_str())
            || names.contains(&argument.as_str())
    };
    if let Some(unknown) = arguments.iter().find(|argument| !is_known(argument)) {
        println!(
            "{unknown}: not a sweep\nusage: veilgrad-durability [--quick] [all|{}]...",
            names.join("|")
        );
        return ExitCode::from(2);
    }
    let mut all_passed = true;
    for (name, sweep) in sweeps {
        let on_server = name.starts_with("postgres-") && words.contains(&"postgres");
        let chosen =
            words.is_empty() || words.contains(&"all") || words.contains(&name) || on_server;
        if chosen && let Err(error) = sweep(quick) {
            println!("{name}: FAILED: {error}");
            all_passed = false;
        }
    }
    if all_passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
