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
/// Transforms are not longer than this; for sketches of profiles, than that.
pub(crate) const LONGEST: usize = 1 << 20;
pub(crate) const SKETCHED: usize = 1 << 15;
/// Nor shorter than this.
const SHORTEST: usize = 1 << 12;
/// A fine grid with few points, which shows tilt and window: its step, and how many of its points there are
/// per octave, about.
const SKETCH: (f64, i64) = (1e-10, 10);
/// The same for the grids that are composed.
const DENSITY: i64 = 512;
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
        longest: usize,
    ) -> Option<Self> {
        let mut plan = Plan::new(composition, direction, target, None)?;
        let mut points = SHORTEST;
        let mut last = f64::INFINITY;
        let mut lower: Option<Composed> = None;
        loop {
            let mut lattice = plan.lattice(composition, direction, points);
            let mut epsilon = plan.epsilon;
            if let Target::Delta(delta) = target {
                epsilon = lattice.meets(delta, epsilon);
            }
            // Merged cells may fit a coarser grid better.
            if let Some(lower) = lower.take()
                && lower.delta(epsilon).lower > lattice.lower.delta(epsilon).lower
            {
                lattice.lower = lower;
            }
            let near = lattice.delta(epsilon);
            let off = (near.upper / near.lower).ln() / (1.0 + plan.tilt * epsilon);
            let known = near.upper.is_finite();
            // Where the plan was for about this epsilon, finer lattices either help or are not needed.
            let planned = known && (epsilon - plan.epsilon).abs() <= 0.02 * epsilon;
            let enough = off <= close || (planned && off > 0.8 * last) || 2 * points > longest;
            if enough && (planned || points > SHORTEST) {
                return known.then_some(Self { epsilon, ..lattice });
            }
            last = if planned { off } else { f64::INFINITY };
            lower = Some(lattice.lower);
            if known && !planned {
                plan = Plan::new(composition, direction, target, Some(epsilon)).unwrap_or(plan);
            }
            plan.epsilon = epsilon;
            // Errors fall with the square of the length.
            let growth = (1.5 * off / close).sqrt().clamp(2.0, 16.0);
            points = ((points as f64 * growth) as usize).next_power_of_two().min(longest);
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
    split: Option<Split>,
}

/// Losses outside of which the tilted sum hardly ever lies, and the tilts that show it.
#[derive(Debug, Clone, Copy)]
struct Window {
    low: f64,
    high: f64,
    tilt_below: f64,
    tilt_above: f64,
}

/// Where one large loss is likelier than many small ones, sums without any large loss are left out of the
/// transform, whose rounding they would determine, and bounded by themselves.
#[derive(Debug, Clone, Copy)]
struct Split {
    /// Losses above this are large.
    loss: f64,
    /// The tilt that bounds sums without any.
    tilt: f64,
}

impl Plan {
    fn new(
        composition: &Composition,
        direction: Direction,
        target: Target,
        known: Option<f64>,
    ) -> Option<Self> {
        let rounds: f64 = composition.steps().iter().map(|(_, count)| *count as f64).sum();
        let one = |epsilon: f64| -> f64 {
            let steps = composition.steps().iter();
            steps.map(|(step, n)| *n as f64 * step_delta(*step, direction, epsilon).upper).sum()
        };
        let (about, least) = match target {
            // One large loss at a time costs this.
            Target::Delta(delta) => (delta, known.unwrap_or_else(|| falls_to(one, delta))),
            // About what all steps cost one at a time.
            Target::Epsilon(epsilon) => (one(epsilon).min(1.0), epsilon),
        };
        let tail = (about * TAIL / rounds).max(1e-290);
        let mut sketch = Losses::new(composition, direction, SKETCH, tail, Rounded::Up);
        let sought = match (target, known) {
            (Target::Delta(_), Some(epsilon)) => Target::Epsilon(epsilon),
            _ => target,
        };
        sketch.split = sketch.find_split(least, about);
        let tilt = sketch.best_tilt(sought);
        if sketch.split.is_some() && sketch.jumps(tilt) > 1.0 {
            sketch.split = None;
        }
        let tilt = if sketch.split.is_some() { tilt } else { sketch.best_tilt(sought) };
        let value = sketch.cumulant(tilt);
        let epsilon = match sought {
            Target::Delta(delta) => (value + payoff(tilt).value - delta.ln()) / tilt,
            Target::Epsilon(epsilon) => epsilon,
        };
        let window = sketch.window(tilt, value, WRAPPED + payoff(tilt).value)?;
        Some(Self { tail, tilt, epsilon: epsilon.max(0.0), window, split: sketch.split })
    }

    fn step(&self, points: usize) -> f64 {
        // Room for what moving losses to the lattice does to the window.
        (self.window.high - self.window.low) / (points as f64 - 8.0) * 1.001
    }

    fn lattice(&self, composition: &Composition, direction: Direction, points: usize) -> Lattice {
        let grid = (self.step(points), DENSITY);
        let losses = |rounded| {
            let losses = Losses::new(composition, direction, grid, self.tail, rounded);
            Losses { split: self.split, ..losses }
        };
        let compose = |losses: Losses| losses.compose(self.tilt, &self.window, points);
        Lattice {
            upper: compose(losses(Rounded::Up)),
            lower: compose(losses(Rounded::Down)),
            tilt: self.tilt,
            epsilon: self.epsilon,
        }
    }
}

/// Where a falling profile is `delta`, about; 0 if it is not larger there.
fn falls_to(profile: impl Fn(f64) -> f64, delta: f64) -> f64 {
    let mut high = 1e-9;
    while profile(high) > delta && high < 1e6 {
        high *= 4.0;
    }
    let mut low = if high > 1e-9 { 0.25 * high } else { 0.0 };
    for _ in 0..12 {
        let middle = 0.5 * (low + high);
        if profile(middle) > delta { low = middle } else { high = middle }
    }
    low
}

/// The losses of all steps on one grid, each with its number.
struct Losses {
    grid: f64,
    steps: Vec<(StepLoss, f64)>,
    split: Option<Split>,
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
        Self { grid, steps: composition.steps().iter().map(of).collect(), split: None }
    }

    /// The largest index of a small loss.
    fn last_small(&self) -> i64 {
        self.split.map_or(i64::MIN, |split| (split.loss / self.grid) as i64)
    }

    /// Log of `E e^{tilt L}` of sums with small losses only, and of the factor by which those with any
    /// losses have more.
    fn parts(&self, tilt: f64) -> (f64, f64) {
        let last = self.last_small();
        let (mut all, mut factor) = (0.0, 0.0);
        for (loss, count) in &self.steps {
            let at = loss.atoms.partition_point(|(index, _)| *index <= last);
            let (small, large) = loss.atoms.split_at(at);
            let small = log_sum(small, tilt * self.grid);
            let ratio = log_sum(large, tilt * self.grid) - small;
            all += count * small;
            factor += count * if ratio > 30.0 { ratio } else { libm::log1p(ratio.exp()) };
        }
        (all, factor)
    }

    /// How many large losses there are, tilted, about.
    fn jumps(&self, tilt: f64) -> f64 {
        self.parts(tilt).1
    }

    /// Log of the moment `E e^{tilt L}` of sums of finite losses, with at least one large one if these are split,
    /// without offsets.
    fn cumulant(&self, tilt: f64) -> f64 {
        if self.split.is_none() {
            let of = |(loss, count): &(StepLoss, f64)| count * log_moment(loss, self.grid, tilt);
            return self.steps.iter().map(of).sum();
        }
        let (small, factor) = self.parts(tilt);
        small + if factor > 30.0 { factor } else { libm::expm1(factor).ln() }
    }

    /// The largest loss for which sums of smaller ones cost next to nothing at `epsilon`, if there is one.
    fn find_split(&mut self, epsilon: f64, delta: f64) -> Option<Split> {
        let mut loss = 0.7 * epsilon;
        for _ in 0..12 {
            self.split = Some(Split { loss, tilt: 0.0 });
            let bound = |log_tilt: f64| {
                let tilt = log_tilt.exp();
                self.parts(tilt).0 + payoff(tilt).value - tilt * epsilon
            };
            let centre = (20.0 / epsilon).ln();
            let (log_tilt, bound) = golden(bound, centre - 2.0, centre + 4.0);
            if bound < delta.ln() + TAIL.ln() {
                return Some(Split { loss, tilt: log_tilt.exp() });
            }
            loss *= 0.7;
        }
        None
    }

    /// The tilt at which the Chernoff bound, with its prefactor, gives the smallest epsilon. Any
    /// tilt is sound; this one keeps the errors small against delta.
    fn best_tilt(&self, target: Target) -> f64 {
        let bound = |log_tilt: f64| {
            let tilt = log_tilt.exp();
            let value = self.cumulant(tilt) + payoff(tilt).value;
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
    fn window(&self, tilt: f64, value: f64, wrapped: f64) -> Option<Window> {
        // P(L > end) <= e^{K(m) - K(tilt) - (m - tilt) end}: the end at which this is e^wrapped.
        let end = |moved: f64| (self.cumulant(moved) - value - wrapped) / (moved - tilt);
        let shifts = |side: f64, log: f64| tilt + side * tilt * log.exp();
        let best = |side: f64| {
            let at = |log: f64| {
                let end = side * end(shifts(side, log));
                if end.is_finite() { end } else { f64::INFINITY }
            };
            let scan = (-8..=8).map(f64::from).map(|x| (x, at(x)));
            let (best, _) = scan.fold((0.0, f64::INFINITY), |a, b| if b.1 < a.1 { b } else { a });
            let (log, value) = golden(at, best - 1.0, best + 1.0);
            (side * value, shifts(side, log))
        };
        let ((high, tilt_above), (low, tilt_below)) = (best(1.0), best(-1.0));
        let sound = low < high && high.is_finite() && low.is_finite();
        sound.then_some(Window { low, high, tilt_below, tilt_above })
    }

    /// At least the probability of sums on the side of `end` that the moved tilt is on, tilted and divided by
    /// `e^log_factor`.
    fn chernoff(&self, tilt: f64, log_factor: f64, moved: f64, end: f64) -> f64 {
        let value = self.cumulant(moved);
        // Logs of moments are good to far less than this.
        let size = 1.0 + value.abs() + log_factor.abs() + (moved - tilt).abs() * end.abs();
        (value - log_factor - (moved - tilt) * end + 1e-10 * size + 1e-11 * self.rounds()).exp()
    }

    /// At least what sums without a large loss cost, as the logs of a constant and the coefficient of
    /// epsilon.
    fn small(&self) -> Option<(f64, f64)> {
        let tilt = self.split?.tilt;
        let (value, _) = self.parts(tilt);
        // (1 - e^-x)_+ <= e^{tilt x} tilt^tilt / (1+tilt)^(1+tilt)
        let payoff = -tilt * libm::log1p(1.0 / tilt) - libm::log1p(tilt);
        Some((value + payoff + 1e-10 * (1.0 + value.abs()) + 1e-11 * self.rounds(), -tilt))
    }

    fn rounds(&self) -> f64 {
        self.steps.iter().map(|(_, count)| count).sum()
    }

    /// The distribution of the tilted sum, by Fourier transform.
    fn compose(&self, tilt: f64, window: &Window, points: usize) -> Composed {
        let mut planner = RealFftPlanner::<f64>::new();
        let (forward, inverse) =
            (planner.plan_fft_forward(points), planner.plan_fft_inverse(points));
        let mut input = forward.make_input_vec();
        let mut spectrum = forward.make_output_vec();
        let mut large = forward.make_output_vec();
        let mut product = vec![Product::default(); spectrum.len()];
        let fft_error = FFT_ROUNDINGS * (points as f64).log2() * UNIT;
        // Sums of logs and of phases over steps round with their number.
        let each = (8.0 + 4.0 * self.steps.len() as f64) * UNIT;
        let (mut log_factor, mut rounding) = (0.0, 0.0);
        let (mut infinite, mut offset, mut offsets) = (0.0, 0.0, 0.0);
        for (loss, count) in &self.steps {
            let log_moment = log_moment(loss, self.grid, tilt);
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
            let last = self.last_small();
            let mut transform = |wanted: &dyn Fn(i64) -> bool, spectrum: &mut [Complex64]| {
                input.fill(0.0);
                let mut total = 0.0;
                for (index, mass) in loss.atoms.iter().filter(|(index, _)| wanted(*index)) {
                    let place = index.rem_euclid(points as i64) as usize;
                    let mass = mass * (tilt * *index as f64 * self.grid - log_moment).exp();
                    total += mass;
                    if let Some(slot) = input.get_mut(place) {
                        *slot += mass;
                    }
                }
                // Lengths are those of the plan; if it failed all the same, nothing is certain.
                if forward.process(&mut input, spectrum).is_err() { f64::INFINITY } else { total }
            };
            if self.split.is_some() {
                let rest = transform(&|index| index <= last, &mut spectrum);
                let total = transform(&|index| index > last, &mut large);
                infinite += if (rest + total).is_finite() { 0.0 } else { f64::INFINITY };
                for ((small, large), product) in spectrum.iter().zip(&large).zip(&mut product) {
                    product.times(*small, *count, fft_error, each);
                    product.also(*small, *large, *count, (fft_error, total), each);
                }
            } else {
                let total = transform(&|_| true, &mut spectrum);
                infinite += if total.is_finite() { 0.0 } else { f64::INFINITY };
                for (value, product) in spectrum.iter().zip(&mut product) {
                    product.times(*value, *count, fft_error, each);
                }
            }
        }
        let mut squares = 0.0;
        for (value, product) in spectrum.iter_mut().zip(&product) {
            let (found, error) = match self.split {
                Some(_) => product.with_large(fft_error),
                None => product.whole(fft_error),
            };
            *value = found;
            squares += 2.0 * error * error;
        }
        // Real by symmetry, which rounding does not know.
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
                above: self.chernoff(tilt, log_factor, window.tilt_above, end),
                below: self.chernoff(tilt, log_factor, window.tilt_below, start),
                infinite,
                small: self.small(),
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
    /// What large losses add to the log, at least its modulus, and its error.
    factor: Complex64,
    factor_bound: f64,
    factor_error: f64,
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
        self.relative += count * (error / large + each * (1.0 + log_modulus.abs()));
    }

    /// Notes the large losses beside the small ones that it was multiplied by; they are off by at most their `total`
    /// times the error.
    fn also(
        &mut self,
        small: Complex64,
        large: Complex64,
        count: f64,
        (error, total): (f64, f64),
        each: f64,
    ) {
        let ratio = large / small;
        // log(1 + ratio), without cancellation.
        let square = 2.0 * ratio.re + ratio.norm_sqr();
        let log = Complex64::new(0.5 * libm::log1p(square), ratio.im.atan2(1.0 + ratio.re));
        self.factor += log * count;
        let modulus = small.norm_sqr().sqrt() + error;
        let bound = (large.norm_sqr().sqrt() + error * total) / modulus;
        self.factor_bound += count * libm::log1p(bound) * (1.0 + 1e-12);
        self.factor_error += count * (error * total / modulus + 2.0 * each * bound);
    }

    /// The product, and at least its error, the next transform's included.
    fn whole(&self, fft_error: f64) -> (Complex64, f64) {
        let value = Complex64::from_polar(self.log_modulus.exp(), self.phase);
        (value, self.bound.exp() * (self.relative + fft_error + 64.0 * UNIT))
    }

    /// The product with large losses less that without, and at least its error: all terms of the difference
    /// have positive coefficients, so it grows the most along the moduli.
    fn with_large(&self, fft_error: f64) -> (Complex64, f64) {
        let without = Complex64::from_polar(self.log_modulus.exp(), self.phase);
        let Complex64 { re, im } = self.factor;
        let value = if re > 1.0 {
            Complex64::from_polar((self.log_modulus + re).exp(), self.phase + im) - without
        } else {
            // e^x - 1 without cancellation: expm1(a) cos b - 2 sin^2(b/2) + i e^a sin b.
            let half = libm::sin(0.5 * im);
            let more = libm::expm1(re) * libm::cos(im) - 2.0 * half * half;
            without * Complex64::new(more, libm::exp(re) * libm::sin(im))
        };
        // Times e^bound, which may be as small as these are large.
        let grown = match self.factor_bound > 1.0 {
            true => (self.bound + self.factor_bound).exp(),
            false => self.bound.exp() * libm::expm1(self.factor_bound),
        };
        let error = grown * (self.relative + fft_error + 64.0 * UNIT)
            + (self.bound + self.factor_bound).exp() * self.factor_error;
        (value, error)
    }
}

/// Log of `E e^{tilt L}` over the finite losses of one step.
fn log_moment(loss: &StepLoss, grid: f64, tilt: f64) -> f64 {
    log_sum(&loss.atoms, tilt * grid)
}

/// Log of the sum of `mass e^{rate index}`.
fn log_sum(atoms: &[(i64, f64)], rate: f64) -> f64 {
    let exponent = |index: i64| rate * index as f64;
    // Exponents are largest at an end.
    let ends = [atoms.first(), atoms.last()].into_iter().flatten();
    let top = ends.map(|(index, _)| exponent(*index)).fold(f64::MIN, f64::max);
    if top.abs() < 600.0 {
        return atoms.iter().map(|(index, mass)| mass * exponent(*index).exp()).sum::<f64>().ln();
    }
    let log = |(index, mass): &(i64, f64)| mass.ln() + exponent(*index);
    let top = atoms.iter().map(log).fold(f64::MIN, f64::max);
    top + atoms.iter().map(|atom| (log(atom) - top).exp()).sum::<f64>().ln()
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
    /// What sums cost that were left out, at most: logs of a constant and the coefficient of epsilon.
    small: Option<(f64, f64)>,
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
        let Sum { grid, first, offset, tilt, log_factor, above, below, infinite, small, .. } =
            self.sum;
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
        let left_out = small.map_or(0.0, |(constant, slope)| (constant + slope * x).exp());
        let upper = factor(x, 1.0) * (value + off + beyond) + infinite + left_out;
        let lower = factor(x, -1.0) * (value - off - above - below);
        Interval {
            lower: if lower > 0.0 { lower } else { 0.0 },
            upper: if upper.is_nan() || next < 0.0 { f64::INFINITY } else { upper },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contour::Contour;
    use crate::cumulant::Cumulant;
    use veilgrad_events::{Adjacency, NoiseMultiplier, SampleRate};

    const DELTA: f64 = 1e-6;

    fn rounds() -> Composition {
        let (rate, noise) = (SampleRate::new(0.02).unwrap(), NoiseMultiplier::new(0.8).unwrap());
        Composition::poisson(rate, noise, 300, Adjacency::AddRemove).unwrap()
    }

    /// The profile, good to 1e-9, by a method that shares nothing with this one.
    fn exact(epsilon: f64) -> f64 {
        let mut cumulant = Cumulant::new(&rounds(), Direction::Remove);
        let tilt = cumulant.best_slope(epsilon, payoff);
        let contour = Contour::new(&rounds(), Direction::Remove, &mut cumulant, tilt).unwrap();
        let Interval { lower, upper } = contour.delta(epsilon);
        assert!(upper - lower < 1e-8 * upper);
        0.5 * (lower + upper)
    }

    /// A lattice after a plan was changed; it must enclose the profile at all these epsilons, and its bounds must
    /// differ by more than this factor at one of them, or nothing was tried.
    fn encloses(change: impl Fn(&mut Plan), points: usize, wide: f64) {
        let target = Target::Delta(DELTA);
        let mut plan = Plan::new(&rounds(), Direction::Remove, target, None).unwrap();
        change(&mut plan);
        let lattice = plan.lattice(&rounds(), Direction::Remove, points);
        let mut widest: f64 = 1.0;
        for i in 0..60 {
            let epsilon = 0.05 * f64::from(i);
            let (found, exact) = (lattice.delta(epsilon), exact(epsilon));
            assert!(found.lower <= exact && exact <= found.upper, "{epsilon}: {found:?} {exact}");
            widest = widest.max(found.upper / exact).max(exact / found.lower.max(1e-300));
        }
        assert!(widest > wide, "{widest}");
    }

    #[test]
    fn losses_beyond_the_last_cell_are_counted() {
        encloses(|plan| plan.tail = 30.0 * DELTA / 300.0, 1 << 16, 1.05);
    }

    #[test]
    fn sums_above_and_below_the_window_are_counted() {
        for (low, high) in [(0.0, 0.4), (0.0, 0.6), (0.35, 0.0), (0.45, 0.0)] {
            let narrower = |plan: &mut Plan| {
                let width = plan.window.high - plan.window.low;
                plan.window.low += low * width;
                plan.window.high -= high * width;
            };
            encloses(narrower, 1 << 16, 1.01);
        }
        // And beyond the end of a window all of it is above.
        encloses(|plan| plan.window.high = 2.0, 1 << 16, 1.01);
    }

    /// With hardly any tilt deltas are as small as the rounding of transforms.
    #[test]
    fn the_rounding_of_transforms_is_counted() {
        let shallow = |plan: &mut Plan| {
            plan.tilt = 1e-3;
            plan.window = Window { low: -8.0, high: 16.0, tilt_below: -8.0, tilt_above: 4.0 };
            plan.tail = 1e-25;
        };
        let target = Target::Delta(DELTA);
        let mut plan = Plan::new(&rounds(), Direction::Remove, target, None).unwrap();
        shallow(&mut plan);
        let lattice = plan.lattice(&rounds(), Direction::Remove, 1 << 14);
        let mut wide = 0;
        for i in 0..80 {
            let epsilon = 4.0 + 0.05 * f64::from(i);
            let (found, exact) = (lattice.delta(epsilon), exact(epsilon));
            assert!(found.lower <= exact && exact <= found.upper, "{epsilon}: {found:?} {exact}");
            wide += i32::from(found.upper > 2.0 * exact);
        }
        assert!(wide > 10, "{wide}");
    }

    /// Sums without a large loss are counted, however much they cost.
    #[test]
    fn sums_without_a_large_loss_are_counted() {
        for loss in [0.05, 0.2, 1.0] {
            let split = |plan: &mut Plan| plan.split = Some(Split { loss, tilt: 4.0 });
            encloses(split, 1 << 16, 1.0001);
        }
    }
}
