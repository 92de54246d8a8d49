//! The privacy loss distributions of all steps on one grid: their moments, and their convolution by Fourier transform.

use std::cell::RefCell;
use std::ops::RangeInclusive;

use realfft::RealFftPlanner;
use realfft::num_complex::Complex64;

use super::discretisation::StepLoss;
use super::dominating::DominatingPair;
use super::grid::Rounded;
use super::intensity::{Intensity, moment};
use super::inversion::{ComposedLoss, Sum};
use super::spectrum::SpectrumProduct;
use crate::cumulant::payoff;
use crate::number::{UNIT, golden_section};
use crate::work;

/// A generous bound on the rounding error of a Fourier transform per level, relative to its norm and in unit roundoffs
/// (Higham, Accuracy and Stability of Numerical Algorithms, theorem 24.2).
const FFT_ROUNDINGS: f64 = 8.0;
/// Losses that count as infinite have about this share of delta as their probability in all rounds together.
pub(crate) const TRUNCATED_SHARE: f64 = 5e-6;
/// Work per point of a forward and an inverse transform.
pub(crate) const TRANSFORM: u64 = 12;
/// Work per atom: the normal tails of its cell, and the search for the end of the cell.
const ATOM: u64 = 60;

thread_local! {
    /// Keeps the twiddle factors of every length that this thread used: powers of two, some 50 MB for all of them.
    static PLANNER: RefCell<RealFftPlanner<f64>> = RefCell::new(RealFftPlanner::new());
}

/// What a profile is asked for.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ProfileQuestion {
    /// The smallest epsilon for this delta.
    Delta(f64),
    /// The smallest delta at this epsilon.
    Epsilon(f64),
}

/// The interval of losses that the transform keeps. Outside of it the tilted total loss has negligible probability;
/// `tilt_below` and `tilt_above` are the tilts whose Chernoff bounds prove that.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Window {
    pub(crate) low: f64,
    pub(crate) high: f64,
    pub(crate) tilt_below: f64,
    pub(crate) tilt_above: f64,
}

/// Separates large losses from small ones, where one large loss is likelier than many small ones. Sums without a large loss
/// are then left out of the transform, since they would dominate its rounding error, and bounded separately.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Split {
    /// Privacy losses above this count as large.
    pub(crate) loss: f64,
    /// The tilt of the Chernoff bound on sums without a large loss.
    pub(crate) tilt: f64,
}

/// The privacy loss distributions of all steps on one grid, each with its count.
pub(crate) struct LossDistributions {
    pub(crate) grid: f64,
    pub(crate) steps: Vec<(StepLoss, f64)>,
    /// In place of `steps`: thousands of distinct steps that rarely sample a record, as one measure.
    pub(crate) intensity: Option<Intensity>,
    pub(crate) split: Option<Split>,
}

impl LossDistributions {
    pub(crate) fn new(
        pairs: &[(DominatingPair, f64)],
        (grid, density): (f64, i64),
        tail: f64,
        rounded: Rounded,
    ) -> Self {
        let on_grid = |(pair, count): &(DominatingPair, f64)| {
            (StepLoss::new(pair, grid, tail, density, rounded), *count)
        };
        let steps: Vec<_> = pairs.iter().map(on_grid).collect();
        let atoms: u64 = steps
            .iter()
            .zip(pairs)
            .map(|((loss, _), (pair, _))| loss.atoms.len() as u64 * pair.normals_per_cell())
            .sum();
        work::spend(ATOM * atoms);
        Self { grid, steps, intensity: None, split: None }
    }

    /// The largest index of a small loss.
    fn last_small(&self) -> i64 {
        self.split.map_or(i64::MIN, |split| (split.loss / self.grid) as i64)
    }

    /// The log of `E e^{tilt L}` restricted to outcomes in which all losses are small, and the log of the ratio of the full
    /// `E e^{tilt L}` to that.
    pub(crate) fn split_cumulant(&self, tilt: f64) -> (f64, f64) {
        let last = self.last_small();
        let (mut without_large, mut log_ratio) = (0.0, 0.0);
        for (loss, count) in &self.steps {
            let small_atoms = loss.atoms.partition_point(|(index, _)| *index <= last);
            let (small, large) = loss.atoms.split_at(small_atoms);
            let small = log_sum(small, tilt * self.grid);
            let ratio = log_sum(large, tilt * self.grid) - small;
            without_large += count * small;
            log_ratio += count * if ratio > 30.0 { ratio } else { libm::log1p(ratio.exp()) };
        }
        (without_large, log_ratio)
    }

