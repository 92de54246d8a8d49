//! Characteristic functions of many distinct steps at once, by their cumulants.
//!
//! Where there are thousands of distinct steps, each has a small share of the variance of the whole loss, so that at
//! all frequencies that matter its characteristic function is close to 1. Then the first cumulants of the step tell
//! its log up to a tiny error, and cumulants of steps add up.
//!
//! With central moments `m_k` and `M_k = E |l|^k` of a loss, and `f(t) = sum over k from 2 to ORDER of t^k M_k / k!`,
//! let `f(r) <= 1/2`. For `|t| <= r` the characteristic function is `1 + x + R`, with the polynomial x of the moments
//! below ORDER and `|R| <= t^ORDER M_ORDER / ORDER!`. The power series of `log(1 + x)` has coefficients not above
//! those of `-log(1 - f)`, so what lies beyond ORDER - 1 is at most `(t/r)^ORDER log 2`; and R changes the log by at
//! most `2 |R| <= (t/r)^ORDER`.

use realfft::num_complex::Complex64;

use crate::number::UNIT;
use crate::output::Direction;
use crate::smooth::Smooth;
use crate::tilted::{TiltedNodes, ends};
use crate::{Sampled, Step};

/// Moments below this one are used.
pub(crate) const ORDER: usize = 20;
/// Quadratures over outputs are chosen for an error of e^-DIGITS.
const DIGITS: f64 = 32.0;
/// At most so many nodes.
const MOST: f64 = 4000.0;

/// The tilted loss of one step, by its moments.
pub(crate) struct StepSeries {
    /// Log of the tilted moment, and at least its error.
    pub(crate) log_moment: f64,
    pub(crate) moment_error: f64,
    /// The tilted mean of the loss.
    pub(crate) centre: f64,
    /// Cumulants 2 to ORDER - 1, divided by their factorials, at their places.
    pub(crate) cumulants: [f64; ORDER],
    /// Frequencies up to which the series is good.
    pub(crate) radius: f64,
    /// At least the error of the characteristic function from masses and losses, at any frequency up to `last`, and
    /// the part of it that comes from quadrature.
    pub(crate) error: f64,
    quadrature: f64,
    /// `1 - |characteristic function|^2` is at least `variance t^2 (1 - bend t^2)`.
    pub(crate) variance: f64,
    pub(crate) bend: f64,
}

/// How many frequencies from the last one on have a bound of their own, and from each to the next.
pub(crate) const OCTAVES: usize = 40;
pub(crate) const STRIDE: f64 = 1.2;

/// Memory for the nodes of one step, reused.
#[derive(Default)]
pub(crate) struct Scratch {
    nodes: Vec<(f64, f64)>,
    /// Sums of mass, mass times loss and mass times its square, up to each node.
    sums: Vec<[f64; 3]>,
}

impl Scratch {
    /// The nodes of the step that was computed last, normalised.
    pub(crate) fn tilted_nodes(&self, series: &StepSeries) -> TiltedNodes {
        let total: f64 = self.nodes.iter().map(|(mass, _)| mass).sum();
        TiltedNodes {
            mass: self.nodes.iter().map(|(mass, _)| Complex64::from(mass / total)).collect(),
            loss: self.nodes.iter().map(|(_, l)| Complex64::from(l - series.centre)).collect(),
            error: series.error,
            quadrature: series.quadrature,
            growth: f64::MAX,
        }
    }

