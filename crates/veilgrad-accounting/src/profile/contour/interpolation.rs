//! The transform of thousands of distinct steps, interpolated between the transforms of few steps.
//!
//! Steps are sorted into cells: rectangles of sampling rates and noise multipliers. Profiles are convex in the rate, and in
//! the total variation distance of the same step without sampling (docs/accounting.md). So a step costs at most as much as a
//! random choice among the corners of its cell, whose profile is the linear interpolation of theirs: an upper bound. The gap
//! between the transforms at frequency 0 bounds their gap at every frequency, which gives the lower bound. Cells are split until
//! the sum of these gaps is small.

use std::collections::{BinaryHeap, HashMap};

use super::inversion::{Contour, Line, MOST_CUT_OFF, MOST_FREQUENCIES, period, wrap};
use super::step::TiltedStep;
use crate::composition::StepKey;
use crate::cumulant::{
    Cumulant, LEAST_NOISE, Moments, Scratch, Smoothing, cumulant_of_step, moments,
};
use crate::pair::Direction;
use crate::{Composition, Sampled, Step, work};

/// Splitting stops at this many cells.
const MOST_CELLS: usize = 4000;
/// A cell with at most this many distinct steps is not interpolated: its steps are transformed one by one.
const MOST_EXACT: usize = 3;
/// Rounding error of interpolation weights: log widths of cells are at least NARROWEST, and normal tails are good to 1e-13.
const WEIGHT_ROUNDING: f64 = 1e-6;
const NARROWEST: f64 = 1e-4;
/// Relative rounding error of sums of weights, for well over a million terms.
const SUM_ROUNDING: f64 = 1e-9;
/// Target for the relative error of quadratures over outputs: e^-DIGITS, about 1e-13.
const DIGITS: f64 = 30.0;
/// Errors of moments, summed over all rounds, are about e^-MOMENT_DIGITS times a few hundred of the tolerance: a hundredth.
const MOMENT_DIGITS: f64 = 12.0;
/// Decay at high frequencies is proved by the densities of this many steps, each bounded on PIECES intervals.
const DECAYING: usize = 2500;
const PIECES: u32 = 160;
/// Decay is bounded in bands of frequencies, each from some t to BAND * t: upwards until those steps alone prove a decay of
/// ENOUGH_DECAY, then downwards with all steps while the decay exceeds LEAST_DECAY.
const BAND: f64 = 1.25;
const MOST_BANDS: usize = 70;
const ENOUGH_DECAY: f64 = 20.0;
const LEAST_DECAY: f64 = 5.0;
/// Limit on the number of frequencies times nodes.
const MOST_WORK: f64 = 2e9;