    /// The log of `E e^{tilt L}` over finite losses, without offsets; with a split, only over outcomes with at least one large
    /// loss.
    pub(crate) fn cumulant(&self, tilt: f64) -> f64 {
        if self.split.is_none() {
            let steps = self.steps.iter();
            let rare = self.intensity.as_ref();
            return steps
                .map(|(loss, count)| count * log_moment(loss, self.grid, tilt))
                .sum::<f64>()
                + rare.map_or(0.0, |rare| rare.moment(self.grid, tilt) + rare.log_rest);
        }
        let (small, log_ratio) = self.split_cumulant(tilt);
        small + if log_ratio > 30.0 { log_ratio } else { libm::expm1(log_ratio).ln() }
    }

    /// The split at the largest loss for which sums without a large loss add a negligible share of `delta` at `epsilon`, if
    /// there is one.
    pub(crate) fn find_split(&mut self, epsilon: f64, delta: f64) -> Option<Split> {
        let mut loss = 0.7 * epsilon;
        for _ in 0..12 {
            self.split = Some(Split { loss, tilt: 0.0 });
            let bound = |log_tilt: f64| {
                let tilt = log_tilt.exp();
                self.split_cumulant(tilt).0 + payoff(tilt).value - tilt * epsilon
            };
            let centre = (20.0 / epsilon).ln();
            let (log_tilt, bound) = roughly_smallest(bound, centre - 2.0, centre + 4.0);
            if bound < delta.ln() + TRUNCATED_SHARE.ln() {
                return Some(Split { loss, tilt: log_tilt.exp() });
            }
            loss *= 0.7;
        }
        None
    }

    /// The tilt at which the Chernoff bound, with its prefactor, is smallest. Any tilt is sound; this one keeps errors small
    /// compared with delta.
    pub(crate) fn best_tilt(&self, question: ProfileQuestion) -> f64 {
        let bound = |log_tilt: f64| {
            let tilt = log_tilt.exp();
            let value = self.cumulant(tilt) + payoff(tilt).value;
            match question {
                ProfileQuestion::Delta(delta) => (value - delta.ln()) / tilt,
                ProfileQuestion::Epsilon(epsilon) => value - tilt * epsilon,
            }
        };
        smallest_near(bound, -8..=28).0.exp()
    }

    /// The narrowest window such that the tilted sum provably lies above it with probability at most `e^wrapped`, and below it
    /// as well.
    pub(crate) fn window(&self, tilt: f64, value: f64, wrapped: f64) -> Option<Window> {
        // P(L > end) <= e^{K(m) - K(tilt) - (m - tilt) end}: the end at which this is e^wrapped.
        let end = |moved: f64| (self.cumulant(moved) - value - wrapped) / (moved - tilt);
        let moved_tilt = |side: f64, log: f64| tilt + side * tilt * log.exp();
        let best_end = |side: f64| {
            let end_at = |log: f64| {
                let end = side * end(moved_tilt(side, log));
                if end.is_finite() { end } else { f64::INFINITY }
            };
            let (log, value) = smallest_near(end_at, -8..=8);
            (side * value, moved_tilt(side, log))
        };
        let ((high, tilt_above), (low, tilt_below)) = (best_end(1.0), best_end(-1.0));
        let is_valid = low < high && high.is_finite() && low.is_finite();
        is_valid.then_some(Window { low, high, tilt_below, tilt_above })
    }

    /// The Chernoff bound on the tilted probability (divided by `e^log_factor`) of sums beyond `end`: above it if `moved` is
    /// larger than `tilt`, else below it.
    fn chernoff(&self, tilt: f64, log_factor: f64, moved: f64, end: f64) -> f64 {
        let twice =
            self.intensity.as_ref().map_or(0.0, |rare| moment(&rare.twice, self.grid, moved));
        let value = self.cumulant(moved) + libm::log1p(twice);
        // Generous bounds on the rounding errors of logs of moments.
        let size = 1.0 + value.abs() + log_factor.abs() + (moved - tilt).abs() * end.abs();
        (value - log_factor - (moved - tilt) * end + 1e-10 * size + 1e-11 * self.rounds()).exp()
    }

