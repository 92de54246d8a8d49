//! The file of a trained model: written by `train` and `finish`, read by `predict`.

use std::path::Path;

use serde::{Deserialize, Serialize};
use veilgrad_nn::Model;

use super::build;
use super::config::Declaration;
use crate::error::Error;
use crate::report::{Head, Report};

/// What stands beside the parameters: declarations, and where to check the promise.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Description {
    schema: u32,
    insecure: bool,
    /// Whether canaries were beside the records that it was trained on.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    audit: bool,
    ledger: Head,
    declaration: Declaration,
}

/// Parameters, the declaration of data and model that they belong to, and the ledger's head: nothing else,
/// and no paths, names of machines or times.
pub(crate) fn write(
    model: &Model,
    declaration: Declaration,
    report: &Report,
) -> Result<Vec<u8>, Error> {
    let (insecure, ledger) = (report.insecure, report.ledger.head.clone());
    let audit = report.audit.is_some();
    let description = Description { schema: 1, insecure, audit, ledger, declaration };
    let description = serde_json::to_string(&description).map_err(Error::failure)?;
    model.to_safetensors_with(description).map_err(Error::failure)
}

/// A model with what it needs to know about its data. The file may come from anybody.
pub(crate) fn read(path: &Path) -> Result<(Model, Declaration), Error> {
    let name = path.display().to_string();
    let bytes = std::fs::read(path).map_err(|cause| Error::File { path: name.clone(), cause })?;
    let wrong = |cause: String| Error::Data { path: name.clone(), cause };
    let description = Model::text_of(&bytes).map_err(|error| wrong(error.to_string()))?;
    let description =
        description.ok_or_else(|| wrong("is not a model that this program trained".to_owned()))?;
    let Description { schema, declaration, .. } =
        serde_json::from_str(&description).map_err(|error| wrong(error.to_string()))?;
    if schema != 1 {
        return Err(wrong(format!("has schema {schema}, and this version understands schema 1")));
    }
    declaration.check().map_err(wrong)?;
    // Before memory is allocated for what it declares.
    if build::most_parameters(&declaration)?.saturating_mul(4) > 64 * bytes.len() as u128 + 4096 {
        return Err(wrong("is too short for the model that it declares".to_owned()));
    }
    let mut model = build::model(&declaration)?;
    model.load_safetensors(&bytes).map_err(|error| wrong(error.to_string()))?;
    Ok((model, declaration))
}