/// The contour of all steps at a tilt; `None` where this method does not apply.
///
/// Cells are split until the error of the log of the transform at frequency 0 is at most `tolerance`, or cells are as small
/// or as many as they can be. The period is chosen from a sample of the steps; the bounds on its copies are for all steps.
pub(crate) fn contour(
    composition: &Composition,
    sample: &Composition,
    direction: Direction,
    tilt: f64,
    tolerance: f64,
) -> Option<Contour> {
    let mut cumulant_of_sample = Cumulant::new(sample, direction);
    let k = cumulant_of_sample.at(tilt);
    let finite = k.value.is_finite() && k.second.is_finite() && k.first.is_finite();
    if !finite || !(tilt > 0.0) {
        return None;
    }
    let (period, wraps) = period(&mut cumulant_of_sample, tilt, k)?;
    // Longer, because the sample does not hold all steps.
    let period = 1.1 * period;
    let digits = (composition.rounds() / tolerance).ln() + MOMENT_DIGITS;
    let (scratch, known) = (Scratch::default(), HashMap::new());
    let mut cache = MomentCache { direction, tilt, digits, scratch, known };
    let cells = cells(composition, &mut cache, tolerance)?;
    let (mut gaussian, mut decaying) = (0.0, Vec::new());
    for (step, n) in composition.steps() {
        match step.sampled {
            Sampled::Always => gaussian += *n as f64 / (step.z * step.z),
            _ => decaying.push((*step, *n as f64)),
        }
    }
    decaying.sort_by(|a, b| spread(b).total_cmp(&spread(a)));
    decaying.truncate(DECAYING);
    let tilted = |(step, n): &(Step, f64)| {
        TiltedStep::with_digits(*step, direction, tilt, PIECES, 0.0, DIGITS).map(|step| (step, *n))
    };
    let decaying: Vec<_> = decaying.iter().map(tilted).collect::<Option<_>>()?;
    // A frequency from which on the decaying steps prove enough decay, and then all lower bands with all steps.
    let (mut t, mut decay_from_t) = (16.0 * 2.0 * std::f64::consts::PI / period, 0.0);
    for _ in 0..MOST_BANDS {
        decay_from_t = decaying.iter().map(|(step, n)| n * step.decay(t)).sum();
        if decay_from_t > ENOUGH_DECAY {
            break;
        }
        t *= BAND;
    }
    drop(decaying);
    let corners = corners(&cells);
    let wraps = wraps.map(|(_, slope)| {
        let value =
            if slope < 0.0 { cumulant_bound(&cells, &corners, direction, -slope) } else { 0.0 };
        (wrap(value, (-slope - tilt).abs(), period), slope)
    });
    let smooth: Vec<_> = corners.iter().map(tilted).collect::<Option<_>>()?;
    // How much larger the gap between two transforms can be at t than at 0.
    let ratio = |t: f64| {
        (1.0 + (t / tilt).powi(2)).sqrt()
            * (1.0 + (t / (1.0 + tilt)).powi(2)).sqrt()
            * (1.0 + 1e-12)
    };
    let gap: f64 = cells.iter().map(|cell| cell.gap).sum();
    let range = cells.iter().map(|cell| cell.range).fold(0.0, f64::max);
    // The decay of the interpolated transform at all frequencies from t on.
    let interpolated_decay = |t: f64| {
        let deficit = |(step, n): &(TiltedStep, f64)| -n * libm::expm1(-step.decay(t));
        smooth.iter().map(deficit).sum::<f64>() / (1.0 + range)
    };
    decay_from_t = decay_from_t.min(interpolated_decay(t));
    let mut decays = vec![(t, decay_from_t)];
    for _ in 0..MOST_BANDS {
        if !(decay_from_t > LEAST_DECAY) {
            break;
        }
        let band = (t / BAND, t);
        let in_band = interpolated_decay(band.0) - gap * ratio(band.1);
        (t, decay_from_t) = (band.0, decay_from_t.min(in_band));
        decays.push((t, decay_from_t));
    }
    let decay = |t: f64| {
        let known = decays.iter().find(|(from, _)| *from <= t);
        known.map_or(0.0, |(_, decay)| *decay * (1.0 - 1e-9))
    };
    // A fractional power of a transform needs the branch of the logarithm that is continuous in t from t = 0 on. It is the
    // principal branch as long as no value crosses the negative real axis. Where `Cell::log_error` is finite, transforms are
    // less than 1 away from 1; centring the loss rotates them by at most t * largest_centre, here below pi/2.
    let fractional = smooth.iter().filter(|(_, n)| n.fract() != 0.0);
    let largest_centre = fractional.map(|(step, _)| step.centre.abs()).fold(0.0, f64::max);
    let log_errors = |t: f64| {
        if !(t * largest_centre <= 1.5) {
            return (f64::INFINITY, f64::INFINITY);
        }
        let ratio = ratio(t);
        let sum = |gap: fn(&Cell) -> f64| {
            cells.iter().map(|cell| cell.log_error(gap(cell), ratio)).sum::<f64>() * (1.0 + 1e-9)
        };
        (sum(|cell| cell.rounding), sum(|cell| cell.gap))
    };
    // Small compared with the error of interpolation.
    let negligible_cut_off = (0.05 * tolerance).clamp(0.1 * MOST_CUT_OFF, MOST_CUT_OFF);
    let line = Line { tilt, k, period, wraps, smoothing: Smoothing::default() };
    Contour::of_product(
        &smooth,
        gaussian,
        line,
        (MOST_FREQUENCIES, MOST_WORK),
        (MOST_CUT_OFF, negligible_cut_off),
        &decay,
        &log_errors,
    )
}

