//! Certified epsilon and delta from privacy loss distributions: connect-the-dots, tilted, composed by
//! Fourier transform, with every numerical error added to delta.

use realfft::RealFftPlanner;
use realfft::num_complex::Complex64;
use veilgrad_events::{Delta, Epsilon};

use crate::loss::{Direction, StepLoss};
use crate::{Composition, Step, Unsupported};

/// Machine precision.
const UNIT: f64 = 1.2e-16;
/// Roundings per butterfly of a Fourier transform, generously.
const FFT_ROUNDINGS: f64 = 8.0;
/// Transforms are not longer than this.
const LONGEST: usize = 1 << 22;
/// Nor shorter than this.
const SHORTEST: usize = 1 << 14;
/// The part of a transform that the sum is expected to fill.
const FILL: f64 = 0.9;
/// The first grid step.
const COARSEST: f64 = 1e-3;
/// Refinement stops when a grid twice as fine gains less than this part of epsilon.
const TOLERANCE: f64 = 1e-4;

/// The smallest certified epsilon for `delta`: the larger of both directions.
///
/// # Guarantee
/// An upper bound: discretisation, truncation, wrap-around and rounding are all on the side of more
/// loss.
///
/// # Errors
/// When no finite epsilon can be certified.
pub fn epsilon(composition: &Composition, delta: Delta) -> Result<Epsilon, Unsupported> {
    if composition.steps().is_empty() {
        return Epsilon::new(0.0).map_err(|error| Unsupported::new(error.to_string()));
    }
    let mut largest: f64 = 0.0;
    for direction in [Direction::Remove, Direction::Add] {
        largest = largest.max(refine(composition, direction, delta.get())?);
    }
    Epsilon::new(largest).map_err(|error| Unsupported::new(error.to_string()))
}

/// Finer grids until the bound no longer improves.
fn refine(composition: &Composition, direction: Direction, delta: f64) -> Result<f64, Unsupported> {
    let rounds: f64 = composition.steps().iter().map(|(_, count)| *count as f64).sum();
    let tail = delta * 1e-6 / rounds;
    let losses = |grid: f64| -> Losses {
        let of = |(step, count): &(Step, u64)| {
            (StepLoss::new(*step, direction, grid, tail), *count as f64)
        };
        Losses { grid, steps: composition.steps().iter().map(of).collect() }
    };
    // A coarse look for the tilt and the width of the window; then grids that fill it.
    let mut current = losses(COARSEST);
    let mut tilt = current.best_tilt(delta);
    let mut half_width = current.window(tilt).half_width;
    let (mut best, mut points) = (f64::INFINITY, SHORTEST);
    while points <= LONGEST {
        // A finer grid has narrower losses, a coarser one wider: fit until the sum is inside.
        let mut window = current.window(tilt);
        for attempt in 0..8 {
            current = losses(2.0 * half_width / (FILL * points as f64));
            // The tilt settles with the grid; any is sound.
            if attempt > 0 || points <= 4 * SHORTEST {
                tilt = current.best_tilt(delta);
            }
            window = current.window(tilt);
            let filled = window.half_width / half_width;
            half_width = window.half_width;
            if (0.5..=1.0 / FILL).contains(&filled) {
                break;
            }
        }
        let epsilon = current.compose(tilt, &window, points).epsilon(delta);
        let improvement = best - epsilon;
        best = best.min(epsilon);
        // A grid that did worse had a window too wide; the next one is better.
        if (0.0..=TOLERANCE * best.max(0.01)).contains(&improvement) {
            break;
        }
        points *= 2;
    }
    if best.is_finite() {
        Ok(best)
    } else {
        Err(Unsupported::new("no finite epsilon can be certified for this delta"))
    }
}

/// The losses of all steps on one grid, each with its number.
struct Losses {
    grid: f64,
    steps: Vec<(StepLoss, f64)>,
}

/// Where the tilted sum of all losses lies.
struct Window {
    mean: f64,
    half_width: f64,
}

impl Losses {
    /// Log of the moment `E e^{tilt L}` over finite losses, its first and second derivatives, summed
    /// over all steps.
    fn cumulant(&self, tilt: f64) -> (f64, f64, f64) {
        let (mut value, mut mean, mut variance) = (0.0, 0.0, 0.0);
        for (loss, count) in &self.steps {
            let (log_moment, first, second) = moments(loss, self.grid, tilt);
            value += count * log_moment;
            mean += count * first;
            variance += count * second;
        }
        (value, mean, variance)
    }

