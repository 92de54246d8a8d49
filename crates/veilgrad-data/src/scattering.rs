//! The scattering transform of an image: two layers of wavelets, moduli and averages.

mod operators;

use std::sync::Arc;

use rustfft::num_complex::Complex;
use rustfft::{Fft, FftPlanner};

use crate::parallel::each_row;
use crate::wavelet::{Taps, average, fold, morlet, pool, transpose};
pub use operators::{LevelOperators, Operators};

/// The scattering transform of order two (Bruna, Mallat 2013; with differential privacy: Tramèr, Boneh 2021).
///
/// An image of `rows x columns` becomes `1 + J L + L^2 J (J - 1) / 2` channels of
/// `rows / 2^J x columns / 2^J`: averages of the image, of its wavelet moduli, and of the wavelet moduli of those.
///
/// # Guarantee
/// A function of one record alone and of public sizes, so it costs no budget. The result does not depend on the number of
/// threads.
///
/// # Example
/// ```
/// use veilgrad_data::Scattering;
///
/// let scattering = Scattering::new(8, 8, 1, 4)?; // J = 1, L = 4
/// assert_eq!(scattering.shape(), [5, 4, 4]); // 1 + 4 channels of 4 x 4
/// assert_eq!(scattering.transform(&[0.5; 64], 1).len(), 5 * 4 * 4);
///
/// // The same channels, averaged around 3 x 3 points.
/// let pool = veilgrad_data::Pool { grid: 3, sigma: 1.2 };
/// assert_eq!(Scattering::pooled(8, 8, 1, 4, pool)?.shape(), [5, 3, 3]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Scattering {
    image: (usize, usize),
    padded: (usize, usize),
    shape: [usize; 3],
    /// Filters and averages of signals at scale j, for every j.
    levels: Vec<Level>,
}

/// Gaussian pooling of channels around `grid x grid` points, spread evenly over the image.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pool {
    /// The number of points along each side.
    pub grid: usize,
    /// The standard deviation of the Gaussian around a point, in pixels.
    pub sigma: f64,
}

/// The largest number of values of all wavelets together, and of the averages along one side.
const LARGEST: usize = 1 << 24;

/// Invalid sizes of a scattering transform.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("scattering of {rows} x {columns} images with J = {scales}, L = {orientations}: {rule}")]
pub struct ScatteringError {
    rows: usize,
    columns: usize,
    scales: u32,
    orientations: usize,
    rule: &'static str,
}

/// Signals at one scale, which are subsampled.
struct Level {
    rows: usize,
    columns: usize,
    /// Transfer functions of the wavelets of this scale and of all larger ones, by scale and orientation.
    filters: Vec<Vec<Vec<f32>>>,
    /// The averages along rows and columns.
    average: (Vec<Taps>, Vec<Taps>),
    forward: Plans,
    inverse: Plans,
}

/// The length of a side with padding for the widest filter.
const fn pad(side: usize, scales: u32) -> usize {
    let step = 1usize << scales;
    ((side + step) / step + 1) * step
}

/// The same for [`Scattering::pooled`]: padding of two and a half times the widest wavelet's scale at both ends. The length is
/// a multiple of eight, because signals are subsampled by up to eight.
const fn pad_pooled(side: usize, scales: u32) -> usize {
    (side + (5 << (scales - 1))).next_multiple_of(8)
}

/// Fourier transforms of length `rows` and of length `columns`.
struct Plans(Arc<dyn Fft<f32>>, Arc<dyn Fft<f32>>);

impl Scattering {
    /// The instruction sets of this processor that features depend on: which of them a Fourier transform uses is decided at
    /// run time, and they round differently. Features of the same image have the same bits on processors with the same ones,
    /// in the same program.
    #[must_use]
    pub fn instruction_sets() -> String {
        let mut found = vec![std::env::consts::ARCH];
        #[cfg(target_arch = "x86_64")]
        found.extend(
            [
                ("sse4.1", is_x86_feature_detected!("sse4.1")),
                ("avx", is_x86_feature_detected!("avx")),
                ("fma", is_x86_feature_detected!("fma")),
            ]
            .into_iter()
            .filter_map(|(name, is_there)| is_there.then_some(name)),
        );
        #[cfg(target_arch = "aarch64")]
        if std::arch::is_aarch64_feature_detected!("neon") {
            found.push("neon");
        }
        found.join(" ")
    }

