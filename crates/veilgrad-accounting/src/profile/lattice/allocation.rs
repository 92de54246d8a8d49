//! The law of the likelihood ratio of one epoch of random allocation, on a geometric grid.
//!
//! Without the record, the likelihood ratio of an epoch of t rounds is the mean X of t independent copies of
//! `W = e^{y/z - 1/(2 z^2)}`, y standard normal. Larger in convex order means larger privacy profiles in both directions, and
//! means of independent variables keep that order. So an upper law splits mass between grid points without changing the
//! mean, and a lower law merges mass at its mean. All arithmetic is on positive numbers, so that every error is relative.

use std::cell::RefCell;
use std::rc::Rc;

use super::grid::Rounded;
use crate::composition::grouping::MOST_EPOCHS;
use crate::number::{UNIT, legendre, upper_tail};
use crate::pair::Direction;
use crate::work;

/// The largest number of grid points of an upper law, and of a lower one, which nobody relies on.
const POINTS: (usize, usize) = (2048, 1024);
/// No law is computed if a likelihood ratio can exceed `e^LARGEST`: products of masses would underflow.
const LARGEST: f64 = 500.0;
/// No law is used if the relative errors of its masses may exceed this: beyond about 1e11 rounds.
const MOST_ERROR: f64 = 0.1;
/// This many laws are kept: an upper and a lower one for each epoch of a transform, because both directions need them.
const KEPT: usize = 2 * MOST_EPOCHS;

/// The law of X without the record: masses at `e^{(first + i) spacing}`.
#[derive(Debug, Clone)]
pub(crate) struct EpochLaw {
    first: i64,
    spacing: f64,
    masses: Vec<f64>,
    /// The mass at 0: outputs that show that the record is absent.
    zero: f64,
    /// The probability, with the record, of outputs that show that it is there.
    infinite: f64,
    /// The number of rounds of which X is the mean.
    rounds: f64,
    /// An upper bound on the errors of log X.
    loss_error: f64,
    /// An upper bound on the relative errors of masses.
    mass_error: f64,
}

/// Masses between neighbouring grid points: the share of the lower and of the upper point that keeps mass and mean.
struct Cells {
    first: i64,
    spacing: f64,
    /// The shares of the lower and upper end of every cell.
    shares: Vec<(f64, f64)>,
    zero: f64,
    infinite: f64,
    rounds: f64,
    loss_error: f64,
    mass_error: f64,
}

type Key = (u64, u64, u64, Rounded);

thread_local! {
    static LAWS: RefCell<Vec<(Key, Option<Rc<EpochLaw>>)>> = const { RefCell::new(Vec::new()) };
}

impl EpochLaw {
    /// The law of an epoch of `rounds` rounds, at least 1, with noise multiplier `z`. Extreme values have together a
    /// probability of about `tail`; an upper law counts them as certain knowledge, a lower law leaves them out. `None` if
    /// there is too little noise.
    ///
    /// # Guarantee
    /// With the errors that the law states, its profile is nowhere below (rounded up) or nowhere above (rounded down) that of
    /// the epoch, in both directions.
    pub(crate) fn new(rounds: u64, z: f64, tail: f64, rounded: Rounded) -> Option<Rc<Self>> {
        let key = (rounds, z.to_bits(), tail.to_bits(), rounded);
        let known = LAWS.with_borrow(|laws| {
            laws.iter().find(|(found, _)| *found == key).map(|(_, law)| law.clone())
        });
        // Work is counted whether or not the law was known, so that answers do not depend on earlier questions.
        work::spend(Self::work(rounds, rounded));
        if let Some(law) = known {
            return law;
        }
        let points = Self::points(rounded);
        let law = Self::compute(rounds, z, tail, rounded, points).map(Rc::new);
        LAWS.with_borrow_mut(|laws| {
            laws.truncate(KEPT - 1);
            laws.insert(0, (key, law.clone()));
        });
        law
    }

    const fn points(rounded: Rounded) -> usize {
        match rounded {
            Rounded::Up => POINTS.0,
            Rounded::Down => POINTS.1,
        }
    }

