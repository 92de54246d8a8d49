//! `veilgrad predict`: a trained model on new data. And the file that holds one.

use std::collections::HashMap;
use std::path::Path;

use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use serde_json::json;
use veilgrad_nn::{Model, Records, public};

use crate::argument::{Common, Predict};
use crate::error::Error;
use crate::output::print;
use crate::train::config::Config;
use crate::train::{build, data};

/// Under which the declared, public description of a model stands in its file.
const DESCRIPTION: &str = "veilgrad";

fn failure(error: impl std::fmt::Display) -> Error {
    Error::Failure(error.to_string())
}

/// Parameters, and the declaration of data and model that they belong to: nothing else.
pub(crate) fn model_file(model: &Model, config: &Config) -> Result<Vec<u8>, Error> {
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
    let description = serde_json::to_string(config).map_err(failure)?;
    let texts = HashMap::from([(DESCRIPTION.to_owned(), description)]);
    safetensors::serialize(views, Some(texts)).map_err(failure)
}

/// A model with what it needs to know about its data.
fn read(path: &Path) -> Result<(Model, Config), Error> {
    let name = path.display().to_string();
    let bytes = std::fs::read(path).map_err(|cause| Error::File { path: name.clone(), cause })?;
    let wrong = |cause: String| Error::Data { path: name.clone(), cause };
    let (_, metadata) =
        SafeTensors::read_metadata(&bytes).map_err(|error| wrong(error.to_string()))?;
    let description = metadata.metadata().as_ref().and_then(|texts| texts.get(DESCRIPTION));
    let description =
        description.ok_or_else(|| wrong("is not a model that this program trained".to_owned()))?;
    let config: Config =
        serde_json::from_str(description).map_err(|error| wrong(error.to_string()))?;
    let mut model = build::model(&config, &data::shape(&config)?)?;
    model.load_safetensors(&bytes).map_err(|error| wrong(error.to_string()))?;
    Ok((model, config))
}

pub(crate) fn run(arguments: &Predict, common: &Common) -> Result<(), Error> {
    let (model, config) = read(&arguments.model)?;
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let examples = data::unlabelled(&config, &arguments.data, threads)?;
    let outputs = public::outputs(&model, &examples);
    let names = config.data.classes.names();
    let classes = names.len().max(1);
    let rows = outputs.chunks_exact(classes).map(|row| {
        let most = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let powers: Vec<f64> = row.iter().map(|value| f64::from(value - most).exp()).collect();
        let sum: f64 = powers.iter().sum();
        let best = row.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).map_or(0, |(i, _)| i);
        (best, powers.get(best).copied().unwrap_or(0.0) / sum)
    });
    debug_assert_eq!(outputs.len() as u64, examples.count() * classes as u64);
    if common.json {
        let predictions: Vec<_> = rows
            .map(|(best, probability)| json!({ "class": names.get(best), "probability": probability }))
            .collect();
        return print(&format!("{}\n", json!({ "schema": 1, "predictions": predictions })));
    }
    let mut text = "class,probability\n".to_owned();
    for (best, probability) in rows {
        let name = names.get(best).map_or("", String::as_str);
        let quoted = name.contains([',', '"', '\n']);
        let name =
            if quoted { format!("\"{}\"", name.replace('"', "\"\"")) } else { name.to_owned() };
        text.push_str(&format!("{name},{probability:.6}\n"));
    }
    print(&text)
}