    /// At most `1 - |characteristic function|^2` of the step that was computed last, everywhere in
    /// `[first STRIDE^k, first STRIDE^(k+1)]`, for every k.
    ///
    /// For the difference D of two such losses this is `E (1 - cos t D)`, and `1 - cos x >= 2 x^2 / pi^2` for
    /// `|x| <= pi`: so it is at least `2 t^2 / pi^2` times the part of `E D^2` where both are at most `pi / (2 t)`.
    pub(crate) fn lost(&mut self, centre: f64, first: f64) -> [f64; OCTAVES] {
        use std::f64::consts::PI;
        self.sums.clear();
        let mut sum = [0.0; 3];
        self.sums.push(sum);
        let total: f64 = self.nodes.iter().map(|(mass, _)| mass).sum();
        for (mass, loss) in &self.nodes {
            let (mass, loss) = (mass / total, loss - centre);
            let [m0, m1, m2] = sum;
            sum = [m0 + mass, m1 + mass * loss, m2 + mass * loss * loss];
            self.sums.push(sum);
        }
        // Losses are monotone in outputs, so what is small is between two nodes.
        let (mut from, mut to) = (0, self.nodes.len());
        let mut lost = [0.0; OCTAVES];
        let mut frequency = first;
        for slot in &mut lost {
            let small = 0.5 * PI / (frequency * STRIDE);
            let is_large = |place: usize| {
                self.nodes.get(place).is_some_and(|(_, loss)| (loss - centre).abs() > small)
            };
            while from < to && is_large(from) {
                from += 1;
            }
            while from < to && is_large(to - 1) {
                to -= 1;
            }
            if let (Some([a0, a1, a2]), Some([b0, b1, b2])) =
                (self.sums.get(from), self.sums.get(to))
            {
                let (mass, mean, square) = (b0 - a0, b1 - a1, b2 - a2);
                let difference = 2.0 * (mass * square - mean * mean);
                // Roundings of differences of sums.
                let difference = difference - 1e-13 * b2;
                *slot =
                    (2.0 * frequency * frequency / (PI * PI) * difference).max(0.0) * (1.0 - 1e-9);
            }
            frequency *= STRIDE;
        }
        lost
    }
}

impl StepSeries {
    /// The error of the log of the characteristic function beyond the series, in units of `(t/radius)^ORDER`:
    /// `1 + log 2`, rounded up.
    pub(crate) const BEYOND: f64 = 1.7;

    /// For frequencies up to `last`; `None` for steps that are no Poisson sample, or need too many nodes.
    pub(crate) fn new(
        step: Step,
        direction: Direction,
        tilt: f64,
        last: f64,
        scratch: &mut Scratch,
    ) -> Option<Self> {
        if !matches!(step.sampled, Sampled::Poisson(_) | Sampled::PoissonReplaced(_)) {
            return None;
        }
        let curve = Smooth::new(step, direction)?;
        let (left, right) = ends(&curve, tilt, DIGITS);
        let strip = curve.strip(tilt);
        let growth = curve.log_growth(strip, tilt, last);
        let spacing = 2.0 * std::f64::consts::PI * strip / (DIGITS + growth);
        let count = ((right - left) / spacing).ceil();
        if !(count < MOST) {
            return None;
        }
        scratch.nodes.clear();
        let scale = libm::log(spacing / (2.0 * std::f64::consts::PI).sqrt());
        let mut top = f64::MIN;
        for index in 0..=count as usize {
            let y = left + index as f64 * spacing;
            let (weight, loss) = curve.weight_and_loss(y);
            let log_mass = weight + tilt * loss - 0.5 * y * y + scale;
            top = top.max(log_mass);
            scratch.nodes.push((log_mass, loss));
        }
        let (mut total, mut first, mut largest) = (0.0, 0.0, 0.0f64);
        for (mass, loss) in &mut scratch.nodes {
            *mass = libm::exp(*mass - top);
            total += *mass;
            first += *mass * *loss;
            largest = largest.max(loss.abs());
        }
        let (log_moment, centre) = (top + libm::log(total), first / total);
        // Central moments, and those of moduli.
        let (mut moments, mut moduli) = ([0.0; ORDER + 1], [0.0; ORDER + 1]);
        for (mass, loss) in &scratch.nodes {
            let (mass, loss) = (mass / total, loss - centre);
            let mut power = mass * loss;
            for (moment, modulus) in moments.iter_mut().zip(&mut moduli).skip(2) {
                power *= loss;
                *moment += power;
                *modulus += power.abs();
            }
        }
        let (log_left, log_right) = curve.log_tails(left, right, tilt);
        // As in the other quadratures: the integral is at least 1, sums beyond the ends are a few times their
        // integrals.
        let moment = (top + (count + 1.0).ln()).max(0.0);
        let quadrature = ((moment - DIGITS).max(log_left).max(log_right) - log_moment).exp() * 24.0;
        // Roundings of the exponent of a mass, whose parts are at most this large, and of its loss.
        let reach = left.abs().max(right);
        let off = 4.0 * largest + 4.0 * (reach + 1.0 / step.z) / step.z;
        let exponent = (1.0 + tilt) * largest + reach * reach + log_moment.abs();
        // Turns round a few times until they are computed afresh, and cumulants with their order.
        let turns = 512.0;
        let relative = 8.0 * exponent + turns + (2.0 + 2.0 * tilt) * off + count;
        let moment_error = UNIT * relative + quadrature;
        let error = UNIT * (2.0 * relative + last * 2.0 * off) + 3.0 * quadrature;
        let radius = radius(&moduli);
        let [_, _, variance, _, fourth, ..] = moments;
        // E D^2 = 2 variance and E D^4 = 2 m_4 + 6 variance^2 of the difference D of two such losses.
        let bend = (2.0 * fourth + 6.0 * variance * variance) / (24.0 * variance);
        let found = Self {
            log_moment,
            moment_error,
            centre,
            cumulants: cumulants(&moments),
            radius,
            error,
            quadrature: 3.0 * quadrature,
            variance: variance * (1.0 - 1e-9),
            bend: bend * (1.0 + 1e-9),
        };
        (found.log_moment.is_finite() && radius > 0.0 && bend.is_finite()).then_some(found)
    }
}

