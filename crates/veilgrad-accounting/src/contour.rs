//! The privacy profile by numerical inversion of its Laplace transform, with every error bounded.
//!
//! For any tilt `a > 0`, with `K(s) = log E e^{s L}` of the total loss L,
//! `delta(eps) = 1/pi * integral over t > 0 of Re e^{K(s) - s eps} / (s (s + 1))`, `s = a + i t`.
//!
//! - The trapezoid sum over t with step 2 pi / P is `sum over m of e^{a m P} delta(eps + m P)`: all
//!   terms are at least 0, so the sum is never below delta, and Chernoff bounds say how far above.
//! - The frequencies that are left out are bounded through a minorant of the density of the loss.
//! - The moments are trapezoid sums over outputs, exact up to what the strip of analyticity gives.
//! - All roundings are counted.
//!
//! Where characteristic functions hardly decay, the rounds are aided ([`Aid`]): by one more round that smooths
//! the loss, which can only cost, and whose share is bounded through the convexity of profiles; and by counting
//! the largest losses as infinite.

use realfft::num_complex::Complex64;

use crate::cumulant::{Aid, Cumulant, Jet, SMALLEST};
use crate::number::{UNIT, upper_tail};
use crate::output::Direction;
use crate::tilted::{BLOCK, TiltedNodes, TiltedStep};
use crate::{Composition, Sampled, many, work};

/// Never more frequencies than this; fewer where there are many distinct steps.
pub(crate) const MOST_FREQUENCIES: usize = 1 << 14;
const MOST_AIDED: usize = 1 << 21;
/// Lines on which what is cut off may be this part of delta are not worth following.
const HOPELESS: f64 = 1e-3;
/// Nor are lines at whose end transforms have not decayed by this, as a log: an aid does better.
pub(crate) const LEAST_DECAY: f64 = 14.0;
/// In how many pieces densities are bounded from below, with many rounds and with few.
pub(crate) const PIECES: u32 = 160;
const FINE_PIECES: u32 = 2_000;
const FEW_ROUNDS: u64 = 200;
/// And never more products of frequencies and outputs.
const MOST_WORK: f64 = 4e7;
const MOST_AIDED_WORK: f64 = 1e8;
/// Of many distinct steps, more: anything else would take longer.
const WORK_PER_STEP: f64 = 1e5;
/// Values are read about twice as often to find an epsilon: half of that is left for it.
const READINGS: u64 = 128;
/// How far, in its deviations, a smoothed profile is read from where it was smoothed.
pub(crate) const REACH: f64 = 6.5;

/// The transform of a composition's loss along one line, good for all epsilons near the one that it
/// was made for.
pub(crate) struct Contour {
    pub(crate) tilt: f64,
    /// K(tilt), and at least how far it may be off.
    pub(crate) log_moment: f64,
    pub(crate) rounding: f64,
    /// K'(tilt), roughly: phases are relative to it.
    pub(crate) centre: f64,
    pub(crate) spacing: f64,
    /// `e^{K(s) - K(tilt) - i t centre} / (s (s+1))` at t = 0, spacing, 2 spacing, ...
    pub(crate) values: Vec<Complex64>,
    /// At least the error of the sum, without the factor `e^{K(tilt) - tilt eps}`, both ways.
    pub(crate) error: f64,
    /// 1/z^2 of the round that was added, and at least the probability of losses that were taken out.
    pub(crate) variance: f64,
    pub(crate) infinite: f64,
    /// At least the sum of the terms with m < 0 and m > 0, up to the same factor: logs of a constant
    /// and the coefficient of eps.
    pub(crate) wraps: Wraps,
}

/// Bounds of delta at one epsilon.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Interval {
    pub(crate) lower: f64,
    pub(crate) upper: f64,
}

/// The part of the log of the integrand that comes from `1/(s (s + 1))`.
pub(crate) fn payoff(tilt: f64) -> Jet {
    Jet {
        value: -tilt.ln() - libm::log1p(tilt),
        first: -1.0 / tilt - 1.0 / (1.0 + tilt),
        second: 1.0 / (tilt * tilt) + 1.0 / ((1.0 + tilt) * (1.0 + tilt)),
    }
}