    /// The tilt at which the Chernoff bound, with its prefactor, gives the smallest epsilon. Any
    /// tilt is sound; this one keeps the errors small against delta.
    fn best_tilt(&self, delta: f64) -> f64 {
        let bound = |log_tilt: f64| {
            let tilt = log_tilt.exp();
            let (value, _, _) = self.cumulant(tilt);
            let bound = (value - delta.ln() - (tilt * (1.0 + tilt)).ln()) / tilt;
            if bound.is_nan() { f64::INFINITY } else { bound }
        };
        let scan = (-14..=30).map(|i| f64::from(i) * 0.5).map(|x| (x, bound(x)));
        let (best, _) = scan.fold((0.0, f64::INFINITY), |a, b| if b.1 < a.1 { b } else { a });
        let (mut low, mut high) = (best - 0.5, best + 0.5);
        for _ in 0..10 {
            let (left, right) = (low + (high - low) * 0.38, low + (high - low) * 0.62);
            if bound(left) < bound(right) { high = right } else { low = left }
        }
        ((low + high) / 2.0).exp()
    }

    /// A window that the tilted sum leaves with negligible probability on either side.
    fn window(&self, tilt: f64) -> Window {
        let (_, mean, variance) = self.cumulant(tilt);
        let deviation = variance.sqrt().max(self.grid);
        let mut half_width = 8.0 * deviation;
        for _ in 0..40 {
            let low = self.chernoff(tilt, mean - half_width, mean);
            let high = self.chernoff(tilt, mean + half_width, mean);
            if low.max(high) < 1e-9 {
                break;
            }
            half_width *= 1.15;
        }
        Window { mean, half_width: half_width + 2.0 * self.grid }
    }

    /// At least the tilted probability that the sum lies beyond `end`, on the side away from `mean`.
    fn chernoff(&self, tilt: f64, end: f64, mean: f64) -> f64 {
        let (value, _, variance) = self.cumulant(tilt);
        let start = (end - mean) / variance.max(1e-300);
        let bound = |extra: f64| {
            let (moved, _, _) = self.cumulant(tilt + extra);
            (moved - value - extra * end).exp()
        };
        // Where the tail is heavier than a normal one, a smaller extra tilt is better.
        [1.0, 0.5, 0.25, 0.1, 0.03, 0.01]
            .into_iter()
            .map(|part| bound(start * part))
            .fold(1.0, f64::min)
    }

    /// The distribution of the tilted sum, by Fourier transform.
    fn compose(&self, tilt: f64, window: &Window, points: usize) -> Composed {
        let mut planner = RealFftPlanner::<f64>::new();
        let (forward, inverse) =
            (planner.plan_fft_forward(points), planner.plan_fft_inverse(points));
        let mut input = forward.make_input_vec();
        let mut spectrum = forward.make_output_vec();
        let mut product = vec![(0.0, 0.0); spectrum.len()];
        // Bounds of the modulus with errors, as a log, and of the relative error.
        let mut errors = vec![(0.0, 0.0); spectrum.len()];
        let fft_error = FFT_ROUNDINGS * (points as f64).log2() * UNIT;
        let mut log_factor = 0.0;
        let mut infinite = 0.0;
        for (loss, count) in &self.steps {
            let (log_moment, _, _) = moments(loss, self.grid, tilt);
            // The roundings of every tilted mass, once per step.
            let ends = [loss.atoms.first(), loss.atoms.last()].into_iter().flatten();
            let largest =
                ends.map(|(index, _)| (*index as f64 * self.grid).abs()).fold(0.0, f64::max);
            let roundings = 32.0 + 4.0 * (tilt * largest + log_moment.abs());
            log_factor += count * (log_moment + roundings * UNIT);
            infinite += count * loss.infinite;
            input.fill(0.0);
            for (index, mass) in &loss.atoms {
                let place = index.rem_euclid(points as i64) as usize;
                if let Some(slot) = input.get_mut(place) {
                    *slot += mass * (tilt * *index as f64 * self.grid - log_moment).exp();
                }
            }
            // Lengths are those of the plan; if it failed all the same, nothing is certain.
            if forward.process(&mut input, &mut spectrum).is_err() {
                infinite = f64::INFINITY;
            }
            for ((value, product), error) in spectrum.iter().zip(&mut product).zip(&mut errors) {
                let modulus = value.norm();
                product.0 += count * modulus.max(1e-300).ln();
                product.1 += count * value.arg();
                let bounded = modulus + fft_error;
                error.0 += count * bounded.ln();
                error.1 += count * (fft_error / bounded + 8.0 * UNIT);
            }
        }
        let mut error = 0.0;
        for (value, (log_modulus, phase)) in spectrum.iter_mut().zip(&product) {
            *value = Complex64::from_polar(log_modulus.exp(), *phase);
        }
        for (log_modulus, relative) in &errors {
            error += 2.0 * log_modulus.exp() * (relative + fft_error + 64.0 * UNIT);
        }
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
        let scale = 1.0 / points as f64;
        let error = error * scale;
        let first = (window.mean / self.grid).round() as i64 - points as i64 / 2;
        let masses = (0..points as i64)
            .map(|offset| {
                let place = (first + offset).rem_euclid(points as i64) as usize;
                let mass = output.get(place).map_or(f64::NAN, |mass| mass * scale);
                // Not `max`: what is no number must stay visible.
                if mass < 0.0 { error } else { mass + error }
            })
            .collect();
        let end = (first + points as i64) as f64 * self.grid;
        let above = self.chernoff(tilt, end, window.mean) * (1.0 + 1e-6);
        Composed { grid: self.grid, masses, first, tilt, log_factor, above, infinite }
    }
}

