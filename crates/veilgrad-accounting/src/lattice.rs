//! The privacy profile from losses on a lattice: tilted, composed by Fourier transform, with every
//! numerical error counted.
//!
//! From above by connect-the-dots, from below by merging outputs; both are off by the square of the
//! lattice's step, so that lattices are refined until the two agree.

use realfft::RealFftPlanner;
use realfft::num_complex::Complex64;

use crate::contour::{Interval, payoff};
use crate::loss::{Rounded, StepLoss};
use crate::number::UNIT;
use crate::output::{Direction, step_delta};
use crate::{Composition, Step};

/// Roundings per level of a Fourier transform, relative to its norm (Higham, Accuracy and Stability of
/// Numerical Algorithms, theorem 24.2), generously.
const FFT_ROUNDINGS: f64 = 8.0;
/// Transforms are not longer than this.
pub(crate) const LONGEST: usize = 1 << 21;
/// Nor shorter than this.
const SHORTEST: usize = 1 << 12;
/// A fine grid with few points, which shows tilt and window: its step, and how many of its points there are
/// per octave, about.
const SKETCH: (f64, i64) = (1e-10, 10);
/// The same for the grids that are composed.
const DENSITY: i64 = 1024;
/// What counts as infinite in all rounds together, as a part of delta.
const TAIL: f64 = 5e-6;
/// The log of what may wrap around, as a part of what is looked for.
const WRAPPED: f64 = -21.0;

/// What is asked for.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Target {
    /// The smallest epsilon for this delta.
    Delta(f64),
    /// The smallest delta at this epsilon.
    Epsilon(f64),
}

/// The composed losses of a composition in one direction, good near the target that they were made for.
pub(crate) struct Lattice {
    upper: Composed,
    lower: Composed,
    /// The tilt, and about where the profile meets the target.
    pub(crate) tilt: f64,
    pub(crate) epsilon: f64,
}

impl Lattice {
    /// Fine enough for bounds of epsilon that are this close, relatively, or as fine as lattices get; `None`
    /// where nothing can be certified.
    pub(crate) fn new(
        composition: &Composition,
        direction: Direction,
        target: Target,
        close: f64,
    ) -> Option<Self> {
        let mut plan = Plan::new(composition, direction, target)?;
        let mut points = SHORTEST;
        loop {
            let lattice = plan.lattice(composition, direction, points);
            if let Target::Delta(delta) = target {
                plan.epsilon = lattice.meets(delta, plan.epsilon);
            }
            let near = lattice.delta(plan.epsilon);
            let off = (near.upper / near.lower).ln() / (1.0 + plan.tilt * plan.epsilon);
            if off <= close || 2 * points > LONGEST {
                return near.upper.is_finite().then_some(Self { epsilon: plan.epsilon, ..lattice });
            }
            // Errors fall with the square of the length.
            let wanted = points as f64 * (1.2 * off / close).sqrt();
            points = if wanted < LONGEST as f64 {
                (wanted as usize).next_power_of_two()
            } else {
                LONGEST
            };
        }
    }

    /// Where the upper bound falls to `delta`, about.
    fn meets(&self, delta: f64, guess: f64) -> f64 {
        let above = |epsilon: f64| self.delta(epsilon).upper > delta;
        let (mut low, mut high) = (0.0, guess.max(1.0 / self.tilt));
        for _ in 0..60 {
            if !above(high) {
                break;
            }
            high *= 1.5;
        }
        for _ in 0..30 {
            let middle = 0.5 * (low + high);
            if above(middle) { low = middle } else { high = middle }
        }
        high
    }

    /// Bounds of delta at `epsilon`.
    pub(crate) fn delta(&self, epsilon: f64) -> Interval {
        Interval { lower: self.lower.delta(epsilon).lower, upper: self.upper.delta(epsilon).upper }
    }
}

/// Where to compose: nothing here has to be right.
struct Plan {
    tail: f64,
    tilt: f64,
    epsilon: f64,
    window: Window,
}

/// Losses outside of which the tilted sum hardly ever lies, and the tilts that show it.
#[derive(Debug, Clone, Copy)]
struct Window {
    low: f64,
    high: f64,
    tilt_below: f64,
    tilt_above: f64,
}