impl Contour {
    /// `None` where this method does not apply: steps without a smooth loss, or too much work. The
    /// cumulant must be that with the same aid.
    pub(crate) fn new(
        composition: &Composition,
        direction: Direction,
        cumulant: &mut Cumulant,
        tilt: f64,
        aid: Aid,
    ) -> Option<Self> {
        if let Some(sample) = composition.sample() {
            return many::contour(composition, sample, direction, tilt, HOPELESS);
        }
        let k = cumulant.at(tilt);
        let finite = k.value.is_finite() && k.second.is_finite() && k.first.is_finite();
        if !finite || !(tilt > 0.0) || work::left() == 0 {
            return None;
        }
        let (period, wraps) = period(cumulant, tilt, k)?;
        let most = if aid.variance > 0.0 {
            (MOST_AIDED, MOST_AIDED_WORK)
        } else {
            (MOST_FREQUENCIES, MOST_WORK.max(WORK_PER_STEP * composition.steps().len() as f64))
        };
        let line = Line { tilt, k, period, wraps, aid };
        Self::along(composition, direction, line, most, HOPELESS)
    }

    /// With so many frequencies at most, and a period that is too short by this factor.
    #[cfg(test)]
    pub(crate) fn rough(
        composition: &Composition,
        direction: Direction,
        cumulant: &mut Cumulant,
        tilt: f64,
        frequencies: usize,
        shorter: f64,
    ) -> Option<Self> {
        let k = cumulant.at(tilt);
        let (period, wraps) = period(cumulant, tilt, k)?;
        let wraps =
            if shorter < 1.0 { wraps_of(cumulant, tilt, k, shorter * period) } else { wraps };
        let line = Line { tilt, k, period: shorter * period, wraps, aid: Aid::default() };
        Self::along(composition, direction, line, (frequencies, MOST_WORK), f64::INFINITY)
    }

    fn along(
        composition: &Composition,
        direction: Direction,
        Line { tilt, k, period, wraps, aid }: Line,
        (most, most_work): (usize, f64),
        hopeless: f64,
    ) -> Option<Self> {
        let most_work = most_work.min(work::PRODUCTS.saturating_mul(work::left()) as f64);
        let most = most.min((work::left() / READINGS) as usize);
        let spacing = 2.0 * std::f64::consts::PI / period;
        // What a minorant misses of a density counts once per round: with few rounds it has to be close.
        let rounds = composition.steps().iter().fold(0u64, |sum, (_, n)| sum.saturating_add(*n));
        let pieces = if rounds < FEW_ROUNDS { FINE_PIECES } else { PIECES };
        let mut gaussian = aid.variance;
        let mut smooth = Vec::new();
        for (step, count) in composition.steps() {
            if step.sampled == Sampled::Always {
                gaussian += *count as f64 / (step.z * step.z);
            } else if step.z < SMALLEST {
                return None;
            } else {
                let step = TiltedStep::new(*step, direction, tilt, pieces, aid.tail)?;
                smooth.push((step, *count as f64));
            }
        }
        // What is cut off must not count: |value| there is at most e^-decay / t^2.
        let decay = |t: f64| {
            let steps = smooth.iter().map(|(step, n)| n * step.decay(t)).sum::<f64>();
            steps + 0.5 * gaussian * t * t * (1.0 - 1e-12)
        };
        let wanted = 28.0 + libm::log1p(tilt * tilt) + libm::log1p(k.second.sqrt());
        let work = |count: usize| {
            let last = count as f64 * spacing;
            count as f64 * smooth.iter().map(|(step, _)| step.size(last)).sum::<f64>()
        };
        // Where losses come in very different sizes delta is far below the saddle point's bound.
        let wanted = if aid == Aid::default() { wanted } else { wanted + 14.0 };
        let mut count = 16;
        while count < most && work(count) < most_work && decay(count as f64 * spacing) < wanted {
            count = (count + count / 8 + 1).min(most);
        }
        let last = count as f64 * spacing;
        let cut = (-decay(last)).exp() / last * (1.0 + spacing / last);
        if decay(last) < LEAST_DECAY && hopeless.is_finite() {
            return None;
        }
        // What is cut off against what there is, about: hopeless cases end here.
        if cut > hopeless * payoff(tilt).value.exp() / (1.0 + k.second.sqrt()) {
            return None;
        }
        let mut products = vec![Product::default(); count];
        for (step, n) in &smooth {
            multiply(&mut products, spacing, &step.nodes(spacing * count as f64)?, *n);
        }
        // Constants of the steps, which cancel, so only their sum is rounded.
        let moments = || smooth.iter().map(|(step, n)| n * step.log_moment);
        let gaussian_moment = 0.5 * gaussian * tilt * (tilt + 1.0);
        let mut contour = Self {
            tilt,
            log_moment: moments().sum::<f64>() + gaussian_moment,
            rounding: UNIT
                * (4.0 + smooth.len() as f64)
                * 2.0
                * (moments().map(f64::abs).sum::<f64>() + gaussian_moment)
                + smooth.iter().map(|(step, n)| n * step.moment_error).sum::<f64>(),
            centre: smooth.iter().map(|(step, n)| n * step.centre).sum::<f64>()
                + gaussian * (tilt + 0.5),
            spacing,
            values: Vec::with_capacity(count),
            error: cut / std::f64::consts::PI,
            variance: aid.variance,
            infinite: smooth.iter().map(|(step, n)| n * step.infinite).sum::<f64>() * (1.0 + 1e-12),
            wraps,
        };
        contour.fill(&products, gaussian);
        contour.error.is_finite().then_some(contour)
    }

