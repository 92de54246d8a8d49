//! Epsilon from privacy loss distributions on a lattice: connect-the-dots, tilted, composed by
//! Fourier transform, with every numerical error added to delta.

use crate::contour::Interval;
use crate::loss::{Direction, Rounded, StepLoss};
use crate::number::UNIT;
use crate::{Composition, Step};
use realfft::RealFftPlanner;
use realfft::num_complex::Complex64;

/// Roundings per butterfly of a Fourier transform, generously.
const FFT_ROUNDINGS: f64 = 8.0;
/// Transforms are not longer than this.
pub(crate) const LONGEST: usize = 1 << 22;
/// Those of sketches.
pub(crate) const SKETCHED: usize = 1 << 16;
/// Nor shorter than this.
const SHORTEST: usize = 1 << 14;
/// Nor those for lower bounds, which move every loss, than this.
const SHORTEST_LOWER: usize = 1 << 18;
/// The part of a transform that the sum is expected to fill.
const FILL: f64 = 0.9;
/// A fine grid with few points: its step, and how many of them there are per octave, about.
const SKETCH: (f64, i64) = (1e-10, 24);
/// The same for the grids that are composed.
const DENSITY: i64 = 512;
/// Refinement stops when a grid twice as fine gains less than this part of epsilon.
const TOLERANCE: f64 = 1e-4;

/// What is asked for.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Target {
    /// The smallest epsilon for this delta.
    Delta(f64),
    /// The smallest delta at this epsilon, which is about the second number.
    Epsilon(f64, f64),
}