    /// About half the work of a law, since both directions need it and count it: a product of two laws, and half of one with
    /// itself, for every binary digit.
    pub(crate) fn work(rounds: u64, rounded: Rounded) -> u64 {
        let points = Self::points(rounded) as u64;
        u64::from(64 - rounds.leading_zeros()) * points * points / (4 * work::PRODUCTS)
    }

    /// What an upper and a lower law count as work in one direction.
    pub(crate) fn work_of_both(rounds: u64) -> u64 {
        Self::work(rounds, Rounded::Up) + Self::work(rounds, Rounded::Down)
    }

    fn compute(rounds: u64, z: f64, tail: f64, rounded: Rounded, points: usize) -> Option<Self> {
        let digits = 64 - rounds.leading_zeros();
        let tail = tail / (2.0 * f64::from(digits) + 2.0);
        let total = rounds as f64;
        let first = Self::of_one_round(z, (tail, tail / total), rounded, points)?;
        // From the highest binary digit on: the laws of m and, if needed, of m + 1 rounds.
        let bit = |digit: u32| (rounds >> digit) & 1 == 1;
        let needs_next = |digit: u32| (0..digit).any(bit);
        let average = |a: &Self, b: &Self, refine: i64| {
            let cells = Self::average(a, b, refine);
            let tail_low = tail * cells.rounds / total;
            cells.rounded(rounded).trimmed(tail, tail_low, rounded)
        };
        let mut law = first;
        let mut next = needs_next(digits - 1).then(|| average(&law, &law, 1));
        for digit in (0..digits - 1).rev() {
            let longest = law.masses.len().max(next.as_ref().map_or(0, |law| law.masses.len()));
            let mut refine = 1;
            while 2 * refine as usize * longest <= points {
                refine *= 2;
            }
            let (base, more) = match (bit(digit), &next) {
                (false, _) => (average(&law, &law, refine), &law),
                (true, Some(next)) => (average(&law, next, refine), next),
                (true, None) => return None,
            };
            let following = match (needs_next(digit), &next) {
                (false, _) => None,
                (true, Some(next)) => Some(average(more, next, refine)),
                (true, None) => return None,
            };
            (law, next) = (base, following);
        }
        // Errors add up only while they are small.
        (law.mass_error < MOST_ERROR).then_some(law)
    }

    /// The law of W. Cells are narrow enough that the quadrature of the normal density in them is exact up to rounding.
    fn of_one_round(
        z: f64,
        (tail, tail_low): (f64, f64),
        rounded: Rounded,
        points: usize,
    ) -> Option<Self> {
        // P(y > r) <= exp(-r^2/2)/2 for r >= 0.
        let reach = |tail: f64| (-2.0 * (2.0 * tail).ln()).max(1.0).sqrt();
        let (low, high) = (-reach(tail_low), 1.0 / z + reach(tail));
        let spacing = (high - low) / z / (points as f64 - 2.0);
        let centre = 0.5 / (z * z);
        if !(high / z < LARGEST && -low / z + centre < LARGEST && spacing > 1e-12) {
            return None;
        }
        let first = ((low / z - centre) / spacing).floor() as i64;
        let width = spacing * z;
        let output = |index: i64| z * (index as f64 * spacing + centre);
        // Offsets in a cell, weights, and the share of the upper end there.
        let scale = 1.0 / (2.0 * std::f64::consts::PI).sqrt();
        let nodes: Vec<(f64, f64, f64)> = legendre(0.5 * width, 0.5 * width)
            .map(|(s, weight)| (s, weight * scale, libm::expm1(s / z) / libm::expm1(spacing)))
            .collect();
        let cell = |index: i64| {
            let left = output(index);
            let (mut lower, mut upper) = (0.0, 0.0);
            for (offset, weight, share) in &nodes {
                let y = left + offset;
                let mass = weight * libm::exp(-0.5 * y * y);
                lower += mass * (1.0 - share);
                upper += mass * share;
            }
            (lower, upper)
        };
        let last = first + points as i64 - 1;
        let mut shares: Vec<_> = (first..last).map(cell).collect();
        let (mut zero, mut infinite) = (0.0, 0.0);
        if rounded == Rounded::Up {
            // Below the first point: mass at 0 and at the first point. Above the last one: there, and knowledge of the record.
            let (left, right) = (output(first), output(last));
            let up = 1.0 + 1e-11;
            let lower_mean = upper_tail(1.0 / z - left);
            zero = upper_tail(-left) * up;
            infinite = upper_tail(right - 1.0 / z) * up;
            if let Some((lower, _)) = shares.first_mut() {
                *lower += lower_mean * (-(first as f64) * spacing).exp() * up;
            }
            if let Some((_, upper)) = shares.last_mut() {
                *upper += upper_tail(right) * up;
            }
        }
        let far = low.abs().max(high);
        let loss_error = 32.0 * UNIT * (1.0 + (far + 1.0 / z) / z);
        let mass_error = (128.0 + 4.0 * far * far) * UNIT;
        let rounds = 1.0;
        let cells =
            Cells { first, spacing, shares, zero, infinite, rounds, loss_error, mass_error };
        Some(cells.rounded(rounded).trimmed(tail, tail_low, rounded))
    }

