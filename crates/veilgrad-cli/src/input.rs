//! The parsers of the command without its effects, for fuzzing.
//!
//! Each function follows the code path of the command, without its output.

use std::ffi::OsString;
use std::path::Path;

use clap::Parser;
use veilgrad_nn::Model;

use crate::argument::{Arguments, Command};
use crate::report::{Report, page};
use crate::train::config::Config;
use crate::train::job::Job;
use crate::train::{model_file, network};

/// Parses a command line, the program's name first.
///
/// # Errors
/// The error text of the command, or its help text for `--help`.
pub fn arguments(words: &[OsString]) -> Result<(), String> {
    parse(words).map(|_| ())
}

/// The epsilon that `veilgrad plan` finds; `None` for other commands.
///
/// # Errors
/// The error text of the command when there is no answer.
pub fn plan(words: &[OsString]) -> Result<Option<f64>, String> {
    match parse(words)?.command {
        Command::Plan(plan) => crate::plan::epsilon(&plan).map(Some),
        _ => Ok(None),
    }
}

fn parse(words: &[OsString]) -> Result<Arguments, String> {
    Arguments::try_parse_from(words).map_err(|error| error.to_string())
}

/// Parses the configuration of a run, and writes the result as TOML.
///
/// # Errors
/// What is wrong with it.
pub fn configuration(text: &str) -> Result<String, String> {
    let config = Config::parse(text)?;
    config.fingerprint()?;
    toml::to_string(&config).map_err(|error| error.to_string())
}

/// Plans the run of a configuration, if its model has at most `most_parameters`. Returns the target epsilon of the
/// configuration, if it has one, and the epsilon of the run.
///
/// # Errors
/// What is wrong with it, or that the model is larger.
pub fn job(text: &str, most_parameters: u64) -> Result<(Option<f64>, f64), String> {
    let config = Config::parse(text)?;
    let parameters = network::most_parameters(&config.declaration());
    if parameters.map_err(|error| error.to_string())? > u128::from(most_parameters) {
        return Err("the model has more parameters than this test allows".to_owned());
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
    model_file::read(path).map(|file| file.model).map_err(|error| error.to_string())
}

/// Parses a stored report, and makes its HTML page.
///
/// # Errors
/// What is wrong with it.
pub fn report(bytes: &[u8]) -> Result<String, String> {
    let report: Report = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    Ok(page::page(&report))
}