    /// The transform with scales 1, 2, …, 2^(J-1) and L orientations.
    ///
    /// # Errors
    /// When a side of the image is at most 2^J, or a size is out of range.
    pub fn new(
        rows: usize,
        columns: usize,
        scales: u32,
        orientations: usize,
    ) -> Result<Self, ScatteringError> {
        let shape = Self::shape_of(rows, columns, scales, orientations)?;
        let (padded, image) = ((pad(rows, scales), pad(columns, scales)), (rows, columns));
        let step = 1usize << scales;
        let averages = |length: usize, side: usize, factor: usize| {
            let width = 0.8 * step as f64 / (2 * factor) as f64;
            average(length, width, step / factor, side / step)
        };
        Ok(Self::build(image, padded, shape, (scales, orientations), |j| 1 << j, averages))
    }

    /// The transform with scales 1, 2, …, 2^(J-1) and L orientations, averaged around the points of a grid: point k of
    /// G along a side of n pixels is at `(k + 1/2) n/G - 1/2`. Images are padded by reflection; averages are over the pixels
    /// of the image only.
    ///
    /// # Errors
    /// As for [`new`](Self::new), and when the grid has more points than a side has pixels or sigma is not in
    /// [0.5, 64].
    pub fn pooled(
        rows: usize,
        columns: usize,
        scales: u32,
        orientations: usize,
        Pool { grid, sigma }: Pool,
    ) -> Result<Self, ScatteringError> {
        let pooled = Pool { grid, sigma };
        let shape = Self::pooled_shape_of(rows, columns, scales, orientations, pooled)?;
        let padded = (pad_pooled(rows, scales), pad_pooled(columns, scales));
        // With samples at most two sigmas apart, the error of a Gaussian average is below 1 %.
        let coarsest = (2.0 * sigma).log2().floor().clamp(0.0, 3.0) as u32;
        let factor = |j: u32| 1usize << j.min(coarsest);
        let averages = |length: usize, side: usize, factor: usize| {
            let margin = (length * factor - side) / 2;
            pool(length, factor, margin, side, grid, sigma)
        };
        Ok(Self::build((rows, columns), padded, shape, (scales, orientations), factor, averages))
    }

    /// The transform whose signals of scale j are subsampled by `factor(j)`. `averages` takes the length of a subsampled side,
    /// its pixels in the image and the factor.
    fn build(
        image: (usize, usize),
        padded: (usize, usize),
        shape: [usize; 3],
        (scales, orientations): (u32, usize),
        factor: impl Fn(u32) -> usize,
        averages: impl Fn(usize, usize, usize) -> Vec<Taps>,
    ) -> Self {
        let filters: Vec<Vec<Vec<f32>>> = (0..scales)
            .map(|j| {
                let filter = |l| transpose(&morlet(padded, j, l, orientations), padded.1);
                (0..orientations).map(filter).collect()
            })
            .collect();
        let mut planner = FftPlanner::new();
        let mut level = |j: u32| {
            let factor = factor(j);
            let (rows, columns) = (padded.0 / factor, padded.1 / factor);
            let folded = filters
                .iter()
                .skip(j as usize)
                .map(|scale| scale.iter().map(|filter| fold(filter, padded.0, factor)).collect());
            Level {
                rows,
                columns,
                filters: folded.collect(),
                average: (averages(rows, image.0, factor), averages(columns, image.1, factor)),
                forward: Plans(planner.plan_fft_forward(rows), planner.plan_fft_forward(columns)),
                inverse: Plans(planner.plan_fft_inverse(rows), planner.plan_fft_inverse(columns)),
            }
        };
        let levels = (0..scales).map(&mut level).collect();
        Self { image, padded, shape, levels }
    }

