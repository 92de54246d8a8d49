//! Layers computed by their definitions: one record, in f64, without kernels.

use crate::{Layer, Model, Padding};

/// The output of one record, by the definitions of the layers.
pub(super) fn naive(model: &Model, layers: &[Layer], input: &[f32]) -> Vec<f64> {
    let mut shape = model.network.input.clone();
    let mut x: Vec<f64> = input.iter().map(|x| f64::from(*x)).collect();
    let mut parameters = model.values.iter();
    let mut next =
        || parameters.next().unwrap().iter().map(|w| f64::from(*w)).collect::<Vec<f64>>();
    for layer in layers {
        let channels = *shape.last().unwrap();
        let positions = x.len() / channels;
        match layer {
            Layer::Linear { outputs } => {
                let (weight, bias) = (next(), next());
                let y = |t: usize, j: usize| {
                    bias[j]
                        + (0..channels)
                            .map(|i| x[t * channels + i] * weight[i * outputs + j])
                            .sum::<f64>()
                };
                x = (0..positions * outputs)
                    .map(|index| y(index / outputs, index % outputs))
                    .collect();
                *shape.last_mut().unwrap() = *outputs;
            }
            Layer::Conv2d(conv) => {
                let (weight, bias) = (next(), next());
                let [height, width] = [shape[0], shape[1]];
                let axis = |inputs: usize, kernel: usize, stride: usize, explicit: usize| match conv
                    .padding
                {
                    Padding::Valid => ((inputs - kernel) / stride + 1, 0),
                    Padding::Same => {
                        let outputs = inputs.div_ceil(stride);
                        (outputs, ((outputs - 1) * stride + kernel).saturating_sub(inputs) / 2)
                    }
                    Padding::Explicit(..) => {
                        ((inputs + 2 * explicit - kernel) / stride + 1, explicit)
                    }
                };
                let explicit = if let Padding::Explicit(down, right) = conv.padding {
                    (down, right)
                } else {
                    (0, 0)
                };
                let (rows, top) = axis(height, conv.kernel.0, conv.stride.0, explicit.0);
                let (columns, left) = axis(width, conv.kernel.1, conv.stride.1, explicit.1);
                let mut y = Vec::new();
                for (row, column, filter) in triples(rows, columns, conv.filters) {
                    let mut sum = bias[filter];
                    for (down, right, channel) in triples(conv.kernel.0, conv.kernel.1, channels) {
                        let r = (row * conv.stride.0 + down).wrapping_sub(top);
                        let c = (column * conv.stride.1 + right).wrapping_sub(left);
                        if r < height && c < width {
                            let w = ((down * conv.kernel.1 + right) * channels + channel)
                                * conv.filters
                                + filter;
                            sum += x[(r * width + c) * channels + channel] * weight[w];
                        }
                    }
                    y.push(sum);
                }
                (x, shape) = (y, vec![rows, columns, conv.filters]);
            }
            Layer::Relu => x.iter_mut().for_each(|x| *x = x.max(0.0)),
            Layer::Tanh => x.iter_mut().for_each(|x| *x = x.tanh()),
            Layer::Gelu => {
                x.iter_mut().for_each(|x| *x *= 0.5 * (1.0 + libm::erf(*x / 2f64.sqrt())))
            }
            Layer::MaxPool2d(window) | Layer::AveragePool2d(window) => {
                let width = shape[1];
                let rows = (shape[0] - window.size) / window.stride + 1;
                let columns = (width - window.size) / window.stride + 1;
                let mut y = Vec::new();
                for (row, column, channel) in triples(rows, columns, channels) {
                    let under = triples(window.size, window.size, 1).map(|(down, right, _)| {
                        let (r, c) = (row * window.stride + down, column * window.stride + right);
                        x[(r * width + c) * channels + channel]
                    });
                    let under: Vec<f64> = under.collect();
                    y.push(match layer {
                        Layer::MaxPool2d(_) => under.iter().copied().fold(f64::MIN, f64::max),
                        _ => under.iter().sum::<f64>() / under.len() as f64,
                    });
                }
                (x, shape) = (y, vec![rows, columns, channels]);
            }
            Layer::GlobalAverage => {
                let mean = |c: usize| {
                    (0..positions).map(|t| x[t * channels + c]).sum::<f64>() / positions as f64
                };
                x = (0..channels).map(mean).collect();
                shape = vec![channels];
            }
            Layer::Flatten => shape = vec![x.len()],
            Layer::LayerNorm | Layer::GroupNorm { .. } => {
                let (scale, shift) = (next(), next());
                let set = |i: usize| match layer {
                    Layer::GroupNorm { groups } => i % channels / (channels / groups),
                    _ => i / channels,
                };
                let normal = |i: usize| {
                    let mates: Vec<f64> =
                        (0..x.len()).filter(|j| set(*j) == set(i)).map(|j| x[j]).collect();
                    let mean = mates.iter().sum::<f64>() / mates.len() as f64;
                    let variance =
                        mates.iter().map(|m| (m - mean).powi(2)).sum::<f64>() / mates.len() as f64;
                    (x[i] - mean) / (variance + 1e-5).sqrt()
                };
                x = (0..x.len())
                    .map(|i| normal(i) * scale[i % channels] + shift[i % channels])
                    .collect();
            }
            Layer::Attention { heads } => {
                let (all, width) = (channels / 3, channels / 3 / heads);
                let part = |part: usize, t: usize, c: usize| x[t * channels + part * all + c];
                let mut y = vec![0.0; positions * all];
                for (t, head, _) in triples(positions, *heads, 1) {
                    let columns = head * width..(head + 1) * width;
                    let score = |s: usize| {
                        let product = columns.clone().map(|c| part(0, t, c) * part(1, s, c));
                        product.sum::<f64>() / (width as f64).sqrt()
                    };
                    let exponentials: Vec<f64> = (0..positions).map(|s| score(s).exp()).collect();
                    let total: f64 = exponentials.iter().sum();
                    for c in columns.clone() {
                        let weighted = (0..positions).map(|s| exponentials[s] * part(2, s, c));
                        y[t * all + c] = weighted.sum::<f64>() / total;
                    }
                }
                (x, shape) = (y, vec![positions, all]);
            }
            Layer::BatchNorm => {
                let (scale, shift, mean, square) = (next(), next(), next(), next());
                for (i, x) in x.iter_mut().enumerate() {
                    let c = i % channels;
                    let variance = square[c] - mean[c] * mean[c];
                    *x = (*x - mean[c]) / (variance + 1e-5).sqrt() * scale[c] + shift[c];
                }
            }
            Layer::Embedding { dimension, .. } => {
                let table = next();
                x = x
                    .iter()
                    .flat_map(|x| table[*x as usize * dimension..][..*dimension].to_vec())
                    .collect();
                shape.push(*dimension);
            }
            Layer::EmbedColumns(columns) => {
                let mut y = Vec::new();
                let mut tables = columns.iter().map(|column| (column, next())).collect::<Vec<_>>();
                for (place, x) in x.iter().enumerate() {
                    match tables.first() {
                        Some((column, table)) if column.column == place => {
                            let row = |j| match *x {
                                -1.0 => 0.0,
                                x => table[x as usize * column.dimension + j],
                            };
                            y.extend((0..column.dimension).map(row));
                            tables.remove(0);
                        }
                        _ => y.push(*x),
                    }
                }
                (x, shape) = (y.clone(), vec![y.len()]);
            }
        }
    }
    x
}

fn triples(a: usize, b: usize, c: usize) -> impl Iterator<Item = (usize, usize, usize)> {
    (0..a * b * c).map(move |i| (i / (b * c), i / c % b, i % c))
}