/// Orders steps by how much their characteristic functions decay, roughly.
fn spread((step, n): &(Step, f64)) -> f64 {
    n * step.rate() * (1.0 / step.z).min(1.0)
}

/// Tilted moments of steps, remembered for the corners of cells.
struct MomentCache {
    direction: Direction,
    tilt: f64,
    /// Errors are about e^-digits.
    digits: f64,
    scratch: Scratch,
    known: HashMap<StepKey, Moments>,
}

impl MomentCache {
    /// The moments of a step, computed at most once.
    fn moments(&mut self, step: Step) -> Option<Moments> {
        if let Some(known) = self.known.get(&step.key()) {
            return Some(*known);
        }
        let found = self.compute(step)?;
        self.known.insert(step.key(), found);
        Some(found)
    }

    fn compute(&mut self, step: Step) -> Option<Moments> {
        if step.z < LEAST_NOISE || work::left() == 0 {
            return None;
        }
        let Self { direction, tilt, digits, .. } = *self;
        moments(step, direction, tilt, digits, &mut self.scratch).or_else(|| {
            let step = TiltedStep::new(step, direction, tilt, 1, 0.0)?;
            Some(Moments { log_moment: step.log_moment, error: step.moment_error })
        })
    }
}

impl Moments {
    /// The tilted moment minus 1.
    fn excess(&self) -> f64 {
        libm::expm1(self.log_moment)
    }

    /// An upper bound on the error of `excess`.
    fn excess_error(&self) -> f64 {
        2.0 * self.error * (1.0 + self.excess())
    }
}

/// A step of a cell.
struct Member {
    step: Step,
    count: f64,
    excess: f64,
    error: f64,
    /// See [`overlap`].
    overlap: f64,
}

/// 1 minus the total variation distance of the step without sampling.
fn overlap(step: &Step) -> f64 {
    libm::erfc(std::f64::consts::FRAC_1_SQRT_2 * 0.5 / step.without_sampling())
}

/// Steps with the same kind of sampling in a rectangle of rates and noise multipliers.
struct Cell {
    /// The corner with the highest rate and the least noise, and the opposite corner.
    top: Step,
    bottom: Step,
    members: Vec<Member>,
    /// Upper bounds on the range of the tilted moments at the corners, on the moment at `bottom` minus 1, and on the sum over
    /// all rounds of the gap between a moment and its interpolation; `rounding` is the part of `gap` that is due to rounding
    /// errors, also those of weights.
    range: f64,
    least_excess: f64,
    gap: f64,
    rounding: f64,
    rounds: f64,
}

impl Cell {
    fn new(top: Step, bottom: Step, members: Vec<Member>, cache: &mut MomentCache) -> Option<Self> {
        let (range, least_excess, gap, rounding, rounds) = (0.0, 0.0, 0.0, 0.0, 0.0);
        let mut cell = Self { top, bottom, members, range, least_excess, gap, rounding, rounds };
        if !cell.is_interpolated() {
            return Some(cell);
        }
        let corners = cell.corners();
        let mut found = [Moments::default(); 4];
        for (slot, corner) in found.iter_mut().zip(corners) {
            *slot = cache.moments(corner)?;
        }
        let [high, _, _, low] = found;
        let error = found.iter().map(Moments::excess_error).sum::<f64>();
        cell.range = high.excess() - low.excess() + error;
        cell.least_excess = low.excess() + error;
        let (mut gap, mut roundings) = (0.0, 0.0);
        for member in &cell.members {
            let weights = cell.weights(member);
            let mean: f64 = weights.iter().zip(&found).map(|(w, corner)| w * corner.excess()).sum();
            let rounding = error + member.error + WEIGHT_ROUNDING * cell.range;
            let rounding = rounding + SUM_ROUNDING * high.excess();
            gap += member.count * ((mean - member.excess).max(0.0) + rounding);
            roundings += member.count * rounding;
            cell.rounds += member.count;
        }
        (cell.gap, cell.rounding) = (gap, roundings);
        gap.is_finite().then_some(cell)
    }

