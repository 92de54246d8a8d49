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
//! Where characteristic functions hardly decay, they are made to ([`Smoothing`]): by one more round that smooths
//! the loss, which can only cost, and whose share is bounded through the convexity of profiles; and by counting
//! the largest losses as infinite.

use realfft::num_complex::Complex64;

use super::product::{CharacteristicProduct, multiply};
use super::step::TiltedStep;
use crate::cumulant::{Cumulant, Jet, LEAST_NOISE, Smoothing, payoff};
use crate::number::{UNIT, upper_tail};
use crate::pair::Direction;
use crate::profile::certified::DeltaBounds;
use crate::{Composition, Interval, Sampled, work};

/// Never more frequencies than this; fewer where there are many distinct steps.
pub(crate) const MOST_FREQUENCIES: usize = 1 << 14;
const MOST_SMOOTHED: usize = 1 << 21;
/// A contour is given up if the frequencies beyond its last one may contribute more than this part of delta.
pub(crate) const MOST_CUT_OFF: f64 = 1e-3;
/// It is also given up if the transform has not decayed by e^-LEAST_DECAY at its last frequency: a smoothed contour
/// (`smoothing.rs`) is tighter there.
const LEAST_DECAY: f64 = 14.0;
/// The number of pieces of the step function that bounds a loss's density from below; FINE_PIECES with fewer than
/// FEW_ROUNDS rounds, because few factors have to prove the decay.
const PIECES: u32 = 160;
const FINE_PIECES: u32 = 2_000;
const FEW_ROUNDS: u64 = 200;
/// At most this many products of a frequency and a node; the second limit is for smoothed contours.
const MOST_WORK: f64 = 4e7;
const MOST_SMOOTHED_WORK: f64 = 1e8;
/// The same per distinct step, where that is more: every other method would take longer.
const WORK_PER_STEP: f64 = 1e5;
/// Work set aside per frequency for reading delta: a search for epsilon reads about 256 times, at half a unit each.
const READINGS: u64 = 128;
/// A smoothed profile is read this many standard deviations of the smoothing to the right, where normal tails are 4e-11.
pub(crate) const CHORD_DEVIATIONS: f64 = 6.5;

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

impl Contour {
    /// `None` where this method does not apply: steps without a smooth loss, or too much work. The
    /// cumulant must be that with the same smoothing.
    pub(crate) fn new(
        composition: &Composition,
        direction: Direction,
        cumulant: &mut Cumulant,
        tilt: f64,
        smoothing: Smoothing,
    ) -> Option<Self> {
        let k = cumulant.at(tilt);
        let finite = k.value.is_finite() && k.second.is_finite() && k.first.is_finite();
        if !finite || !(tilt > 0.0) || work::left() == 0 {
            return None;
        }
        let (period, wraps) = period(cumulant, tilt, k)?;
        let most = if smoothing.variance > 0.0 {
            (MOST_SMOOTHED, MOST_SMOOTHED_WORK)
        } else {
            (MOST_FREQUENCIES, MOST_WORK.max(WORK_PER_STEP * composition.steps().len() as f64))
        };
        let line = Line { tilt, k, period, wraps, smoothing };
        Self::along(composition, direction, line, most, MOST_CUT_OFF)
    }

    fn along(
        composition: &Composition,
        direction: Direction,
        line: Line,
        most: (usize, f64),
        most_cut_off: f64,
    ) -> Option<Self> {
        // What a minorant misses of a density counts once per round: with few rounds it has to be close.
        let rounds = composition.steps().iter().fold(0u64, |sum, (_, n)| sum.saturating_add(*n));
        let pieces = if rounds < FEW_ROUNDS { FINE_PIECES } else { PIECES };
        let (mut gaussian, mut smooth) = (line.smoothing.variance, Vec::new());
        for (step, count) in composition.steps() {
            if step.sampled == Sampled::Always {
                gaussian += *count as f64 / (step.z * step.z);
            } else if step.z < LEAST_NOISE {
                return None;
            } else {
                let tail = line.smoothing.tail;
                let step = TiltedStep::new(*step, direction, line.tilt, pieces, tail)?;
                smooth.push((step, *count as f64));
            }
        }
        let decay = |t: f64| smooth.iter().map(|(step, n)| n * step.decay(t)).sum::<f64>();
        Self::of_product(&smooth, gaussian, line, most, (most_cut_off, 0.0), &decay, &|_| 0.0)
    }