    pub(crate) fn fill(&mut self, products: &[Product], gaussian: f64) {
        let mut error = 0.0;
        for (index, product) in products.iter().enumerate() {
            let Product { log_modulus, phase, bound, relative, size, terms } = product;
            let t = index as f64 * self.spacing;
            let damping = -0.5 * gaussian * t * t;
            let s = Complex64::new(self.tilt, t);
            let payoff = (s * (s + 1.0)).inv();
            let value = Complex64::from_polar((log_modulus + damping).exp(), *phase) * payoff;
            let half = if index == 0 { 0.5 } else { 1.0 };
            self.values.push(value * half);
            // The roundings of the exponent and the phase, and of the last products.
            let last = (64.0 + 4.0 * damping.abs() + (4.0 + terms) * size) * UNIT;
            error += half * (bound + damping).exp() * payoff.norm() * (relative + last);
        }
        self.error += error * self.spacing / std::f64::consts::PI;
    }

    /// At least delta at `epsilon`.
    pub(crate) fn upper(&self, epsilon: f64) -> f64 {
        self.smoothed(epsilon).upper + self.infinite
    }

    /// Bounds of delta at `epsilon`.
    pub(crate) fn delta(&self, epsilon: f64) -> Interval {
        let Interval { lower, upper } = self.smoothed(epsilon);
        let lower = if self.variance > 0.0 { self.sharp(epsilon, upper) } else { lower };
        Interval { lower, upper: upper + self.infinite }
    }

    /// At most delta without the round that was added, given what it is at most with it.
    ///
    /// That round's loss g is normal with mean v/2 and variance v, so `E e^{-g} = 1` and the smoothed profile
    /// A is `E D(x e^{-g})` of the sharp one D at `x = e^eps`. D is convex and falls in x: `D <= A`, and for
    /// x0 < x1 < x2 what A has at x1 comes, but for g far from 0, from below the chord of D over
    /// [x0, x2]: `A(x1) <= (D(x0) (x2 - x1) + A(x2) (x1 - x0)) / (x2 - x0)`, which bounds D(x0) from below.
    fn sharp(&self, epsilon: f64, here: f64) -> f64 {
        let (v, deviation) = (self.variance, self.variance.sqrt());
        let reach = REACH * deviation;
        // x in units of x0: the two steps, and both together.
        let first = libm::expm1(reach);
        let second = (1.0 + first) * first;
        let both = first + second;
        let (near, far) = (self.smoothed(epsilon + reach), self.smoothed(epsilon + 2.0 * reach));
        // Left of x0, D is at most 1, and at most e^{K(tilt) - tilt eps}.
        let tilt = self.tilt;
        let moment = self.log_moment + self.rounding - tilt * (epsilon + reach);
        let growth = 0.5 * v * tilt * (tilt + 1.0);
        let tail = |shift: f64| upper_tail((reach - 0.5 * v - shift) / deviation) * (1.0 + 1e-9);
        let left = tail(0.0).min((moment + growth).exp() * (1.0 + 1e-9) * tail(tilt * v));
        // Right of x2 the chord goes on falling where D need not.
        let right = here * (1.0 + first) / both * tail(0.0);
        let above = near.lower - left - right - far.upper * first / both;
        above * both / second - 1e-13 * here
    }

