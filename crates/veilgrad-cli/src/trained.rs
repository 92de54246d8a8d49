//! Trained models and reports, for bindings to other languages.

use std::ffi::OsString;
use std::path::Path;

use clap::Parser;
use veilgrad_nn::{Model, Whitening};

use crate::argument::{Arguments, Command};
use crate::report::{self, page};
use crate::train::config::Declaration;
use crate::train::inputs::{self, Inputs};
use crate::train::model_file::{self, ModelFile};

/// A trained model with the declaration of its data.
pub struct Trained {
    model: Model,
    whitening: Option<Whitening>,
    declaration: Declaration,
}

impl Trained {
    /// Reads a `model.safetensors`, which may be untrusted.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn read(path: &Path) -> Result<Self, String> {
        let ModelFile { model, whitening, declaration, .. } =
            model_file::read(path).map_err(|error| error.to_string())?;
        Ok(Self { model, whitening, declaration })
    }

    /// The model with its parameters.
    #[must_use]
    pub const fn model(&self) -> &Model {
        &self.model
    }

    /// The names of its classes; none if the label is a number.
    #[must_use]
    pub fn classes(&self) -> Vec<String> {
        self.declaration.classes.names()
    }

    /// The declaration of its data, as JSON.
    ///
    /// # Errors
    /// None in practice.
    pub fn declaration(&self) -> Result<String, String> {
        serde_json::to_string(&self.declaration).map_err(|error| error.to_string())
    }

    /// The outputs for a batch of examples: one number per class, example after example; for a label that is a number, that
    /// number, scaled so that its bounds are -1 and 1. Arrays have the declared shape and
    /// are not scaled yet; rows of tables are already encoded. NaN for an example that is not finite.
    ///
    /// # Errors
    /// When the length is not a multiple of the size of an example.
    pub fn outputs(&self, values: Vec<f32>, threads: usize) -> Result<Vec<f32>, String> {
        let text = |error: crate::error::Error| error.to_string();
        let width: usize = inputs::shape(&self.declaration).map_err(text)?.iter().product();
        let (given, is_table) = match &self.declaration.shape {
            Some(shape) if self.declaration.columns.is_empty() => (shape.iter().product(), false),
            _ => (width, true),
        };
        let given: usize = given;
        if given == 0 || !values.len().is_multiple_of(given) {
            return Err(format!("an example has {given} numbers"));
        }
        let mut scaled = values;
        if !is_table {
            inputs::scale(&self.declaration, &mut scaled).map_err(text)?;
        }
        let inputs = Inputs::new(&self.declaration).map_err(text)?;
        Ok(inputs.outputs(&scaled, &self.model, self.whitening.as_ref(), threads))
    }
}

/// The report of a run's directory or of a ledger: as JSON, as an HTML page, and its statement.
///
/// # Errors
/// The error text of the command when there is no report.
pub fn report(run: &Path, dataset: Option<&str>) -> Result<(String, String, String), String> {
    let mut words: Vec<OsString> = vec!["veilgrad".into(), "report".into(), run.into()];
    words.extend(dataset.into_iter().flat_map(|name| ["--dataset".into(), name.into()]));
    let Arguments { common, command } =
        Arguments::try_parse_from(words).map_err(|error| error.to_string())?;
    let Command::Report(arguments) = command else { return Err("no report".to_owned()) };
    let text = |error: crate::error::Error| error.to_string();
    let report = report::read(&arguments.of, &common).map_err(text)?;
    let json = report.json().map_err(text)?.to_string();
    Ok((json, page::page(&report), report.statement))
}