    /// The contour of rounds whose transform is about the product of those of these steps, each to its power: at
    /// frequency t the logs of both are at most `off(t)` apart. `decay(t)` is at most `-log` of the modulus of the rounds'
    /// characteristic function from t on, without what is always sampled.
    pub(crate) fn of_product(
        smooth: &[(TiltedStep, f64)],
        gaussian: f64,
        Line { tilt, k, period, wraps, smoothing }: Line,
        (most, most_work): (usize, f64),
        (most_cut_off, enough): (f64, f64),
        decay: &dyn Fn(f64) -> f64,
        off: &dyn Fn(f64) -> f64,
    ) -> Option<Self> {
        let most_work = most_work.min(work::PRODUCTS.saturating_mul(work::left()) as f64);
        let most = most.min((work::left() / READINGS) as usize);
        let spacing = 2.0 * std::f64::consts::PI / period;
        let wanted = 28.0 + libm::log1p(tilt * tilt) + libm::log1p(k.second.sqrt());
        let work = |count: usize| {
            let last = count as f64 * spacing;
            count as f64 * smooth.iter().map(|(step, _)| step.size(last)).sum::<f64>()
        };
        // Where losses come in very different sizes delta is far below the saddle point's bound.
        let wanted = if smoothing == Smoothing::default() { wanted } else { wanted + 14.0 };
        // What is cut off must not count: |value| there is at most e^-decay / t^2.
        let mut count = 16;
        let mut decays = vec![(count, decay(count as f64 * spacing))];
        // The bound of the frequencies that are cut off, against a saddle-point estimate of delta.
        let estimate = payoff(tilt).value.exp() / (1.0 + k.second.sqrt());
        let cut_at = |count: usize, decayed: f64| {
            let last = count as f64 * spacing;
            let decayed = decayed + 0.5 * gaussian * last * last * (1.0 - 1e-12);
            (decayed, (off(0.0) - decayed).exp() / last * (1.0 + spacing / last))
        };
        let (mut decayed, mut cut) = cut_at(count, decays.last().map_or(0.0, |(_, decay)| *decay));
        while count < most
            && work(count) < most_work
            && decayed < wanted
            && !(cut <= enough * estimate)
        {
            count = (count + count / 8 + 1).min(most);
            let found = decay(count as f64 * spacing);
            decays.push((count, found));
            (decayed, cut) = cut_at(count, found);
        }
        if decayed < LEAST_DECAY && most_cut_off.is_finite() && enough == 0.0 {
            return None;
        }
        if !(cut <= most_cut_off * estimate) {
            return None;
        }
        let mut products = vec![CharacteristicProduct::default(); count];
        for (step, n) in smooth {
            multiply(&mut products, spacing, &step.nodes(spacing * count as f64)?, *n);
        }
        for (index, product) in products.iter_mut().enumerate() {
            // The product and the rounds' transform are no farther apart than both moduli together.
            let known = decays.iter().rev().find(|(from, _)| *from <= index);
            let modulus = off(0.0) - known.map_or(0.0, |(_, decay)| *decay);
            let farthest = libm::log(2.0 + (modulus - product.bound).exp());
            let off = off(index as f64 * spacing);
            let off = if off < farthest { off } else { farthest };
            product.bound += off;
            product.relative += -libm::expm1(-off);
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
            variance: smoothing.variance,
            infinite: smooth.iter().map(|(step, n)| n * step.infinite).sum::<f64>() * (1.0 + 1e-12),
            wraps,
        };
        contour.fill(&products, gaussian);
        contour.error.is_finite().then_some(contour)
    }

    fn fill(&mut self, products: &[CharacteristicProduct], gaussian: f64) {
        let mut error = 0.0;
        for (index, product) in products.iter().enumerate() {
            let CharacteristicProduct { log_modulus, phase, bound, relative, size, terms } =
                product;
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

    /// A lower bound of delta without the smoothing round; `here` is an upper bound of delta with it.
    ///
    /// The smoothing round's loss g is normal with mean v/2 and variance v, so `E e^{-g} = 1`, and the smoothed profile
    /// is `A(x) = E D(x e^{-g})` in `x = e^eps`, where D is the profile without it. D is convex and falling in x, so
    /// `D <= A`. For x0 < x1 < x2, D lies below its chord on [x0, x2], and g hardly ever leads out of that interval: up
    /// to tails, `A(x1) <= (D(x0) (x2 - x1) + A(x2) (x1 - x0)) / (x2 - x0)`. Solved for D(x0), this is the bound.
    fn lower_without_smoothing(&self, epsilon: f64, here: f64) -> f64 {
        let (v, deviation) = (self.variance, self.variance.sqrt());
        let reach = CHORD_DEVIATIONS * deviation;
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

    /// Bounds of delta with the smoothing round, without the truncated (infinite) losses.
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

impl DeltaBounds for Contour {
    fn delta(&self, epsilon: f64) -> Interval {
        let Interval { lower, upper } = self.smoothed(epsilon);
        let lower =
            if self.variance > 0.0 { self.lower_without_smoothing(epsilon, upper) } else { lower };
        Interval { lower, upper: upper + self.infinite }
    }
}

pub(crate) struct Line {
    pub(crate) tilt: f64,
    /// The cumulant there, about.
    pub(crate) k: Jet,
    pub(crate) period: f64,
    pub(crate) wraps: Wraps,
    pub(crate) smoothing: Smoothing,
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
fn negligible(tilt: f64, k: Jet) -> f64 {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Step;

    impl Contour {
        /// With so many frequencies at most, and a period that is too short by this factor.
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
            let line =
                Line { tilt, k, period: shorter * period, wraps, smoothing: Smoothing::default() };
            Self::along(composition, direction, line, (frequencies, MOST_WORK), f64::INFINITY)
        }
    }

    /// What one round's moment is off by, all rounds are off by together.
    #[test]
    fn errors_of_moments_count_once_per_round() {
        use veilgrad_events::{Adjacency, NoiseMultiplier, SampleRate};
        let (rate, noise) = (SampleRate::new(0.01).unwrap(), NoiseMultiplier::new(1.0).unwrap());
        let count = 1_000_000;
        let rounds = Composition::poisson(rate, noise, count, Adjacency::AddRemove).unwrap();
        for smoothing in [Smoothing::default(), Smoothing { tail: 1e-20, variance: 1e-6 }] {
            let mut cumulant = Cumulant::smoothed(&rounds, Direction::Remove, smoothing);
            let tilt = 0.5;
            let contour = Contour::new(&rounds, Direction::Remove, &mut cumulant, tilt, smoothing);
            let step = Step { sampled: Sampled::Poisson(0.01), z: 1.0 };
            let step = TiltedStep::new(step, Direction::Remove, tilt, 16, smoothing.tail).unwrap();
            assert!(step.moment_error >= 8.0 * UNIT);
            assert!(contour.unwrap().rounding >= count as f64 * step.moment_error, "{smoothing:?}");
        }
    }
}
