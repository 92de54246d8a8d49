//! The privacy profile by numerical inversion of its Laplace transform, with every error bounded.
//!
//! For any tilt `a > 0`, with `K(s) = log E e^{s L}` of the total loss L,
//! `delta(eps) = 1/pi * integral over t > 0 of Re e^{K(s) - s eps} / (s (s + 1))`, `s = a + i t`.
//!
//! - The trapezoid sum over t with step 2 pi / P is `sum over m of e^{a m P} delta(eps + m P)`: all
//!   terms are at least 0, so the sum is an upper bound on delta. Chernoff bounds on the other terms give a lower bound.
//! - The integral beyond the last frequency is bounded through a lower bound on the density of the loss.
//! - The moments are trapezoid sums over outputs, with an error that the strip of analyticity bounds.
//! - All rounding errors are bounded.
//!
//! Where characteristic functions hardly decay, [`Smoothing`] makes them decay: it counts the largest losses as infinite and
//! adds one more round that smooths the loss. That round can only raise delta, and convexity of profiles bounds by how much.

use realfft::num_complex::Complex64;

use super::product::{CharacteristicProduct, multiply};
use super::step::TiltedStep;
use crate::cumulant::{Cumulant, Jet, LEAST_NOISE, Smoothing, payoff};
use crate::number::{UNIT, upper_tail};
use crate::pair::Direction;
use crate::profile::certified::DeltaBounds;
use crate::{Composition, Interval, Sampled, work};

/// Limits on the number of frequencies, without and with smoothing.
pub(crate) const MOST_FREQUENCIES: usize = 1 << 14;
const MOST_SMOOTHED: usize = 1 << 21;
/// A contour is given up if the frequencies beyond its last one may contribute more than this share of delta.
pub(crate) const MOST_CUT_OFF: f64 = 1e-3;
/// It is also given up if the transform has not decayed to e^-LEAST_DECAY at its last frequency: a smoothed contour
/// (`smoothing.rs`) is tighter then.
const LEAST_DECAY: f64 = 14.0;
/// The number of pieces of the step function that bounds the density of a loss from below: FINE_PIECES with fewer than
/// FEW_ROUNDS rounds, because the product of only a few bounds must prove the decay.
const PIECES: u32 = 160;
const FINE_PIECES: u32 = 2_000;
const FEW_ROUNDS: u64 = 200;
/// Limits on the number of frequencies times nodes, without and with smoothing.
const MOST_WORK: f64 = 4e7;
const MOST_SMOOTHED_WORK: f64 = 1e8;
/// The limit per distinct step, where that is larger: every other method would take longer.
const WORK_PER_STEP: f64 = 1e5;
/// The log of a modulus that is negligible compared with any delta that a contour is for.
const NEGLIGIBLE: f64 = -60.0;
/// Work set aside per frequency for reading delta: a search for epsilon reads about 256 times, at half a unit each.
const READINGS: u64 = 128;
/// A smoothed profile is read this many standard deviations of the smoothing to the right, where normal tails are 4e-11.
pub(crate) const CHORD_DEVIATIONS: f64 = 6.5;

/// The transform of a composition's total loss along one line of integration. Its bounds are tight for epsilons near the
/// one that the line was chosen for.
pub(crate) struct Contour {
    pub(crate) tilt: f64,
    /// K(tilt), and an upper bound on its error.
    pub(crate) log_moment: f64,
    pub(crate) rounding: f64,
    /// K'(tilt), approximately: phases are relative to it.
    pub(crate) centre: f64,
    pub(crate) spacing: f64,
    /// `e^{K(s) - K(tilt) - i t centre} / (s (s+1))` at t = 0, spacing, 2 spacing, ...
    pub(crate) values: Vec<Complex64>,
    /// Upper bounds on the absolute error of the sum, for the upper and the lower bound on delta, without the factor
    /// `e^{K(tilt) - tilt eps}`.
    pub(crate) errors: (f64, f64),
    /// 1/z^2 of the smoothing round, and an upper bound on the probability of the losses that count as infinite.
    pub(crate) variance: f64,
    pub(crate) infinite: f64,
    /// Upper bounds on the sums of the terms with m > 0 and with m < 0.
    pub(crate) wraps: Wraps,
}

