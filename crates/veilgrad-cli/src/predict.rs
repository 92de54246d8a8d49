//! `veilgrad predict`: classes or numbers of new examples from a trained model.

use serde_json::json;

use crate::argument::{Common, Predict};
use crate::error::Error;
use crate::output::{csv_cell, print, print_json};
use crate::train::data;
use crate::train::model_file::{self, ModelFile};

pub(crate) fn run(arguments: &Predict, common: &Common) -> Result<(), Error> {
    let ModelFile { model, whitening, declaration } = model_file::read(&arguments.model)?;
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let examples = data::unlabelled(&declaration, &arguments.data)?;
    let outputs = examples.outputs(&declaration, &model, whitening.as_ref(), threads)?;
    if let Some(bounds) = declaration.label_bounds {
        return numbers(&outputs, bounds, common);
    }
    let names = declaration.classes.names();
    let classes = names.len().max(1);
    let rows = outputs.chunks_exact(classes).map(|row| {
        // An example with NaN has no prediction.
        if row.iter().any(|value| value.is_nan()) {
            return (None, None);
        }
        let most = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let powers: Vec<f64> = row.iter().map(|value| f64::from(value - most).exp()).collect();
        let sum: f64 = powers.iter().sum();
        let best = row.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).map_or(0, |(i, _)| i);
        (names.get(best), Some(powers.get(best).copied().unwrap_or(0.0) / sum))
    });
    if common.json {
        let predictions: Vec<_> = rows
            .map(|(class, probability)| json!({ "class": class, "probability": probability }))
            .collect();
        return print_json(&json!({ "schema": 1, "predictions": predictions }));
    }
    let mut text = "class,probability\n".to_owned();
    for (class, probability) in rows {
        let class = csv_cell(class.map_or("", String::as_str));
        let probability = probability.map_or(String::new(), |p| format!("{p:.6}"));
        text.push_str(&format!("{class},{probability}\n"));
    }
    print(&text)
}

/// Prints predicted numbers, in the unit of the label.
fn numbers(outputs: &[f32], bounds: [f64; 2], common: &Common) -> Result<(), Error> {
    let values = outputs.iter().map(|output| data::number(*output, bounds));
    if common.json {
        let predictions: Vec<_> = values.map(|value| json!({ "value": value })).collect();
        return print_json(&json!({ "schema": 1, "predictions": predictions }));
    }
    let mut text = "value\n".to_owned();
    for value in values {
        // An example with NaN has no prediction.
        text.push_str(&value.map_or("\n".to_owned(), |value| format!("{value:.6}\n")));
    }
    print(&text)
}
