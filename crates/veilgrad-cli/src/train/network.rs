//! The layers of a configuration's model, and their sizes before anything is allocated.

use veilgrad_nn::{Conv2d, EmbeddedColumn, Layer, Padding};

use super::config::{self, Declaration, Kind};
use super::{inputs, schema};
use crate::error::Error;

/// How many parameters a model may have.
const MOST_PARAMETERS: u128 = 1 << 30;
/// How many numbers the layers of a listed model may compute from one example.
const MOST_VALUES: u128 = 1 << 23;

/// All layers of a model, the last of which is linear, with one output for each class or one number.
pub(crate) fn layers(declaration: &Declaration) -> Result<Vec<Layer>, Error> {
    if most_parameters(declaration)? > MOST_PARAMETERS {
        return Err(Error::usage("the model would have more than 2^30 parameters"));
    }
    let config = &declaration.model;
    let mut layers = Vec::new();
    let embedded = schema::embedded(declaration);
    if !embedded.is_empty() {
        layers.push(Layer::EmbedColumns(embedded));
    }
    if config.kind == Kind::Cnn {
        let conv = |filters, size, padding| {
            Layer::Conv2d(Conv2d { filters, kernel: (size, size), stride: (2, 2), padding })
        };
        let [first, second] = config.filters.unwrap_or([16, 32]);
        for conv in [conv(first, 8, Padding::Same), conv(second, 4, Padding::Valid)] {
            layers.extend([conv, Layer::Relu, Layer::max_pool(2, 1)]);
        }
        layers.push(Layer::Flatten);
    }
    for width in hidden(&config.hidden, config.kind) {
        layers.push(Layer::linear(*width));
        if config.batch_norm {
            layers.push(Layer::BatchNorm);
        }
        layers.push(Layer::Relu);
    }
    layers.extend(config.layers.iter().map(native));
    if config.kind == Kind::Layers {
        layers.push(Layer::Flatten);
    }
    layers.push(Layer::linear(declaration.outputs()));
    Ok(layers)
}

/// The widths of hidden layers.
const fn hidden(widths: &[usize], kind: Kind) -> &[usize] {
    match (widths, kind) {
        ([], Kind::Cnn) => &[32],
        _ => widths,
    }
}

/// An upper bound on the number of weights, computed before memory is allocated for them. Each of a cnn's two convolutions at
/// least halves the sides of an image.
///
/// # Errors
/// When listed layers do not fit each other, or are too large.
pub(crate) fn most_parameters(declaration: &Declaration) -> Result<u128, Error> {
    let (mut shape, model) = (inputs::shape(declaration)?, &declaration.model);
    let (mut sum, embedded) = (0, schema::embedded(declaration));
    for EmbeddedColumn { entries, dimension, .. } in &embedded {
        sum += wide(*entries) * wide(*dimension);
    }
    if let ([width], false) = (shape.as_mut_slice(), embedded.is_empty()) {
        *width += embedded.iter().map(|column| column.dimension - 1).sum::<usize>();
    }
    if model.kind == Kind::Layers {
        let (weights, outputs) = listed(&model.layers, &shape)?;
        return Ok(sum + weights + outputs * wide(declaration.outputs()));
    }
    let mut inputs: u128 = shape.iter().map(|side| wide(*side)).product();
    if let (Kind::Cnn, [rows, columns, channels]) = (model.kind, &shape[..]) {
        let [first, second] = model.filters.unwrap_or([16, 32]).map(wide);
        sum += 64 * wide(*channels) * first + 16 * first * second;
        inputs = wide(rows.div_ceil(4)) * wide(columns.div_ceil(4)) * second;
    }
    let widths = hidden(&model.hidden, model.kind).iter().copied();
    for width in widths.chain([declaration.outputs()]) {
        sum += inputs * wide(width);
        inputs = wide(width);
    }
    Ok(sum)
}

const fn wide(width: usize) -> u128 {
    width as u128
}