impl Contour {
    /// `None` where this method does not apply: tiny noise, slow decay, or too much work. `cumulant` must have the same
    /// smoothing.
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
        Self::on_line(composition, direction, line, most, MOST_CUT_OFF)
    }

    /// The contour on a given line.
    fn on_line(
        composition: &Composition,
        direction: Direction,
        line: Line,
        most: (usize, f64),
        most_cut_off: f64,
    ) -> Option<Self> {
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
        Self::of_product(&smooth, gaussian, line, most, (most_cut_off, 0.0), &decay, &|_| {
            (0.0, 0.0)
        })
    }

    /// The contour of rounds whose transform is approximately the product of the transforms of `smooth`, each to its power,
    /// times that of a Gaussian loss with variance `gaussian`. At frequency t the log of the product differs by at most the
    /// first of `log_errors(t)` from that of rounds that cost at least as much, and by at most the second, which is no smaller,
    /// from that of the rounds. `decay(t)` is a lower bound on `-log |characteristic function|` of both at all frequencies from
    /// t on, without the Gaussian. Frequencies are added until the bound on the integral beyond them is
    /// `negligible_cut_off` of delta; the contour is given up if it exceeds `most_cut_off`.
    pub(crate) fn of_product(
        smooth: &[(TiltedStep, f64)],
        gaussian: f64,
        Line { tilt, k, period, wraps, smoothing }: Line,
        (most_frequencies, most_work): (usize, f64),
        (most_cut_off, negligible_cut_off): (f64, f64),
        decay: &dyn Fn(f64) -> f64,
        log_errors: &dyn Fn(f64) -> (f64, f64),
    ) -> Option<Self> {
        let most_work = most_work.min(work::PRODUCTS.saturating_mul(work::left()) as f64);
        let most_frequencies = most_frequencies.min((work::left() / READINGS) as usize);
        let spacing = 2.0 * std::f64::consts::PI / period;
        let target_decay = 28.0 + libm::log1p(tilt * tilt) + libm::log1p(k.second.sqrt());
        let work = |count: usize| {
            let last = count as f64 * spacing;
            count as f64 * smooth.iter().map(|(step, _)| step.node_count(last)).sum::<f64>()
        };
        // Smoothing is for losses of very different sizes, where delta is far below its saddle-point estimate.
        let extra_decay = if smoothing == Smoothing::default() { 0.0 } else { 14.0 };
        let target_decay = target_decay + extra_decay;
        let mut count = 16;
        let mut decays = vec![(count, decay(count as f64 * spacing))];
        // A saddle-point estimate of delta, without the factor e^{K(tilt) - tilt eps}.
        let estimate = payoff(tilt).value.exp() / (1.0 + k.second.sqrt());
        // The bound on the decay at the last frequency, and on the integral beyond: |value| there is at most e^-decay / t^2.
        let decay_and_cut_off = |count: usize, decayed: f64| {
            let last = count as f64 * spacing;
            let decayed = decayed + 0.5 * gaussian * last * last * (1.0 - 1e-12);
            (decayed, (log_errors(0.0).1 - decayed).exp() / last * (1.0 + spacing / last))
        };
        let (mut decayed, mut cut_off) =
            decay_and_cut_off(count, decays.last().map_or(0.0, |(_, decay)| *decay));
        while count < most_frequencies
            && work(count) < most_work
            && decayed < target_decay
            && !(cut_off <= negligible_cut_off * estimate)
        {
            count = (count + count / 8 + 1).min(most_frequencies);
            let found = decay(count as f64 * spacing);
            decays.push((count, found));
            (decayed, cut_off) = decay_and_cut_off(count, found);
        }
        if decayed < LEAST_DECAY && most_cut_off.is_finite() && negligible_cut_off == 0.0 {
            return None;
        }
        if !(cut_off <= most_cut_off * estimate) {
            return None;
        }
        let mut products = vec![CharacteristicProduct::default(); count];
        // No factor has a modulus above 1. So where the product so far is negligible, which takes few steps if those that decay
        // most come first, the others are left out.
        let mut active = count;
        for (step, n) in smooth {
            let nodes = step.nodes(spacing * count as f64)?;
            multiply(products.get_mut(..active).unwrap_or_default(), spacing, &nodes, *n);
            let is_negligible = |product: &CharacteristicProduct| product.bound < NEGLIGIBLE;
            let rest = products.iter().take(active).rev().take_while(|one| is_negligible(one));
            active -= rest.count();
        }
        for product in products.iter_mut().skip(active) {
            // Both the product so far and the whole product are within the bound.
            product.relative += 2.0;
        }
        let log_errors_at = |(index, product): (usize, &CharacteristicProduct)| {
            // The product differs from another transform by at most the sum of both moduli.
            let known = decays.iter().rev().find(|(from, _)| *from <= index);
            let log_modulus = log_errors(0.0).1 - known.map_or(0.0, |(_, decay)| *decay);
            let by_moduli = libm::log(2.0 + (log_modulus - product.bound).exp());
            let (above, below) = log_errors(index as f64 * spacing);
            let smaller = |error: f64| if error < by_moduli { error } else { by_moduli };
            (smaller(above), smaller(below))
        };
        let log_errors: Vec<_> = products.iter().enumerate().map(log_errors_at).collect();
        let log_moments = || smooth.iter().map(|(step, n)| n * step.log_moment);
        let gaussian_moment = 0.5 * gaussian * tilt * (tilt + 1.0);
        let mut contour = Self {
            tilt,
            log_moment: log_moments().sum::<f64>() + gaussian_moment,
            rounding: UNIT
                * (4.0 + smooth.len() as f64)
                * 2.0
                * (log_moments().map(f64::abs).sum::<f64>() + gaussian_moment)
                + smooth.iter().map(|(step, n)| n * step.moment_error).sum::<f64>(),
            centre: smooth.iter().map(|(step, n)| n * step.centre).sum::<f64>()
                + gaussian * (tilt + 0.5),
            spacing,
            values: Vec::with_capacity(count),
            errors: (cut_off / std::f64::consts::PI, cut_off / std::f64::consts::PI),
            variance: smoothing.variance,
            infinite: smooth.iter().map(|(step, n)| n * step.infinite).sum::<f64>() * (1.0 + 1e-12),
            wraps,
        };
        contour.add_values(&products, &log_errors, gaussian);
        (contour.errors.0 + contour.errors.1).is_finite().then_some(contour)
    }

    /// Adds the values of the transform, and their errors. `log_errors` are those of the logs of the products, for the upper
    /// and the lower bound.
    fn add_values(
        &mut self,
        products: &[CharacteristicProduct],
        log_errors: &[(f64, f64)],
        gaussian: f64,
    ) {
        let scale = self.spacing / std::f64::consts::PI;
        for (index, (product, log_errors)) in products.iter().zip(log_errors).enumerate() {
            let CharacteristicProduct { log_modulus, phase, bound, relative, size, terms } =
                product;
            let t = index as f64 * self.spacing;
            let damping = -0.5 * gaussian * t * t;
            let s = Complex64::new(self.tilt, t);
            let payoff = (s * (s + 1.0)).inv();
            let value = Complex64::from_polar((log_modulus + damping).exp(), *phase) * payoff;
            let half = if index == 0 { 0.5 } else { 1.0 };
            self.values.push(value * half);
            // Rounding errors of the exponent, of the phase and of the multiplications here.
            let rounding = (64.0 + 4.0 * damping.abs() + (4.0 + terms) * size) * UNIT;
            let error = |log_error: f64| {
                let modulus = (bound + damping + log_error).exp() * payoff.norm();
                half * scale * modulus * (relative + rounding - libm::expm1(-log_error))
            };
            self.errors.0 += error(log_errors.0);
            self.errors.1 += error(log_errors.1);
        }
    }

    /// An upper bound on delta at `epsilon`.
    pub(crate) fn upper(&self, epsilon: f64) -> f64 {
        self.smoothed(epsilon).upper + self.infinite
    }

    /// A lower bound on delta without the smoothing round; `smoothed_upper` is an upper bound on delta with it.
    ///
    /// The smoothing round's loss g is normal with mean v/2 and variance v, so `E e^{-g} = 1`, and the smoothed profile
    /// is `A(x) = E D(x e^{-g})` in `x = e^eps`, where D is the profile without it. D is convex and decreasing in x, so
    /// `D <= A`. For x0 < x1 < x2, D lies below its chord on [x0, x2], and x1 e^{-g} is almost always in that interval: up
    /// to tails, `A(x1) <= (D(x0) (x2 - x1) + A(x2) (x1 - x0)) / (x2 - x0)`. Solved for D(x0), this is the bound.
    fn lower_without_smoothing(&self, epsilon: f64, smoothed_upper: f64) -> f64 {
        let (v, deviation) = (self.variance, self.variance.sqrt());
        let reach = CHORD_DEVIATIONS * deviation;
        // x1 - x0, x2 - x1 and x2 - x0, in units of x0.
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
        // Right of x2 the chord keeps decreasing and may lie below D.
        let right = smoothed_upper * (1.0 + first) / both * tail(0.0);
        let chord_share = near.lower - left - right - far.upper * first / both;
        chord_share * both / second - 1e-13 * smoothed_upper
    }

    /// Bounds on delta with the smoothing round, without the losses that count as infinite.
    fn smoothed(&self, epsilon: f64) -> Interval {
        work::spend(self.values.len() as u64 / 2);
        let one_step = Complex64::from_polar(1.0, self.spacing * (self.centre - epsilon));
        let mut rotation = Complex64::new(1.0, 0.0);
        let (mut sum, mut squares) = (0.0, 0.0);
        for (index, value) in self.values.iter().enumerate() {
            if index % 64 == 0 {
                let phase = index as f64 * self.spacing * (self.centre - epsilon);
                rotation = Complex64::from_polar(1.0, phase);
            }
            sum += value.re * rotation.re - value.im * rotation.im;
            squares += value.norm_sqr();
            rotation *= one_step;
        }
        let scale = self.spacing / std::f64::consts::PI;
        // Rounding errors of rotations, of phases (which grow with their size) and of the sum (which grow with its length).
        // The sum of moduli is at most sqrt(length * squares).
        let length = self.values.len() as f64;
        let phases = self.spacing * length * (self.centre.abs() + epsilon.abs());
        let rounding = (squares * length).sqrt() * scale * (512.0 + length + 8.0 * phases) * UNIT;
        let errors = (self.errors.0 + rounding, self.errors.1 + rounding);
        let exponent = self.log_moment - self.tilt * epsilon;
        let slack =
            self.rounding + 16.0 * UNIT * (exponent.abs() + (self.tilt * epsilon).abs() + 4.0);
        let factor = exponent.exp();
        let wraps: f64 =
            self.wraps.iter().map(|(constant, slope)| (constant + slope * epsilon).exp()).sum();
        if !(slack < 0.1) {
            return Interval { lower: 0.0, upper: f64::INFINITY };
        }
        let upper = factor * (sum * scale + errors.0) * slack.exp();
        let lower = factor * (sum * scale - errors.1) * (-slack).exp() - wraps;
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

/// A line of integration and the period of its trapezoid rule.
pub(crate) struct Line {
    pub(crate) tilt: f64,
    /// The cumulant at the tilt, approximately.
    pub(crate) k: Jet,
    pub(crate) period: f64,
    pub(crate) wraps: Wraps,
    pub(crate) smoothing: Smoothing,
}

/// Upper bounds on the sums of the periodic copies of delta on either side: `(c, b)` stands for `e^{c + b epsilon}`.
pub(crate) type Wraps = [(f64, f64); 2];

/// A period so long that the periodic copies of delta in the trapezoid sum are negligible, and the bounds on them.
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

/// The log of what is negligible compared with delta at the saddle point, both without the factor `e^{K(tilt) - tilt eps}`.
fn negligible(tilt: f64, k: Jet) -> f64 {
    payoff(tilt).value - libm::log1p(k.second.max(0.0).sqrt()) - 30.0
}

/// The bounds on the copies for a period: with a Chernoff bound at a larger or smaller tilt, their sum is a geometric series.
fn wraps_of(cumulant: &mut Cumulant, tilt: f64, k: Jet, period: f64) -> Wraps {
    let epsilon = k.first + payoff(tilt).first;
    // The best shift of the tilt for a normal tail, and shorter ones for heavier tails.
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
        /// With at most `frequencies` frequencies and `shorter` times the usual period, whose errors are not negligible.
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
            Self::on_line(composition, direction, line, (frequencies, MOST_WORK), f64::INFINITY)
        }
    }

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
