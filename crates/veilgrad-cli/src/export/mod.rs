//! `veilgrad export`: a trained model in the format of other runtimes. It is post-processing of released values.

mod graph;
mod inputs;
mod layers;
mod protobuf;
mod scattering;

use serde_json::{Value, json};
use veilgrad_nn::Model;

use crate::argument::{Common, ExportFormat, ExportModel};
use crate::error::Error;
use crate::output::{print_answer, table, write_file};
use crate::train::model_file::{self, ModelFile};
use crate::train::network_description::{Encoding, InputStep, input_steps};
use graph::{Graph, Number};

/// Protocol buffers, and with them ONNX files, are smaller than this.
const LARGEST: usize = i32::MAX as usize;

pub(crate) fn run(arguments: &ExportModel, common: &Common) -> Result<(), Error> {
    let file = model_file::read(&arguments.model)?;
    let exported = match arguments.to {
        ExportFormat::Onnx => onnx(&file)?,
    };
    write_file(&arguments.output, &exported.bytes)?;
    let classes = file.declaration.classes.names();
    let outputs = exported.outputs;
    let (input, number, shape) = &exported.input;
    let number = if *number == Number::F64 { "float64" } else { "float32" };
    let place = arguments.output.display().to_string();
    let mut document = json!({
        "schema": 1,
        "format": "onnx",
        "file": place,
        "input": { "name": input, "type": number, "shape": shape },
        "outputs": outputs,
        "classes": classes,
    });
    let columns = exported.columns.iter().map(|(name, words)| match words {
        None => format!("{name}: its number"),
        Some(words) => {
            let places = words.iter().enumerate().map(|(place, word)| format!("{place} {word}"));
            format!("{name}: {}, or -1", places.collect::<Vec<String>>().join(", "))
        }
    });
    let columns: Vec<String> = columns.collect();
    if !columns.is_empty() {
        let all =
            exported.columns.iter().map(|(name, words)| json!({ "name": name, "words": words }));
        document["columns"] = Value::Array(all.collect());
    }
    let mut rows = vec![
        ("file", place),
        ("input", format!("{input}: {number} [examples, {}]", join(shape))),
        (
            "outputs",
            format!("{}: float32 [examples, {}]", outputs.join(", "), classes.len().max(1)),
        ),
    ];
    if !classes.is_empty() {
        rows.push(("classes", classes.join(", ")));
    }
    rows.extend(columns.into_iter().map(|column| ("column", column)));
    print_answer(common.json, &document, &table(&rows))
}

const LOGITS: &str = "logits";
const PROBABILITIES: &str = "probabilities";
const VALUE: &str = "value";

fn join(shape: &[usize]) -> String {
    shape.iter().map(usize::to_string).collect::<Vec<String>>().join(", ")
}

/// An ONNX file, and how its input is to be made.
struct Exported {
    bytes: Vec<u8>,
    /// The name, the type and the shape of an example.
    input: (&'static str, Number, Vec<usize>),
    /// The names of its outputs.
    outputs: &'static [&'static str],
    /// The columns of a table, in order: the words of a category are numbers from 0 on.
    columns: Vec<(String, Option<Vec<String>>)>,
}

/// The model as an ONNX file: from examples as they are in files to logits and probabilities, or a number.
fn onnx(file: &ModelFile) -> Result<Exported, Error> {
    let ModelFile { model, whitening, declaration, description } = file;
    let too_large = || {
        let rule = "ONNX files are smaller than 2 GiB, and this one would be larger";
        Error::Usage(rule.to_owned())
    };
    let weights: usize = model.parameters().map(|(_, _, values)| 4 * values.len()).sum();
    if weights > LARGEST {
        return Err(too_large());
    }
    let steps = input_steps(declaration)?;
    let mut graph = Graph::default();
    let inputs = inputs::inputs(&mut graph, &steps, whitening.as_ref())?;
    let mut value = inputs.value;
    for placed in model.layers() {
        value = layers::layer(&mut graph, model, &placed, &value)?;
    }
    let width = outputs(model)?;
    if inputs.copies > 1 {
        let shape = [graph::as_i64(inputs.copies), -1, graph::as_i64(width)];
        let shape = graph.integers(&shape);
        let copies = graph.apply("Reshape", &[&value, &shape]);
        value = graph.mean(&copies, &[0], false);
    }
    let value = graph.apply("Add", &[&value, &inputs.defect]);
    let outputs: &[&str] = if let Some([low, high]) = declaration.label_bounds {
        let number = inputs::unscale(&mut graph, &value, low, high);
        graph.output(&number, VALUE, &[width], "the predicted number, in the unit of the label");
        &[VALUE]
    } else {
        let axis = [("axis", graph::Attribute::Integer(-1))];
        let probabilities = graph.node("Softmax", &[&value], &axis);
        graph.output(&value, LOGITS, &[width], "the outputs of the model, before softmax");
        graph.output(&probabilities, PROBABILITIES, &[width], "the probabilities of the classes");
        &[LOGITS, PROBABILITIES]
    };
    let message = graph.into_model(&[("veilgrad", description)]);
    if message.len() > LARGEST {
        return Err(too_large());
    }
    let columns = steps.into_iter().flat_map(|step| match step {
        InputStep::Table { columns } => columns,
        _ => Vec::new(),
    });
    let columns = columns.map(|column| match column.encoding {
        Encoding::Number { .. } => (column.name, None),
        Encoding::OneHot { words, .. } | Encoding::Index { words, .. } => {
            (column.name, Some(words))
        }
    });
    let (bytes, input, columns) = (message.into_bytes(), inputs.given, columns.collect());
    Ok(Exported { bytes, input, outputs, columns })
}

/// The number of outputs of an example.
fn outputs(model: &Model) -> Result<usize, Error> {
    match model.output() {
        [outputs] => Ok(*outputs),
        shape => Err(Error::failure(format!("the model has outputs of shape {shape:?}"))),
    }
}
