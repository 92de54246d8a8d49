//! Discretisation: the privacy loss distribution of one step on a grid, rounded up (connect-the-dots) for upper bounds
//! of delta and rounded down (merged outputs) for lower ones.

use crate::number::bisect;
use crate::pair::{Change, Direction, Pair, normal_mass};
use crate::{Sampled, Step};

/// Which way losses are moved to the grid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rounded {
    Up,
    Down,
}

/// A discretised privacy loss distribution: atoms at `index * step + offset`, and an atom at infinity.
///
/// # Guarantee
/// Rounded up: connect-the-dots (Doroshenko et al. 2022): the pair of distributions with these losses dominates
/// the step's pair, so that its hockey-stick divergences, also of any composition, are never smaller.
/// Rounding moves mass to larger losses.
/// Rounded down: `E (1 - e^{eps - L})_+` of the sum L of such losses, also of different steps, is never
/// larger than the profile. Rounding leaves mass out.
pub(crate) struct StepLoss {
    /// Grid index and mass, indices ascending.
    pub(crate) atoms: Vec<(i64, f64)>,
    pub(crate) infinite: f64,
    /// Every loss is this much larger than its multiple of the grid step.
    pub(crate) offset: f64,
}

impl StepLoss {
    /// The loss of a step on multiples of `grid`; beyond a tail of probability about `tail` the loss
    /// counts as infinite.
    pub(crate) fn new(
        step: Step,
        direction: Direction,
        grid: f64,
        tail: f64,
        density: i64,
        rounded: Rounded,
    ) -> Self {
        let dominating = DominatingPair::new(step, direction);
        let grid = Grid { step: grid, density, centre: dominating.bulk() };
        match (rounded, &dominating) {
            (Rounded::Up, DominatingPair::Fixed { remove, add, .. }) => {
                Self::fixed(remove, add, grid, tail).checked()
            }
            (Rounded::Up, DominatingPair::Pair(pair)) => {
                let (from, to) = pair.range(reach_of(tail), tail);
                Self::between(pair, grid, grid.below(from), grid.above(to))
                    .above(pair, grid)
                    .checked()
            }
            (Rounded::Down, dominating) => Self::merged(dominating, grid, tail),
        }
    }

    /// Outputs are merged into cells, one around each grid point, and the cells' losses, if they are not
    /// on the grid, moved down to it: neither makes a divergence of any composition larger. What lies
    /// below the first is left out.
    ///
    /// A first cell defines where the grid lies, so its loss is not moved at all. From there on, up and down, every
    /// cell ends where its loss is that of its point.
    fn merged(dominating: &DominatingPair, grid: Grid, tail: f64) -> Self {
        let (from, to) = dominating.range(reach_of(tail), tail);
        let (low, high) = dominating.first(grid);
        let Some((loss, mass)) = dominating.merged(low, high, grid.step) else {
            // Nothing is certain, so nothing is claimed.
            return Self { atoms: Vec::new(), infinite: 0.0, offset: 0.0 };
        };
        let home = (loss / grid.step).round().clamp(-Grid::LAST, Grid::LAST) as i64;
        let loss_at = |index: i64| index as f64 * grid.step;
        let offset = loss - loss_at(home);
        let grid = Grid { centre: loss_at(home), ..grid };
        let first = grid.below(from).min(home - 1);
        let indices = grid.indices(first, grid.above(to).max(home + 1));
        let (below, others) = indices.split_at(indices.partition_point(|index| *index < home));
        let mut atoms = vec![(home, mass)];
        // Upwards: from the end of the cell before to where the loss reaches the point, beyond other points
        // where masses fall fast.
        let mut edge = high;
        let mut points = others.iter().skip(1).peekable();
        while let Some(index) = points.next() {
            let loss = loss_at(*index) + offset;
            if loss < edge {
                continue;
            }
            let Some(next) = points.peek() else {
                push(&mut atoms, *index, dominating.part(loss, f64::INFINITY, loss));
                break;
            };
            let end = dominating.end(edge, loss, loss_at(*next - *index));
            let cell = dominating.part(edge, end, loss);
            if cell.excess >= 0.0 {
                push(&mut atoms, *index, cell);
                edge = end;
                continue;
            }
            // Too little lies above the point: what lies below it moves to the one before.
            if let Some((before, mass)) = atoms.last_mut()
                && edge - (loss_at(*before) + offset) > 1e-6 * grid.step
            {
                *mass += dominating.part(edge, loss, loss).mass.max(0.0);
            }
            edge = loss;
        }
        // Downwards: to where the loss reaches the point, from the begin of the cell above.
        let mut edge = low;
        let mut points = below.iter().rev().peekable();
        let mut lower = Vec::new();
        while let Some(index) = points.next() {
            let loss = loss_at(*index) + offset;
            if loss >= edge {
                continue;
            }
            let begin = match points.peek() {
                Some(next) => dominating.begin(edge, loss, loss_at(*index - **next)),
                None => loss,
            };
            push(&mut lower, *index, dominating.part(begin, edge, loss));
            edge = begin;
        }
        lower.reverse();
        lower.extend(atoms);
        lower.retain(|(_, mass)| *mass > 0.0);
        Self { atoms: lower, infinite: 0.0, offset }
    }