    fn is_interpolated(&self) -> bool {
        self.members.len() > MOST_EXACT
    }

    /// The corners, from the most expensive to the cheapest.
    fn corners(&self) -> [Step; 4] {
        let (high, low) = (self.top.rate(), self.bottom.rate());
        [(high, self.top.z), (low, self.top.z), (high, self.bottom.z), (low, self.bottom.z)]
            .map(|(q, z)| self.top.with(q, z))
    }

    /// The weights of the corners in linear interpolation in the rate and in the overlap.
    fn weights(&self, member: &Member) -> [f64; 4] {
        let fraction = |x: f64, low: f64, high: f64| {
            let fraction = (x - low) / (high - low);
            if (0.0..1.0).contains(&fraction) { fraction } else { 1.0 }
        };
        let rate = fraction(member.step.rate(), self.bottom.rate(), self.top.rate());
        let noise = fraction(member.overlap, overlap(&self.bottom), overlap(&self.top));
        [rate * noise, (1.0 - rate) * noise, rate * (1.0 - noise), (1.0 - rate) * (1.0 - noise)]
    }

    /// An upper bound on the error of the interpolated log transform of all members, at a frequency where gaps between
    /// transforms are at most `ratio` times those at frequency 0, which sum to `gap`.
    fn log_error(&self, gap: f64, ratio: f64) -> f64 {
        if !self.is_interpolated() {
            return 0.0;
        }
        let least_modulus = 1.0 - ratio * self.least_excess;
        let range = ratio * self.range / least_modulus;
        if !(least_modulus > 0.0) || !(range <= 0.25) {
            return f64::INFINITY;
        }
        let linear = ratio * gap / (least_modulus * (1.0 - 2.0 * range));
        linear + self.rounds * log_of_mean_error(range)
    }

    /// The same at frequency 0.
    fn error_at_zero(&self) -> f64 {
        self.log_error(self.gap, 1.0)
    }

    /// Splits the cell in two, along the axis that loses more to interpolation.
    fn split(&mut self, cache: &mut MomentCache) -> Option<[Self; 2]> {
        let (high, low) = (self.top.rate(), self.bottom.rate());
        let geometric_mean = |low: f64, high: f64| low.sqrt() * high.sqrt();
        let (q, z) = (geometric_mean(low, high), geometric_mean(self.top.z, self.bottom.z));
        let top = cache.moments(self.top)?.excess();
        let mut error_along = |end: Step, middle: Step, weight: f64| -> Option<f64> {
            let (end, middle) = (cache.moments(end)?.excess(), cache.moments(middle)?.excess());
            Some(
                (weight * top + (1.0 - weight) * end - middle).max(0.0) + (top - end).powi(2) / 8.0,
            )
        };
        let rate_error = error_along(
            self.top.with(low, self.top.z),
            self.top.with(q, self.top.z),
            (q - low) / (high - low),
        );
        let (side, middle) = (self.top.with(high, self.bottom.z), self.top.with(high, z));
        let (most, least) = (overlap(&self.bottom), overlap(&self.top));
        let noise_error = error_along(side, middle, (overlap(&middle) - most) / (least - most));
        let [can_split_rate, can_split_noise] = self.is_wide();
        let split_rate = can_split_rate && (!can_split_noise || !(noise_error? > rate_error?));
        let (cheap_top, expensive_bottom) = match split_rate {
            true => (self.top.with(q, self.top.z), self.bottom.with(q, self.bottom.z)),
            false => (self.top.with(high, z), self.bottom.with(low, z)),
        };
        let is_expensive = |step: &Step| if split_rate { step.rate() > q } else { step.z < z };
        let members = std::mem::take(&mut self.members).into_iter();
        let (expensive, cheap) = members.partition(|member| is_expensive(&member.step));
        Some([
            Self::new(self.top, expensive_bottom, expensive, cache)?,
            Self::new(cheap_top, self.bottom, cheap, cache)?,
        ])
    }