    /// Bounds of the finite part of delta, with the round that was added.
    fn smoothed(&self, epsilon: f64) -> Interval {
        work::spend(self.values.len() as u64 / 2);
        let rotation = Complex64::from_polar(1.0, self.spacing * (self.centre - epsilon));
        let mut turn = Complex64::new(1.0, 0.0);
        let (mut sum, mut size) = (0.0, 0.0);
        for (index, value) in self.values.iter().enumerate() {
            if index % 64 == 0 {
                let phase = index as f64 * self.spacing * (self.centre - epsilon);
                turn = Complex64::from_polar(1.0, phase);
            }
            sum += value.re * turn.re - value.im * turn.im;
            size += value.norm_sqr();
            turn *= rotation;
        }
        let scale = self.spacing / std::f64::consts::PI;
        // Rotations round a few times each, phases by their size, and sums by their length; the sum
        // of moduli is at most the root of length times that of squares.
        let length = self.values.len() as f64;
        let phases = self.spacing * length * (self.centre.abs() + epsilon.abs());
        let rounding = (size * length).sqrt() * scale * (512.0 + length + 8.0 * phases) * UNIT;
        let error = self.error + rounding;
        let exponent = self.log_moment - self.tilt * epsilon;
        let room =
            self.rounding + 16.0 * UNIT * (exponent.abs() + (self.tilt * epsilon).abs() + 4.0);
        let factor = exponent.exp();
        let wraps: f64 =
            self.wraps.iter().map(|(constant, slope)| (constant + slope * epsilon).exp()).sum();
        if !(room < 0.1) {
            return Interval { lower: 0.0, upper: f64::INFINITY };
        }
        let upper = factor * (sum * scale + error) * room.exp();
        let lower = factor * (sum * scale - error) * (-room).exp() - wraps;
        Interval { lower, upper: if upper.is_nan() { f64::INFINITY } else { upper } }
    }
}

/// Where a transform is taken.
pub(crate) struct Line {
    pub(crate) tilt: f64,
    /// The cumulant there, about.
    pub(crate) k: Jet,
    pub(crate) period: f64,
    pub(crate) wraps: Wraps,
    pub(crate) aid: Aid,
}

/// Bounds of the sums of the copies on either side, as `(log of a constant, coefficient of epsilon)`.
pub(crate) type Wraps = [(f64, f64); 2];

/// A period so long that the copies of delta that the trapezoid sum adds do not count, and their bounds.
pub(crate) fn period(cumulant: &mut Cumulant, tilt: f64, k: Jet) -> Option<(f64, Wraps)> {
    let deviation = k.second.max(0.0).sqrt();
    let epsilon = k.first + payoff(tilt).first;
    let mut period = 8.0 * deviation + 10.0 / tilt.max(1.0);
    for _ in 0..60 {
        if work::left() == 0 {
            return None;
        }
        let wraps = wraps_of(cumulant, tilt, k, period);
        let negligible = |(constant, slope): &(f64, f64)| {
            constant + slope * epsilon - (k.value - tilt * epsilon) < negligible(tilt, k)
        };
        if wraps.iter().all(negligible) {
            return Some((period, wraps));
        }
        period *= 1.2;
    }
    None
}

