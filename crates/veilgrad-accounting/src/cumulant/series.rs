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

use super::jet::Jet;
use super::quadrature::ends;
use crate::number::UNIT;
use crate::pair::{Direction, EquallySpaced, Pair};
use crate::{Sampled, Step, work};

/// Moments below this one are used.
pub(crate) const ORDER: usize = 20;
/// Quadratures over outputs are chosen for an error of e^-DIGITS.
const DIGITS: f64 = 32.0;
const MOST_NODES: f64 = 4000.0;

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
    pub(crate) quadrature: f64,
    /// `1 - |characteristic function|^2` is at least `variance t^2 (1 - bend t^2)`.
    pub(crate) variance: f64,
    pub(crate) bend: f64,
}

/// Beyond the last frequency of a contour, decay is bounded in this many bands, each from a frequency to STRIDE times
/// that: up to 1.2^40, about 1500 times the last frequency.
pub(crate) const DECAY_BANDS: usize = 40;
pub(crate) const STRIDE: f64 = 1.2;

/// Memory for the nodes of one step, reused.
#[derive(Default)]
pub(crate) struct Scratch {
    /// Mass and loss.
    nodes: Vec<(f64, f64)>,
    /// Log of the tilted likelihood ratio, without the normal density, and half the square of the output.
    logs: Vec<(f64, f64)>,
    /// Of the cells between nodes up to each: sums of mass, mass times loss and mass times its square, with losses at
    /// the lower end of each cell and at the upper one.
    sums: Vec<[LossSums; 2]>,
}

/// Sums of mass, mass times loss and mass times its square.
type LossSums = [f64; 3];

type Pairs<'a> = &'a [(f64, f64)];

/// A sum of `mass (loss - centre)^2` between two places.
fn square_around([from, to]: [&LossSums; 2], centre: f64) -> f64 {
    let [a0, a1, a2] = from;
    let [b0, b1, b2] = to;
    (b2 - a2) - 2.0 * centre * (b1 - a1) + centre * centre * (b0 - a0)
}

impl Scratch {
    /// Mass and loss at every node of the step that was computed last.
    pub(crate) fn nodes(&self) -> &[(f64, f64)] {
        &self.nodes
    }

    /// A lower bound of `1 - |characteristic function|^2` of the step that was computed last, everywhere in
    /// `[first STRIDE^k, first STRIDE^(k+1)]`, for every k.
    ///
    /// For the difference D of two such losses this is `E (1 - cos t D)`, and `1 - cos x >= x^2 (1 - cos X) / X^2` for
    /// `|x| <= X <= pi`: so it is at least `t^2 (1 - cos X) / X^2` times the part of `E D^2` where both are at most
    /// `X / (2 t)`; two X are tried.
    /// Since that is nonnegative, a part of the distribution gives a lower bound: between two nodes the tilted
    /// likelihood ratio, which is monotone, and the normal density are at least what they are at an end. The part of
    /// `E D^2` is twice mass times that of `(l - m)^2` with the mean m of the part; m lies between the means with
    /// the losses of a cell at its lower and at its upper end, and no loss is nearer to m than its cell.
    pub(crate) fn modulus_deficits(
        &mut self,
        series: &StepSeries,
        first: f64,
    ) -> [f64; DECAY_BANDS] {
        use std::f64::consts::PI;
        let mut deficits = [0.0f64; DECAY_BANDS];
        // Losses fall with outputs, or rise.
        let falls = self.nodes.first().zip(self.nodes.last()).is_some_and(|(a, b)| a.1 > b.1);
        self.cells(series, falls);
        let cells = self.sums.len() - 1;
        let end = |place: usize, upper: usize| {
            // The loss at an end of a cell, in the order of losses.
            let node = place + upper;
            let node = if falls { cells.checked_sub(node)? } else { node };
            self.nodes.get(node).map(|(_, loss)| loss - series.centre)
        };
        for widest in [PI, 2.0] {
            let steepness = (1.0 - libm::cos(widest)) / (widest * widest);
            let (mut from, mut to) = (0, cells);
            let mut frequency = first;
            for slot in &mut deficits {
                let small = 0.5 * widest / (frequency * STRIDE);
                while from < to && end(from, 0).is_none_or(|loss| loss < -small) {
                    from += 1;
                }
                while from < to && end(to - 1, 1).is_none_or(|loss| loss > small) {
                    to -= 1;
                }
                if let (Some([low_a, high_a]), Some([low_b, high_b])) =
                    (self.sums.get(from), self.sums.get(to))
                    && let mass = low_b[0] - low_a[0]
                    && mass > 0.0
                {
                    let (low, high) =
                        ((low_b[1] - low_a[1]) / mass, (high_b[1] - high_a[1]) / mass);
                    // Cells that lie above the highest mean, and those below the lowest.
                    let (mut left, mut right) = (from, to);
                    while left < to && end(left, 1).is_some_and(|loss| loss < low) {
                        left += 1;
                    }
                    while right > left && end(right - 1, 0).is_some_and(|loss| loss > high) {
                        right -= 1;
                    }
                    if let (Some([_, below]), Some([above, _])) =
                        (self.sums.get(left), self.sums.get(right))
                    {
                        let square = square_around([high_a, below], low)
                            + square_around([above, low_b], high);
                        // Roundings of differences of sums, each of at most all terms.
                        let rounding = (8.0 + 4.0 * cells as f64)
                            * UNIT
                            * (low_b[2] + high_b[2] + (low * low).max(high * high) * low_b[0]);
                        let found = 2.0 * steepness * frequency * frequency * mass;
                        *slot = slot.max(found * (square - rounding) * (1.0 - 1e-9));
                    }
                }
                frequency *= STRIDE;
            }
        }
        deficits
    }

