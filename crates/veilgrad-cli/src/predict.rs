//! `veilgrad predict`: classes or numbers of new examples from a trained model.

use serde_json::{Value, json};

use crate::argument::{Common, Predict};
use crate::error::Error;
use crate::output::{csv_cell, print, print_json, significant};
use crate::prediction::{self, Prediction};
use crate::train::data;
use crate::train::model_file::{self, ModelFile};

pub(crate) fn run(arguments: &Predict, common: &Common) -> Result<(), Error> {
    let ModelFile { model, whitening, declaration, .. } = model_file::read(&arguments.model)?;
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let id = arguments.id.as_deref();
    let (examples, ids) = data::unlabelled(&declaration, &arguments.data, id)?;
    let outputs = examples.outputs(&declaration, &model, whitening.as_ref(), threads)?;
    if let Some(bounds) = declaration.label_bounds {
        return numbers(&outputs, bounds, (id, ids), common);
    }
    let names = declaration.classes.names();
    let predictions = outputs.chunks_exact(names.len().max(1)).map(Prediction::new);
    // Without an id column, there is none for any row.
    let ids = ids.into_iter().chain(std::iter::repeat(None));
    let rows = ids.zip(predictions);
    let (id, all) = (arguments.id.as_deref(), arguments.probabilities);
    if common.json {
        let rows: Vec<Value> = rows
            .map(|(text, prediction)| {
                let prediction = prediction.as_ref();
                let class = prediction.and_then(|found| names.get(found.class));
                let probability = prediction.map(Prediction::probability);
                let mut row = json!({ "class": class, "probability": probability });
                if id.is_some() {
                    row["id"] = json!(text);
                }
                if all {
                    row["probabilities"] = json!(prediction.map(|found| &found.probabilities));
                }
                row
            })
            .collect();
        let mut document = json!({ "schema": 1, "predictions": rows });
        if all {
            document["classes"] = json!(names);
        }
        return print_json(&document);
    }
    let of_class = |name: &String| csv_cell(&format!("probability of {name}"));
    let mut header: Vec<String> = id.map(csv_cell).into_iter().collect();
    header.extend(["class".to_owned(), "probability".to_owned()]);
    header.extend(names.iter().filter(|_| all).map(of_class));
    let mut text = header.join(",") + "\n";
    for (id_text, prediction) in rows {
        let class = prediction.as_ref().and_then(|found| names.get(found.class));
        let number = |value: Option<f64>| value.map_or(String::new(), |p| format!("{p:.6}"));
        let probability_of = |class: usize| {
            number(prediction.as_ref().and_then(|found| found.probabilities.get(class).copied()))
        };
        let mut cells: Vec<String> =
            id.map(|_| csv_cell(id_text.as_deref().unwrap_or(""))).into_iter().collect();
        cells.push(csv_cell(class.map_or("", String::as_str)));
        cells.push(number(prediction.as_ref().map(Prediction::probability)));
        cells.extend((0..names.len()).filter(|_| all).map(probability_of));
        text.push_str(&cells.join(","));
        text.push('\n');
    }
    print(&text)
}

/// As many significant digits as the outputs of a model have.
const DIGITS: usize = 9;

/// Prints predicted numbers, in the unit of the label.
fn numbers(
    outputs: &[f32],
    bounds: [f64; 2],
    (id, ids): (Option<&str>, Vec<Option<String>>),
    common: &Common,
) -> Result<(), Error> {
    let values = outputs.iter().map(|output| prediction::number(*output, bounds));
    let rows = ids.into_iter().chain(std::iter::repeat(None)).zip(values);
    if common.json {
        let predictions = rows.map(|(text, value)| match id {
            Some(_) => json!({ "id": text, "value": value }),
            None => json!({ "value": value }),
        });
        let predictions: Vec<Value> = predictions.collect();
        return print_json(&json!({ "schema": 1, "predictions": predictions }));
    }
    let line = |first: Option<String>, last: &str| match first {
        Some(first) => format!("{},{last}\n", csv_cell(&first)),
        None => format!("{last}\n"),
    };
    let mut text = line(id.map(str::to_owned), "value");
    for (id_text, value) in rows {
        // An example with NaN has no prediction.
        let value = value.map_or(String::new(), |value| significant(value, DIGITS));
        text.push_str(&line(id.map(|_| id_text.unwrap_or_default()), &value));
    }
    print(&text)
}