/// The log of what does not count against delta at the saddle point, both without their common factor.
pub(crate) fn negligible(tilt: f64, k: Jet) -> f64 {
    payoff(tilt).value - libm::log1p(k.second.max(0.0).sqrt()) - 30.0
}

/// The copies' bounds for a period: for any moved tilt, above or below, their sum is a geometric series.
fn wraps_of(cumulant: &mut Cumulant, tilt: f64, k: Jet, period: f64) -> Wraps {
    let epsilon = k.first + payoff(tilt).first;
    // The best shift for a normal tail, and smaller ones for heavier tails.
    let normal = period / k.second.max(1e-300);
    let short = (2.0 - negligible(tilt, k)) / period;
    [1.0, -1.0].map(|side| {
        let mut best = (f64::INFINITY, 0.0);
        for shift in [normal, 0.7 * normal, 0.4 * normal, 2.0 * short, 1.2 * short] {
            let moved = (tilt + side * shift).max(0.0);
            let gap = (moved - tilt).abs();
            if !(gap * period > 1e-3) {
                continue;
            }
            let value = if moved > 0.0 { cumulant.at(moved).value } else { 0.0 };
            let constant = wrap(value, gap, period);
            if constant - moved * epsilon < best.0 + best.1 * epsilon {
                best = (constant, -moved);
            }
            let here = constant - moved * epsilon - (k.value - tilt * epsilon);
            if here < negligible(tilt, k) {
                break;
            }
        }
        best
    })
}

/// The log of the sum over m = 1, 2, ... of `e^{K(moved) - gap m P}`.
pub(crate) fn wrap(value: f64, gap: f64, period: f64) -> f64 {
    value - gap * period - libm::log(-libm::expm1(-gap * period))
}

/// A product of characteristic functions at one frequency, as a log, with bounds of its error.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Product {
    pub(crate) log_modulus: f64,
    pub(crate) phase: f64,
    /// At least the log of the modulus, errors included.
    pub(crate) bound: f64,
    /// At least the error, relative to `bound`.
    pub(crate) relative: f64,
    /// The size of all that was added up, and in how many terms.
    pub(crate) size: f64,
    pub(crate) terms: f64,
}

/// Multiplies the products at frequencies 0, spacing, 2 spacing, ... by the tilted characteristic
/// function of a step with these nodes, `n` times.
pub(crate) fn multiply(products: &mut [Product], spacing: f64, nodes: &TiltedNodes, n: f64) {
    work::spend(products.len() as u64 * (nodes.loss.len() as u64 / work::PRODUCTS + work::NODE));
    // What characteristic functions have beyond 1, m (e^{i t l} - 1), so that nothing is lost where losses are
    // tiny and rounds many. Losses are complex off the real line, on the side where this does not grow.
    let turns = |t: f64| nodes.loss.iter().map(move |loss| turn_less_one(t, *loss));
    let split = |(re, im): (Vec<f64>, Vec<f64>)| Terms { re, im };
    let (step, leap) =
        (split(turns(spacing).unzip()), split(turns(spacing * BLOCK as f64).unzip()));
    let mut base = Terms { re: vec![0.0; nodes.loss.len()], im: vec![0.0; nodes.loss.len()] };
    let mut here = Terms { re: base.re.clone(), im: base.im.clone() };
    let (mass_re, mass_im): (Vec<f64>, Vec<f64>) = nodes.mass.iter().map(|m| (m.re, m.im)).unzip();
    let mass = Terms { re: mass_re, im: mass_im };
    for (index, product) in products.iter_mut().enumerate() {
        let t = index as f64 * spacing;
        if index % (BLOCK * BLOCK) == 0 {
            base = split(turns(t).unzip());
        }
        if index % BLOCK == 0 {
            here.product(&mass, &base);
            base.turn(&leap, None);
        }
        let beyond = Complex64::new(lane_sum(&here.re), lane_sum(&here.im));
        let error = nodes.error.min(nodes.growth * t + nodes.quadrature);
        let log_modulus = 0.5 * libm::log1p(2.0 * beyond.re + beyond.norm_sqr());
        let log_modulus = if log_modulus > -690.0 { log_modulus } else { -690.0 };
        let phase = libm::atan2(beyond.im, 1.0 + beyond.re);
        // Errors of the last two, relative to the modulus.
        let off = error / log_modulus.exp();
        product.log_modulus += n * log_modulus;
        product.phase += n * phase;
        product.bound += n * (log_modulus + libm::log1p(off));
        product.size += n * (log_modulus.abs() + phase.abs());
        product.terms += 1.0;
        product.relative += n
            * (off / (1.0 + off) + 8.0 * UNIT * (log_modulus.abs() + phase.abs() + beyond.norm()));
        here.turn(&step, Some(&mass));
    }
}