    /// The mean of two independent ratios, weighted by their numbers of rounds, on a grid that is `refine` times as fine. Both
    /// laws must have the same spacing: the position of a mean relative to one of them then depends on their distance alone.
    fn average(a: &Self, b: &Self, refine: i64) -> Cells {
        let is_square = std::ptr::eq(a, b);
        let spacing = a.spacing / refine as f64;
        let rounds = a.rounds + b.rounds;
        let (share_a, share_b) = (a.rounds / rounds, b.rounds / rounds);
        let (len_a, len_b) = (a.masses.len() as i64, b.masses.len() as i64);
        // Two points to spare on each side.
        let first = a.first.min(b.first) - 2;
        let last = (a.first + len_a).max(b.first + len_b) + 2;
        let width = (last - first) as usize;
        // The cells of each residue modulo `refine`, so that inner loops have stride 1.
        let classes = refine as usize;
        let mut lower = vec![vec![0.0; width]; classes];
        let mut upper = vec![vec![0.0; width]; classes];
        let whole = libm::expm1(spacing);
        // The cell of `x_i e^log`, counted from the cell of `x_i`, and the share of its upper end.
        let place = |log: f64| {
            let position = log / spacing;
            let cell = position.floor();
            let share = libm::expm1((position - cell) * spacing) / whole;
            (cell as i64, if share < 1.0 { share } else { 1.0 })
        };
        let mut add =
            |xs: &[f64], from: i64, cell: i64, share: f64, ys: Option<&[f64]>, factor: f64| {
                // `from` is the index of the first of `xs` on the coarse grid.
                let start = (from - first) * refine + cell;
                let class = start.rem_euclid(refine) as usize;
                let start = usize::try_from(start.div_euclid(refine)).unwrap_or(0);
                let cells = lower.get_mut(class).and_then(|cells| cells.get_mut(start..));
                let others = upper.get_mut(class).and_then(|cells| cells.get_mut(start..));
                let (Some(lower), Some(upper)) = (cells, others) else { return };
                let (up, down) = (factor * share, factor * (1.0 - share));
                let ends = lower.iter_mut().zip(upper);
                match ys {
                    Some(ys) => {
                        for ((x, y), (lower, upper)) in xs.iter().zip(ys).zip(ends) {
                            let mass = x * y;
                            *lower += mass * down;
                            *upper += mass * up;
                        }
                    }
                    None => {
                        for (x, (lower, upper)) in xs.iter().zip(ends) {
                            *lower += x * down;
                            *upper += x * up;
                        }
                    }
                }
            };
        for shift in (if is_square { 0 } else { 1 - len_a })..len_b {
            let distance = (b.first - a.first + shift) as f64 * a.spacing;
            let (cell, share) = place(libm::log1p(share_b * libm::expm1(distance)));
            let (skip_a, skip_b) = ((-shift).max(0), shift.max(0));
            let xs = a.masses.get(skip_a as usize..).unwrap_or(&[]);
            let ys = b.masses.get(skip_b as usize..).unwrap_or(&[]);
            let factor = if is_square && shift > 0 { 2.0 } else { 1.0 };
            let count = xs.len().min(ys.len());
            let (xs, ys) = (xs.get(..count).unwrap_or(&[]), ys.get(..count).unwrap_or(&[]));
            add(xs, a.first + skip_a, cell, share, Some(ys), factor);
        }
        let mut zero = a.zero * b.zero;
        for (one, other, share) in [(a, b, share_a), (b, a, share_b)] {
            if other.zero == 0.0 {
                continue;
            }
            // The other one is 0. Points below the grid are split between its first point and 0.
            let (cell, part) = place(share.ln());
            let lowest = (cell.div_euclid(refine) - 1).min(0);
            let below = usize::try_from(first - (one.first + lowest)).unwrap_or(0);
            let below = below.min(one.masses.len());
            let (outside, inside) = one.masses.split_at(below);
            add(inside, one.first + below as i64, cell, part, None, other.zero);
            let lost: f64 = outside.iter().sum();
            // At most this much of the mean is lost; all of their mass is counted at 0 as well.
            zero += lost * other.zero;
            add(&[lost], first + 1, 0, 0.0, None, other.zero);
        }
        let shares = (0..width * classes)
            .map(|index| {
                let of = |cells: &[Vec<f64>]| {
                    let class = cells.get(index % classes);
                    class.and_then(|cells| cells.get(index / classes)).copied().unwrap_or(0.0)
                };
                (of(&lower), of(&upper))
            })
            .collect();
        // What underflows, at most the smallest number per product, may count up to the largest ratio.
        let largest = (last as f64 * a.spacing).exp();
        let lost = f64::MIN_POSITIVE * (len_a * len_b) as f64 * (1.0 + largest);
        let range =
            (last - first) as f64 * a.spacing + (first.abs().max(last.abs())) as f64 * a.spacing;
        Cells {
            first: first * refine,
            spacing,
            shares,
            zero: zero + lost,
            infinite: share_a * a.infinite + share_b * b.infinite + lost,
            rounds,
            loss_error: a.loss_error.max(b.loss_error) + 32.0 * UNIT * (1.0 + range),
            mass_error: a.mass_error + b.mass_error + ((len_a + len_b) as f64 + 16.0) * UNIT,
        }
    }