/// The largest r, about, with `sum of r^k M_k / k! <= 1/2`; 0 if there is none.
fn radius(moduli: &[f64; ORDER + 1]) -> f64 {
    let [_, _, second, ..] = moduli;
    let mut r = 1.0 / second.sqrt();
    for _ in 0..200 {
        let (mut term, mut sum) = (r, 0.0);
        for (k, modulus) in moduli.iter().enumerate().skip(2) {
            term *= r / k as f64;
            sum += term * modulus;
        }
        if sum <= 0.5 * (1.0 - 1e-9) {
            return r;
        }
        r *= 0.95;
    }
    0.0
}

/// Cumulants from central moments, divided by their factorials.
fn cumulants(moments: &[f64; ORDER + 1]) -> [f64; ORDER] {
    // As `c_n = kappa_n / n!` and `a_n = m_n / n!`: n c_n = n a_n - sum over k of k c_k a_{n-k}.
    let mut scaled = [0.0; ORDER];
    let mut factorial = 1.0;
    for (n, (slot, moment)) in scaled.iter_mut().zip(moments).enumerate().skip(2) {
        factorial *= n as f64;
        *slot = moment / factorial;
    }
    let mut found = [0.0; ORDER];
    for n in 2..ORDER {
        let known = found.iter().enumerate().take(n - 1).skip(2);
        let rest: f64 = known
            .map(|(k, c)| k as f64 * c * scaled.get(n - k).copied().unwrap_or(0.0))
            .sum::<f64>()
            / n as f64;
        if let (Some(slot), Some(a)) = (found.get_mut(n), scaled.get(n)) {
            *slot = a - rest;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A discrete loss: its characteristic function is a finite sum.
    #[test]
    fn the_series_is_as_close_as_its_bound_says() {
        let losses = [(0.5, -0.3), (0.3, 0.1), (0.15, 0.5), (0.05, 0.9)];
        let mean: f64 = losses.iter().map(|(p, l)| p * l).sum();
        let (mut moments, mut moduli) = ([0.0; ORDER + 1], [0.0; ORDER + 1]);
        for (p, l) in losses {
            for k in 2..=ORDER {
                moments[k] += p * (l - mean).powi(k as i32);
                moduli[k] += p * (l - mean).abs().powi(k as i32);
            }
        }
        let (r, c) = (radius(&moduli), cumulants(&moments));
        assert!(r > 0.5 / moments[2].sqrt());
        for part in [0.05, 0.2, 0.5, 0.9] {
            let t = part * r;
            let exact: Complex64 =
                losses.iter().map(|(p, l)| Complex64::from_polar(*p, t * (l - mean))).sum();
            let found: Complex64 =
                (2..ORDER).map(|k| c[k] * Complex64::new(0.0, t).powi(k as i32)).sum();
            let off = (exact.ln() - found).norm();
            let bound = StepSeries::BEYOND * part.powi(ORDER as i32) + 1e-14;
            assert!(off <= bound, "{part}: {off:e} {bound:e}");
        }
    }
}