/// The number of weights of listed layers, and of the numbers that the last one computes.
fn listed(layers: &[config::Layer], shape: &[usize]) -> Result<(u128, u128), Error> {
    let size = |shape: &[usize]| shape.iter().map(|side| wide(*side)).product::<u128>();
    let (mut shape, mut weights, mut values) = (shape.to_vec(), 0, size(shape));
    for (number, layer) in (1..).zip(layers) {
        let wrong = |why: String| {
            Error::Usage(format!("[[model.layers]] {number} ({}): {why}", layer.name()))
        };
        weights += parameters(layer, &shape);
        shape = output(layer, &shape).map_err(wrong)?;
        values += size(&shape);
        if weights > MOST_PARAMETERS {
            return Err(wrong("the model would have more than 2^30 parameters".to_owned()));
        }
        if values > MOST_VALUES {
            return Err(wrong(format!(
                "the layers would compute more than {MOST_VALUES} numbers for each example"
            )));
        }
    }
    Ok((weights, size(&shape)))
}

/// The weights of a layer, without those that do not depend on its input.
fn parameters(layer: &config::Layer, shape: &[usize]) -> u128 {
    let channels = wide(shape.last().copied().unwrap_or(1));
    match *layer {
        config::Layer::Linear { outputs } => channels * wide(outputs),
        config::Layer::Conv { filters, kernel, .. } => {
            wide(kernel) * wide(kernel) * channels * wide(filters)
        }
        config::Layer::GroupNorm { .. }
        | config::Layer::LayerNorm {}
        | config::Layer::BatchNorm {} => 4 * channels,
        _ => 0,
    }
}

/// The shape of a layer's output.
fn output(layer: &config::Layer, shape: &[usize]) -> Result<Vec<usize>, String> {
    use config::Layer as L;
    let windows = |side: usize, size: usize, stride: usize| {
        side.checked_sub(size).map(|rest| rest / stride.max(1) + 1).ok_or_else(|| {
            format!("{size} x {size} is larger than the image, which is {shape:?} here")
        })
    };
    match (layer, shape) {
        (L::Linear { outputs }, [_]) => Ok(vec![*outputs]),
        (L::Linear { .. }, _) => Err(format!(
            "takes numbers in a row, and the input is {shape:?}: put a flatten before it"
        )),
        (L::Conv { filters, kernel, stride, padding }, [rows, columns, _]) => {
            let side = |side: usize| match padding {
                config::Padding::Same => Ok(side.div_ceil((*stride).max(1))),
                config::Padding::Valid => windows(side, *kernel, *stride),
            };
            Ok(vec![side(*rows)?, side(*columns)?, *filters])
        }
        (
            L::MaxPool { size, stride } | L::AveragePool { size, stride },
            [rows, columns, channels],
        ) => {
            let side = |side| windows(side, *size, stride.unwrap_or(*size));
            Ok(vec![side(*rows)?, side(*columns)?, *channels])
        }
        (L::Conv { .. } | L::MaxPool { .. } | L::AveragePool { .. }, _) => {
            Err(format!("takes an image, [rows, columns, channels], and the input is {shape:?}"))
        }
        (L::GlobalAverage {}, [.., channels]) => Ok(vec![*channels]),
        (L::GroupNorm { groups }, [.., channels]) if !channels.is_multiple_of(*groups) => {
            Err(format!("{channels} channels cannot be split into {groups} equal groups"))
        }
        (L::Flatten {}, _) => Ok(vec![shape.iter().product()]),
        _ => Ok(shape.to_vec()),
    }
}

/// A listed layer, as the model takes it.
fn native(layer: &config::Layer) -> Layer {
    use config::Layer as L;
    match *layer {
        L::Linear { outputs } => Layer::linear(outputs),
        L::Conv { filters, kernel, stride, padding } => {
            let padding = match padding {
                config::Padding::Valid => Padding::Valid,
                config::Padding::Same => Padding::Same,
            };
            Conv2d::new(filters, kernel).stride(stride).padding(padding).into()
        }
        L::MaxPool { size, stride } => Layer::max_pool(size, stride.unwrap_or(size)),
        L::AveragePool { size, stride } => Layer::average_pool(size, stride.unwrap_or(size)),
        L::GlobalAverage {} => Layer::GlobalAverage,
        L::Relu {} => Layer::Relu,
        L::Tanh {} => Layer::Tanh,
        L::Gelu {} => Layer::Gelu,
        L::GroupNorm { groups } => Layer::GroupNorm { groups },
        L::LayerNorm {} => Layer::LayerNorm,
        L::BatchNorm {} => Layer::BatchNorm,
        L::Flatten {} => Layer::Flatten,
    }
}

#[cfg(test)]
mod tests;