    /// Cuts the ends of the law, of probability `tail` (with the record, at the upper end) and `tail_low` (without it, at the
    /// lower end).
    fn trimmed(mut self, tail: f64, tail_low: f64, rounded: Rounded) -> Self {
        let ratio = |index: usize| ((self.first + index as i64) as f64 * self.spacing).exp();
        let (mut sum, mut skip) = (0.0, 0);
        for mass in &self.masses {
            sum += mass;
            if sum > tail_low {
                break;
            }
            skip += 1;
        }
        let (mut sum, mut keep) = (0.0, self.masses.len());
        for (index, mass) in self.masses.iter().enumerate().rev() {
            sum += mass * ratio(index);
            if sum > tail || keep <= skip + 1 {
                break;
            }
            keep = index;
        }
        let keep = keep.min(self.masses.len()).max(skip);
        if rounded == Rounded::Up {
            let (lowest, highest) = (ratio(skip), ratio(keep.saturating_sub(1)));
            let up = 1.0 + 1e-12;
            let below: f64 = self.masses.iter().take(skip).sum();
            let mean = self.masses.iter().enumerate().take(skip);
            let mean: f64 = mean.map(|(index, mass)| mass * ratio(index)).sum();
            let beyond = self.masses.iter().enumerate().skip(keep);
            let (above, excess) = beyond.fold((0.0, 0.0), |(above, excess), (index, mass)| {
                (above + mass, excess + mass * (ratio(index) - highest))
            });
            self.zero += below * up;
            self.infinite += excess * up;
            if let Some(mass) = self.masses.get_mut(skip) {
                *mass += mean / lowest * up;
            }
            if let Some(mass) = self.masses.get_mut(keep.saturating_sub(1)) {
                *mass += above * up;
            }
        }
        self.masses.truncate(keep);
        self.masses.drain(..skip.min(keep));
        self.first += skip as i64;
        self
    }