    /// The shape of the result of [`pooled`](Self::pooled), without computing the filters.
    ///
    /// # Errors
    /// As for [`pooled`](Self::pooled).
    pub fn pooled_shape_of(
        rows: usize,
        columns: usize,
        scales: u32,
        orientations: usize,
        Pool { grid, sigma }: Pool,
    ) -> Result<[usize; 3], ScatteringError> {
        let [channels, ..] = Self::shape_of(rows, columns, scales, orientations)?;
        let wrong = |rule| ScatteringError { rows, columns, scales, orientations, rule };
        if !(1..=rows.min(columns)).contains(&grid) || !(0.5..=64.0).contains(&sigma) {
            return Err(wrong(
                "the grid must have 1 point to as many as a side has pixels, and the pool's sigma must be 0.5 to \
                 64 pixels",
            ));
        }
        let size = pad_pooled(rows, scales) * pad_pooled(columns, scales);
        if size * scales as usize * orientations > LARGEST {
            return Err(wrong("all wavelets together would have more than 2^24 numbers"));
        }
        Ok([channels, grid, grid])
    }

    /// The shape of the result of [`new`](Self::new), without computing the filters.
    ///
    /// # Errors
    /// As for [`new`](Self::new).
    pub fn shape_of(
        rows: usize,
        columns: usize,
        scales: u32,
        orientations: usize,
    ) -> Result<[usize; 3], ScatteringError> {
        let wrong = |rule| ScatteringError { rows, columns, scales, orientations, rule };
        if !(1..=8).contains(&scales) || !(1..=64).contains(&orientations) {
            return Err(wrong("J must be 1 to 8 and L 1 to 64"));
        }
        let step = 1usize << scales;
        if rows <= step || columns <= step || rows.max(columns) > 1 << 14 {
            return Err(wrong("sides must be above 2^J, and at most 16384"));
        }
        if pad(rows, scales) * pad(columns, scales) * scales as usize * orientations > LARGEST {
            return Err(wrong("all wavelets together would have more than 2^24 numbers"));
        }
        let longest = rows.max(columns);
        if pad(longest, scales) * (longest >> scales) > LARGEST {
            return Err(wrong("the averages along a side would have more than 2^24 numbers"));
        }
        let (j, l) = (scales as usize, orientations);
        Ok([1 + j * l + l * l * j * (j - 1) / 2, rows >> scales, columns >> scales])
    }

    /// The shape of the result: channels, rows, columns.
    pub fn shape(&self) -> [usize; 3] {
        self.shape
    }

    /// Transforms a sequence of images. An incomplete image at the end is ignored.
    pub fn transform(&self, images: &[f32], threads: usize) -> Vec<f32> {
        let (width, to_width) = (self.image.0 * self.image.1, self.shape().iter().product());
        let mut features = vec![0.0; images.len() / width * to_width];
        let begin = || Work::new(self);
        each_row(images, width, &mut features, to_width, threads, begin, |work, from, to| {
            self.transform_one(work, from, to);
        });
        features
    }

    /// Averages the features of each image of [`pooled`](Self::pooled) with those of its mirror image (left and right swapped).
    /// The latter are not computed again: they are the mirrored channels of the mirrored orientations, up to the error
    /// of subsampling: none for a sigma below 1; otherwise a few percent, a tenth for white noise.
    ///
    /// # Guarantee
    /// A function of one record alone: it costs no budget.
    pub fn average_with_mirror_image(&self, features: &mut [f32]) {
        let places = self.mirrored_places();
        let mut mirrored = vec![0.0; places.len()];
        for record in features.chunks_exact_mut(places.len().max(1)) {
            for (to, from) in mirrored.iter_mut().zip(&places) {
                *to = record.get(*from).copied().unwrap_or_default();
            }
            record.iter_mut().zip(&mirrored).for_each(|(to, other)| *to = 0.5 * (*to + other));
        }
    }

    /// For every feature of an image, the place of the feature that its mirror image has there.
    pub fn mirrored_places(&self) -> Vec<usize> {
        let [_, rows, columns] = self.shape();
        let partners = self.mirrored_channels().into_iter();
        partners
            .flat_map(|channel| (0..rows).map(move |row| (channel * rows + row) * columns))
            .flat_map(|first| (0..columns).rev().map(move |column| first + column))
            .collect()
    }

