//! The model file: written by `train` and `finish`, read by `predict`, `evaluate` and `export`. docs/model-format.md
//! describes it.

use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use veilgrad_nn::{Model, Whitening};

use super::build;
use super::config::Declaration;
use super::{inputs, network, network_description};
use crate::error::Error;
use crate::report::{Head, Report};

/// The metadata of a model file: declarations, and the ledger with which to check the guarantee.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Description {
    schema: u32,
    insecure: bool,
    /// Whether the run was an audit with canaries.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    audit: bool,
    ledger: Head,
    declaration: Declaration,
    /// What the model computes, for other programs. Files of the first version have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    network: Option<Value>,
}

/// The bytes of a model file: parameters, whitening, declaration and the ledger's head. No paths, machine names or times.
pub(crate) fn write(
    model: &Model,
    whitening: Option<&Whitening>,
    declaration: Declaration,
    report: &Report,
) -> Result<Vec<u8>, Error> {
    let (insecure, ledger) = (report.insecure, report.ledger.head.clone());
    let audit = report.audit.is_some();
    let network = Some(network_description::describe(&declaration, model)?);
    let description = Description { schema: 1, insecure, audit, ledger, declaration, network };
    let description = serde_json::to_string(&description).map_err(Error::failure)?;
    match whitening {
        None => model.to_safetensors_with(description),
        Some(whitening) => model.to_safetensors_preconditioned(description, whitening),
    }
    .map_err(Error::failure)
}

/// What a model file holds.
pub(crate) struct ModelFile {
    pub(crate) model: Model,
    /// The whitening of inputs, if the model was trained on whitened ones.
    pub(crate) whitening: Option<Whitening>,
    pub(crate) declaration: Declaration,
    /// The text in its metadata, as JSON.
    pub(crate) description: String,
}

/// The private training that a model file says it comes from.
pub(crate) struct Origin {
    pub(crate) insecure: bool,
    /// Whether its inputs were whitened.
    pub(crate) whitened: bool,
    pub(crate) ledger: Head,
}

/// Where the parameters of an untrusted file come from; `None` if this program did not write it.
pub(crate) fn origin(name: &str, bytes: &[u8]) -> Result<Option<Origin>, Error> {
    let data_error = |cause: String| Error::Data { path: name.to_owned(), cause };
    let text = Model::text_of(bytes).map_err(|error| data_error(error.to_string()))?;
    let Some(text) = text else { return Ok(None) };
    let Description { insecure, ledger, declaration, .. } =
        serde_json::from_str(&text).map_err(|error| data_error(error.to_string()))?;
    Ok(Some(Origin { insecure, whitened: declaration.precondition.is_some(), ledger }))
}

/// Reads an untrusted file.
pub(crate) fn read(path: &Path) -> Result<ModelFile, Error> {
    let name = path.display().to_string();
    let bytes = std::fs::read(path).map_err(|cause| Error::File { path: name.clone(), cause })?;
    let data_error = |cause: String| Error::Data { path: name.clone(), cause };
    let description = Model::text_of(&bytes).map_err(|error| data_error(error.to_string()))?;
    let description = description
        .ok_or_else(|| data_error("is not a model that this program trained".to_owned()))?;
    let Description { schema, declaration, network, .. } =
        serde_json::from_str(&description).map_err(|error| data_error(error.to_string()))?;
    if schema != 1 {
        return Err(data_error(format!(
            "has schema {schema}, and this version understands schema 1"
        )));
    }
    declaration.check().map_err(data_error)?;
    // Before memory is allocated for the declared model.
    if network::most_parameters(&declaration)?.saturating_mul(4) > 64 * bytes.len() as u128 + 4096 {
        return Err(data_error("is too short for the model that it declares".to_owned()));
    }
    let mut model = build::model(&declaration)?;
    if let Some(network) = network {
        if network["version"] != network_description::VERSION {
            return Err(data_error(format!(
                "describes its network in version {}, and this version understands version {}",
                network["version"],
                network_description::VERSION
            )));
        }
        if !network_description::describes(&network, &model) {
            return Err(data_error("describes another network than it declares".to_owned()));
        }
    }
    let whitening =
        model.load_preconditioned(&bytes).map_err(|error| data_error(error.to_string()))?;
    let width: usize = inputs::shape(&declaration)?.iter().product();
    let found = whitening.as_ref().map(|found| (found.width(), found.directions()));
    if found != declaration.precondition.map(|directions| (width, directions)) {
        return Err(data_error("has another whitening of inputs than it declares".to_owned()));
    }
    Ok(ModelFile { model, whitening, declaration, description })
}
