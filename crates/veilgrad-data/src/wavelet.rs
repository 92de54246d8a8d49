//! Morlet wavelets and Gaussian averages on a torus (Bruna, Mallat 2013, with the usual constants:
//! width 0.8 2^j, frequency 3 pi / 4 2^-j, slant 4 / L).

use std::f64::consts::PI;

use rustfft::FftPlannerScalar;
use rustfft::num_complex::Complex;

/// Lines up to this length use a direct Fourier transform instead of an FFT: changing that would change the bits of
/// the features of common images.
const LONGEST_BY_DEFINITION: usize = 512;

/// How many periodic copies of a filter are summed on each side.
const COPIES: i32 = 2;

/// Rows and columns of the torus that signals and filters live on.
type Torus = (usize, usize);

/// The transfer function of the Morlet wavelet with this scale and orientation `l` of `orientations`.
/// It is real, because the wavelet is Hermitian; the wavelet's mean is zero.
pub(crate) fn morlet(torus: Torus, scale: u32, l: usize, orientations: usize) -> Vec<f32> {
    let filter = wavelet(torus, scale, l, orientations);
    transform(&filter, torus).iter().map(|value| value.re as f32).collect()
}

/// The Morlet wavelet in the spatial domain.
pub(crate) fn wavelet(
    torus: Torus,
    scale: u32,
    l: usize,
    orientations: usize,
) -> Vec<Complex<f64>> {
    let half = (orientations - orientations / 2) as f64 - 1.0;
    let angle = (half - l as f64) * PI / orientations as f64;
    let width = 0.8 * f64::from(scale).exp2();
    let frequency = 0.75 * PI / f64::from(scale).exp2();
    let slant = 4.0 / orientations as f64;
    let wave = gabor(torus, width, angle, frequency, slant);
    let envelope = gabor(torus, width, angle, 0.0, slant);
    let sum = |values: &[Complex<f64>]| values.iter().sum::<Complex<f64>>();
    let share = sum(&wave) / sum(&envelope);
    wave.iter().zip(&envelope).map(|(wave, envelope)| wave - share * envelope).collect()
}

/// A Gabor function (a Gaussian of unit mass times a plane wave), summed over periodic copies.
fn gabor(
    (rows, columns): Torus,
    width: f64,
    angle: f64,
    frequency: f64,
    slant: f64,
) -> Vec<Complex<f64>> {
    let (sin, cos) = angle.sin_cos();
    let mut values = Vec::with_capacity(rows * columns);
    for row in 0..rows {
        for column in 0..columns {
            let mut sum = Complex::new(0.0, 0.0);
            for (copy_row, copy_column) in
                (-COPIES..=COPIES).flat_map(|a| (-COPIES..=COPIES).map(move |b| (a, b)))
            {
                let x = row as f64 + f64::from(copy_row) * rows as f64;
                let y = column as f64 + f64::from(copy_column) * columns as f64;
                let (along, across) = (x * cos + y * sin, slant * (y * cos - x * sin));
                let size = (-(along * along + across * across) / (2.0 * width * width)).exp();
                sum += Complex::from_polar(size, frequency * along);
            }
            values.push(sum * slant / (2.0 * PI * width * width));
        }
    }
    values
}

/// The weights of consecutive samples of a signal, from `first` on.
pub(crate) struct Taps {
    pub(crate) first: usize,
    pub(crate) weights: Vec<f32>,
}

/// Smooths a side of `length` by a Gaussian of this width and samples it at `stride, 2 stride, …`.
pub(crate) fn average(length: usize, width: f64, stride: usize, count: usize) -> Vec<Taps> {
    let weight = |distance: f64| {
        (-COPIES..=COPIES)
            .map(|copy| distance + f64::from(copy) * length as f64)
            .map(|x| (-x * x / (2.0 * width * width)).exp())
            .sum::<f64>()
    };
    let scale = 1.0 / ((2.0 * PI).sqrt() * width);
    let entry = |point: usize, sample: usize| {
        (scale * weight(((point + 1) * stride) as f64 - sample as f64)) as f32
    };
    let taps = |point| Taps {
        first: 0,
        weights: (0..length).map(|sample| entry(point, sample)).collect(),
    };
    (0..count).map(taps).collect()
}

