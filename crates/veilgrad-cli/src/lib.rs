//! The `veilgrad` command.
//!
//! Data goes to stdout, everything else to stderr. Exit codes: 0 ok, 1 failure, 2 usage, 3 budget would
//! be exceeded, 4 ledger refused or damaged, 5 data file malformed as a whole, 6 ledger busy, 7 no answer,
//! 8 an audit contradicts the claim, 130 interrupted.
//!
//! This is a library so that tests reach its readers, in [`input`], without a process for each input. It promises no
//! stable interface: the command is the interface.

mod account;
mod answer;
mod argument;
mod audit;
mod budget;
mod check;
mod claim;
mod error;
mod example;
pub mod input;
mod ledger;
mod ledger_place;
mod manual;
mod output;
mod path;
mod plan;
mod predict;
mod report;
mod train;

use std::process::ExitCode;

use clap::Parser;

use argument::{Arguments, Command};

/// Does what the command line asks for.
#[must_use]
pub fn main() -> ExitCode {
    let arguments = Arguments::parse();
    keep_no_core();
    let outcome = match &arguments.command {
        Command::Train(train) => train::run(&train.config, &train.run, None, &arguments.common),
        Command::Finish(finish) => train::finish::run(finish, &arguments.common),
        Command::Audit(audit) => audit::run(audit, &arguments.common),
        Command::Check(check) => check::run(check, &arguments.common),
        Command::Predict(predict) => predict::run(predict, &arguments.common),
        Command::Report(report) => report::run(report, &arguments.common),
        Command::Statement(of) => report::say(of, &arguments.common),
        Command::Plan(plan) => plan::run(plan, &arguments.common),
        Command::Account(account) => account::run(account, &arguments.common),
        Command::Budget(budget) => budget::run(budget, &arguments.common),
        Command::Ledger(ledger) => ledger::run(ledger, &arguments.common),
        Command::Completions(completions) => manual::completions(completions.shell),
        Command::Man(man) => manual::page(&man.command),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            output::say(&format!("error: {error}\n"));
            error.exit_code()
        }
    }
}

/// A process that crashes must not leave its memory, and with it records, in a file.
fn keep_no_core() {
    use rustix::process::{Resource, Rlimit, setrlimit};
    // Lowering a limit is always allowed.
    let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
}