/// Log of `E e^{tilt L}` over the finite losses of one step, and the tilted mean and variance.
fn moments(loss: &StepLoss, grid: f64, tilt: f64) -> (f64, f64, f64) {
    let exponent = |index: i64| tilt * index as f64 * grid;
    let top = loss.atoms.iter().map(|(i, mass)| exponent(*i) + mass.ln()).fold(f64::MIN, f64::max);
    let (mut sum, mut first, mut second) = (0.0, 0.0, 0.0);
    for (index, mass) in &loss.atoms {
        let weight = mass * (exponent(*index) - top).exp();
        let value = *index as f64 * grid;
        sum += weight;
        first += weight * value;
        second += weight * value * value;
    }
    let mean = first / sum;
    (top + sum.ln(), mean, (second / sum - mean * mean).max(0.0))
}

/// The tilted distribution of the sum of all losses in one window.
struct Composed {
    grid: f64,
    /// Masses of consecutive multiples of the grid from `first` on, rounded up.
    masses: Vec<f64>,
    first: i64,
    tilt: f64,
    /// The log of the factor that undoes the tilt at loss 0.
    log_factor: f64,
    /// The tilted mass above the window, at most.
    above: f64,
    infinite: f64,
}

impl Composed {
    /// The smallest epsilon in the window for which delta is certified; infinite if there is none.
    fn epsilon(&self, delta: f64) -> f64 {
        let (grid, tilt) = (self.grid, self.tilt);
        let (decay, decay_more) = ((-tilt * grid).exp(), (-(tilt + 1.0) * grid).exp());
        // Terms that matter lie within 40/tilt; each step of the recurrence rounds a few times.
        let reach = (40.0 / (tilt * grid)).min(self.masses.len() as f64);
        let rounding = (4.0 * reach + 64.0) * UNIT;
        // Sums over losses above x of e^{-tilt (L-x)} and e^{-(tilt+1)(L-x)}; what lies above the
        // window counts in full at its end.
        let (mut sum, mut sum_more) = (self.above, 0.0);
        let bound = |x: f64, sum: f64, sum_more: f64| {
            let factor = (self.log_factor - tilt * x).exp() * (1.0 + 1e-10);
            factor * (sum - sum_more + rounding * sum) + self.infinite
        };
        let mut last = f64::INFINITY;
        for (offset, mass) in self.masses.iter().enumerate().rev() {
            let x = (self.first + offset as i64) as f64 * grid;
            let certified = bound(x, sum, sum_more);
            if certified > delta || certified.is_nan() {
                return last.max(0.0);
            }
            if x <= 0.0 {
                return 0.0;
            }
            last = x;
            sum = (sum + mass) * decay;
            sum_more = (sum_more + mass) * decay_more;
        }
        last.max(0.0)
    }
}