    fn fixed(above: &Pair, below: &Pair, grid: Grid, tail: f64) -> Self {
        let (q, z, reach) = (above.q, above.z, reach_of(tail));
        let highest = grid.above(above.range(reach, tail).1);
        let lowest = grid.below(below.range(reach, tail).0);
        let mut upper = Self::between(above, grid, 0, highest).above(above, grid);
        let lower = Self::between(below, grid, lowest, 0);
        // This half was given the other's side at zero.
        let mass_above = above.mass_below(above.output(&0.0.into())).up();
        if let Some(zero) = upper.atoms.first_mut() {
            zero.1 -= mass_above;
        }
        let rest = (1.0 - q) * normal_mass(-0.5 / z, 0.5 / z, 0.0).up();
        let mut atoms = lower.atoms;
        let zero = atoms.pop().map_or(0.0, |(_, mass)| mass);
        let mut others = upper.atoms.into_iter();
        let first = others.next().map_or(0.0, |(_, mass)| mass);
        atoms.push((0, zero + first + rest + 1e-15));
        atoms.extend(others);
        Self { atoms, infinite: upper.infinite, offset: 0.0 }
    }

    /// The atoms of a pair at grid points from `first` to `last`: all below counts as at the first; what lies
    /// above is left out.
    fn between(pair: &Pair, grid: Grid, first: i64, last: i64) -> Self {
        let indices = grid.indices(first, last);
        let grid = grid.step;
        let mut atoms: Vec<(i64, f64)> = indices.iter().map(|index| (*index, 0.0)).collect();
        let mut below = pair.output(&(first as f64 * grid).into());
        let lowest = pair.mass_below(below);
        if let Some(first) = atoms.first_mut() {
            first.1 += lowest.up();
        }
        let mut rest = atoms.as_mut_slice();
        while let [lower, others @ ..] = rest
            && let Some(upper) = others.first_mut()
        {
            let (low, high) = (lower.0 as f64 * grid, upper.0 as f64 * grid);
            let above = pair.output(&high.into());
            let (up, total) = pair.split(below, above, low, high - low);
            upper.1 += up;
            lower.1 += total - up;
            below = above;
            rest = others;
        }
        Self { atoms, infinite: 0.0, offset: 0.0 }
    }

    /// With all outputs above the last atom, divided between it and infinity so that both distributions keep their
    /// mass.
    fn above(mut self, pair: &Pair, grid: Grid) -> Self {
        if let Some((last, mass)) = self.atoms.last_mut() {
            let loss = *last as f64 * grid.step;
            let (infinite, total) =
                pair.split(pair.output(&loss.into()), pair.highest(), loss, f64::INFINITY);
            *mass += total - infinite;
            self.infinite = infinite;
        }
        self
    }

    /// Masses are rounded up, so less than 1 in all, or NaN, means that something was lost: then
    /// nothing is certain, and all loss counts as infinite.
    fn checked(mut self) -> Self {
        let total = self.infinite + self.atoms.iter().map(|(_, mass)| mass).sum::<f64>();
        if !(total >= 1.0 - 1e-11) {
            self.infinite = 1.0;
        }
        self.atoms.retain(|(_, mass)| *mass > 0.0);
        self
    }
}

/// Multiples of a step: every one near the centre, where most of the mass of a small sampling rate lies,
/// then ever fewer, in proportion to the distance. (Any choice is sound; this one is nearly as tight as
/// all of them.)
#[derive(Clone, Copy)]
struct Grid {
    step: f64,
    density: i64,
    centre: f64,
}

impl Grid {
    /// Indices stay where an f64 is exact; losses beyond count as infinite or as the first.
    const LAST: f64 = 9e15;

    fn below(&self, loss: f64) -> i64 {
        (loss / self.step).floor().clamp(-Self::LAST, Self::LAST) as i64
    }

    fn above(&self, loss: f64) -> i64 {
        (loss / self.step).ceil().clamp(-Self::LAST, Self::LAST) as i64
    }

    fn home(&self) -> i64 {
        (self.centre / self.step).round().clamp(-Self::LAST, Self::LAST) as i64
    }

