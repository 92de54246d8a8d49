//! The transform of a composition of thousands of distinct steps, by interpolation between few of them.
//!
//! Profiles are convex in the rate, and in the total variation distance of a step that is always sampled
//! (docs/accounting.md). So the profile of a step lies below the mean of those at the corners of a cell of rates and noises,
//! with the weights of linear interpolation. How far the transforms of both are apart at any frequency follows from how far
//! they are at frequency 0, and cells are split until that is little in all steps together.

use std::collections::{BinaryHeap, HashMap};

use super::inversion::{Contour, Line, MOST_CUT_OFF, MOST_FREQUENCIES, period, wrap};
use super::step::TiltedStep;
use crate::cumulant::{
    Cumulant, LEAST_NOISE, Moments, Scratch, Smoothing, cumulant_of_step, moments,
};
use crate::pair::Direction;
use crate::{Composition, Sampled, Step, work};

/// Cells are not split further than to this many.
const MOST_CELLS: usize = 4250;
/// Cells with so few distinct steps are not worth interpolating.
const FEW: usize = 3;
/// Rounding of interpolation weights: cells are at least NARROWEST wide, as logs, and tails good to 1e-13.
const WEIGHT_ROUNDING: f64 = 1e-6;
const NARROWEST: f64 = 1e-4;
/// Rounding of sums of weights, relatively: of a million, and more.
const SUM_ROUNDING: f64 = 1e-9;
/// Quadratures over outputs are chosen for an error of e^-DIGITS, 1e-13, in every round.
const DIGITS: f64 = 30.0;
/// Decay at high frequencies is bounded by the densities of this many steps, and so many pieces of each.
const LARGEST: usize = 2500;
const PIECES: u32 = 160;
/// Decay is bounded in bands, each from a frequency to BAND times that, until those steps alone suffice.
const BAND: f64 = 1.25;
const MOST_BANDS: usize = 70;
const ENOUGH_DECAY: f64 = 20.0;
const LEAST_DECAY: f64 = 5.0;
/// At most this many products of a frequency and a node.
const MOST_WORK: f64 = 2e9;