    /// Fills the sums over cells, from the lowest losses on.
    fn cells(&mut self, series: &StepSeries, falls: bool) {
        self.sums.clear();
        let mut sums = [[0.0; 3]; 2];
        self.sums.push(sums);
        // Masses are about 1/(1 + error) of themselves at least: the error of the moment, and their own roundings.
        let slack = 1.0 - 1e-9 - 4.0 * series.error;
        let cells = self.nodes.windows(2).zip(self.logs.windows(2));
        let mut add = |(nodes, logs): (Pairs<'_>, Pairs<'_>)| {
            let ([(_, one), (_, other)], [(a, half_a), (b, half_b)]) = (nodes, logs) else {
                return;
            };
            let log_mass = a.min(*b) - half_a.max(*half_b) - series.log_moment;
            let mass = libm::exp(log_mass) * slack;
            let (low, high) = if one < other { (one, other) } else { (other, one) };
            for (sums, loss) in sums.iter_mut().zip([low, high]) {
                let loss = loss - series.centre;
                let [m0, m1, m2] = *sums;
                *sums = [m0 + mass, m1 + mass * loss, m2 + mass * loss * loss];
            }
            self.sums.push(sums);
        };
        if falls { cells.rev().for_each(&mut add) } else { cells.for_each(&mut add) }
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
        let tilted = Tilted::new(step, direction, tilt, last, scratch)?;
        let Tilted { log_moment, centre, total, quadrature, relative, off, .. } = tilted;
        let moments = central_moments(&scratch.nodes, total, centre);
        let radius = radius(&moments);
        let [_, _, variance, _, fourth, ..] = moments;
        // E D^2 = 2 variance and E D^4 = 2 m_4 + 6 variance^2 of the difference D of two such losses.
        let bend = (2.0 * fourth + 6.0 * variance * variance) / (24.0 * variance);
        let (square, fourth_power) = tilted.off_the_line(step, &scratch.nodes);
        // The rest covers roundings.
        let slack = |error: f64, moment: f64| 1e-9 + quadrature * error / moment;
        let (less, more) = (1.0 - slack(square, variance), 1.0 + slack(fourth_power, fourth));
        let less = if less > 0.0 { less } else { f64::MIN_POSITIVE };
        let found = Self {
            log_moment,
            moment_error: tilted.moment_error(),
            centre,
            cumulants: cumulants(&moments),
            radius,
            error: UNIT * (2.0 * relative + last * 2.0 * off) + 3.0 * quadrature,
            quadrature: 3.0 * quadrature,
            variance: variance * less,
            bend: bend * more / less,
        };
        (found.log_moment.is_finite() && radius > 0.0 && bend.is_finite()).then_some(found)
    }