    /// An upper bound on delta at `epsilon` of an upper law.
    pub(crate) fn delta(&self, direction: Direction, epsilon: f64) -> f64 {
        let epsilon = epsilon - self.loss_error;
        let points = self.masses.iter().enumerate();
        let finite: f64 = points
            .map(|(index, mass)| {
                let loss = (self.first + index as i64) as f64 * self.spacing;
                match direction {
                    Direction::Remove if loss > epsilon => {
                        mass * loss.exp() * -libm::expm1(epsilon - loss)
                    }
                    Direction::Add if -loss > epsilon => mass * -libm::expm1(epsilon + loss),
                    Direction::Remove | Direction::Add => 0.0,
                }
            })
            .sum();
        let known = if direction == Direction::Remove { self.infinite } else { self.zero };
        finite * (1.0 + 2.0 * self.mass_error) + known
    }

    /// The smallest and the largest logarithm of X.
    pub(crate) fn range(&self) -> (f64, f64) {
        let last = self.first + self.masses.len() as i64 - 1;
        (self.first as f64 * self.spacing, last as f64 * self.spacing)
    }

    /// The law on the multiples of `step` with these indices, which ascend and enclose the range of the law: index and mass
    /// without the record.
    pub(crate) fn on_indices(
        &self,
        indices: &[i64],
        step: f64,
        rounded: Rounded,
    ) -> Vec<(i64, f64)> {
        let mut cells: Vec<(i64, i64, f64, f64)> = Vec::new();
        let mut position = 0;
        for (index, mass) in self.masses.iter().enumerate() {
            let loss = (self.first + index as i64) as f64 * self.spacing;
            while indices.get(position + 1).is_some_and(|next| *next as f64 * step <= loss) {
                position += 1;
            }
            let Some(low) = indices.get(position) else { continue };
            let high = *indices.get(position + 1).unwrap_or(&(low + 1));
            let (from, to) = (*low as f64 * step, high as f64 * step);
            let share = (libm::expm1(loss - from) / libm::expm1(to - from)).clamp(0.0, 1.0);
            match cells.last_mut() {
                Some((known, _, lower, upper)) if known == low => {
                    *lower += mass * (1.0 - share);
                    *upper += mass * share;
                }
                _ => cells.push((*low, high, mass * (1.0 - share), mass * share)),
            }
        }
        match rounded {
            Rounded::Up => {
                let mut atoms: Vec<(i64, f64)> = Vec::new();
                for (low, high, lower, upper) in cells {
                    match atoms.last_mut() {
                        Some((known, mass)) if *known == low => *mass += lower,
                        _ => atoms.push((low, lower)),
                    }
                    atoms.push((high, upper));
                }
                atoms
            }
            Rounded::Down => {
                let shares = cells.into_iter().map(|(low, _, lower, upper)| (low, lower, upper));
                merged(shares, step)
            }
        }
    }

    pub(crate) const fn zero(&self) -> f64 {
        self.zero
    }

    pub(crate) const fn infinite(&self) -> f64 {
        self.infinite
    }

    /// Upper bounds on the errors of log X and on the relative errors of masses.
    pub(crate) const fn errors(&self) -> (f64, f64) {
        (self.loss_error, self.mass_error)
    }
}

impl Cells {
    /// The law with the mass of every cell at grid points: split (up) or merged with that of others (down).
    fn rounded(self, rounded: Rounded) -> EpochLaw {
        let Self { first, spacing, zero, infinite, rounds, loss_error, mass_error, .. } = self;
        let mut masses = vec![0.0; self.shares.len() + 1];
        match rounded {
            Rounded::Up => {
                for (index, (lower, upper)) in self.shares.iter().enumerate() {
                    for (index, share) in [(index, lower), (index + 1, upper)] {
                        if let Some(mass) = masses.get_mut(index) {
                            *mass += share;
                        }
                    }
                }
            }
            Rounded::Down => {
                let shares = self.shares.iter().enumerate();
                let cells = shares.map(|(index, (lower, upper))| (index as i64, *lower, *upper));
                for (index, mass) in merged(cells, spacing) {
                    if let Some(slot) = masses.get_mut(index as usize) {
                        *slot += mass;
                    }
                }
            }
        }
        EpochLaw { first, spacing, masses, zero, infinite, rounds, loss_error, mass_error }
    }
}