impl Plan {
    fn new(composition: &Composition, direction: Direction, target: Target) -> Option<Self> {
        let rounds: f64 = composition.steps().iter().map(|(_, count)| *count as f64).sum();
        let about = match target {
            Target::Delta(delta) => delta,
            // At least what the most expensive step costs alone.
            Target::Epsilon(epsilon) => composition
                .steps()
                .iter()
                .map(|(step, _)| step_delta(*step, direction, epsilon).lower)
                .fold(0.0, f64::max),
        };
        let tail = (about * TAIL / rounds).max(1e-290);
        let sketch = Losses::new(composition, direction, SKETCH, tail, Rounded::Up);
        let tilt = sketch.best_tilt(target);
        let (value, mean, variance) = sketch.cumulant(tilt);
        let epsilon = match target {
            Target::Delta(delta) => (value + payoff(tilt).value - delta.ln()) / tilt,
            Target::Epsilon(epsilon) => epsilon,
        };
        let wrapped = WRAPPED + payoff(tilt).value - libm::log1p(variance.sqrt());
        let window = sketch.window(tilt, value, mean, wrapped)?;
        Some(Self { tail, tilt, epsilon: epsilon.max(0.0), window })
    }

    fn step(&self, points: usize) -> f64 {
        // Room for what moving losses to the lattice does to the window.
        (self.window.high - self.window.low) / (points as f64 - 8.0) * 1.001
    }

    fn lattice(&self, composition: &Composition, direction: Direction, points: usize) -> Lattice {
        let grid = (self.step(points), DENSITY);
        let losses = |rounded| Losses::new(composition, direction, grid, self.tail, rounded);
        let compose = |losses: Losses| losses.compose(self.tilt, &self.window, points);
        Lattice {
            upper: compose(losses(Rounded::Up)),
            lower: compose(losses(Rounded::Down)),
            tilt: self.tilt,
            epsilon: self.epsilon,
        }
    }
}

/// The losses of all steps on one grid, each with its number.
struct Losses {
    grid: f64,
    steps: Vec<(StepLoss, f64)>,
}

impl Losses {
    fn new(
        composition: &Composition,
        direction: Direction,
        (grid, density): (f64, i64),
        tail: f64,
        rounded: Rounded,
    ) -> Self {
        let of = |(step, count): &(Step, u64)| {
            (StepLoss::new(*step, direction, grid, tail, density, rounded), *count as f64)
        };
        Self { grid, steps: composition.steps().iter().map(of).collect() }
    }

    /// Log of the moment `E e^{tilt L}` over finite losses, without offsets, its first and second
    /// derivatives, summed over all steps.
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
            let value = value + payoff(tilt).value;
            match target {
                Target::Delta(delta) => (value - delta.ln()) / tilt,
                Target::Epsilon(epsilon) => value - tilt * epsilon,
            }
        };
        let scan = (-8..=28).map(f64::from).map(|x| (x, bound(x)));
        let (best, _) = scan.fold((0.0, f64::INFINITY), |a, b| if b.1 < a.1 { b } else { a });
        golden(bound, best - 1.0, best + 1.0).0.exp()
    }

    /// The narrowest window that the tilted sum provably leaves with probability at most `e^wrapped` on
    /// either side.
    fn window(&self, tilt: f64, value: f64, mean: f64, wrapped: f64) -> Option<Window> {
        // P(L > end) <= e^{K(m) - K(tilt) - (m - tilt) end}: the end at which this is e^wrapped.
        let end = |moved: f64| {
            let (other, _, _) = self.cumulant(moved);
            (other - value - wrapped) / (moved - tilt)
        };
        let shifts = |side: f64, log: f64| tilt + side * tilt * log.exp();
        let best = |side: f64| {
            let at = |log: f64| side * end(shifts(side, log));
            let scan = (-8..=8).map(f64::from).map(|x| (x, at(x)));
            let (best, _) = scan.fold((0.0, f64::INFINITY), |a, b| if b.1 < a.1 { b } else { a });
            let (log, value) = golden(at, best - 1.0, best + 1.0);
            (side * value, shifts(side, log))
        };
        let ((high, tilt_above), (low, tilt_below)) = (best(1.0), best(-1.0));
        let sound = low < mean && mean < high && high.is_finite() && low.is_finite();
        sound.then_some(Window { low, high, tilt_below, tilt_above })
    }

    /// At least the tilted probability of sums on the side of `end` that the moved tilt is on.
    fn chernoff(&self, tilt: f64, moved: f64, end: f64) -> f64 {
        let ((value, _, _), (other, _, _)) = (self.cumulant(tilt), self.cumulant(moved));
        let exponent = other - value - (moved - tilt) * end;
        // Logs of moments are good to far less than this.
        let size = 1.0 + value.abs() + other.abs() + (moved - tilt).abs() * end.abs();
        let rounds = self.steps.iter().map(|(_, count)| count).sum::<f64>();
        (exponent + 1e-10 * size + 1e-11 * rounds).exp()
    }

    /// The distribution of the tilted sum, by Fourier transform.
    fn compose(&self, tilt: f64, window: &Window, points: usize) -> Composed {
        let mut planner = RealFftPlanner::<f64>::new();
        let (forward, inverse) =
            (planner.plan_fft_forward(points), planner.plan_fft_inverse(points));
        let mut input = forward.make_input_vec();
        let mut spectrum = forward.make_output_vec();
        let mut product = vec![Product::default(); spectrum.len()];
        let fft_error = FFT_ROUNDINGS * (points as f64).log2() * UNIT;
        // Sums of logs and of phases over steps round with their number.
        let each = (8.0 + 4.0 * self.steps.len() as f64) * UNIT;
        let (mut log_factor, mut rounding) = (0.0, 0.0);
        let (mut infinite, mut offset, mut offsets) = (0.0, 0.0, 0.0);
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
            offset += count * loss.offset;
            offsets += count * loss.offset.abs();
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
            for (value, product) in spectrum.iter().zip(&mut product) {
                product.times(*value, *count, fft_error, each);
            }
        }
        let mut squares = 0.0;
        for (value, product) in spectrum.iter_mut().zip(&product) {
            *value = Complex64::from_polar(product.log_modulus.exp(), product.phase);
            let error = product.bound.exp() * (product.relative + fft_error + 64.0 * UNIT);
            squares += 2.0 * error * error;
        }
        for end in [spectrum.first().is_some().then_some(0), spectrum.len().checked_sub(1)] {
            if let Some(value) = end.and_then(|end| spectrum.get_mut(end)) {
                value.im = 0.0;
            }
        }
        let mut output = inverse.make_output_vec();
        if inverse.process(&mut spectrum, &mut output).is_err() {
            infinite = f64::INFINITY;
        }
        // Indices stay where an f64 is exact; a window elsewhere certifies nothing.
        let first = (window.low / self.grid).floor().clamp(-9e15, 9e15) as i64 - 3;
        let (start, end) = (first as f64 * self.grid, (first + points as i64) as f64 * self.grid);
        let steps = self.steps.len() as f64;
        Composed::new(
            Sum {
                grid: self.grid,
                first,
                offset: (offset, (steps + 4.0) * UNIT * offsets),
                tilt,
                log_factor,
                rounding: rounding + (steps + 4.0) * UNIT * log_factor.abs(),
                above: self.chernoff(tilt, window.tilt_above, end),
                below: self.chernoff(tilt, window.tilt_below, start),
                infinite,
            },
            &output,
            (squares / points as f64).sqrt(),
        )
    }
}

