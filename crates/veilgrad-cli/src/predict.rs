//! `veilgrad predict`: a trained model on new data. And the file that holds one.

use std::collections::HashMap;
use std::path::Path;

use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use serde::{Deserialize, Serialize};
use serde_json::json;
use veilgrad_nn::{Model, Records, public};

use crate::argument::{Common, Predict};
use crate::error::Error;
use crate::output::{csv_cell, print};
use crate::report::{Head, Report};
use crate::train::config::Declaration;
use crate::train::{build, data};

/// Under which the declared, public description of a model stands in its file.
const DESCRIPTION: &str = "veilgrad";

/// What stands beside the parameters: declarations, and where to check the promise.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Description {
    schema: u32,
    insecure: bool,
    ledger: Head,
    declaration: Declaration,
}

fn failure(error: impl std::fmt::Display) -> Error {
    Error::Failure(error.to_string())
}

/// Parameters, the declaration of data and model that they belong to, and the ledger's head: nothing else,
/// and no paths, names of machines or times.
pub(crate) fn model_file(
    model: &Model,
    declaration: Declaration,
    report: &Report,
) -> Result<Vec<u8>, Error> {
    let arrays: Vec<(String, Vec<usize>, Vec<u8>)> = model
        .parameters()
        .map(|(name, shape, values)| {
            let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            (name.to_owned(), shape.to_vec(), bytes)
        })
        .collect();
    let mut views = Vec::new();
    for (name, shape, bytes) in &arrays {
        let view = TensorView::new(Dtype::F32, shape.clone(), bytes).map_err(failure)?;
        views.push((name.as_str(), view));
    }
    let (insecure, ledger) = (report.insecure, report.ledger.head.clone());
    let description = Description { schema: 1, insecure, ledger, declaration };
    let description = serde_json::to_string(&description).map_err(failure)?;
    let texts = HashMap::from([(DESCRIPTION.to_owned(), description)]);
    safetensors::serialize(views, Some(texts)).map_err(failure)
}

/// A model with what it needs to know about its data. The file may come from anybody.
fn read(path: &Path) -> Result<(Model, Declaration), Error> {
    let name = path.display().to_string();
    let bytes = std::fs::read(path).map_err(|cause| Error::File { path: name.clone(), cause })?;
    let wrong = |cause: String| Error::Data { path: name.clone(), cause };
    let (_, metadata) =
        SafeTensors::read_metadata(&bytes).map_err(|error| wrong(error.to_string()))?;
    let description = metadata.metadata().as_ref().and_then(|texts| texts.get(DESCRIPTION));
    let description =
        description.ok_or_else(|| wrong("is not a model that this program trained".to_owned()))?;
    let Description { schema, declaration, .. } =
        serde_json::from_str(description).map_err(|error| wrong(error.to_string()))?;
    if schema != 1 {
        return Err(wrong(format!("has schema {schema}, and this version understands schema 1")));
    }
    declaration.check().map_err(wrong)?;
    // Before memory is taken for what it says that it is.
    if build::most_parameters(&declaration)?.saturating_mul(4) > 64 * bytes.len() as u128 + 4096 {
        return Err(wrong("is too short for the model that it declares".to_owned()));
    }
    let mut model = build::model(&declaration)?;
    model.load_safetensors(&bytes).map_err(|error| wrong(error.to_string()))?;
    Ok((model, declaration))
}

pub(crate) fn run(arguments: &Predict, common: &Common) -> Result<(), Error> {
    let (model, declaration) = read(&arguments.model)?;
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let examples = data::unlabelled(&declaration, &arguments.data, threads)?;
    let outputs = public::outputs(&model, &examples);
    let names = declaration.classes.names();
    let classes = names.len().max(1);
    let rows = outputs.chunks_exact(classes).map(|row| {
        // Of an example that is not all numbers, nothing can be said.
        if row.iter().any(|value| value.is_nan()) {
            return (None, None);
        }
        let most = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let powers: Vec<f64> = row.iter().map(|value| f64::from(value - most).exp()).collect();
        let sum: f64 = powers.iter().sum();
        let best = row.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).map_or(0, |(i, _)| i);
        (names.get(best), Some(powers.get(best).copied().unwrap_or(0.0) / sum))
    });
    debug_assert_eq!(outputs.len() as u64, examples.count() * classes as u64);
    if common.json {
        let predictions: Vec<_> = rows
            .map(|(class, probability)| json!({ "class": class, "probability": probability }))
            .collect();
        return print(&format!("{}\n", json!({ "schema": 1, "predictions": predictions })));
    }
    let mut text = "class,probability\n".to_owned();
    for (class, probability) in rows {
        let class = csv_cell(class.map_or("", String::as_str));
        let probability = probability.map_or(String::new(), |p| format!("{p:.6}"));
        text.push_str(&format!("{class},{probability}\n"));
    }
    print(&text)
}