    fn indices(&self, first: i64, last: i64) -> Vec<i64> {
        let home = self.home();
        let mut indices = Vec::new();
        let mut index = first;
        while index < last {
            indices.push(index);
            let stride = ((index - home).abs() / self.density).max(1);
            // Strides shrink towards the centre so that no cell crosses it.
            let next = index.saturating_add(stride);
            index = if index < home && next > home { home } else { next };
        }
        indices.push(last);
        indices
    }
}

/// The pair of distributions that dominates a step.
enum DominatingPair {
    /// A Gaussian, Poisson-sampled or not.
    Pair(Pair),
    /// The pair that dominates a fixed-size sample (docs/accounting.md): losses above zero are those of
    /// removal, losses below zero those of addition, and the rest is at zero.
    Fixed { remove: Pair, add: Pair, rest: f64 },
}

/// Adds a cell at a point, if its loss is certainly not below that.
fn push(atoms: &mut Vec<(i64, f64)>, index: i64, cell: CellMass) {
    atoms.push((index, if cell.excess >= 0.0 { cell.mass } else { 0.0 }));
}

/// The probability of a cell of outputs under both distributions P and Q.
struct CellMass {
    /// A lower bound of its probability under P.
    mass: f64,
    /// A lower bound of `P - e^loss Q`: if it is not negative, the merged cell has at least this `loss`.
    excess: f64,
}

impl DominatingPair {
    fn new(step: Step, direction: Direction) -> Self {
        let Sampled::FixedReplaced(q) = step.sampled else {
            return Self::Pair(Pair::new(step, direction));
        };
        let pair = |change| Pair { q, z: step.z, change };
        let kink = 0.5 / step.z;
        let rest = (1.0 - q) * normal_mass(-kink, kink, 0.0).down();
        Self::Fixed { remove: pair(Change::Remove), add: pair(Change::Add), rest }
    }

    fn range(&self, reach: f64, tail: f64) -> (f64, f64) {
        match self {
            Self::Pair(pair) => pair.range(reach, tail),
            Self::Fixed { remove, add, .. } => {
                (add.range(reach, tail).0, remove.range(reach, tail).1)
            }
        }
    }

    fn bulk(&self) -> f64 {
        match self {
            Self::Pair(pair) => pair.bulk(),
            Self::Fixed { .. } => 0.0,
        }
    }

    /// The cell from which the others are built: at the end where losses are dense, if there is one, else
    /// around the bulk.
    fn first(&self, grid: Grid) -> (f64, f64) {
        // A standard normal output is below this with probability 1e-3.
        const QUANTILE: f64 = -3.1;
        match self {
            Self::Pair(pair) if pair.q < 1.0 && pair.change == Change::Remove => {
                let bottom = libm::log1p(-pair.q) + 0.5 * grid.step;
                (f64::NEG_INFINITY, pair.loss(QUANTILE).max(bottom))
            }
            Self::Pair(pair) if pair.q < 1.0 && pair.change == Change::Add => {
                let top = -libm::log1p(-pair.q) - 0.5 * grid.step;
                (pair.loss(QUANTILE).min(top), f64::INFINITY)
            }
            _ => {
                let home = (self.bulk() / grid.step).round();
                ((home - 0.5) * grid.step, (home + 0.5) * grid.step)
            }
        }
    }

    /// At most the loss of the cell `[low, high)` as a whole, and its mass.
    fn merged(&self, low: f64, high: f64, step: f64) -> Option<(f64, f64)> {
        let near = if low.is_finite() { low } else { high };
        let CellMass { mass, excess } = self.part(low, high, near);
        // The log of P/Q is near - log(1 - (P - e^near Q)/P); a little less for rounding.
        let mut loss = near - libm::log1p(-excess / mass);
        let mut less = 1e-12 * step;
        while !(self.part(low, high, loss).excess >= 0.0) {
            loss -= less;
            less *= 4.0;
            if !(less < step) {
                return None;
            }
        }
        (loss.is_finite() && mass > 0.0).then_some((loss, mass))
    }

    /// The end, above `loss`, of a cell that begins at `from` and has this loss, or a little more.
    fn end(&self, from: f64, loss: f64, step: f64) -> f64 {
        // As far above as it begins below, if the density were constant; then by Newton's method.
        let mut end = 2.0 * loss - from;
        for _ in 0..4 {
            let CellMass { mass, excess } = self.part(from, end, loss);
            let slope = mass / (end - from) * (end - loss).max(0.01 * (loss - from));
            if excess >= 0.0 && excess <= slope * 1e-3 * (loss - from) {
                return end;
            }
            // Overshoot a little: a cell that ends too early has a loss below its point and cannot be used.
            let next = end - (excess / slope) + 1e-4 * (loss - from);
            if !(next < loss + 2.0 * step) {
                break;
            }
            end = next.max(loss);
        }
        // Where masses fall fast, a wider cell.
        let enough = |end: f64| self.part(from, end, loss).excess >= 0.0;
        let (mut low, mut high) = (loss, end.max(loss + 0.5 * step));
        for _ in 0..10 {
            if enough(high) {
                break;
            }
            (low, high) = (high, loss + 1.5 * (high - loss));
        }
        bisect((low, high), 8, |end| !enough(end)).1
    }

