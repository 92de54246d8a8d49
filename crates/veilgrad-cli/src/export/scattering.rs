//! The scattering transform as ONNX operators: Fourier transforms are products with matrices of cosines and sines.

use std::collections::BTreeMap;
use std::f64::consts::TAU;

use veilgrad_data::{LevelOperators, Operators};

use super::graph::{Graph, Name};

/// Real and imaginary parts.
type Complex = (Name, Name);

/// Adds the transform of images `[rows, columns]`. The result has the features of an image in one axis.
pub(super) fn transform(graph: &mut Graph, operators: &Operators, image: &str) -> Name {
    let [rows, columns] = &operators.padding;
    let padded = graph.gather(image, 1, rows);
    let padded = graph.gather(&padded, 2, columns);
    let mut fourier = Fourier { matrices: BTreeMap::new() };
    let Some(whole) = operators.levels.first() else { return padded };
    let signal = graph.reshape(&padded, &[1, whole.size[0], whole.size[1]]);
    let averaged = average(graph, whole, &signal, 1);
    let (mut first, mut second) = (vec![averaged], Vec::new());
    let spectrum = fourier.forward(graph, whole.size, &signal);
    for (j, level) in operators.levels.iter().enumerate() {
        let Some(filters) = whole.filters.get(j) else { continue };
        let moduli = fourier.moduli(graph, (&spectrum, whole, 1), filters, level);
        let orientations = filters.len();
        first.push(average(graph, level, &moduli, orientations));
        let mut of_level = Vec::new();
        let coarser = operators.levels.iter().skip(j + 1).zip(level.filters.iter().skip(1));
        let spectrum = match j + 1 < operators.levels.len() {
            true => fourier.forward(graph, level.size, &moduli),
            false => continue,
        };
        for (coarse, filters) in coarser {
            let source = (&spectrum, level, orientations);
            let moduli = fourier.moduli(graph, source, filters, coarse);
            let channels = orientations * filters.len();
            let averaged = average(graph, coarse, &moduli, channels);
            // By the first orientation, and only then by scale.
            let size = points(coarse) * filters.len();
            of_level.push(graph.reshape(&averaged, &[orientations, size]));
        }
        let joined = graph.concat(&of_level, 2);
        let size: usize = level.filters.iter().skip(1).map(Vec::len).sum();
        second.push(graph.reshape(&joined, &[orientations * size * points(level)]));
    }
    first.extend(second);
    graph.concat(&first, 1)
}

/// How many numbers a channel has.
fn points(level: &LevelOperators) -> usize {
    level.averages.iter().map(Vec::len).product()
}

/// The averages of signals, flattened.
fn average(graph: &mut Graph, level: &LevelOperators, signals: &str, channels: usize) -> Name {
    let [rows, columns] = &level.averages;
    let across = graph.floats(&[rows.len(), level.size[0]], &rows.concat());
    let turned: Vec<f32> = (0..level.size[1])
        .flat_map(|sample| columns.iter().filter_map(move |line| line.get(sample).copied()))
        .collect();
    let along = graph.floats(&[level.size[1], columns.len()], &turned);
    let smooth = graph.apply("MatMul", &[&across, signals]);
    let smooth = graph.apply("MatMul", &[&smooth, &along]);
    graph.reshape(&smooth, &[channels * points(level)])
}

/// Matrices of Fourier transforms, by length: cosines, and minus sines.
struct Fourier {
    matrices: BTreeMap<usize, Complex>,
}

impl Fourier {
    fn matrix(&mut self, graph: &mut Graph, length: usize) -> Complex {
        let make = || {
            let angle = |place: usize| {
                let turns = (place / length) * (place % length) % length;
                TAU * turns as f64 / length as f64
            };
            let all = 0..length * length;
            let cosines: Vec<f32> = all.clone().map(|place| angle(place).cos() as f32).collect();
            let sines: Vec<f32> = all.map(|place| -angle(place).sin() as f32).collect();
            let shape = [length, length];
            (graph.floats(&shape, &cosines), graph.floats(&shape, &sines))
        };
        self.matrices.entry(length).or_insert_with(make).clone()
    }

