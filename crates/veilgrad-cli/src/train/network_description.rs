//! What a model computes, step by step, for programs that do not have this code: from the numbers of an example to the outputs
//! of the model. It is part of the model file (docs/model-format.md) and the source of exports.

use serde::Serialize;
use serde_json::{Value, json};
use veilgrad_data::ImageCopy;
use veilgrad_data::table::{Kind, Schema};
use veilgrad_nn::{EmbeddedColumn, Layer, Model, PlacedLayer};

use super::config::{self, Declaration, Features};
use super::inputs::{declared_shape, shape};
use super::schema::{missing_number, schema};
use crate::error::Error;

/// The version of the description below.
pub(crate) const VERSION: u32 = 1;

/// A step from the numbers of an example to the input of the first layer.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub(crate) enum InputStep {
    /// `clamp((x - low) / (high - low), 0, 1)`, for every number of an array.
    Scale { shape: Vec<usize>, low: f64, high: f64, missing: Option<f64> },
    /// Encodes the columns of a table, one after the other.
    Table { columns: Vec<TableColumn> },
    /// The outputs for these copies of the image are averaged.
    Copies { shape: [usize; 3], copies: Vec<ShiftedCopy> },
    /// Scattering features of every colour: `channels` planes of `rows x columns`.
    Scattering {
        shape: [usize; 3],
        scales: u32,
        orientations: usize,
        grid: Option<usize>,
        pool_sigma: Option<f64>,
        /// Whether red, green and blue are replaced by brightness and two differences first.
        opponent_colours: bool,
        /// Whether the features are averaged with those of the mirror image.
        mirror: bool,
    },
    /// Scales groups of consecutive numbers to mean 0 and variance 1. All groups of `width` numbers but the last have
    /// `ceil(width / groups)` numbers.
    GroupNorm { width: usize, groups: usize, epsilon: f64 },
    /// Norm 1, minus the mean, norm 1, scaled along directions, norm 1.
    Whiten { mean: &'static str, directions: &'static str, scales: &'static str },
    /// Scales the input to this L2 norm.
    Norm { norm: f64 },
    /// The shape that the first layer takes.
    Reshape { shape: Vec<usize> },
}

/// A column of a table, and where its numbers are in the input: `[first, end)`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct TableColumn {
    pub(crate) name: String,
    pub(crate) inputs: [usize; 2],
    #[serde(flatten)]
    pub(crate) encoding: Encoding,
}

/// How a cell becomes numbers.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "encoding", rename_all = "kebab-case")]
pub(crate) enum Encoding {
    /// `clamp((x - (low + high) / 2) / ((high - low) / 2), -1, 1)`.
    Number { low: f64, high: f64, missing: Option<f64> },
    /// 1 at the index of the word, 0 elsewhere; `missing` is the index for unknown words.
    OneHot { words: Vec<String>, missing: Option<usize> },
    /// The index of the word; `missing`, or else -1, for unknown words.
    Index { words: Vec<String>, missing: Option<usize> },
}

/// A copy of an image: mirrored or not, then shifted with its edges repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct ShiftedCopy {
    pub(crate) down: isize,
    pub(crate) right: isize,
    pub(crate) mirrored: bool,
}

/// What group norm of features adds to the variance.
const FEATURE_EPSILON: f64 = 1e-5;

/// The steps from an example to the input of the model.
pub(crate) fn input_steps(declaration: &Declaration) -> Result<Vec<InputStep>, Error> {
    let model = &declaration.model;
    let declared = declared_shape(declaration)?;
    let image = match declared[..] {
        [rows, columns] => [rows, columns, 1],
        [rows, columns, colours] => [rows, columns, colours],
        _ => [1, 1, declared.iter().product()],
    };
    let mut steps = Vec::new();
    if declaration.columns.is_empty() {
        let [low, high] = declaration.bounds.unwrap_or([0.0, 1.0]);
        let policy = declaration.missing.as_deref();
        let missing = policy.and_then(|policy| missing_number(policy, [low, high]));
        steps.push(InputStep::Scale { shape: declared, low, high, missing });
    } else {
        steps.push(InputStep::Table { columns: table_columns(&schema(declaration)) });
    }
    if let Some(augment) = model.augment.filter(|augment| augment.predict_copies() > 1) {
        let all = ImageCopy::all(augment.shift, augment.flip);
        let copies = all.iter().take(augment.predict_copies()).map(|copy| {
            let (down, right, mirrored) = copy.offsets();
            ShiftedCopy { down, right, mirrored }
        });
        steps.push(InputStep::Copies { shape: image, copies: copies.collect() });
    }
    let shape = shape(declaration)?;
    if model.features == Features::Scattering {
        let config::Scattering { scales, orientations, norm_groups, .. } = model.scattering;
        let config::Scattering { grid, pool_sigma, colours, mirror, .. } = model.scattering;
        let scattering = InputStep::Scattering {
            shape: image,
            scales,
            orientations,
            grid,
            pool_sigma,
            opponent_colours: colours == Some(config::Colours::Opponent),
            mirror,
        };
        let width = shape.iter().product::<usize>() / image[2].max(1);
        let norm = InputStep::GroupNorm { width, groups: norm_groups, epsilon: FEATURE_EPSILON };
        steps.extend([scattering, norm]);
    }
    if declaration.precondition.is_some() {
        let [mean, directions, scales] = veilgrad_nn::Whitening::ARRAYS;
        steps.push(InputStep::Whiten { mean, directions, scales });
    }
    steps.extend(model.input_norm.map(|norm| InputStep::Norm { norm }));
    steps.push(InputStep::Reshape { shape });
    Ok(steps)
}