/// Merges the masses of cells, given by index and the shares of both ends, so that each merged mass has its mean at a grid
/// point. Masses are taken upwards; what remains at the upper end is left out.
fn merged(cells: impl Iterator<Item = (i64, f64, f64)>, spacing: f64) -> Vec<(i64, f64)> {
    let (fall, growth) = (-libm::expm1(-spacing), libm::expm1(spacing));
    let mut merged: Vec<(i64, f64)> = Vec::new();
    // A grid point, the mass that is collected for it, and how much that lacks: the sum of `mass (1 - x/point)`.
    let mut collected: Option<(i64, f64, f64)> = None;
    for (index, lower, upper) in cells {
        let mass = lower + upper;
        if !(mass > 0.0) {
            continue;
        }
        let mut rest = 1.0;
        if let Some((point, sum, lacks)) = collected {
            let distance = (index - point) as f64 * spacing;
            let excess = mass * libm::expm1(distance) + upper * libm::exp(distance) * growth;
            if excess <= lacks {
                collected = Some((point, sum + mass, lacks - excess));
                continue;
            }
            let share = lacks / excess;
            merged.push((point, sum + share * mass));
            rest = 1.0 - share;
        }
        collected = Some(match upper * rest > 0.0 {
            true => (index + 1, mass * rest, lower * rest * fall),
            false => (index, mass * rest, 0.0),
        });
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pair::step_delta;
    use crate::{Sampled, Step};

    fn law(rounds: u64, z: f64, rounded: Rounded) -> Rc<EpochLaw> {
        EpochLaw::new(rounds, z, 1e-14, rounded).unwrap()
    }

    /// Both means are 1: the total probability without and with the record.
    #[test]
    fn laws_keep_mass_and_mean() {
        for (rounds, z) in [(1, 1.0), (2, 0.3), (7, 0.5), (100, 1.0), (1000, 2.0), (99_999, 0.8)] {
            for rounded in [Rounded::Up, Rounded::Down] {
                let law = law(rounds, z, rounded);
                let masses = law.masses.iter().enumerate();
                let ratio = |index: usize| ((law.first + index as i64) as f64 * law.spacing).exp();
                let total: f64 = law.masses.iter().sum::<f64>() + law.zero;
                let mean: f64 = masses.map(|(i, mass)| mass * ratio(i)).sum::<f64>() + law.infinite;
                let what = format!("{rounds} {z} {rounded:?}: {total} {mean} {:?}", law.errors());
                assert!((total - 1.0).abs() < 1e-9 && (mean - 1.0).abs() < 1e-6, "{what}");
                if rounded == Rounded::Up {
                    let least = 1.0 - law.mass_error;
                    assert!(total >= least && mean >= least, "{what}");
                }
                assert!(law.mass_error < 1e-6 && law.loss_error < 1e-10, "{what}");
            }
        }
    }

    /// The law of one round against the closed profile of a Gaussian, which shares no code with it.
    #[test]
    fn the_profile_of_one_round_is_that_of_a_gaussian() {
        for z in [0.4, 1.0, 3.0] {
            let gaussian = Step { sampled: Sampled::Always, z };
            for direction in [Direction::Remove, Direction::Add] {
                for epsilon in [0.0, 0.2, 1.0, 3.0] {
                    let exact = step_delta(gaussian, direction, epsilon);
                    let upper = law(1, z, Rounded::Up).delta(direction, epsilon);
                    let lower = law(1, z, Rounded::Down).delta(direction, epsilon);
                    let what = format!("{z} {direction:?} {epsilon}: {lower} {exact:?} {upper}");
                    assert!(lower <= exact.upper && exact.lower <= upper, "{what}");
                    // Up to the extreme outputs that laws leave out.
                    let is_tight =
                        upper < exact.upper * 1.001 + 1e-13 && lower > exact.lower * 0.99 - 1e-13;
                    assert!(is_tight, "{what}");
                }
            }
        }
    }

    /// Two rounds, by quadrature over both outputs.
    #[test]
    fn the_profile_of_two_rounds_is_enclosed() {
        let step = 0.01;
        let nodes: Vec<(f64, f64)> = (-1200..=1200)
            .map(|i| {
                let y = step * f64::from(i);
                (y, step * (-0.5 * y * y).exp() / (2.0 * std::f64::consts::PI).sqrt())
            })
            .collect();
        for (z, epsilon) in [(1.0f64, 0.5f64), (2.0, 0.2), (0.6, 1.5)] {
            let ratio = |y: f64| (y / z - 0.5 / (z * z)).exp();
            let (mut remove, mut add) = (0.0, 0.0);
            for (a, p) in &nodes {
                for (b, q) in &nodes {
                    let x = 0.5 * (ratio(*a) + ratio(*b));
                    remove += p * q * (x - epsilon.exp()).max(0.0);
                    add += p * q * (1.0 - epsilon.exp() * x).max(0.0);
                }
            }
            for (direction, exact) in [(Direction::Remove, remove), (Direction::Add, add)] {
                let upper = law(2, z, Rounded::Up).delta(direction, epsilon);
                let lower = law(2, z, Rounded::Down).delta(direction, epsilon);
                let what = format!("{z} {direction:?}: {lower} {exact} {upper}");
                assert!(lower <= exact * (1.0 + 1e-5) && exact <= upper * (1.0 + 1e-5), "{what}");
                assert!(upper < lower * 1.001, "{what}");
            }
        }
    }

    #[test]
    fn bounds_become_tighter_with_the_grid_and_never_cross() {
        for (rounds, z, epsilon) in
            [(7, 0.6, 2.0), (100, 1.0, 0.5), (1000, 0.8, 0.3), (37, 3.0, 0.1)]
        {
            for direction in [Direction::Remove, Direction::Add] {
                let delta = |rounded, points| {
                    let law = EpochLaw::compute(rounds, z, 1e-14, rounded, points).unwrap();
                    law.delta(direction, epsilon)
                };
                let sizes = [256, 512, 1024, 2048];
                let upper = sizes.map(|points| delta(Rounded::Up, points));
                let lower = sizes.map(|points| delta(Rounded::Down, points));
                let what = format!("{rounds} {z} {direction:?}: {lower:?} {upper:?}");
                assert!(upper.windows(2).all(|pair| pair[1] < pair[0] * (1.0 + 1e-6)), "{what}");
                assert!(
                    lower.iter().all(|below| upper.iter().all(|above| below < above)),
                    "{what}"
                );
                assert!(lower[0] < lower[3], "{what}");
            }
        }
    }

    #[test]
    fn merging_keeps_the_mean_and_only_lowers_convex_functions() {
        let spacing = 0.3;
        let cells = [(0, 0.1, 0.0), (1, 0.2, 0.3), (2, 0.0, 0.4), (5, 0.5, 0.1), (6, 0.01, 0.02)];
        let point = |index: i64| (index as f64 * spacing).exp();
        let ends = |(index, lower, upper): (i64, f64, f64)| [(index, lower), (index + 1, upper)];
        let before: Vec<(i64, f64)> = cells.into_iter().flat_map(ends).collect();
        let after = merged(cells.into_iter(), spacing);
        for level in [0.5, 1.0, 1.7, 3.0, 5.0] {
            let payoff = |atoms: &[(i64, f64)]| -> f64 {
                atoms.iter().map(|(i, mass)| mass * (point(*i) - level).max(0.0)).sum()
            };
            assert!(payoff(&after) <= payoff(&before) + 1e-15, "{level}");
        }
        let mass = |atoms: &[(i64, f64)]| atoms.iter().map(|(_, mass)| mass).sum::<f64>();
        // Only what is collected for a point above all masses is left out.
        assert!(mass(&after) <= mass(&before) && mass(&after) > 0.5 * mass(&before));
    }
}
