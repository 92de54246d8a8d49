//! The `veilgrad` command.
//!
//! Data goes to stdout, everything else to stderr. Exit codes: 0 ok, 1 failure, 2 usage, 3 budget would
//! be exceeded, 4 ledger refused or damaged, 5 data file malformed as a whole, 6 ledger busy, 7 no answer,
//! 8 an audit contradicts the claim, 130 interrupted.
//!
//! This is a library so that tests can call its parsers, in [`input`], without starting a process for each input, and so
//! that bindings for other languages can [`run`] commands in their own process. Its interface is not stable: use the
//! command.

mod account;
mod adjust;
mod advice;
mod answer;
mod argument;
mod audit;
mod budget;
mod check;
mod claim;
mod compare;
mod error;
mod evaluate;
mod example;
mod export;
mod hash;
mod init;
pub mod input;
mod ledger;
mod ledger_place;
mod manual;
mod output;
mod path;
mod plan;
mod predict;
mod prediction;
mod problem;
mod report;
mod serve;
mod team;
mod train;
mod trained;
mod watch;

use std::ffi::OsString;
use std::fmt;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;
use veilgrad_ledger::without_passwords;

use argument::{Arguments, Command};
pub use claim::of as claim;
pub use team::{Follower, Leader, Order};
pub use trained::{Trained, report};
pub use watch::Watch;

/// Runs the command of this process's arguments and returns its exit code.
#[must_use]
pub fn main() -> ExitCode {
    ExitCode::from(run_and_print(std::env::args_os().collect(), None))
}

/// Runs `train` from its arguments, the program's name first, as the process with the ledger of a job with several
/// processes. Returns its exit code.
#[must_use]
pub fn lead(words: Vec<OsString>, leader: Box<dyn Leader>) -> u8 {
    run_and_print(words, Some(leader))
}

/// Adds up records for the process that calls [`lead`], until it ends the job.
///
/// # Errors
/// When the data cannot be read, does not fit, or the leader cannot be reached.
pub fn follow(follower: &mut dyn Follower) -> Result<(), Failure> {
    disable_core_dumps();
    train::follow::follow(follower).map_err(|error| Failure(Cause::Command(error)))
}

/// Runs a command and prints why it failed. Returns its exit code.
fn run_and_print(words: Vec<OsString>, leader: Option<Box<dyn Leader>>) -> u8 {
    let json = words.iter().take_while(|word| *word != "--").any(|word| word == "--json");
    match run_with(words, None, leader) {
        Ok(()) => 0,
        Err(failure) => {
            if json && failure.code() != 0 && !output::is_written() {
                // An error while printing an error leaves nothing to do.
                let _ = output::print_json(&failure.document());
            }
            failure.print();
            failure.code()
        }
    }
}

/// Why a command failed.
pub struct Failure(Cause);

enum Cause {
    /// The arguments are not valid, or ask for help, whose exit code is 0.
    Arguments(clap::Error),
    Command(error::Error),
}

impl Failure {
    /// The exit code of the command.
    #[must_use]
    pub fn code(&self) -> u8 {
        match &self.0 {
            Cause::Arguments(error) => u8::try_from(error.exit_code()).unwrap_or(1),
            Cause::Command(error) => error.code(),
        }
    }

    /// The error for programs: what `--json` prints if the command has printed nothing else.
    fn document(&self) -> serde_json::Value {
        let (error, reason) = match &self.0 {
            Cause::Arguments(error) => ("usage", error::of_arguments(error)),
            Cause::Command(error) => (error.name(), error.to_string()),
        };
        let reason = without_passwords(&reason);
        let code = self.code();
        serde_json::json!({
            "schema": 1, "valid": false, "error": error, "reason": reason, "exit_code": code,
        })
    }

    /// Prints what the command prints: help to stdout, errors to stderr.
    pub fn print(&self) {
        match &self.0 {
            // Its text would repeat an address in the wrong place, with its password.
            Cause::Arguments(error)
                if error.use_stderr() && self.to_string() != error.to_string() =>
            {
                output::say(&self.to_string());
            }
            Cause::Arguments(error) => drop(error.print()),
            Cause::Command(_) => output::say(&format!("error: {self}\n")),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Cause::Arguments(error) => without_passwords(&error.to_string()).fmt(f),
            Cause::Command(error) => without_passwords(&error.to_string()).fmt(f),
        }
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Failure({self})")
    }
}

impl std::error::Error for Failure {}

/// Runs a command from its arguments, the program's name first. With a [`Watch`], training installs no signal handlers and
/// prints no result.
///
/// # Errors
/// When the command fails, and with the help text for `--help`.
pub fn run(
    words: impl IntoIterator<Item = OsString>,
    watch: Option<Arc<Watch>>,
) -> Result<(), Failure> {
    run_with(words, watch, None)
}

fn run_with(
    words: impl IntoIterator<Item = OsString>,
    watch: Option<Arc<Watch>>,
    leader: Option<Box<dyn Leader>>,
) -> Result<(), Failure> {
    let parsed = Arguments::try_parse_from(words);
    let mut arguments = parsed.map_err(|error| Failure(Cause::Arguments(error)))?;
    arguments.common.watch = watch;
    disable_core_dumps();
    let outcome = match &arguments.command {
        Command::Init(init) => init::run(init, &arguments.common),
        Command::Train(train) => {
            train::run(&train.config, &train.run, None, leader, &arguments.common)
        }
        _ if leader.is_some() => Err(error::Error::usage("only train runs on several processes")),
        Command::Tune(tune) => train::tune::run(tune, &arguments.common),
        Command::Finish(finish) => train::finish::run(finish, &arguments.common),
        Command::Audit(audit) => audit::run(audit, &arguments.common),
        Command::Check(check) => check::run(check, &arguments.common),
        Command::Predict(predict) => predict::run(predict, &arguments.common),
        Command::Evaluate(evaluate) => evaluate::run(evaluate, &arguments.common),
        Command::Export(export) => export::run(export, &arguments.common),
        Command::Compare(compare) => compare::run(compare, &arguments.common),
        Command::Report(report) => report::run(report, &arguments.common),
        Command::Serve(serve) => serve::run(serve, &arguments.common),
        Command::Statement(of) => report::say(of, &arguments.common),
        Command::Plan(plan) => plan::run(plan, &arguments.common),
        Command::Account(account) => account::run(account, &arguments.common),
        Command::Budget(budget) => budget::run(budget, &arguments.common),
        Command::Ledger(ledger) => ledger::run(ledger, &arguments.common),
        Command::Completions(completions) => manual::completions(completions.shell),
        Command::Man(man) => manual::page(&man.command),
    };
    outcome.map_err(|error| Failure(Cause::Command(error)))
}

/// Disables core dumps: a crash must not write private records to a file.
fn disable_core_dumps() {
    use rustix::process::{Resource, Rlimit, setrlimit};
    // Lowering a limit is always allowed.
    let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
}