/// A product of Fourier coefficients, as a log, with bounds of its error.
#[derive(Debug, Clone, Copy, Default)]
struct Product {
    log_modulus: f64,
    phase: f64,
    /// At least the log of the modulus, errors included.
    bound: f64,
    /// At least the error, relative to that.
    relative: f64,
}

impl Product {
    /// Multiplies by `value`, which is off by at most `error`, `count` times; `each` is what every one of these
    /// adds to the roundings of sums.
    fn times(&mut self, value: Complex64, count: f64, error: f64, each: f64) {
        let modulus = value.norm_sqr().max(1e-300).sqrt();
        let log_modulus = modulus.ln();
        self.log_modulus += count * log_modulus;
        self.phase += count * value.arg();
        // log(modulus + error)
        let (large, small) = if modulus > error { (modulus, error) } else { (error, modulus) };
        let log_large = if modulus > error { log_modulus } else { error.ln() };
        self.bound += count * (log_large + small / large);
        self.relative += count * (error / large + each);
    }
}

/// Log of `E e^{tilt L}` over the finite losses of one step, and the tilted mean and variance.
fn moments(loss: &StepLoss, grid: f64, tilt: f64) -> (f64, f64, f64) {
    let exponent = |index: i64| tilt * index as f64 * grid;
    // The largest term, up to the logs of masses, which are not small where it matters.
    let top = loss
        .atoms
        .iter()
        .map(|(i, mass)| exponent(*i) + if *mass > 1e-250 { 0.0 } else { f64::NEG_INFINITY })
        .fold(f64::MIN, f64::max);
    let scale = if top > 600.0 { top } else { 0.0 };
    let (mut sum, mut first, mut second) = (0.0, 0.0, 0.0);
    for (index, mass) in &loss.atoms {
        let weight = if scale > 0.0 {
            (mass.ln() + exponent(*index) - scale).exp()
        } else {
            mass * exponent(*index).exp()
        };
        let value = *index as f64 * grid;
        sum += weight;
        first += weight * value;
        second += weight * value * value;
    }
    let mean = first / sum;
    (scale + sum.ln(), mean, (second / sum - mean * mean).max(0.0))
}

/// Where `f`, which falls and then rises, is smallest in `[low, high]`, about, and its value there.
fn golden(f: impl Fn(f64) -> f64, mut low: f64, mut high: f64) -> (f64, f64) {
    const RATIO: f64 = 0.618;
    let (mut a, mut b) = (high - RATIO * (high - low), low + RATIO * (high - low));
    let (mut at_a, mut at_b) = (f(a), f(b));
    for _ in 0..8 {
        if at_a < at_b {
            (high, b, at_b) = (b, a, at_a);
            a = high - RATIO * (high - low);
            at_a = f(a);
        } else {
            (low, a, at_a) = (a, b, at_b);
            b = low + RATIO * (high - low);
            at_b = f(b);
        }
    }
    if at_a < at_b { (a, at_a) } else { (b, at_b) }
}

