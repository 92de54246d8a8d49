//! The layers of a model as ONNX operators. Images are `[height, width, channels]` between layers, as in the model.

use veilgrad_nn::{Conv2d, EmbeddedColumn, Layer, Model, PlacedLayer, Window};

use super::graph::{Attribute, Graph, Name, Number, as_i64};
use crate::error::Error;

/// Adds a layer to the graph and returns its output.
pub(super) fn layer(
    graph: &mut Graph,
    model: &Model,
    placed: &PlacedLayer<'_>,
    x: &str,
) -> Result<Name, Error> {
    let PlacedLayer { layer, input, output, .. } = *placed;
    let parameter = |name: &str| parameter(model, placed, name);
    Ok(match layer {
        Layer::Linear { outputs } => {
            let inputs = input.last().copied().unwrap_or(0);
            let weight = graph.floats(&[inputs, *outputs], parameter("weight")?);
            let bias = graph.floats(&[*outputs], parameter("bias")?);
            let product = graph.apply("MatMul", &[x, &weight]);
            graph.apply("Add", &[&product, &bias])
        }
        Layer::Conv2d(conv) => {
            let [weight, bias] = [parameter("weight")?, parameter("bias")?];
            convolution(graph, conv, input, (weight, bias), x)?
        }
        Layer::Relu => graph.apply("Relu", &[x]),
        Layer::Tanh => graph.apply("Tanh", &[x]),
        Layer::Gelu => {
            let (root, one, half) =
                (graph.float(std::f32::consts::FRAC_1_SQRT_2), graph.float(1.0), graph.float(0.5));
            let scaled = graph.apply("Mul", &[x, &root]);
            let error = graph.apply("Erf", &[&scaled]);
            let twice = graph.apply("Add", &[&error, &one]);
            let normal_cdf = graph.apply("Mul", &[&twice, &half]);
            graph.apply("Mul", &[x, &normal_cdf])
        }
        Layer::MaxPool2d(window) => pool(graph, "MaxPool", *window, x),
        Layer::AveragePool2d(window) => pool(graph, "AveragePool", *window, x),
        Layer::GlobalAverage => {
            let axes: Vec<i64> = (1..).take(input.len().saturating_sub(1)).collect();
            graph.mean(x, &axes, false)
        }
        Layer::Flatten => graph.reshape(x, output),
        Layer::GroupNorm { groups } => {
            let channels = input.last().copied().unwrap_or(0);
            let positions = input.iter().product::<usize>() / channels.max(1);
            let width = channels / (*groups).max(1);
            let grouped = graph.reshape(x, &[positions, *groups, width]);
            let epsilon = graph.float(Layer::NORM_EPSILON);
            let normal = normalise(graph, &grouped, &[1, 3], &epsilon);
            let normal = graph.reshape(&normal, input);
            affine(graph, &normal, parameter("scale")?, parameter("shift")?)
        }
        Layer::LayerNorm => {
            let epsilon = graph.float(Layer::NORM_EPSILON);
            let normal = normalise(graph, x, &[-1], &epsilon);
            affine(graph, &normal, parameter("scale")?, parameter("shift")?)
        }
        Layer::BatchNorm => {
            let (scale, shift) = (parameter("scale")?, parameter("shift")?);
            let (mean, square) = (parameter("mean")?, parameter("mean_square")?);
            // As in the layer: noise may make the variance negative.
            let factor = |((scale, mean), square): ((&f32, &f32), &f32)| {
                scale / ((square - mean * mean).max(0.0) + Layer::NORM_EPSILON).sqrt()
            };
            let factors: Vec<f32> = scale.iter().zip(mean).zip(square).map(factor).collect();
            let offset = |((shift, mean), factor): ((&f32, &f32), &f32)| shift - mean * factor;
            let offsets: Vec<f32> = shift.iter().zip(mean).zip(&factors).map(offset).collect();
            affine(graph, x, &factors, &offsets)
        }
        Layer::Embedding { entries, dimension } => {
            let table = graph.floats(&[*entries, *dimension], parameter("weight")?);
            embedding(graph, *entries, (&table, input), x)
        }
        Layer::EmbedColumns(columns) => {
            let mut parts = Vec::new();
            let mut first = 0;
            for (number, column) in (1..).zip(columns) {
                if first < column.column {
                    parts.push(graph.gather(x, 1, &(first..column.column).collect::<Vec<usize>>()));
                }
                first = column.column + 1;
                let weights = parameter(&format!("weight{number}"))?;
                parts.push(embedded_column(graph, column, weights, x));
            }
            let inputs = input.last().copied().unwrap_or(0);
            if first < inputs {
                parts.push(graph.gather(x, 1, &(first..inputs).collect::<Vec<usize>>()));
            }
            graph.concat(&parts, 1)
        }
        other => {
            return Err(Error::Usage(format!("{other:?} cannot be exported to ONNX yet")));
        }
    })
}

fn parameter<'a>(
    model: &'a Model,
    placed: &PlacedLayer<'_>,
    name: &str,
) -> Result<&'a [f32], Error> {
    let name = format!("{}.{name}", placed.name);
    model.parameter(&name).ok_or_else(|| Error::failure(format!("the model has no {name}")))
}