    /// The spectra of real signals of this size.
    fn forward(&mut self, graph: &mut Graph, [rows, columns]: [usize; 2], signal: &str) -> Complex {
        let (row_cos, row_sin) = self.matrix(graph, rows);
        let (column_cos, column_sin) = self.matrix(graph, columns);
        let real = graph.apply("MatMul", &[signal, &column_cos]);
        let imaginary = graph.apply("MatMul", &[signal, &column_sin]);
        let product =
            |graph: &mut Graph, matrix: &str, value: &str| graph.apply("MatMul", &[matrix, value]);
        let parts = [
            product(graph, &row_cos, &real),
            product(graph, &row_sin, &imaginary),
            product(graph, &row_cos, &imaginary),
            product(graph, &row_sin, &real),
        ];
        let [a, b, c, d] = &parts;
        (graph.apply("Sub", &[a, b]), graph.apply("Add", &[c, d]))
    }

    /// The moduli of signals that are filtered and subsampled to a coarser level, one for each channel and filter.
    fn moduli(
        &mut self,
        graph: &mut Graph,
        (spectrum, from, channels): (&Complex, &LevelOperators, usize),
        filters: &[Vec<f32>],
        to: &LevelOperators,
    ) -> Name {
        let ([rows, columns], [to_rows, to_columns]) = (from.size, to.size);
        // The inverse transform divides by the size of the level that is subsampled.
        let scale = 1.0 / (rows * columns) as f32;
        let weights: Vec<f32> = filters.iter().flatten().map(|weight| weight * scale).collect();
        let weights = graph.floats(&[filters.len(), rows, columns], &weights);
        // Frequencies that alias are summed.
        let folded = [rows / to_rows, to_rows, columns / to_columns, to_columns];
        let shape = [&[channels * filters.len()][..], &folded].concat();
        let mut filtered = |value: &str| {
            let value = graph.reshape(value, &[channels, 1, rows, columns]);
            let product = graph.apply("Mul", &[&value, &weights]);
            let product = graph.reshape(&product, &shape);
            graph.sum(&product, &[2, 4], false)
        };
        let (real, imaginary) = (filtered(&spectrum.0), filtered(&spectrum.1));
        let (real, imaginary) = self.inverse(graph, to.size, (real, imaginary));
        let squares = [&real, &imaginary].map(|value| graph.apply("Mul", &[value, value]));
        let sum = graph.apply("Add", &[&squares[0], &squares[1]]);
        graph.apply("Sqrt", &[&sum])
    }

    /// The inverse transform, without its scale.
    fn inverse(
        &mut self,
        graph: &mut Graph,
        [rows, columns]: [usize; 2],
        (real, imaginary): Complex,
    ) -> Complex {
        let (row_cos, row_sin) = self.matrix(graph, rows);
        let (column_cos, column_sin) = self.matrix(graph, columns);
        let mut product = |a: &str, b: &str| graph.apply("MatMul", &[a, b]);
        let parts = [
            product(&real, &column_cos),
            product(&imaginary, &column_sin),
            product(&imaginary, &column_cos),
            product(&real, &column_sin),
        ];
        let [a, b, c, d] = &parts;
        let (real, imaginary) = (graph.apply("Add", &[a, b]), graph.apply("Sub", &[c, d]));
        let mut product = |a: &str, b: &str| graph.apply("MatMul", &[a, b]);
        let parts = [
            product(&row_cos, &real),
            product(&row_sin, &imaginary),
            product(&row_cos, &imaginary),
            product(&row_sin, &real),
        ];
        let [a, b, c, d] = &parts;
        (graph.apply("Add", &[a, b]), graph.apply("Sub", &[c, d]))
    }
}