/// What is known of the tilted sum of all losses beside its masses.
struct Sum {
    grid: f64,
    /// The window begins at this multiple of the grid.
    first: i64,
    /// All losses are larger than their multiples by this, and how far that may be off.
    offset: (f64, f64),
    tilt: f64,
    /// The log of the factor that undoes the tilt at loss 0, and how far it may be off.
    log_factor: f64,
    rounding: f64,
    /// The tilted mass above and below the window, at most.
    above: f64,
    below: f64,
    infinite: f64,
}

/// The tilted sum of all losses in one window.
struct Composed {
    sum: Sum,
    /// For every grid point x of the window, the sums over losses L from x on of
    /// `e^{-tilt (L-x)} (1 - e^{x-L})` and of `e^{-(tilt+1) (L-x)}`.
    tails: Vec<(f64, f64)>,
    /// At least how far any sum over masses with the weights of a profile may be off.
    error: f64,
    /// At least how far sums may be off, relatively.
    rounding: f64,
}

impl Composed {
    /// From the masses, not yet divided by their number and in places modulo that, and the root of the sum of
    /// the squares of all their errors.
    fn new(sum: Sum, output: &[f64], error: f64) -> Self {
        let points = output.len();
        let (grid, tilt) = (sum.grid, sum.tilt);
        let (decay, decay_more) = ((-tilt * grid).exp(), (-(tilt + 1.0) * grid).exp());
        let gap = -libm::expm1(-grid);
        let scale = 1.0 / points as f64;
        let mut tails = Vec::with_capacity(points + 1);
        let (mut profile, mut more) = (0.0, 0.0);
        tails.push((profile, more));
        let last = sum.first + points as i64 - 1;
        let start = last.rem_euclid(points as i64) as usize;
        let (head, tail) = output.split_at((start + 1).min(points));
        for mass in head.iter().rev().chain(tail.iter().rev()) {
            // One step to the left, then the mass that is there.
            profile = decay * (profile + gap * more);
            more = decay_more * more + mass * scale;
            tails.push((profile, more));
        }
        tails.reverse();
        // The root of the sum of squared weights `e^{-tilt d} (1 - e^-d)`: an integral, and the largest.
        let weights = 1.0 / (2.0 * tilt * (2.0 * tilt + 1.0) * (tilt + 1.0) * grid)
            + 1.0 / ((tilt + 1.0) * (tilt + 1.0));
        // Terms that matter lie within 40/tilt; each step of the recurrence rounds a few times.
        let reach = (40.0 / (tilt * grid)).min(points as f64);
        let rounding = (8.0 * reach + 64.0) * UNIT;
        Self { sum, tails, error: weights.sqrt() * error * (1.0 + 1e-9), rounding }
    }

    /// Bounds of `E (1 - e^{eps - L})_+`.
    fn delta(&self, epsilon: f64) -> Interval {
        let Sum { grid, first, offset, tilt, log_factor, above, below, infinite, .. } = self.sum;
        let x = epsilon - offset.0;
        // The first grid point that is not below, as a place in the window.
        let next = (x / grid).ceil() - first as f64;
        let factor = |x: f64, side: f64| {
            let size = log_factor.abs() + tilt * x.abs();
            let room = self.sum.rounding
                + (tilt + 1.0) * (offset.1 + 16.0 * UNIT * x.abs())
                + 8.0 * UNIT * size;
            (log_factor - tilt * x + side * room).exp()
        };
        let place = if next < 0.0 { 0 } else { next.min(self.tails.len() as f64) as usize };
        // Before the window there is no upper bound; the lower one is that at its begin.
        let x = if next < 0.0 { first as f64 * grid } else { x };
        let gap = (first as f64 + place as f64) * grid - x;
        // As in the recurrence, by part of a step; nothing is left beyond the window.
        let value = self.tails.get(place).map_or(0.0, |(profile, more)| {
            (-tilt * gap).exp() * (profile - libm::expm1(-gap) * more)
        });
        let off = self.error + self.rounding * (value.abs() + self.error);
        let end = (first as f64 + self.tails.len() as f64 - 1.0) * grid;
        let beyond = above * (-tilt * (end - x)).exp().min(1.0);
        let upper = factor(x, 1.0) * (value + off + beyond) + infinite;
        let lower = factor(x, -1.0) * (value - off - above - below);
        Interval {
            lower: if lower > 0.0 { lower } else { 0.0 },
            upper: if upper.is_nan() || next < 0.0 { f64::INFINITY } else { upper },
        }
    }
}