    /// For every channel, the channel whose wavelets have the mirrored orientations.
    fn mirrored_channels(&self) -> Vec<usize> {
        let scales = self.levels.len();
        let wavelets = self.levels.first().and_then(|level| level.filters.first());
        let orientations = wavelets.map_or(0, Vec::len);
        // The angle of orientation l is (half - l) pi / L, and mirroring negates it.
        let half = (orientations - orientations / 2).saturating_sub(1);
        let mirror = |l: usize| (2 * half + orientations - l) % orientations.max(1);
        let mut channels = vec![0];
        for j in 0..scales {
            channels.extend((0..orientations).map(|l| 1 + j * orientations + mirror(l)));
        }
        for j in 0..scales {
            let (first, coarser) = (channels.len(), scales - 1 - j);
            for l in 0..orientations {
                for k in 0..coarser {
                    let block = first + (mirror(l) * coarser + k) * orientations;
                    channels.extend((0..orientations).map(|m| block + mirror(m)));
                }
            }
        }
        channels
    }

    /// Transforms one image. Channels: the image; its wavelet moduli by scale and orientation; the wavelet moduli of each of
    /// those, by scale and orientation.
    fn transform_one(&self, work: &mut Work, image: &[f32], features: &mut [f32]) {
        let [_, rows, columns] = self.shape();
        let size = rows * columns;
        let Some(whole) = self.levels.first() else { return };
        let wavelets: usize = whole.filters.iter().map(Vec::len).sum();
        let (average, rest) = features.split_at_mut(size);
        let (first, second) = rest.split_at_mut(wavelets * size);
        let (mut first, mut second) = (first.chunks_exact_mut(size), second.chunks_exact_mut(size));
        self.pad(image, &mut work.real);
        whole.average(work, Some(average));
        whole.forward(work);
        std::mem::swap(&mut work.image, &mut work.spectrum);
        for (j, level) in self.levels.iter().enumerate() {
            for filter in whole.filters.get(j).into_iter().flatten() {
                whole.wavelet(Source::Image, filter, level, work);
                level.average(work, first.next());
                if j + 1 == self.levels.len() {
                    continue;
                }
                level.forward(work);
                let coarser = self.levels.iter().skip(j + 1);
                for (coarse, filters) in coarser.zip(level.filters.iter().skip(1)) {
                    for filter in filters {
                        level.wavelet(Source::Modulus, filter, coarse, work);
                        coarse.average(work, second.next());
                    }
                }
            }
        }
    }

    /// The pixel at a position of a padded side: reflected at the edges, without repeating them.
    fn mirror(position: usize, pad: usize, side: usize) -> usize {
        let period = 2 * (side - 1);
        let position = position.abs_diff(pad) % period;
        position.min(period - position)
    }

    /// Puts the image into the middle and pads it by reflection, without repeating the edges.
    fn pad(&self, image: &[f32], to: &mut [f32]) {
        let (above, left) =
            ((self.padded.0 - self.image.0) / 2, (self.padded.1 - self.image.1) / 2);
        for (row, to) in to.chunks_exact_mut(self.padded.1).enumerate() {
            let from = image.chunks_exact(self.image.1).nth(Self::mirror(row, above, self.image.0));
            for (column, to) in to.iter_mut().enumerate() {
                let column = Self::mirror(column, left, self.image.1);
                *to = from.and_then(|from| from.get(column)).copied().unwrap_or(0.0);
            }
        }
    }
}

/// The spectrum that a wavelet filters.
#[derive(Clone, Copy)]
enum Source {
    Image,
    Modulus,
}

/// The buffers of one thread. Spectra are stored transposed: column by column.
struct Work {
    image: Vec<Complex<f32>>,
    spectrum: Vec<Complex<f32>>,
    signal: Vec<Complex<f32>>,
    transposed: Vec<Complex<f32>>,
    scratch: Vec<Complex<f32>>,
    real: Vec<f32>,
    middle: Vec<f32>,
}

impl Work {
    fn new(scattering: &Scattering) -> Self {
        let size = scattering.padded.0 * scattering.padded.1;
        let plans = scattering.levels.iter().flat_map(|level| [&level.forward, &level.inverse]);
        let scratch =
            plans.flat_map(|Plans(a, b)| [a, b]).map(|plan| plan.get_inplace_scratch_len()).max();
        let complex = |size| vec![Complex::new(0.0, 0.0); size];
        Self {
            image: complex(size),
            spectrum: complex(size),
            signal: complex(size),
            transposed: complex(size),
            scratch: complex(scratch.unwrap_or(0)),
            real: vec![0.0; size],
            middle: vec![0.0; size],
        }
    }
}