    /// At least the log of the tilted moment, and about its derivatives.
    pub(crate) fn jet(
        step: Step,
        direction: Direction,
        tilt: f64,
        scratch: &mut Scratch,
    ) -> Option<Jet> {
        let tilted = Tilted::new(step, direction, tilt, 0.0, scratch)?;
        let Tilted { log_moment, centre, total, .. } = tilted;
        let square = |(mass, loss): &(f64, f64)| mass * (loss - centre) * (loss - centre);
        let second = scratch.nodes.iter().map(square).sum::<f64>() / total;
        let value = log_moment + tilted.moment_error();
        value.is_finite().then_some(Jet { value, first: centre, second })
    }
}

struct Tilted {
    log_moment: f64,
    centre: f64,
    /// The sum of the masses of nodes.
    total: f64,
    /// At least the error of the quadrature, relative to the moment.
    quadrature: f64,
    /// At least the roundings of masses and losses, in unit roundoffs.
    relative: f64,
    off: f64,
}

impl Tilted {
    fn new(
        step: Step,
        direction: Direction,
        tilt: f64,
        last: f64,
        scratch: &mut Scratch,
    ) -> Option<Self> {
        if !matches!(step.sampled, Sampled::Poisson(_) | Sampled::PoissonReplaced(_)) {
            return None;
        }
        let pair = Pair::analytic(step, direction)?;
        let (left, right) = ends(&pair, tilt, DIGITS);
        let strip = pair.strip(tilt);
        let growth = pair.log_growth(strip, tilt, last);
        let spacing = 2.0 * std::f64::consts::PI * strip / (DIGITS + growth);
        let count = ((right - left) / spacing).ceil();
        if !(count < MOST_NODES) {
            return None;
        }
        work::spend(work::NODE * count as u64);
        scratch.nodes.clear();
        scratch.logs.clear();
        let scale = libm::log(spacing / (2.0 * std::f64::consts::PI).sqrt());
        let mut top = f64::MIN;
        for (y, weight, loss) in pair.equally_spaced(left, spacing).take(count as usize + 1) {
            let (log_ratio, half_square) = (weight + tilt * loss + scale, 0.5 * y * y);
            top = top.max(log_ratio - half_square);
            scratch.nodes.push((log_ratio - half_square, loss));
            scratch.logs.push((log_ratio, half_square));
        }
        let (mut total, mut first, mut largest) = (0.0, 0.0, 0.0f64);
        for (mass, loss) in &mut scratch.nodes {
            *mass = libm::exp(*mass - top);
            total += *mass;
            first += *mass * *loss;
            largest = largest.max(loss.abs());
        }
        let (log_moment, centre) = (top + libm::log(total), first / total);
        let (log_left, log_right) = pair.log_tails(left, right, tilt);
        // As in the other quadratures: the integral is at least 1, sums beyond the ends are a few times their
        // integrals.
        let moment = (top + (count + 1.0).ln()).max(0.0);
        let quadrature = ((moment - DIGITS).max(log_left).max(log_right) - log_moment).exp() * 24.0;
        // Roundings of the exponent of a mass, whose parts are at most this large, and of its loss.
        let reach = left.abs().max(right);
        let off = 4.0 * largest + 4.0 * (reach + 1.0 / step.z) / step.z + EquallySpaced::ROUNDING;
        let exponent = (1.0 + tilt) * largest + reach * reach + log_moment.abs();
        // Turns round a few times until they are computed afresh, and cumulants with their order.
        let turns = 512.0;
        let relative = 8.0 * exponent + turns + (2.0 + 2.0 * tilt) * off + count;
        Some(Self { log_moment, centre, total, quadrature, relative, off })
    }