    /// An upper bound on what sums without a large loss add to delta: `(c, b)` stands for `e^{c + b epsilon}`.
    fn bound_without_large(&self) -> Option<(f64, f64)> {
        let tilt = self.split?.tilt;
        let (value, _) = self.split_cumulant(tilt);
        // (1 - e^-x)_+ <= e^{tilt x} tilt^tilt / (1+tilt)^(1+tilt)
        let payoff = -tilt * libm::log1p(1.0 / tilt) - libm::log1p(tilt);
        Some((value + payoff + 1e-10 * (1.0 + value.abs()) + 1e-11 * self.rounds(), -tilt))
    }

    fn rounds(&self) -> f64 {
        self.steps.iter().map(|(_, count)| count).sum()
    }

    /// The distribution of the tilted total loss, by Fourier transform.
    pub(crate) fn compose(&self, tilt: f64, window: &Window, points: usize) -> ComposedLoss {
        let transforms = self.steps.len() + usize::from(self.intensity.is_some());
        work::spend(TRANSFORM * points as u64 * transforms as u64);
        let (forward, inverse) = PLANNER.with_borrow_mut(|planner| {
            (planner.plan_fft_forward(points), planner.plan_fft_inverse(points))
        });
        let mut input = forward.make_input_vec();
        let mut spectrum = forward.make_output_vec();
        let mut large = forward.make_output_vec();
        let mut product = vec![SpectrumProduct::default(); spectrum.len()];
        let fft_error = FFT_ROUNDINGS * (points as f64).log2() * UNIT;
        // The rounding error of sums of logs and phases over steps, relative to each term.
        let sum_rounding = (8.0 + 4.0 * self.steps.len() as f64) * UNIT;
        let (mut log_factor, mut rounding) = (0.0, 0.0);
        let (mut infinite, mut offset, mut offsets) = (0.0, 0.0, 0.0);
        for (loss, count) in &self.steps {
            let log_moment = log_moment(loss, self.grid, tilt);
            // An upper bound on the rounding error of a tilted mass, in unit roundoffs.
            let ends = [loss.atoms.first(), loss.atoms.last()].into_iter().flatten();
            let largest =
                ends.map(|(index, _)| (*index as f64 * self.grid).abs()).fold(0.0, f64::max);
            let roundings = 32.0 + 4.0 * (tilt * largest + log_moment.abs());
            log_factor += count * log_moment;
            rounding += count * roundings * UNIT;
            infinite += count * loss.infinite;
            offset += count * loss.offset;
            offsets += count * loss.offset.abs();
            let last = self.last_small();
            // Transforms the atoms whose index is included, and returns their tilted mass.
            let mut transform = |included: &dyn Fn(i64) -> bool, spectrum: &mut [Complex64]| {
                input.fill(0.0);
                let mut total = 0.0;
                for (index, mass) in loss.atoms.iter().filter(|(index, _)| included(*index)) {
                    let slot_index = index.rem_euclid(points as i64) as usize;
                    let mass = mass * (tilt * *index as f64 * self.grid - log_moment).exp();
                    total += mass;
                    if let Some(slot) = input.get_mut(slot_index) {
                        *slot += mass;
                    }
                }
                // Cannot fail, since the lengths are those of the plan; if it did, no bound would hold.
                if forward.process(&mut input, spectrum).is_err() { f64::INFINITY } else { total }
            };
            if self.split.is_some() {
                let rest = transform(&|index| index <= last, &mut spectrum);
                let total = transform(&|index| index > last, &mut large);
                infinite += if (rest + total).is_finite() { 0.0 } else { f64::INFINITY };
                for ((small, large), product) in spectrum.iter().zip(&large).zip(&mut product) {
                    product.times(*small, *count, fft_error, sum_rounding);
                    let error = (fft_error, total);
                    product.note_large(*small, *large, *count, error, sum_rounding);
                }
            } else {
                let total = transform(&|_| true, &mut spectrum);
                infinite += if total.is_finite() { 0.0 } else { f64::INFINITY };
                for (value, product) in spectrum.iter().zip(&mut product) {
                    product.times(*value, *count, fft_error, sum_rounding);
                }
            }
        }
        if let Some(rare) = &self.intensity {
            let total = rare.moment(self.grid, tilt);
            let last = rare.atoms.last().map_or(0.0, |(index, _)| *index as f64 * self.grid);
            // An upper bound on the relative rounding error of a tilted mass.
            let roundings = (40.0 + 8.0 * tilt * last) * UNIT;
            log_factor += total + rare.log_rest;
            rounding += roundings * (1.0 + total + log_factor.abs());
            (infinite, offset, offsets) = (rare.infinite, rare.offset, rare.offset.abs());
            let mut transform = |atoms: &[(i64, f64)]| {
                input.fill(0.0);
                for (index, mass) in atoms {
                    let slot_index = index.rem_euclid(points as i64) as usize;
                    if let Some(slot) = input.get_mut(slot_index) {
                        *slot += mass * (tilt * *index as f64 * self.grid).exp();
                    }
                }
                if forward.process(&mut input, &mut spectrum).is_err() {
                    spectrum.fill(Complex64::new(f64::NAN, f64::NAN));
                }
                spectrum.clone()
            };
            let exponents = transform(&rare.atoms);
            let error = (fft_error + roundings) * total;
            for (value, product) in exponents.iter().zip(&mut product) {
                product.times_exponential(value - total, error);
            }
            if !rare.twice.is_empty() {
                let error = (fft_error + roundings) * (1.0 + moment(&rare.twice, self.grid, tilt));
                for (value, product) in transform(&rare.twice).iter().zip(&mut product) {
                    product.times(1.0 - value, 1.0, error, sum_rounding);
                }
            }
        }
        let mut squares = 0.0;
        for (value, product) in spectrum.iter_mut().zip(&product) {
            let (found, error) = match self.split {
                Some(_) => product.large_only(fft_error),
                None => product.value(fft_error),
            };
            *value = found;
            squares += 2.0 * error * error;
        }
        // The first and last coefficients of a real signal are real; the inverse transform rejects rounding errors there.
        if let Some(first) = spectrum.first_mut() {
            first.im = 0.0;
        }
        if let Some(last) = spectrum.last_mut() {
            last.im = 0.0;
        }
        let mut output = inverse.make_output_vec();
        if inverse.process(&mut spectrum, &mut output).is_err() {
            infinite = f64::INFINITY;
        }
        // Indices stay in the range where an f64 is exact; a window outside of it gives no bound.
        let first = (window.low / self.grid).floor().clamp(-9e15, 9e15) as i64 - 3;
        let (start, end) = (first as f64 * self.grid, (first + points as i64) as f64 * self.grid);
        let steps = self.steps.len() as f64;
        ComposedLoss::new(
            Sum {
                grid: self.grid,
                first,
                offset: (offset, (steps + 4.0) * UNIT * offsets),
                tilt,
                log_factor,
                rounding: rounding + (steps + 4.0) * UNIT * log_factor.abs(),
                above: self.chernoff(tilt, log_factor, window.tilt_above, end),
                below: self.chernoff(tilt, log_factor, window.tilt_below, start),
                infinite,
                excess: self.intensity.as_ref().map_or(0.0, |rare| rare.twice_apart),
                signed: self.intensity.as_ref().is_some_and(|rare| !rare.twice.is_empty()),
                without_large: self.bound_without_large(),
            },
            &output,
            (squares / points as f64).sqrt(),
        )
    }
}