fn convolution(
    graph: &mut Graph,
    conv: &Conv2d,
    input: &[usize],
    (weight, bias): (&[f32], &[f32]),
    x: &str,
) -> Result<Name, Error> {
    let (Some([rows, columns]), &[_, _, channels]) = (conv.zeros(input), input) else {
        return Err(Error::failure("a convolution does not fit its input"));
    };
    let (height, width) = conv.kernel;
    let filters = conv.filters;
    // From [height, width, channels, filters] to [filters, channels, height, width].
    let size = height * width;
    let from = |to: usize| {
        let (place, channel) = (to % size, to / size % channels);
        (place * channels + channel) * filters + to / (size * channels)
    };
    let turned: Vec<f32> =
        (0..weight.len()).filter_map(|to| weight.get(from(to)).copied()).collect();
    let weight = graph.floats(&[filters, channels, height, width], &turned);
    let bias = graph.floats(&[filters], bias);
    let strides = [conv.stride.0, conv.stride.1].map(as_i64);
    let pads = [rows[0], columns[0], rows[1], columns[1]].map(as_i64);
    let kernel = [height, width].map(as_i64);
    let attributes = [
        ("kernel_shape", Attribute::Integers(&kernel)),
        ("strides", Attribute::Integers(&strides)),
        ("pads", Attribute::Integers(&pads)),
    ];
    let channels_first = graph.transpose(x, &[0, 3, 1, 2]);
    let y = graph.node("Conv", &[&channels_first, &weight, &bias], &attributes);
    Ok(graph.transpose(&y, &[0, 2, 3, 1]))
}

fn pool(graph: &mut Graph, operator: &str, window: Window, x: &str) -> Name {
    let (size, stride) = ([as_i64(window.size); 2], [as_i64(window.stride); 2]);
    let attributes =
        [("kernel_shape", Attribute::Integers(&size)), ("strides", Attribute::Integers(&stride))];
    let channels_first = graph.transpose(x, &[0, 3, 1, 2]);
    let y = graph.node(operator, &[&channels_first], &attributes);
    graph.transpose(&y, &[0, 2, 3, 1])
}

/// Scales to mean 0 and variance 1 over some axes; `epsilon` is a constant of the same type.
pub(super) fn normalise(graph: &mut Graph, x: &str, axes: &[i64], epsilon: &str) -> Name {
    let mean = graph.mean(x, axes, true);
    let centred = graph.apply("Sub", &[x, &mean]);
    let squares = graph.apply("Mul", &[&centred, &centred]);
    let variance = graph.mean(&squares, axes, true);
    let sum = graph.apply("Add", &[&variance, epsilon]);
    let deviation = graph.apply("Sqrt", &[&sum]);
    graph.apply("Div", &[&centred, &deviation])
}

/// `x factors + offsets`, over the last axis.
fn affine(graph: &mut Graph, x: &str, factors: &[f32], offsets: &[f32]) -> Name {
    let factors = graph.floats(&[factors.len()], factors);
    let offsets = graph.floats(&[offsets.len()], offsets);
    let scaled = graph.apply("Mul", &[x, &factors]);
    graph.apply("Add", &[&scaled, &offsets])
}

/// The row of a table that the number of a column names: zeros for -1, and NaN for a number that names none.
fn embedded_column(graph: &mut Graph, column: &EmbeddedColumn, weights: &[f32], x: &str) -> Name {
    let EmbeddedColumn { column, entries, dimension } = *column;
    let number = graph.gather(x, 1, &[column]);
    let table = graph.floats(&[entries, dimension], weights);
    let rows = embedding(graph, entries, (&table, &[1]), &number);
    let rows = graph.reshape(&rows, &[dimension]);
    let (none, zero) = (graph.float(-1.0), graph.float(0.0));
    let is_none = graph.apply("Equal", &[&number, &none]);
    graph.apply("Where", &[&is_none, &zero, &rows])
}

/// The rows of a table that numbers name; NaN for a number that names none.
fn embedding(graph: &mut Graph, entries: usize, (table, input): (&str, &[usize]), x: &str) -> Name {
    let (zero, not_a_number) = (graph.float(0.0), graph.float(f32::NAN));
    let end = graph.float(entries as f32);
    let whole = graph.apply("Floor", &[x]);
    let is_whole = graph.apply("Equal", &[x, &whole]);
    let is_below = graph.apply("Less", &[x, &end]);
    let is_above = graph.apply("GreaterOrEqual", &[x, &zero]);
    let is_inside = graph.apply("And", &[&is_below, &is_above]);
    let is_entry = graph.apply("And", &[&is_whole, &is_inside]);
    let entry = graph.apply("Where", &[&is_entry, x, &zero]);
    let entry = graph.cast(&entry, Number::I64);
    let rows = graph.node("Gather", &[table, &entry], &[("axis", Attribute::Integer(0))]);
    let mark = graph.apply("Where", &[&is_entry, &zero, &not_a_number]);
    let mark = graph.reshape(&mark, &[input, &[1]].concat());
    graph.apply("Add", &[&rows, &mark])
}