    /// At least the tilted moments of `|loss - centre|^2` and its square where quadratures of these are bounded: on the
    /// strip around the real line, and beyond the ends.
    ///
    /// A loss is `log(1 + u)`, or a difference of two. On the line their moduli are at most
    /// `a = |loss| - log(1 - q)`. If `a <= 1/8` then `|u| <= e^a - 1 + 2 q <= 4 a <= 1/2` on the strip, and the
    /// log is at most 8 a; otherwise it is at most a plus what it shrinks or turns by there, 3.5 and pi.
    fn off_the_line(&self, step: Step, nodes: &[(f64, f64)]) -> (f64, f64) {
        let never = -libm::log1p(-step.rate());
        let (mut square, mut fourth_power, mut largest) = (0.0, 0.0, 0.0f64);
        for (mass, loss) in nodes {
            let a = loss.abs() + never;
            let modulus = if a <= 0.125 { 16.0 * a } else { 2.0 * a + 14.0 } + self.centre.abs();
            let modulus = modulus * modulus;
            square += mass * modulus;
            fourth_power += mass * modulus * modulus;
            largest = largest.max(modulus);
        }
        // Beyond the ends losses grow at most linearly where the normal density falls: twice the last one covers that.
        (square / self.total + 2.0 * largest, fourth_power / self.total + 2.0 * largest * largest)
    }

    /// At least the error of the log of the moment.
    fn moment_error(&self) -> f64 {
        UNIT * self.relative + self.quadrature
    }
}

/// Central moments from nodes whose masses have this sum, in lanes.
fn central_moments(nodes: &[(f64, f64)], total: f64, centre: f64) -> [f64; ORDER + 1] {
    const LANES: usize = 4;
    let mut lanes = [[0.0; LANES]; ORDER + 1];
    for chunk in nodes.chunks(LANES) {
        let (mut power, mut losses) = ([0.0; LANES], [0.0; LANES]);
        for ((power, lane), (mass, loss)) in power.iter_mut().zip(&mut losses).zip(chunk) {
            *lane = loss - centre;
            *power = mass / total * *lane;
        }
        for moment in lanes.iter_mut().skip(2) {
            for ((moment, power), loss) in moment.iter_mut().zip(&mut power).zip(&losses) {
                *power *= loss;
                *moment += *power;
            }
        }
    }
    lanes.map(|lanes| lanes.iter().sum())
}

/// The largest r, about, with `sum of r^k M_k / k! <= 1/2`; 0 if there is none.
///
/// Moments of even order are those of moduli, and `M_k^2 <= M_{k-1} M_{k+1}` bounds those between (Cauchy, Schwarz).
fn radius(moments: &[f64; ORDER + 1]) -> f64 {
    let mut moduli = *moments;
    for (k, around) in moments.windows(3).enumerate().skip(2).step_by(2) {
        if let ([before, _, after], Some(odd)) = (around, moduli.get_mut(k + 1)) {
            *odd = (before * after).sqrt();
        }
    }
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
    use realfft::num_complex::Complex64;

    /// A discrete loss: its characteristic function is a finite sum.
    #[test]
    fn the_series_is_as_close_as_its_bound_says() {
        let losses = [(0.5, -0.3), (0.3, 0.1), (0.15, 0.5), (0.05, 0.9)];
        let mean: f64 = losses.iter().map(|(p, l)| p * l).sum();
        let moments = central_moments(&losses, 1.0, mean);
        for (k, moment) in moments.iter().enumerate().skip(2) {
            let exact: f64 = losses.iter().map(|(p, l)| p * (l - mean).powi(k as i32)).sum();
            assert!((moment - exact).abs() <= 1e-14 * exact.abs() + 1e-16, "{k}: {moment} {exact}");
        }
        let (r, c) = (radius(&moments), cumulants(&moments));
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