    /// Whether the cell is wide enough to be split by rate, and by noise.
    fn is_wide(&self) -> [bool; 2] {
        let wide = |low: f64, high: f64| high > low * (1.0 + NARROWEST);
        [wide(self.bottom.rate(), self.top.rate()), wide(self.top.z, self.bottom.z)]
    }
}

/// An upper bound on the distance between the log of a weighted mean of transforms and the mean of their logs, if the dearest
/// differs from the cheapest by at most `range` times the modulus of the cheapest (docs/accounting.md).
fn log_of_mean_error(range: f64) -> f64 {
    range * range / (8.0 * (1.0 - range) * (1.0 - 2.0 * range))
}

/// Cells with all sampled steps, split until the sum of their log errors at frequency 0 is at most `tolerance` or they
/// cannot be split further.
fn cells(composition: &Composition, cache: &mut MomentCache, tolerance: f64) -> Option<Vec<Cell>> {
    let mut kinds: HashMap<u8, (Step, Step, Vec<Member>)> = HashMap::new();
    for (step, count) in composition.steps() {
        if step.sampled == Sampled::Always {
            continue;
        }
        let found = cache.compute(*step)?;
        let (excess, error) = (found.excess(), found.excess_error());
        let member =
            Member { step: *step, count: *count as f64, excess, error, overlap: overlap(step) };
        let (kind, q) = step.kind_and_rate();
        let (top, bottom, members) =
            kinds.entry(kind).or_insert_with(|| (*step, *step, Vec::new()));
        *top = step.with(q.max(top.rate()), step.z.min(top.z));
        *bottom = step.with(q.min(bottom.rate()), step.z.max(bottom.z));
        members.push(member);
    }
    let mut kinds: Vec<_> = kinds.into_iter().collect();
    kinds.sort_by_key(|(kind, _)| *kind);
    let mut cells = Vec::new();
    for (_, (top, bottom, members)) in kinds {
        cells.push(Cell::new(top, bottom, members, cache)?);
    }
    // The cell with the largest error is split first. Non-negative floats are ordered like their bits.
    let by_error = |(index, cell): (usize, &Cell)| (cell.error_at_zero().to_bits(), index);
    let mut order: BinaryHeap<_> = cells.iter().enumerate().map(by_error).collect();
    let mut total: f64 = cells.iter().map(|cell| cell.error_at_zero()).sum();
    while !(total <= tolerance) && cells.len() < MOST_CELLS {
        let Some(worst) = order.pop().and_then(|(_, index)| cells.get_mut(index).zip(Some(index)))
        else {
            break;
        };
        let (cell, index) = worst;
        if cell.is_wide() == [false, false] {
            continue;
        }
        let before = cell.error_at_zero();
        let [one, other] = cell.split(cache)?;
        let after = [one.error_at_zero(), other.error_at_zero()];
        order.extend([(after[0].to_bits(), index), (after[1].to_bits(), cells.len())]);
        if let Some(slot) = cells.get_mut(index) {
            *slot = one;
        }
        cells.push(other);
        total = match before.is_finite() {
            true => total - before + after[0] + after[1],
            false => cells.iter().map(|cell| cell.error_at_zero()).sum(),
        };
    }
    Some(cells)
}