/// `e^{i t loss} - 1`.
fn turn_less_one(t: f64, loss: Complex64) -> (f64, f64) {
    let (exponent, angle) = (-t * loss.im, t * loss.re);
    let half = libm::sin(0.5 * angle);
    (
        libm::expm1(exponent) * libm::cos(angle) - 2.0 * half * half,
        libm::exp(exponent) * libm::sin(angle),
    )
}

/// Complex numbers.
struct Terms {
    re: Vec<f64>,
    im: Vec<f64>,
}

impl Terms {
    /// Turns what is `m (w - 1)` into `m (w r - 1)`, given `r - 1`: m is 1 if there are no masses.
    fn turn(&mut self, by: &Self, masses: Option<&Self>) {
        let terms = self.re.iter_mut().zip(&mut self.im).zip(by.re.iter().zip(&by.im));
        match masses {
            None => {
                for ((re, im), (a, b)) in terms {
                    (*re, *im) = (*re + *re * a - *im * b + a, *im + *re * b + *im * a + b);
                }
            }
            Some(masses) => {
                for (((re, im), (a, b)), (m, n)) in terms.zip(masses.re.iter().zip(&masses.im)) {
                    let (x, y) = (*re + m, *im + n);
                    (*re, *im) = (*re + x * a - y * b, *im + x * b + y * a);
                }
            }
        }
    }

    fn product(&mut self, one: &Self, other: &Self) {
        let factors = one.re.iter().zip(&one.im).zip(other.re.iter().zip(&other.im));
        for ((re, im), ((a, b), (c, d))) in self.re.iter_mut().zip(&mut self.im).zip(factors) {
            (*re, *im) = (a * c - b * d, a * d + b * c);
        }
    }
}

/// A sum in eight lanes.
fn lane_sum(values: &[f64]) -> f64 {
    let mut lanes = [0.0; 8];
    let chunks = values.chunks_exact(8);
    let rest: f64 = chunks.remainder().iter().sum();
    for chunk in chunks {
        for (lane, value) in lanes.iter_mut().zip(chunk) {
            *lane += value;
        }
    }
    lanes.iter().sum::<f64>() + rest
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Step;

    /// What one round's moment is off by, all rounds are off by together.
    #[test]
    fn errors_of_moments_count_once_per_round() {
        use veilgrad_events::{Adjacency, NoiseMultiplier, SampleRate};
        let (rate, noise) = (SampleRate::new(0.01).unwrap(), NoiseMultiplier::new(1.0).unwrap());
        let count = 1_000_000;
        let rounds = Composition::poisson(rate, noise, count, Adjacency::AddRemove).unwrap();
        for aid in [Aid::default(), Aid { tail: 1e-20, variance: 1e-6 }] {
            let mut cumulant = Cumulant::aided(&rounds, Direction::Remove, aid);
            let tilt = 0.5;
            let contour = Contour::new(&rounds, Direction::Remove, &mut cumulant, tilt, aid);
            let step = Step { sampled: Sampled::Poisson(0.01), z: 1.0 };
            let step = TiltedStep::new(step, Direction::Remove, tilt, 16, aid.tail).unwrap();
            assert!(step.moment_error >= 8.0 * UNIT);
            assert!(contour.unwrap().rounding >= count as f64 * step.moment_error, "{aid:?}");
        }
    }
}