/// The contour of all steps at a tilt; `None` where this does not apply.
///
/// The log of the transform at frequency 0 is off by at most `close`, as far as cells can be split.
/// How long a period has to be is found with a sample of the steps, and bounded with all of them.
pub(crate) fn contour(
    composition: &Composition,
    sample: &Composition,
    direction: Direction,
    tilt: f64,
    close: f64,
) -> Option<Contour> {
    let mut cumulant_of_sample = Cumulant::new(sample, direction);
    let k = cumulant_of_sample.at(tilt);
    let finite = k.value.is_finite() && k.second.is_finite() && k.first.is_finite();
    if !finite || !(tilt > 0.0) {
        return None;
    }
    let (period, wraps) = period(&mut cumulant_of_sample, tilt, k)?;
    // A little longer, for what is not in the sample.
    let period = 1.25 * period;
    let mut grid = Grid { direction, tilt, scratch: Scratch::default(), known: HashMap::new() };
    let cells = cells(composition, &mut grid, close)?;
    let (mut gaussian, mut decaying) = (0.0, Vec::new());
    for (step, n) in composition.steps() {
        match step.sampled {
            Sampled::Always => gaussian += *n as f64 / (step.z * step.z),
            _ => decaying.push((*step, *n as f64)),
        }
    }
    let spread = |(step, n): &(Step, f64)| n * step.rate() * (1.0 / step.z).min(1.0);
    decaying.sort_by(|a, b| spread(b).total_cmp(&spread(a)));
    decaying.truncate(LARGEST);
    let tilted = |(step, n): &(Step, f64)| {
        TiltedStep::with_digits(*step, direction, tilt, PIECES, 0.0, DIGITS).map(|step| (step, *n))
    };
    let decaying: Vec<_> = decaying.iter().map(tilted).collect::<Option<_>>()?;
    // Up to where the steps that decay most suffice for all higher frequencies, and below from there down with all steps.
    let (mut t, mut onwards) = (16.0 * 2.0 * std::f64::consts::PI / period, 0.0);
    for _ in 0..MOST_BANDS {
        onwards = decaying.iter().map(|(step, n)| n * step.decay(t)).sum();
        if onwards > ENOUGH_DECAY {
            break;
        }
        t *= BAND;
    }
    drop(decaying);
    let corners = corners(&cells);
    let wraps = wraps.map(|(_, slope)| {
        let value = if slope < 0.0 { cumulant(&cells, &corners, direction, -slope) } else { 0.0 };
        (wrap(value, (-slope - tilt).abs(), period), slope)
    });
    let smooth: Vec<_> = corners.iter().map(tilted).collect::<Option<_>>()?;
    // How much farther transforms may be apart at t than at 0.
    let ratio = |t: f64| {
        (1.0 + (t / tilt).powi(2)).sqrt()
            * (1.0 + (t / (1.0 + tilt)).powi(2)).sqrt()
            * (1.0 + 1e-12)
    };
    let gap: f64 = cells.iter().map(|cell| cell.gap).sum();
    let range = cells.iter().map(|cell| cell.range).fold(0.0, f64::max);
    let mut decays = vec![(t, onwards)];
    for _ in 0..MOST_BANDS {
        if !(onwards > LEAST_DECAY) {
            break;
        }
        let band = (t / BAND, t);
        let all = |(step, n): &(TiltedStep, f64)| -n * libm::expm1(-step.decay(band.0));
        let all = smooth.iter().map(all).sum::<f64>() / (1.0 + range) - gap * ratio(band.1);
        (t, onwards) = (band.0, onwards.min(all));
        decays.push((t, onwards));
    }
    let decay = |t: f64| {
        let known = decays.iter().find(|(from, _)| *from <= t);
        known.map_or(0.0, |(_, decay)| *decay * (1.0 - 1e-9))
    };
    // Powers that are no whole numbers need the logs that are continuous from frequency 0 on: wherever cells are good,
    // moments are less than 1 from 1, and turned back by less than this they are far from the negative numbers.
    let powers = smooth.iter().filter(|(_, n)| n.fract() != 0.0);
    let turn = powers.map(|(step, _)| step.centre.abs()).fold(0.0, f64::max);
    let off = |t: f64| {
        if !(t * turn <= 1.5) {
            return f64::INFINITY;
        }
        let ratio = ratio(t);
        cells.iter().map(|cell| cell.off(ratio)).sum::<f64>() * (1.0 + 1e-9)
    };
    let line = Line { tilt, k, period, wraps, smoothing: Smoothing::default() };
    let most = (MOST_FREQUENCIES, MOST_WORK);
    Contour::of_product(
        &smooth,
        gaussian,
        line,
        most,
        (MOST_CUT_OFF, 0.1 * MOST_CUT_OFF),
        &decay,
        &off,
    )
}

/// Moments of steps at the corners of cells.
struct Grid {
    direction: Direction,
    tilt: f64,
    scratch: Scratch,
    known: HashMap<(u8, u64, u64), Moments>,
}

impl Grid {
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
        let Self { direction, tilt, .. } = *self;
        moments(step, direction, tilt, DIGITS, &mut self.scratch).or_else(|| {
            let step = TiltedStep::new(step, direction, tilt, 1, 0.0)?;
            Some(Moments { log_moment: step.log_moment, error: step.moment_error })
        })
    }
}

impl Moments {
    /// The tilted moment less 1.
    fn excess(&self) -> f64 {
        libm::expm1(self.log_moment)
    }

    fn excess_error(&self) -> f64 {
        2.0 * self.error * (1.0 + self.excess())
    }
}

/// A step that is to be interpolated.
struct Member {
    step: Step,
    count: f64,
    excess: f64,
    error: f64,
    /// 1 less the total variation distance if it were always sampled.
    overlap: f64,
}