fn log_moment(loss: &StepLoss, grid: f64, tilt: f64) -> f64 {
    log_sum(&loss.atoms, tilt * grid)
}

/// The log of the sum of `mass e^{rate index}`.
fn log_sum(atoms: &[(i64, f64)], rate: f64) -> f64 {
    work::spend(atoms.len() as u64);
    let exponent = |index: i64| rate * index as f64;
    // The largest exponent is at an end.
    let ends = [atoms.first(), atoms.last()].into_iter().flatten();
    let top = ends.map(|(index, _)| exponent(*index)).fold(f64::MIN, f64::max);
    if top.abs() < 600.0 {
        return atoms.iter().map(|(index, mass)| mass * exponent(*index).exp()).sum::<f64>().ln();
    }
    let log = |(index, mass): &(i64, f64)| mass.ln() + exponent(*index);
    let top = atoms.iter().map(log).fold(f64::MIN, f64::max);
    top + atoms.iter().map(|atom| (log(atom) - top).exp()).sum::<f64>().ln()
}

/// Roughly where `f` is smallest, and its value there: eight steps of a golden-section search.
fn roughly_smallest(f: impl Fn(f64) -> f64, low: f64, high: f64) -> (f64, f64) {
    golden_section(f, (low, high), 0.618, 8)
}

/// The same within 1 of the best of these integers.
fn smallest_near(f: impl Fn(f64) -> f64, numbers: RangeInclusive<i32>) -> (f64, f64) {
    let scan = numbers.map(f64::from).map(|x| (x, f(x)));
    let (best, _) = scan.fold((0.0, f64::INFINITY), |a, b| if b.1 < a.1 { b } else { a });
    roughly_smallest(f, best - 1.0, best + 1.0)
}