/// An upper bound on the cumulant of all steps at another tilt. The log of a mean exceeds the mean of the logs by at most an
/// eighth of their squared range (Hoeffding's lemma).
fn cumulant_bound(cells: &[Cell], corners: &[(Step, f64)], direction: Direction, tilt: f64) -> f64 {
    let (mut scratch, mut known) = (Scratch::default(), HashMap::new());
    let mut value = |step: &Step| {
        *known
            .entry(step.key())
            .or_insert_with(|| cumulant_of_step(*step, direction, tilt, &mut scratch).value)
    };
    let interpolated = cells.iter().filter(|cell| cell.is_interpolated());
    let ranges = interpolated.map(|cell| {
        let range = value(&cell.top) - value(&cell.bottom) + 1e-9;
        cell.rounds * range * range / 8.0
    });
    let ranges: f64 = ranges.sum();
    let sum: f64 = corners.iter().map(|(step, n)| n * value(step)).sum();
    (sum + ranges) * (1.0 + 1e-11)
}

/// The steps that stand for all steps, with their (fractional) counts: the corners of interpolated cells and the members of
/// all others.
fn corners(cells: &[Cell]) -> Vec<(Step, f64)> {
    let mut sums: HashMap<StepKey, (Step, f64)> = HashMap::new();
    let mut add = |step: Step, weight: f64| {
        sums.entry(step.key()).or_insert((step, 0.0)).1 += weight;
    };
    for cell in cells {
        for member in &cell.members {
            match cell.is_interpolated() {
                true => {
                    let weights = cell.weights(member);
                    let rows = cell.corners().into_iter().zip(weights);
                    rows.for_each(|(corner, weight)| add(corner, weight * member.count));
                }
                false => add(member.step, member.count),
            }
        }
    }
    let mut rows: Vec<_> = sums.into_values().filter(|(_, weight)| *weight > 0.0).collect();
    rows.sort_by_key(|(step, _)| step.key());
    rows.sort_by(|a, b| spread(b).total_cmp(&spread(a)));
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use realfft::num_complex::Complex64;

    /// Four complex numbers with the distances that the proof assumes.
    #[test]
    fn the_log_of_a_mean_is_as_close_to_the_mean_of_logs_as_proved() {
        let mut state = 3_u64;
        let mut uniform = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 11) as f64 / (1_u64 << 53) as f64
        };
        let mut tightest: f64 = 0.0;
        for i in 0..200_000 {
            let range = 0.25 * uniform().max(1e-3);
            let mut point = |radius: f64| {
                let angle = 2.0 * std::f64::consts::PI * uniform();
                // Often on the circle, where distances are largest.
                let radius = if i % 2 == 0 { radius } else { radius * uniform() };
                Complex64::from_polar(radius, angle)
            };
            let cheapest = Complex64::new(1.0, 0.0);
            let dearest = cheapest + point(range);
            let mut numbers = vec![cheapest, dearest];
            for _ in 0..2 {
                let part = range * (f64::from(i % 7) / 6.0);
                let corner = cheapest + point(part);
                if (corner - dearest).norm() <= range - part + 1e-15 {
                    numbers.push(corner);
                }
            }
            let weights: Vec<f64> = numbers.iter().map(|_| uniform()).collect();
            let total: f64 = weights.iter().sum();
            let weighted = || numbers.iter().zip(&weights).map(|(m, w)| (*m, w / total));
            let mean: Complex64 = weighted().map(|(m, w)| m * w).sum();
            let mean_of_logs: Complex64 = weighted().map(|(m, w)| m.ln() * w).sum();
            let error = (mean.ln() - mean_of_logs).norm();
            let bound = log_of_mean_error(range);
            assert!(
                error <= bound * (1.0 + 1e-9) + 1e-15,
                "{numbers:?} {weights:?}: {error} {bound}"
            );
            tightest = tightest.max(error / bound);
        }
        assert!(tightest > 0.9, "{tightest}");
    }
}
