//! Reads what people and files hand to the command and does nothing else with it: for tests with arbitrary input.
//!
//! Each function takes the path that the command takes, without its output.

use std::ffi::OsString;
use std::path::Path;

use clap::Parser;
use veilgrad_nn::Model;

use crate::argument::{Arguments, Command};
use crate::report::{Report, page};
use crate::train::config::Config;
use crate::train::job::Job;
use crate::train::{build, model_file};

/// Reads the words of a command line, the program's name first.
///
/// # Errors
/// What the command prints when it does not understand them; also the text that `--help` asks for.
pub fn arguments(words: &[OsString]) -> Result<(), String> {
    parse(words).map(|_| ())
}

/// The epsilon that `veilgrad plan` finds; none for other commands.
///
/// # Errors
/// What the command prints when there is no answer.
pub fn plan(words: &[OsString]) -> Result<Option<f64>, String> {
    match parse(words)?.command {
        Command::Plan(plan) => crate::plan::epsilon(&plan).map(Some),
        _ => Ok(None),
    }
}

fn parse(words: &[OsString]) -> Result<Arguments, String> {
    Arguments::try_parse_from(words).map_err(|error| error.to_string())
}

/// Reads the configuration of a run, and writes it as it is understood.
///
/// # Errors
/// What is wrong with it.
pub fn configuration(text: &str) -> Result<String, String> {
    let config = Config::parse(text)?;
    config.fingerprint()?;
    toml::to_string(&config).map_err(|error| error.to_string())
}

/// Plans the run of a configuration, if its model has at most so many parameters. Returns what the configuration
/// allows, if it says that, and what the run would cost.
///
/// # Errors
/// What is wrong with it, or that the model is larger.
pub fn job(text: &str, most_parameters: u64) -> Result<(Option<f64>, f64), String> {
    let config = Config::parse(text)?;
    let parameters = build::most_parameters(&config.declaration());
    if parameters.map_err(|error| error.to_string())? > u128::from(most_parameters) {
        return Err("the model is larger than this test wants".to_owned());
    }
    let allowed = config.privacy.epsilon;
    let job = Job::new(config, Some(1)).map_err(|error| error.to_string())?;
    Ok((allowed, job.guarantee.epsilon))
}

/// Reads the file of a trained model, as `veilgrad predict` does.
///
/// # Errors
/// What is wrong with it.
pub fn model(path: &Path) -> Result<Model, String> {
    model_file::read(path).map(|(model, _)| model).map_err(|error| error.to_string())
}

/// Reads a stored report, and makes its page.
///
/// # Errors
/// What is wrong with it.
pub fn report(bytes: &[u8]) -> Result<String, String> {
    let report: Report = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    Ok(page::page(&report))
}