/// What two outputs have in common if a record always takes part.
fn overlap(step: &Step) -> f64 {
    libm::erfc(std::f64::consts::FRAC_1_SQRT_2 * 0.5 / step.without_sampling())
}

/// Steps of one kind between two rates and two noises.
struct Cell {
    /// The corner with the highest rate and the least noise, and the opposite one.
    top: Step,
    bottom: Step,
    members: Vec<Member>,
    /// How far moments at the corners are apart; that of the bottom less 1; and how far all members are from their
    /// interpolation.
    range: f64,
    least: f64,
    gap: f64,
    rounds: f64,
}

impl Cell {
    fn new(top: Step, bottom: Step, members: Vec<Member>, grid: &mut Grid) -> Option<Self> {
        let mut cell = Self { top, bottom, members, range: 0.0, least: 0.0, gap: 0.0, rounds: 0.0 };
        if !cell.is_interpolated() {
            return Some(cell);
        }
        let corners = cell.corners();
        let mut found = [Moments::default(); 4];
        for (slot, corner) in found.iter_mut().zip(corners) {
            *slot = grid.moments(corner)?;
        }
        let [high, _, _, low] = found;
        let error = found.iter().map(Moments::excess_error).sum::<f64>();
        (cell.range, cell.least) = (high.excess() - low.excess() + error, low.excess() + error);
        let mut gap = 0.0;
        for member in &cell.members {
            let weights = cell.weights(member);
            let mean: f64 = weights.iter().zip(&found).map(|(w, corner)| w * corner.excess()).sum();
            let rounding = error + member.error + WEIGHT_ROUNDING * cell.range;
            let rounding = rounding + SUM_ROUNDING * high.excess();
            gap += member.count * ((mean - member.excess).max(0.0) + rounding);
            cell.rounds += member.count;
        }
        cell.gap = gap;
        gap.is_finite().then_some(cell)
    }

    fn is_interpolated(&self) -> bool {
        self.members.len() > FEW
    }

    /// From the most expensive to the cheapest.
    fn corners(&self) -> [Step; 4] {
        let (high, low) = (self.top.rate(), self.bottom.rate());
        [(high, self.top.z), (low, self.top.z), (high, self.bottom.z), (low, self.bottom.z)]
            .map(|(q, z)| self.top.with(q, z))
    }

    /// The weights of the corners: those of linear interpolation in the rate and in the overlap.
    fn weights(&self, member: &Member) -> [f64; 4] {
        let part = |at: f64, low: f64, high: f64| {
            let part = (at - low) / (high - low);
            if (0.0..1.0).contains(&part) { part } else { 1.0 }
        };
        let rate = part(member.step.rate(), self.bottom.rate(), self.top.rate());
        let noise = part(member.overlap, overlap(&self.bottom), overlap(&self.top));
        [rate * noise, (1.0 - rate) * noise, rate * (1.0 - noise), (1.0 - rate) * (1.0 - noise)]
    }

    /// At least how far the log of the transform of all members is from that of the corners, each to the power of its
    /// weights, at a frequency at which transforms are at most `ratio` times as far apart as at 0.
    fn off(&self, ratio: f64) -> f64 {
        if !self.is_interpolated() {
            return 0.0;
        }
        let least = 1.0 - ratio * self.least;
        let range = ratio * self.range / least;
        if !(least > 0.0) || !(range <= 0.25) {
            return f64::INFINITY;
        }
        let linear = ratio * self.gap / (least * (1.0 - 2.0 * range));
        linear + self.rounds * range * range / (1.0 - range)
    }