impl Level {
    const fn size(&self) -> usize {
        self.rows * self.columns
    }

    /// Computes the spectrum of `work.real`.
    fn forward(&self, work: &mut Work) {
        let size = self.size();
        let (Some(real), Some(signal), Some(spectrum)) =
            (work.real.get(..size), work.signal.get_mut(..size), work.spectrum.get_mut(..size))
        else {
            return;
        };
        for (to, from) in signal.iter_mut().zip(real) {
            *to = Complex::new(*from, 0.0);
        }
        self.forward.1.process_with_scratch(signal, &mut work.scratch);
        transpose_into(signal, self.columns, spectrum);
        self.forward.0.process_with_scratch(spectrum, &mut work.scratch);
    }

    /// Filters a spectrum with a wavelet and writes the modulus, subsampled to the level `coarse`, to `work.real`.
    fn wavelet(&self, source: Source, filter: &[f32], coarse: &Self, work: &mut Work) {
        let size = coarse.size();
        let spectrum = match source {
            Source::Image => &work.image,
            Source::Modulus => &work.spectrum,
        };
        let (Some(spectrum), Some(transposed), Some(signal), Some(real)) = (
            spectrum.get(..self.size()),
            work.transposed.get_mut(..size),
            work.signal.get_mut(..size),
            work.real.get_mut(..size),
        ) else {
            return;
        };
        // Subsampling averages the frequencies that alias, and the inverse transform multiplies by its size: together this scale.
        let scale = 1.0 / self.size() as f32;
        transposed.fill(Complex::new(0.0, 0.0));
        let columns = spectrum.chunks_exact(self.rows).zip(filter.chunks_exact(self.rows));
        for (column, (spectrum, filter)) in columns.enumerate() {
            let to = transposed.chunks_exact_mut(coarse.rows).nth(column % coarse.columns);
            let Some(to) = to else { continue };
            let aliases = spectrum.chunks_exact(coarse.rows).zip(filter.chunks_exact(coarse.rows));
            for (spectrum, filter) in aliases {
                for ((to, value), weight) in to.iter_mut().zip(spectrum).zip(filter) {
                    *to += value * (weight * scale);
                }
            }
        }
        coarse.inverse.0.process_with_scratch(transposed, &mut work.scratch);
        transpose_into(transposed, coarse.rows, signal);
        coarse.inverse.1.process_with_scratch(signal, &mut work.scratch);
        for (to, from) in real.iter_mut().zip(signal.iter()) {
            *to = (from.re * from.re + from.im * from.im).sqrt();
        }
    }

    /// Writes the averages of `work.real` around every point of the output to a channel.
    fn average(&self, work: &mut Work, channel: Option<&mut [f32]>) {
        let Some(channel) = channel else { return };
        let kept = self.average.1.len();
        let Some(middle) = work.middle.get_mut(..self.columns) else { return };
        for (taps, to) in self.average.0.iter().zip(channel.chunks_exact_mut(kept.max(1))) {
            middle.fill(0.0);
            let rows = work.real.chunks_exact(self.columns).skip(taps.first);
            for (weight, row) in taps.weights.iter().zip(rows) {
                middle.iter_mut().zip(row).for_each(|(to, value)| *to += weight * value);
            }
            for (to, taps) in to.iter_mut().zip(&self.average.1) {
                let values = middle.get(taps.first..).unwrap_or_default();
                *to = taps.weights.iter().zip(values).map(|(weight, value)| weight * value).sum();
            }
        }
    }
}

