//! The `veilgrad` command.
//!
//! Data goes to stdout, everything else to stderr. Exit codes: 0 ok, 1 failure, 2 usage, 3 budget would
//! be exceeded, 4 ledger refused or damaged, 5 data invalid, 130 interrupted.

mod account;
mod answer;
mod argument;
mod budget;
mod error;
mod html;
mod ledger;
mod output;
mod plan;
mod predict;
mod report;
mod train;

use std::process::ExitCode;

use clap::Parser;

use argument::{Arguments, Command};

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let outcome = match &arguments.command {
        Command::Train(train) => train::run(train, &arguments.common),
        Command::Predict(predict) => predict::run(predict, &arguments.common),
        Command::Report(report) => report::run(report),
        Command::Statement(of) => report::say(&of.run),
        Command::Plan(plan) => plan::run(plan, &arguments.common),
        Command::Account(account) => account::run(account, &arguments.common),
        Command::Budget(budget) => budget::run(budget, &arguments.common),
        Command::Ledger(ledger) => ledger::run(ledger, &arguments.common),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            error.exit_code()
        }
    }
}