/// Bounds of that number in one direction: upper ones on ever finer grids until they no longer improve,
/// infinite if there is none, and a lower one.
///
/// Transforms are at most `longest`; shorter ones than [`LONGEST`] are for sketches, without a lower bound.
pub(crate) fn bounds(
    composition: &Composition,
    direction: Direction,
    target: Target,
    longest: usize,
) -> Interval {
    let rounds: f64 = composition.steps().iter().map(|(_, count)| *count as f64).sum();
    let (Target::Delta(delta) | Target::Epsilon(_, delta)) = target;
    let tail = (delta * 1e-6 / rounds).max(1e-300);
    let losses = |grid: f64, density: i64, rounded: Rounded| -> Losses {
        let of = |(step, count): &(Step, u64)| {
            (StepLoss::new(*step, direction, grid, tail, density, rounded), *count as f64)
        };
        Losses { grid, steps: composition.steps().iter().map(of).collect() }
    };
    // Few points on a fine grid show the tilt and the window; then grids that fill it.
    let sketch = losses(SKETCH.0, SKETCH.1, Rounded::Up);
    let tilt = sketch.best_tilt(target);
    let window = sketch.window(tilt);
    let (mut best, mut points) = (f64::INFINITY, SHORTEST);
    while points <= longest {
        let grid = 2.0 * window.half_width / (FILL * points as f64);
        let composed = losses(grid, DENSITY, Rounded::Up).compose(tilt, &window, points);
        let (found, scale) = match target {
            Target::Delta(delta) => (composed.epsilon(delta), 0.01),
            Target::Epsilon(epsilon, delta) => (composed.delta(epsilon), delta),
        };
        let improvement = best - found;
        best = best.min(found);
        // Rounding and infinite losses stay, and where a fine grid certifies nothing no finer one will.
        let hopeless = composed.rounding > 1.0 || composed.infinite > delta * 1e3;
        if hopeless || (best.is_infinite() && points >= SHORTEST_LOWER) {
            break;
        }
        // A grid that did worse was too coarse for its window; the next one is better.
        if (0.0..=TOLERANCE * best.max(scale)).contains(&improvement) {
            break;
        }
        points *= 2;
    }
    if best.is_infinite() || longest < LONGEST {
        return Interval { lower: 0.0, upper: best };
    }
    let points = points.clamp(SHORTEST_LOWER, LONGEST);
    let grid = 2.0 * window.half_width / (FILL * points as f64);
    let composed = losses(grid, DENSITY, Rounded::Down).compose(tilt, &window, points);
    let lower = match target {
        Target::Delta(delta) => composed.lower_epsilon(delta),
        Target::Epsilon(epsilon, _) => composed.lower_delta(epsilon),
    };
    Interval { lower, upper: best }
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
    fn best_tilt(&self, target: Target) -> f64 {
        let bound = |log_tilt: f64| {
            let tilt = log_tilt.exp();
            let (value, _, _) = self.cumulant(tilt);
            let value = value - (tilt * (1.0 + tilt)).ln();
            let bound = match target {
                Target::Delta(delta) => (value - delta.ln()) / tilt,
                Target::Epsilon(epsilon, _) => value - tilt * epsilon,
            };
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
        let (mut log_factor, mut rounding) = (0.0, 0.0);
        let mut infinite = 0.0;
        for (loss, count) in &self.steps {
            let (log_moment, _, _) = moments(loss, self.grid, tilt);
            // The roundings of every tilted mass, once per step.
            let ends = [loss.atoms.first(), loss.atoms.last()].into_iter().flatten();
            let largest =
                ends.map(|(index, _)| (*index as f64 * self.grid).abs()).fold(0.0, f64::max);
            let roundings = 32.0 + 4.0 * (tilt * largest + log_moment.abs());
            log_factor += count * log_moment;
            rounding += count * roundings * UNIT;
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
        // Indices stay where an f64 is exact; a window elsewhere certifies nothing.
        let first = (window.mean / self.grid).round().clamp(-9e15, 9e15) as i64 - points as i64 / 2;
        let masses = (0..points as i64)
            .map(|offset| {
                let place = (first + offset).rem_euclid(points as i64) as usize;
                output.get(place).map_or(f64::NAN, |mass| mass * scale)
            })
            .collect();
        let (start, end) = (first as f64, (first + points as i64) as f64);
        let outside = |end: f64| self.chernoff(tilt, end * self.grid, window.mean) * (1.0 + 1e-6);
        let (below, above) = (outside(start), outside(end));
        let grid = self.grid;
        Composed { grid, masses, error, first, tilt, log_factor, rounding, above, below, infinite }
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
    /// Masses of consecutive multiples of the grid from `first` on, and how far each may be off.
    masses: Vec<f64>,
    error: f64,
    first: i64,
    tilt: f64,
    /// The log of the factor that undoes the tilt at loss 0, and how far it may be off.
    log_factor: f64,
    rounding: f64,
    /// The tilted mass above and below the window, at most.
    above: f64,
    below: f64,
    infinite: f64,
}

impl Composed {
    /// The smallest epsilon in the window for which delta is certified; infinite if there is none.
    fn epsilon(&self, delta: f64) -> f64 {
        let mut last = f64::INFINITY;
        self.descend(|x, certified| {
            if certified > delta || certified.is_nan() {
                return false;
            }
            last = x.max(0.0);
            x > 0.0
        });
        last
    }

    /// The delta that is certified at the last grid point that is not above `epsilon`; infinite if the
    /// window has none.
    fn delta(&self, epsilon: f64) -> f64 {
        let mut found = f64::INFINITY;
        self.descend(|x, certified| {
            if x > epsilon {
                return true;
            }
            found = if certified.is_nan() { f64::INFINITY } else { certified };
            false
        });
        found
    }

    /// Calls `visit` with grid points, the largest first, and what is certified there, while it says
    /// so.
    fn descend(&self, mut visit: impl FnMut(f64, f64) -> bool) {
        let (grid, tilt) = (self.grid, self.tilt);
        let (decay, decay_more) = ((-tilt * grid).exp(), (-(tilt + 1.0) * grid).exp());
        // Terms that matter lie within 40/tilt; each step of the recurrence rounds a few times.
        let reach = (40.0 / (tilt * grid)).min(self.masses.len() as f64);
        let rounding = (4.0 * reach + 64.0) * UNIT;
        // Sums over losses above x of e^{-tilt (L-x)} and e^{-(tilt+1)(L-x)}; what lies above the
        // window counts in full at its end.
        let (mut sum, mut sum_more) = (self.above, 0.0);
        for (offset, mass) in self.masses.iter().enumerate().rev() {
            let x = (self.first + offset as i64) as f64 * grid;
            let factor = (self.log_factor + self.rounding - tilt * x).exp() * (1.0 + 1e-10);
            if !visit(x, factor * (sum - sum_more + rounding * sum) + self.infinite) {
                return;
            }
            // Not `max`: what is no number must stay visible.
            let mass = if *mass < 0.0 { self.error } else { mass + self.error };
            sum = (sum + mass) * decay;
            sum_more = (sum_more + mass) * decay_more;
        }
    }

    /// The largest epsilon in the window at which delta is certainly larger; 0 if there is none.
    fn lower_epsilon(&self, delta: f64) -> f64 {
        let mut found = 0.0;
        self.descend_lower(|x, certified| {
            if certified > delta {
                found = x.max(0.0);
            }
            certified <= delta && x > 0.0
        });
        found
    }

    /// What delta certainly is at the first grid point that is not below `epsilon`.
    fn lower_delta(&self, epsilon: f64) -> f64 {
        let mut found = 0.0;
        self.descend_lower(|x, certified| {
            if x >= epsilon {
                found = certified;
            }
            x >= epsilon
        });
        found
    }

    /// As [`descend`](Self::descend), with what is certainly there: masses without their errors, and
    /// without all that may have come from outside the window.
    fn descend_lower(&self, mut visit: impl FnMut(f64, f64) -> bool) {
        let (grid, tilt) = (self.grid, self.tilt);
        let (decay, decay_more) = ((-tilt * grid).exp(), (-(tilt + 1.0) * grid).exp());
        let reach = (40.0 / (tilt * grid)).min(self.masses.len() as f64);
        let rounding = (4.0 * reach + 64.0) * UNIT;
        let (mut sum, mut sum_more) = (0.0, 0.0);
        for (offset, mass) in self.masses.iter().enumerate().rev() {
            let x = (self.first + offset as i64) as f64 * grid;
            let factor = (self.log_factor - self.rounding - tilt * x).exp() * (1.0 - 1e-10);
            let outside = 2.0 * (self.above + self.below);
            let certified = factor * (sum - sum_more - rounding * sum - outside);
            if !visit(x, if certified > 0.0 { certified } else { 0.0 }) {
                return;
            }
            let mass = if *mass > self.error { mass - self.error } else { 0.0 };
            sum = (sum + mass) * decay;
            sum_more = (sum_more + mass) * decay_more;
        }
    }
}