/// Transposes a row-major matrix with this number of columns.
fn transpose_into(from: &[Complex<f32>], columns: usize, to: &mut [Complex<f32>]) {
    let rows = from.len() / columns.max(1);
    for (row, from) in from.chunks_exact(columns).enumerate() {
        for (to, from) in to.iter_mut().skip(row).step_by(rows).zip(from) {
            *to = *from;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(rows: usize, columns: usize, seed: u32) -> Vec<f32> {
        let mut state = seed;
        let next = |_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1u32 << 24) as f32
        };
        (0..rows * columns).map(next).collect()
    }

    #[test]
    fn shapes_are_as_documented() {
        let scattering = Scattering::new(28, 28, 2, 8).unwrap();
        assert_eq!(scattering.shape(), [81, 7, 7]);
        assert_eq!(Scattering::new(32, 24, 3, 6).unwrap().shape(), [1 + 18 + 108, 4, 3]);
        assert!(Scattering::new(4, 28, 2, 8).is_err());
        assert!(Scattering::new(28, 28, 0, 8).is_err());
        assert!(Scattering::new(16384, 16384, 8, 64).is_err());
    }

    #[test]
    fn shape_of_agrees_with_the_transform_for_all_small_sizes() {
        for (rows, columns) in (1..20).flat_map(|rows| (1..20).map(move |c| (rows, c))) {
            for (scales, orientations) in [(0, 1), (1, 1), (1, 3), (2, 2), (3, 1), (1, 65), (9, 1)]
            {
                let shape = Scattering::shape_of(rows, columns, scales, orientations);
                let made = Scattering::new(rows, columns, scales, orientations);
                assert_eq!(shape, made.map(|scattering| scattering.shape()));
            }
        }
    }

    #[test]
    fn averages_that_would_take_much_memory_are_refused() {
        // 8192 averages of 16390 places each.
        let error = Scattering::shape_of(16384, 3, 1, 1).unwrap_err().to_string();
        assert!(error.contains("averages along a side"), "{error}");
        assert!(Scattering::shape_of(5700, 3, 1, 1).is_ok());
    }

    #[test]
    fn constant_images_have_only_their_average() {
        let scattering = Scattering::new(28, 28, 2, 8).unwrap();
        let features = scattering.transform(&vec![3.0; 784], 1);
        assert!(features[..49].iter().all(|x| (x - 3.0).abs() < 1e-4), "{:?}", &features[..3]);
        assert!(features[49..].iter().all(|x| x.abs() < 1e-4));
    }

    #[test]
    fn an_image_and_its_mirror_image_have_the_same_features_once_averaged() {
        // Below sigma 1 signals are not subsampled, and only rounding differs. White noise, and few orientations, are hardest to subsample.
        let cases = [(1, 1), (2, 4), (2, 3), (3, 4)]
            .into_iter()
            .flat_map(|sizes| [(sizes, 0.9, 1e-3), (sizes, 1.5, 0.15)]);
        for ((scales, orientations), sigma, tolerance) in cases {
            let pool = Pool { grid: 5, sigma };
            let scattering = Scattering::pooled(20, 24, scales, orientations, pool).unwrap();
            let image = image(20, 24, 3);
            let mirrored: Vec<f32> =
                image.chunks_exact(24).flat_map(|row| row.iter().rev()).copied().collect();
            let (found, other) =
                (scattering.transform(&image, 1), scattering.transform(&mirrored, 1));
            let expected: Vec<f32> = found.iter().zip(&other).map(|(a, b)| 0.5 * (a + b)).collect();
            let distance = |a: &[f32], b: &[f32]| {
                let square: f32 = a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum();
                square.sqrt() / b.iter().map(|b| b * b).sum::<f32>().sqrt()
            };
            let mut averaged = [found.clone(), other].concat();
            scattering.average_with_mirror_image(&mut averaged);
            let width = found.len();
            // Channel by channel, because second-order channels are small.
            for (channel, values) in averaged[..width].chunks_exact(25).enumerate() {
                let expected = &expected[25 * channel..25 * (channel + 1)];
                let twin = &averaged[width + 25 * channel..width + 25 * (channel + 1)];
                let found = [distance(values, expected), distance(values, twin)];
                let place =
                    format!("J {scales}, L {orientations}, sigma {sigma}, channel {channel}");
                assert!(found.iter().all(|found| *found < tolerance), "{place}: {found:?}");
            }
            // Averaging does something.
            assert!(distance(&averaged[..width], &found) > 0.01, "{scales} {orientations}");
        }
    }

    #[test]
    fn threads_and_neighbours_do_not_change_a_record() {
        let scattering = Scattering::new(28, 28, 2, 8).unwrap();
        let images: Vec<f32> = (0..5).flat_map(|seed| image(28, 28, seed)).collect();
        let all = scattering.transform(&images, 1);
        assert!(all == scattering.transform(&images, 3));
        let alone = scattering.transform(&images[2 * 784..3 * 784], 2);
        assert!(alone == all[2 * 81 * 49..3 * 81 * 49]);
    }

    /// Reference values from another implementation with the same constants, which removes high frequencies before it
    /// subsamples: the channel, then three of its nine values.
    #[test]
    fn features_agree_with_another_implementation() {
        let expected = [
            (0, [0.577131, 0.503797, 0.564206]),
            (1, [0.0805529, 0.103621, 0.0819123]),
            (3, [0.0805454, 0.0737441, 0.105411]),
            (5, [0.0409433, 0.0495623, 0.0314514]),
            (8, [0.0237129, 0.0358166, 0.0321026]),
            (9, [0.0140277, 0.010224, 0.00909299]),
            (12, [0.00934725, 0.00909014, 0.00682907]),
            (20, [0.00922061, 0.00597411, 0.0121042]),
            (24, [0.0177782, 0.0145507, 0.00589718]),
        ];
        let features = Scattering::new(12, 12, 2, 4).unwrap().transform(&image(12, 12, 7), 1);
        for (channel, values) in expected {
            for (index, value) in [0, 4, 8].into_iter().zip(values) {
                let found: f32 = features[channel * 9 + index];
                let error = (found - value).abs();
                assert!(error < 3e-2 * value, "channel {channel}: {found} for {value}");
            }
        }
    }

    /// Convolutions on the torus and averages by their definitions, in f64.
    #[test]
    fn features_agree_with_the_definition() {
        const SIDE: usize = 12;
        const TORUS: usize = 20;
        let pixels = image(SIDE, SIDE, 3);
        let mirror = |place: usize| {
            let place = place.abs_diff(4);
            if place < SIDE { place } else { 2 * (SIDE - 1) - place }
        };
        let grid = |f: &dyn Fn(usize, usize) -> f64| -> Vec<f64> {
            (0..TORUS * TORUS).map(|i| f(i / TORUS, i % TORUS)).collect()
        };
        let padded = grid(&|r, c| f64::from(pixels[mirror(r) * SIDE + mirror(c)]));
        let modulus = |signal: &[f64], j, l| {
            let filter = crate::wavelet::wavelet((TORUS, TORUS), j, l, 3);
            grid(&|r, c| {
                let mut sum = Complex::new(0.0, 0.0);
                for (i, value) in signal.iter().enumerate() {
                    let (row, column) = (r + TORUS - i / TORUS, c + TORUS - i % TORUS);
                    sum += filter[row % TORUS * TORUS + column % TORUS] * value;
                }
                sum.norm()
            })
        };
        // The average around every fourth pixel, of every `step`-th sample.
        let average = |signal: &[f64], step: usize| -> Vec<f64> {
            let width = 1.6 / step as f64;
            let weight = |from: usize, to: usize| -> f64 {
                let copies = (-2i32..=2).map(|copy| {
                    let x =
                        (from as f64 - to as f64 + f64::from(copy) * TORUS as f64) / step as f64;
                    (-x * x / (2.0 * width * width)).exp()
                });
                copies.sum::<f64>() / ((2.0 * std::f64::consts::PI).sqrt() * width)
            };
            let at = |r: usize, c: usize| -> f64 {
                let kept = (0..TORUS).step_by(step);
                let pairs =
                    kept.flat_map(|row| (0..TORUS).step_by(step).map(move |col| (row, col)));
                pairs.map(|(i, k)| weight(r, i) * weight(c, k) * signal[i * TORUS + k]).sum()
            };
            (0..9).map(|i| at(4 + 4 * (i / 3), 4 + 4 * (i % 3))).collect()
        };
        let mut expected = average(&padded, 1);
        let first: Vec<Vec<f64>> = (0..3).map(|l| modulus(&padded, 0, l)).collect();
        expected.extend(first.iter().flat_map(|signal| average(signal, 1)));
        expected.extend((0..3).flat_map(|l| average(&modulus(&padded, 1, l), 2)));
        for signal in &first {
            expected.extend((0..3).flat_map(|l| average(&modulus(signal, 1, l), 2)));
        }
        let found = Scattering::new(SIDE, SIDE, 2, 3).unwrap().transform(&pixels, 1);
        assert_eq!(found.len(), expected.len());
        for (place, (found, expected)) in found.iter().zip(&expected).enumerate() {
            let error = (f64::from(*found) - expected).abs();
            assert!(error < 1e-5, "channel {}: {found} for {expected}", place / 9);
        }
    }

    /// Signals and averages by their definitions, in f64: moduli of convolutions on a torus, subsampled by two from scale 1
    /// on, averaged over the pixels of the image around 3 x 3 points.
    #[test]
    fn pooled_features_agree_with_the_definition() {
        const SIDE: usize = 10;
        const TORUS: usize = 24;
        const MARGIN: usize = 7;
        let pixels = image(SIDE, SIDE, 5);
        let mirror = |place: usize| {
            let place = place.abs_diff(MARGIN) % (2 * (SIDE - 1));
            place.min(2 * (SIDE - 1) - place)
        };
        let grid = |f: &dyn Fn(usize, usize) -> f64| -> Vec<f64> {
            (0..TORUS * TORUS).map(|i| f(i / TORUS, i % TORUS)).collect()
        };
        let padded = grid(&|r, c| f64::from(pixels[mirror(r) * SIDE + mirror(c)]));
        let modulus = |signal: &[f64], j, l| {
            let filter = crate::wavelet::wavelet((TORUS, TORUS), j, l, 2);
            grid(&|r, c| {
                let mut sum = Complex::new(0.0, 0.0);
                for (i, value) in signal.iter().enumerate() {
                    let (row, column) = (r + TORUS - i / TORUS, c + TORUS - i % TORUS);
                    sum += filter[row % TORUS * TORUS + column % TORUS] * value;
                }
                sum.norm()
            })
        };
        let average = |signal: &[f64], step: usize| -> Vec<f64> {
            let centre = |point: usize| (point as f64 + 0.5) * SIDE as f64 / 3.0 - 0.5;
            let inside =
                || (0..TORUS).step_by(step).filter(|i| (MARGIN..MARGIN + SIDE).contains(i));
            let weight = |i: usize, point: usize| {
                let distance = i as f64 - MARGIN as f64 - centre(point);
                let near = distance.abs() <= 4.0 * 1.2;
                if near { (-distance * distance / (2.0 * 1.2 * 1.2)).exp() } else { 0.0 }
            };
            let at = |r: usize, c: usize| -> f64 {
                let places = || inside().flat_map(|i| inside().map(move |k| (i, k)));
                let sum: f64 = places().map(|(i, k)| weight(i, r) * weight(k, c)).sum();
                let values =
                    places().map(|(i, k)| weight(i, r) * weight(k, c) * signal[i * TORUS + k]);
                values.sum::<f64>() / sum
            };
            (0..9).map(|i| at(i / 3, i % 3)).collect()
        };
        let mut expected = average(&padded, 1);
        let first: Vec<Vec<f64>> = (0..2).map(|l| modulus(&padded, 0, l)).collect();
        expected.extend(first.iter().flat_map(|signal| average(signal, 1)));
        expected.extend((0..2).flat_map(|l| average(&modulus(&padded, 1, l), 2)));
        for signal in &first {
            expected.extend((0..2).flat_map(|l| average(&modulus(signal, 1, l), 2)));
        }
        let pool = Pool { grid: 3, sigma: 1.2 };
        let found = Scattering::pooled(SIDE, SIDE, 2, 2, pool).unwrap().transform(&pixels, 1);
        assert_eq!(found.len(), expected.len());
        for (place, (found, expected)) in found.iter().zip(&expected).enumerate() {
            let error = (f64::from(*found) - expected).abs();
            assert!(error < 1e-5, "channel {}: {found} for {expected}", place / 9);
        }
    }

    #[test]
    fn pooled_shapes_are_as_documented_and_bad_pools_are_refused() {
        let shape = |grid, sigma| Scattering::pooled_shape_of(28, 28, 3, 6, Pool { grid, sigma });
        assert_eq!(shape(9, 1.2).unwrap(), [127, 9, 9]);
        for (grid, sigma) in [(0, 1.0), (29, 1.0), (9, 0.4), (9, 65.0), (9, f64::NAN)] {
            let error = shape(grid, sigma).unwrap_err().to_string();
            assert!(error.contains("the grid must have"), "{error}");
        }
        let made = Scattering::pooled(28, 28, 3, 6, Pool { grid: 7, sigma: 1.8 }).unwrap();
        assert_eq!(made.shape(), [127, 7, 7]);
    }
}