    /// The begin, below `loss`, of a cell that ends at `to` and has this loss, or a little more.
    fn begin(&self, to: f64, loss: f64, step: f64) -> f64 {
        let mut begin = 2.0 * loss - to;
        for _ in 0..4 {
            let CellMass { mass, excess } = self.part(begin, to, loss);
            let slope = mass / (to - begin) * (loss - begin).max(0.01 * (to - loss));
            if excess >= 0.0 && excess <= slope * 1e-3 * (to - loss) {
                return begin;
            }
            let next = begin - (excess / slope) + 1e-4 * (to - loss);
            if !(next > loss - 2.0 * step) {
                break;
            }
            begin = next.min(loss);
        }
        // Where masses fall fast, a wider cell; where there are none, all of it.
        let enough = |begin: f64| self.part(begin, to, loss).excess >= 0.0;
        let (mut low, mut high) = (begin.min(loss - 0.5 * step), loss);
        for _ in 0..60 {
            if !enough(low) {
                break;
            }
            (high, low) = (low, loss - 1.5 * (loss - low));
        }
        bisect((low, high), 8, |begin| !enough(begin)).1
    }

    /// The outputs with losses in `[from, to)`, compared at `loss`.
    fn part(&self, from: f64, to: f64, loss: f64) -> CellMass {
        let part = |pair: &Pair, from: f64, to: f64| {
            let (a, b) = (pair.output(&from.into()), pair.output(&to.into()));
            let masses = pair.masses(a.min(b), a.max(b));
            let (excess, rounding) = pair.difference(masses, &loss.into());
            CellMass { mass: pair.mass(masses).down(), excess: excess - rounding }
        };
        match self {
            Self::Pair(pair) => part(pair, from, to),
            Self::Fixed { remove, .. } if from >= 0.0 => part(remove, from, to),
            Self::Fixed { add, .. } if to <= 0.0 => part(add, from, to),
            Self::Fixed { remove, add, rest } => {
                let (below, above) = (part(add, from, 0.0), part(remove, 0.0, to));
                // At zero both neighbours have the same mass.
                let excess = below.excess + above.excess - libm::expm1(loss) * rest;
                CellMass { mass: below.mass + above.mass + rest, excess }
            }
        }
    }
}

/// A distance beyond which a standard normal variable lies with probability at most `tail`.
fn reach_of(tail: f64) -> f64 {
    // P(y > r) <= exp(-r^2/2)/2 for r >= 0.
    (-2.0 * (2.0 * tail).ln()).max(1.0).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn losses(sampled: Sampled, z: f64, grid: f64) -> [StepLoss; 2] {
        [Direction::Remove, Direction::Add].map(|direction| {
            StepLoss::new(Step { sampled, z }, direction, grid, 1e-20, 512, Rounded::Up)
        })
    }

    /// Both distributions keep their mass: the other one's is E e^-L.
    #[test]
    fn the_masses_of_both_neighbours_are_kept() {
        for (q, z, grid) in
            [(0.01, 1.0, 1e-3), (1e-6, 0.5, 1e-5), (0.5, 3.0, 1e-2), (0.9, 0.2, 0.1)]
        {
            for loss in losses(Sampled::Poisson(q), z, grid) {
                let total: f64 = loss.atoms.iter().map(|(_, mass)| mass).sum();
                assert!((total + loss.infinite - 1.0).abs() < 1e-9, "{q} {z} {total}");
                let other: f64 =
                    loss.atoms.iter().map(|(i, mass)| mass * (-(*i as f64) * grid).exp()).sum();
                assert!((other - 1.0).abs() < 1e-6, "{q} {z} {other}");
            }
        }
    }

    #[test]
    fn what_cannot_be_computed_counts_as_infinite_loss() {
        for loss in losses(Sampled::Poisson(0.5), f64::NAN, 1e-3) {
            assert_eq!(loss.infinite, 1.0);
        }
        // Almost no noise: whoever is there, half of the time, is seen.
        let [remove, _] = losses(Sampled::Poisson(0.5), 1e-200, 1e300);
        assert!((remove.infinite - 0.5).abs() < 1e-12);
    }
}