fn table_columns(schema: &Schema) -> Vec<TableColumn> {
    let mut first = 0;
    let column = |column: &veilgrad_data::table::Column| {
        let (width, encoding) = match column.kind.clone() {
            Kind::Number { low, high, missing } => (1, Encoding::Number { low, high, missing }),
            Kind::Category { words, missing } => (words.len(), Encoding::OneHot { words, missing }),
            Kind::Index { words, missing } => (1, Encoding::Index { words, missing }),
        };
        let inputs = [first, first + width];
        first += width;
        TableColumn { name: column.name.clone(), inputs, encoding }
    };
    schema.columns.iter().map(column).collect()
}

/// The description of a network for the model file.
pub(crate) fn describe(declaration: &Declaration, model: &Model) -> Result<Value, Error> {
    let layers = model.layers().map(|layer| describe_layer(&layer));
    let outputs = match declaration.label_bounds {
        Some([low, high]) => json!({ "kind": "number", "low": low, "high": high }),
        None => json!({ "kind": "logits", "classes": declaration.classes.names() }),
    };
    Ok(json!({
        "version": VERSION,
        "inputs": input_steps(declaration)?,
        "layers": layers.collect::<Result<Vec<Value>, Error>>()?,
        "outputs": outputs,
    }))
}

/// Whether a description has the layers of this model. The inputs are not compared: they follow from the declaration.
pub(crate) fn describes(description: &Value, model: &Model) -> bool {
    let layers: Result<Vec<Value>, Error> =
        model.layers().map(|layer| describe_layer(&layer)).collect();
    layers.is_ok_and(|layers| description["layers"] == Value::Array(layers))
}

fn describe_layer(placed: &PlacedLayer<'_>) -> Result<Value, Error> {
    let PlacedLayer { layer, name, input, output } = *placed;
    let parameter = |parameter: &str| format!("{name}.{parameter}");
    // The shortest decimal of the f32, not of the f64 next to it.
    let epsilon: f64 = Layer::NORM_EPSILON.to_string().parse().map_err(Error::failure)?;
    let scaled = |kind: &str| {
        json!({
            "kind": kind, "scale": parameter("scale"), "shift": parameter("shift"), "epsilon": epsilon,
        })
    };
    let mut found = match layer {
        Layer::Linear { .. } => json!({
            "kind": "linear", "weight": parameter("weight"), "bias": parameter("bias"),
        }),
        Layer::Conv2d(conv) => json!({
            "kind": "conv",
            "weight": parameter("weight"),
            "bias": parameter("bias"),
            "stride": [conv.stride.0, conv.stride.1],
            "padding": conv.zeros(input),
        }),
        Layer::Relu => json!({ "kind": "relu" }),
        Layer::Tanh => json!({ "kind": "tanh" }),
        Layer::Gelu => json!({ "kind": "gelu" }),
        Layer::MaxPool2d(window) => {
            json!({ "kind": "max-pool", "size": window.size, "stride": window.stride })
        }
        Layer::AveragePool2d(window) => {
            json!({ "kind": "average-pool", "size": window.size, "stride": window.stride })
        }
        Layer::GlobalAverage => json!({ "kind": "global-average" }),
        Layer::Flatten => json!({ "kind": "flatten" }),
        Layer::GroupNorm { groups } => {
            let mut norm = scaled("group-norm");
            norm["groups"] = json!(groups);
            norm
        }
        Layer::LayerNorm => scaled("layer-norm"),
        Layer::BatchNorm => {
            let mut norm = scaled("batch-norm");
            norm["mean"] = json!(parameter("mean"));
            norm["mean_square"] = json!(parameter("mean_square"));
            norm
        }
        Layer::Embedding { .. } => json!({ "kind": "embedding", "weight": parameter("weight") }),
        Layer::EmbedColumns(columns) => {
            let column = |(number, column): (usize, &EmbeddedColumn)| json!({ "column": column.column, "weight": parameter(&format!("weight{number}")) });
            let columns: Vec<Value> = (1..).zip(columns).map(column).collect();
            json!({ "kind": "embed-columns", "columns": columns })
        }
        other => return Err(Error::failure(format!("{other:?} has no description yet"))),
    };
    found["input"] = json!(input);
    found["output"] = json!(output);
    Ok(found)
}