/// Gaussian averages around `grid` points of a side of `side` pixels, from `length` samples: sample i is at pixel
/// `i * factor - margin`. Only samples in the image count, up to four sigmas away.
pub(crate) fn pool(
    length: usize,
    factor: usize,
    margin: usize,
    side: usize,
    grid: usize,
    sigma: f64,
) -> Vec<Taps> {
    let pixel = |sample: usize| (sample * factor) as f64 - margin as f64;
    let taps = |point: usize| {
        let centre = (point as f64 + 0.5) * side as f64 / grid as f64 - 0.5;
        let is_near = |sample: &usize| {
            let pixel = pixel(*sample);
            (0.0..side as f64).contains(&pixel) && (pixel - centre).abs() <= 4.0 * sigma
        };
        let samples: Vec<usize> = (0..length).filter(is_near).collect();
        let weight = |sample: &usize| {
            let distance = (pixel(*sample) - centre) / sigma;
            (-0.5 * distance * distance).exp()
        };
        let sum: f64 = samples.iter().map(weight).sum();
        let weights = samples.iter().map(|sample| (weight(sample) / sum) as f32).collect();
        Taps { first: samples.first().copied().unwrap_or(0), weights }
    };
    (0..grid).map(taps).collect()
}

/// The two-dimensional Fourier transform of a filter: direct, or by FFT for long lines.
fn transform(values: &[Complex<f64>], (rows, columns): Torus) -> Vec<Complex<f64>> {
    // Not the planner that chooses vector instructions: this runs once per filter, and that one's kernels for f64 take a
    // third of the time to compile this crate.
    let mut planner = FftPlannerScalar::new();
    let mut along = |values: &[Complex<f64>], length: usize| -> Vec<Complex<f64>> {
        if length > LONGEST_BY_DEFINITION {
            let mut values = values.to_vec();
            planner.plan_fft_forward(length).process(&mut values);
            return values;
        }
        let wave = |turns: usize| {
            Complex::from_polar(1.0, -2.0 * PI * (turns % length) as f64 / length as f64)
        };
        let waves: Vec<Complex<f64>> = (0..length).map(wave).collect();
        let line = |line: &[Complex<f64>]| -> Vec<Complex<f64>> {
            let coefficient = |frequency: usize| {
                let wave = |sample: usize| waves.get(sample * frequency % length);
                let terms = line.iter().enumerate();
                terms.filter_map(|(sample, value)| wave(sample).map(|wave| value * wave)).sum()
            };
            (0..length).map(coefficient).collect()
        };
        values.chunks_exact(length).flat_map(line).collect()
    };
    let transposed = transpose(&along(values, columns), columns);
    transpose(&along(&transposed, rows), rows)
}

/// A transfer function for signals subsampled by `factor`: sums the frequencies that alias.
pub(crate) fn fold(filter: &[f32], columns: usize, factor: usize) -> Vec<f32> {
    let rows = filter.len() / columns.max(1);
    let (short_rows, short_columns) = (rows / factor, columns / factor);
    let mut folded = vec![0.0; short_rows * short_columns];
    for (row, values) in filter.chunks_exact(columns).enumerate() {
        let to = folded.chunks_exact_mut(short_columns).nth(row % short_rows);
        for to in to.into_iter() {
            for values in values.chunks_exact(short_columns) {
                to.iter_mut().zip(values).for_each(|(to, value)| *to += value);
            }
        }
    }
    folded
}

/// The transpose of a row-major matrix.
pub(crate) fn transpose<T: Copy>(values: &[T], columns: usize) -> Vec<T> {
    (0..columns).flat_map(|column| values.iter().copied().skip(column).step_by(columns)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lines_have_the_same_transform_as_by_its_definition() {
        let (rows, columns) = (LONGEST_BY_DEFINITION + 8, 4);
        let filter = wavelet((rows, columns), 1, 1, 4);
        let found = transform(&filter, (rows, columns));
        for (u, v) in [(0, 0), (1, 0), (0, 3), (7, 2), (rows - 1, 1), (rows / 2, 3)] {
            let turns = |row: usize, column: usize| {
                (row * u) as f64 / rows as f64 + (column * v) as f64 / columns as f64
            };
            let places = (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column)));
            let terms = places.zip(&filter).map(|((row, column), value)| {
                value * Complex::from_polar(1.0, -2.0 * PI * turns(row, column))
            });
            let expected: Complex<f64> = terms.sum();
            assert!((found[u * columns + v] - expected).norm() < 1e-11, "({u}, {v})");
        }
    }
}
