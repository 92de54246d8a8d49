//! The steps from an example to the input of the first layer, as ONNX operators.

use veilgrad_data::{ImageCopy, Pool, Scattering};
use veilgrad_nn::Whitening;

use super::graph::{Graph, Name, Number};
use super::layers::normalise;
use super::scattering;
use crate::error::Error;
use crate::train::network_description::{Encoding, InputStep, TableColumn};

/// What the steps lead to.
pub(super) struct Inputs {
    /// The input of the first layer.
    pub(super) value: Name,
    /// How many copies of every example it has, one batch after the other.
    pub(super) copies: usize,
    /// 0 for every example, NaN for those that have no prediction.
    pub(super) defect: Name,
    /// The name, the type and the shape of the graph's input.
    pub(super) given: (&'static str, Number, Vec<usize>),
}

/// Adds all steps to the graph.
pub(super) fn inputs(
    graph: &mut Graph,
    steps: &[InputStep],
    whitening: Option<&Whitening>,
) -> Result<Inputs, Error> {
    let Some((first, steps)) = steps.split_first() else {
        return Err(Error::failure("the model has no inputs"));
    };
    let (given, mut value) = match first {
        InputStep::Scale { shape, low, high, missing } => {
            let about = "examples as in the files, not scaled";
            let input = graph.input("input", Number::F32, shape, about);
            let flat = graph.reshape(&input, &[shape.iter().product()]);
            let value = scale(graph, &flat, (*low as f32, *high), *missing);
            (("input", Number::F32, shape.clone()), value)
        }
        InputStep::Table { columns } => {
            let about =
                "one number per column: the number, or the index of the word (-1: none of them)";
            let input = graph.input("columns", Number::F64, &[columns.len()], about);
            let value = table(graph, columns, &input);
            (("columns", Number::F64, vec![columns.len()]), value)
        }
        other => return Err(Error::failure(format!("{other:?} is not the first step"))),
    };
    // NaN times 0 is NaN.
    let zero = graph.float(0.0);
    let zeros = graph.apply("Mul", &[&value, &zero]);
    let defect = graph.sum(&zeros, &[1], true);
    let mut copies = 1;
    for step in steps {
        value = match step {
            InputStep::Copies { shape, copies: all } => {
                copies = all.len();
                let shifts: Vec<(isize, isize, bool)> =
                    all.iter().map(|copy| (copy.down, copy.right, copy.mirrored)).collect();
                shifted(graph, *shape, &shifts, &value)
            }
            InputStep::Scattering {
                shape,
                scales,
                orientations,
                grid,
                pool_sigma,
                opponent_colours,
                mirror,
            } => {
                let [rows, columns, colours] = *shape;
                let scattering = match (grid, pool_sigma) {
                    (Some(grid), Some(sigma)) => {
                        let pool = Pool { grid: *grid, sigma: *sigma };
                        Scattering::pooled(rows, columns, *scales, *orientations, pool)
                    }
                    _ => Scattering::new(rows, columns, *scales, *orientations),
                }
                .map_err(Error::usage)?;
                // Every colour is transformed on its own.
                let mut image = graph.reshape(&value, &[rows, columns, colours]);
                if *opponent_colours {
                    image = in_opponent_colours(graph, &image);
                }
                let planes = graph.transpose(&image, &[0, 3, 1, 2]);
                let planes = graph.reshape(&planes, &[rows, columns]);
                let features = scattering::transform(graph, &scattering.operators(), &planes);
                let width: usize = scattering.shape().iter().product();
                let mut features = graph.reshape(&features, &[colours, width]);
                if *mirror {
                    let mirrored = graph.gather(&features, 2, &scattering.mirrored_places());
                    let (sum, half) =
                        (graph.apply("Add", &[&features, &mirrored]), graph.float(0.5));
                    features = graph.apply("Mul", &[&sum, &half]);
                }
                graph.reshape(&features, &[colours * width])
            }
            InputStep::GroupNorm { width, groups, epsilon } => {
                let normal = group_norm(graph, (*width, *groups), *epsilon, &value);
                // The colours of an example are one row again: later norms are those of the whole row.
                graph.reshape(&normal, &[colours_of(steps) * width])
            }
            InputStep::Whiten { .. } => {
                let whitening =
                    whitening.ok_or_else(|| Error::failure("the model has no whitening"))?;
                whiten(graph, whitening, &value)
            }
            InputStep::Norm { norm } => {
                let unit = unit(graph, &value);
                let norm = graph.float(*norm as f32);
                graph.apply("Mul", &[&unit, &norm])
            }
            InputStep::Reshape { shape } => graph.reshape(&value, shape),
            other => return Err(Error::failure(format!("{other:?} is not a later step"))),
        };
    }
    Ok(Inputs { value, copies, defect, given })
}

/// Brightness and two differences instead of red, green and blue: a product with the change of basis.
fn in_opponent_colours(graph: &mut Graph, image: &str) -> Name {
    let mut basis = [1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0];
    veilgrad_data::opponent_colours(&mut basis);
    let basis = graph.floats(&[3, 3], &basis);
    graph.apply("MatMul", &[image, &basis])
}

/// Clamps to bounds that are constants; NaN stays NaN.
fn clamp(graph: &mut Graph, value: &str, low: &str, high: &str) -> Name {
    let clamped = graph.apply("Clip", &[value, low, high]);
    let is_nan = graph.apply("IsNaN", &[value]);
    graph.apply("Where", &[&is_nan, value, &clamped])
}

/// Scales numbers of an array, in f32 as in training.
fn scale(graph: &mut Graph, value: &str, (low, high): (f32, f64), missing: Option<f64>) -> Name {
    let factor = (1.0 / (high - f64::from(low))) as f32;
    let mut value = value.to_owned();
    if let Some(missing) = missing {
        let missing = graph.float(missing as f32);
        let is_nan = graph.apply("IsNaN", &[&value]);
        value = graph.apply("Where", &[&is_nan, &missing, &value]);
    }
    let (low, factor) = (graph.float(low), graph.float(factor));
    let shifted = graph.apply("Sub", &[&value, &low]);
    let scaled = graph.apply("Mul", &[&shifted, &factor]);
    let (zero, one) = (graph.float(0.0), graph.float(1.0));
    clamp(graph, &scaled, &zero, &one)
}

/// The number that an output of the model stands for: -1 and 1 are the bounds of the label. NaN stays NaN.
pub(super) fn unscale(graph: &mut Graph, value: &str, low: f64, high: f64) -> Name {
    let value = graph.cast(value, Number::F64);
    let (least, most) = (graph.doubles(&[], &[-1.0]), graph.doubles(&[], &[1.0]));
    let clamped = clamp(graph, &value, &least, &most);
    let half = graph.doubles(&[], &[0.5 * high - 0.5 * low]);
    let middle = graph.doubles(&[], &[0.5 * low + 0.5 * high]);
    let scaled = graph.apply("Mul", &[&clamped, &half]);
    let number = graph.apply("Add", &[&scaled, &middle]);
    graph.cast(&number, Number::F32)
}

/// Encodes the columns of a table.
fn table(graph: &mut Graph, columns: &[TableColumn], input: &str) -> Name {
    let (low_end, high_end) = (graph.doubles(&[], &[-1.0]), graph.doubles(&[], &[1.0]));
    let mut encoded = Vec::new();
    for (place, column) in columns.iter().enumerate() {
        let cell = graph.gather(input, 1, &[place]);
        encoded.push(match &column.encoding {
            Encoding::Number { low, high, missing } => {
                let mut cell = cell;
                if let Some(missing) = missing {
                    let missing = graph.doubles(&[], &[*missing]);
                    let is_nan = graph.apply("IsNaN", &[&cell]);
                    cell = graph.apply("Where", &[&is_nan, &missing, &cell]);
                }
                let middle = graph.doubles(&[], &[0.5 * low + 0.5 * high]);
                let half = graph.doubles(&[], &[0.5 * high - 0.5 * low]);
                let shifted = graph.apply("Sub", &[&cell, &middle]);
                let scaled = graph.apply("Div", &[&shifted, &half]);
                let clamped = clamp(graph, &scaled, &low_end, &high_end);
                graph.cast(&clamped, Number::F32)
            }
            Encoding::Index { missing, .. } => {
                let none = graph.doubles(&[], &[-1.0]);
                let replacement = graph.doubles(&[], &[missing.map_or(-1.0, |word| word as f64)]);
                let is_none = graph.apply("Equal", &[&cell, &none]);
                let index = graph.apply("Where", &[&is_none, &replacement, &cell]);
                graph.cast(&index, Number::F32)
            }
            Encoding::OneHot { words, missing } => {
                let places: Vec<f64> = (0..words.len()).map(|word| word as f64).collect();
                let places = graph.doubles(&[1, words.len()], &places);
                let is_word = graph.apply("Equal", &[&cell, &places]);
                let one_hot = graph.cast(&is_word, Number::F32);
                let Some(missing) = missing else {
                    encoded.push(one_hot);
                    continue;
                };
                // 1 minus the sum is 1 for a cell that is none of the words.
                let mut replacement = vec![0.0; words.len()];
                replacement.iter_mut().skip(*missing).take(1).for_each(|value| *value = 1.0);
                let replacement = graph.floats(&[1, words.len()], &replacement);
                let (found, one) = (graph.sum(&one_hot, &[1], true), graph.float(1.0));
                let is_missing = graph.apply("Sub", &[&one, &found]);
                let replaced = graph.apply("Mul", &[&is_missing, &replacement]);
                graph.apply("Add", &[&one_hot, &replaced])
            }
        });
    }
    graph.concat(&encoded, 1)
}

/// All copies of the images: a batch of the first, then a batch of the second, and so on.
fn shifted(
    graph: &mut Graph,
    [rows, columns, colours]: [usize; 3],
    copies: &[(isize, isize, bool)],
    value: &str,
) -> Name {
    let pixels = graph.reshape(value, &[rows * columns, colours]);
    // A pixel's source: an image of pixel numbers, copied.
    let numbers: Vec<f32> = (0..rows * columns).map(|pixel| pixel as f32).collect();
    let largest =
        copies.iter().flat_map(|(down, right, _)| [down.unsigned_abs(), right.unsigned_abs()]);
    let largest = u8::try_from(largest.max().unwrap_or(0)).unwrap_or(u8::MAX);
    let known = ImageCopy::all(largest, true);
    let all: Vec<Name> = copies
        .iter()
        .filter_map(|copy| known.iter().find(|known| known.offsets() == *copy))
        .map(|copy| {
            let mut source = vec![0.0; numbers.len()];
            copy.write(&numbers, [rows, columns, 1], &mut source);
            let source: Vec<usize> = source.iter().map(|pixel| *pixel as usize).collect();
            graph.gather(&pixels, 1, &source)
        })
        .collect();
    let all = graph.concat(&all, 0);
    graph.reshape(&all, &[rows * columns * colours])
}

/// The number of colours that features are computed of.
fn colours_of(steps: &[InputStep]) -> usize {
    let colours = steps.iter().find_map(|step| match step {
        InputStep::Scattering { shape: [_, _, colours], .. } => Some(*colours),
        _ => None,
    });
    colours.unwrap_or(1).max(1)
}

/// Normalises groups of consecutive numbers, in parts of `width`.
fn group_norm(
    graph: &mut Graph,
    (width, groups): (usize, usize),
    epsilon: f64,
    value: &str,
) -> Name {
    let size = width.div_ceil(groups.max(1)).max(1);
    let parts = graph.reshape(value, &[width]);
    let mut normal = Vec::new();
    let whole = width / size * size;
    for range in [0..whole, whole..width] {
        if range.is_empty() {
            continue;
        }
        let (length, group) = (range.len(), size.min(range.len()));
        let part = match length == width {
            true => parts.clone(),
            false => graph.gather(&parts, 1, &range.collect::<Vec<usize>>()),
        };
        let grouped = graph.reshape(&part, &[length / group, group]);
        // In f64, as in training.
        let grouped = graph.cast(&grouped, Number::F64);
        let epsilon = graph.doubles(&[], &[epsilon]);
        let scaled = normalise(graph, &grouped, &[2], &epsilon);
        let scaled = graph.cast(&scaled, Number::F32);
        normal.push(graph.reshape(&scaled, &[length]));
    }
    graph.concat(&normal, 1)
}

/// Scales to norm 1, in f64 as in training; zeros stay zeros.
fn unit(graph: &mut Graph, value: &str) -> Name {
    let value = graph.cast(value, Number::F64);
    let squares = graph.apply("Mul", &[&value, &value]);
    let sum = graph.sum(&squares, &[1], true);
    let norm = graph.apply("Sqrt", &[&sum]);
    let smallest = graph.doubles(&[], &[f64::MIN_POSITIVE]);
    let norm = graph.apply("Max", &[&norm, &smallest]);
    let scaled = graph.apply("Div", &[&value, &norm]);
    graph.cast(&scaled, Number::F32)
}

fn whiten(graph: &mut Graph, whitening: &Whitening, value: &str) -> Name {
    let (mean, directions, scales) = whitening.parts();
    let (width, count) = (mean.len(), scales.len());
    let mean = graph.floats(&[width], mean);
    let scaled = unit(graph, value);
    let centred = graph.apply("Sub", &[&scaled, &mean]);
    let mut row = unit(graph, &centred);
    if count > 0 {
        let directions = graph.floats(&[count, width], directions);
        let columns = graph.transpose(&directions, &[1, 0]);
        let factors: Vec<f32> = scales.iter().map(|scale| scale - 1.0).collect();
        let factors = graph.floats(&[count], &factors);
        let projected = graph.apply("MatMul", &[&row, &columns]);
        let change = graph.apply("Mul", &[&projected, &factors]);
        let change = graph.apply("MatMul", &[&change, &directions]);
        row = graph.apply("Add", &[&row, &change]);
    }
    unit(graph, &row)
}