    /// Two cells, split where interpolation loses more.
    fn split(&mut self, grid: &mut Grid) -> Option<[Self; 2]> {
        let (high, low) = (self.top.rate(), self.bottom.rate());
        let between = |low: f64, high: f64| low.sqrt() * high.sqrt();
        let (q, z) = (between(low, high), between(self.top.z, self.bottom.z));
        let top = grid.moments(self.top)?.excess();
        let mut loss = |end: Step, middle: Step, part: f64| -> Option<f64> {
            let (end, middle) = (grid.moments(end)?.excess(), grid.moments(middle)?.excess());
            Some((part * top + (1.0 - part) * end - middle).max(0.0) + (top - end).powi(2))
        };
        let by_rate = loss(
            self.top.with(low, self.top.z),
            self.top.with(q, self.top.z),
            (q - low) / (high - low),
        );
        let (side, middle) = (self.top.with(high, self.bottom.z), self.top.with(high, z));
        let (most, least) = (overlap(&self.bottom), overlap(&self.top));
        let by_noise = loss(side, middle, (overlap(&middle) - most) / (least - most));
        let [can_rate, can_noise] = self.is_wide();
        let rate = can_rate && (!can_noise || !(by_noise? > by_rate?));
        let (cheap, dear) = match rate {
            true => (self.top.with(q, self.top.z), self.bottom.with(q, self.bottom.z)),
            false => (self.top.with(high, z), self.bottom.with(low, z)),
        };
        let is_dear = |step: &Step| if rate { step.rate() > q } else { step.z < z };
        let (ours, theirs) =
            std::mem::take(&mut self.members).into_iter().partition(|member| is_dear(&member.step));
        Some([Self::new(self.top, dear, ours, grid)?, Self::new(cheap, self.bottom, theirs, grid)?])
    }

    /// Whether it can be split by rate, and by noise.
    fn is_wide(&self) -> [bool; 2] {
        let wide = |low: f64, high: f64| high > low * (1.0 + NARROWEST);
        [wide(self.bottom.rate(), self.top.rate()), wide(self.top.z, self.bottom.z)]
    }
}

/// Cells of all steps that are sampled, split until they are off by at most `close` together, or there are too many.
fn cells(composition: &Composition, grid: &mut Grid, close: f64) -> Option<Vec<Cell>> {
    let mut kinds: HashMap<u8, (Step, Step, Vec<Member>)> = HashMap::new();
    for (step, count) in composition.steps() {
        if step.sampled == Sampled::Always {
            continue;
        }
        let found = grid.compute(*step)?;
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
        cells.push(Cell::new(top, bottom, members, grid)?);
    }
    // The cell that is off most is split first; numbers that are not negative are in the order of their bits.
    let place = |(index, cell): (usize, &Cell)| (cell.off(1.0).to_bits(), index);
    let mut order: BinaryHeap<_> = cells.iter().enumerate().map(place).collect();
    let mut total: f64 = cells.iter().map(|cell| cell.off(1.0)).sum();
    while !(total <= close) && cells.len() < MOST_CELLS {
        let Some(worst) = order.pop().and_then(|(_, index)| cells.get_mut(index).zip(Some(index)))
        else {
            break;
        };
        let (cell, index) = worst;
        if cell.is_wide() == [false, false] {
            continue;
        }
        let before = cell.off(1.0);
        let [one, other] = cell.split(grid)?;
        let after = [one.off(1.0), other.off(1.0)];
        order.extend([(after[0].to_bits(), index), (after[1].to_bits(), cells.len())]);
        if let Some(slot) = cells.get_mut(index) {
            *slot = one;
        }
        cells.push(other);
        total = match before.is_finite() {
            true => total - before + after[0] + after[1],
            false => cells.iter().map(|cell| cell.off(1.0)).sum(),
        };
    }
    Some(cells)
}

/// At least the cumulant of all steps at another tilt. The log of a mean is above the mean of logs by at most an eighth of
/// the square of their range (Hoeffding).
fn cumulant(cells: &[Cell], corners: &[(Step, f64)], direction: Direction, tilt: f64) -> f64 {
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

/// The corners of all cells with the sums of their weights, and the steps that are not interpolated.
fn corners(cells: &[Cell]) -> Vec<(Step, f64)> {
    let mut sums: HashMap<(u8, u64, u64), (Step, f64)> = HashMap::new();
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
    rows
}
