//! Discretisation: the privacy loss distribution of one step on a grid, rounded up (connect-the-dots) for upper bounds
//! on delta and rounded down (merged outputs) for lower bounds.

use crate::number::bisect;
use crate::pair::{Change, Direction, Pair, normal_mass};
use crate::{Sampled, Step};

/// The direction in which losses are rounded to the grid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rounded {
    Up,
    Down,
}

/// A discretised privacy loss distribution: atoms at `index * step + offset`, and an atom at infinity.
///
/// # Guarantee
/// Rounded up, by connect-the-dots (Doroshenko et al. 2022): the pair of distributions with these losses dominates the pair
/// of the step, so that the hockey-stick divergences of any composition are upper bounds. Floating-point errors only move
/// mass to larger losses.
/// Rounded down: for the sum L of such losses over any steps, `E (1 - e^{eps - L})_+` is a lower bound on the profile.
/// Floating-point errors only remove mass.
pub(crate) struct StepLoss {
    /// Grid index and mass, indices ascending.
    pub(crate) atoms: Vec<(i64, f64)>,
    pub(crate) infinite: f64,
    /// A constant that is added to every finite loss.
    pub(crate) offset: f64,
}

impl StepLoss {
    /// The loss distribution of a step on multiples of `grid`; the largest losses, of probability about `tail`, count as
    /// infinite.
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
                Self::fixed_size(remove, add, grid, tail).checked()
            }
            (Rounded::Up, DominatingPair::Pair(pair)) => {
                let (from, to) = pair.range(normal_reach(tail), tail);
                Self::between(pair, grid, grid.index_below(from), grid.index_above(to))
                    .with_outputs_above(pair, grid)
                    .checked()
            }
            (Rounded::Down, dominating) => Self::merged(dominating, grid, tail),
        }
    }

    /// Merges outputs into cells, one around each grid point, and moves the loss of each cell down to its point: neither
    /// increases a divergence of any composition. Outputs below the lowest cell are left out.
    ///
    /// The loss of the first cell defines the offset of the grid. All other cells, upwards and downwards from there, end where
    /// their loss equals that of their grid point.
    fn merged(dominating: &DominatingPair, grid: Grid, tail: f64) -> Self {
        let (from, to) = dominating.range(normal_reach(tail), tail);
        let (low, high) = dominating.first_cell(grid);
        let Some((loss, mass)) = dominating.merged(low, high, grid.step) else {
            // An empty distribution gives the lower bound 0.
            return Self { atoms: Vec::new(), infinite: 0.0, offset: 0.0 };
        };
        let centre = (loss / grid.step).round().clamp(-Grid::LAST, Grid::LAST) as i64;
        let loss_at = |index: i64| index as f64 * grid.step;
        let offset = loss - loss_at(centre);
        let grid = Grid { centre: loss_at(centre), ..grid };
        let first = grid.index_below(from).min(centre - 1);
        let indices = grid.indices(first, grid.index_above(to).max(centre + 1));
        let (below, others) = indices.split_at(indices.partition_point(|index| *index < centre));
        let mut atoms = vec![(centre, mass)];
        // Upwards: each cell begins at the end of the one before and ends where its loss reaches its grid point. Where masses
        // fall fast, that end may lie beyond further points, which are skipped.
        let mut edge = high;
        let mut points = others.iter().skip(1).peekable();
        while let Some(index) = points.next() {
            let loss = loss_at(*index) + offset;
            if loss < edge {
                continue;
            }
            let Some(next) = points.peek() else {
                push_cell(&mut atoms, *index, dominating.cell_mass(loss, f64::INFINITY, loss));
                break;
            };
            let end = dominating.cell_end(edge, loss, loss_at(*next - *index));
            let cell = dominating.cell_mass(edge, end, loss);
            if cell.excess >= 0.0 {
                push_cell(&mut atoms, *index, cell);
                edge = end;
                continue;
            }
            // Too little mass lies above the point: the mass below it goes to the previous point.
            if let Some((previous, mass)) = atoms.last_mut()
                && edge - (loss_at(*previous) + offset) > 1e-6 * grid.step
            {
                *mass += dominating.cell_mass(edge, loss, loss).mass.max(0.0);
            }
            edge = loss;
        }
        // Downwards: each cell ends at the begin of the one above and begins where its loss reaches its grid point.
        let mut edge = low;
        let mut points = below.iter().rev().peekable();
        let mut lower = Vec::new();
        while let Some(index) = points.next() {
            let loss = loss_at(*index) + offset;
            if loss >= edge {
                continue;
            }
            let begin = match points.peek() {
                Some(next) => dominating.cell_begin(edge, loss, loss_at(*index - **next)),
                None => loss,
            };
            push_cell(&mut lower, *index, dominating.cell_mass(begin, edge, loss));
            edge = begin;
        }
        lower.reverse();
        lower.extend(atoms);
        lower.retain(|(_, mass)| *mass > 0.0);
        Self { atoms: lower, infinite: 0.0, offset }
    }

    /// A fixed-size sample, rounded up: losses above 0 are those of `above`, losses below 0 those of `below`, and the rest is
    /// at 0.
    fn fixed_size(above: &Pair, below: &Pair, grid: Grid, tail: f64) -> Self {
        let (q, z, reach) = (above.q, above.z, normal_reach(tail));
        let highest = grid.index_above(above.range(reach, tail).1);
        let lowest = grid.index_below(below.range(reach, tail).0);
        let mut upper = Self::between(above, grid, 0, highest).with_outputs_above(above, grid);
        let lower = Self::between(below, grid, lowest, 0);
        // `between` put the outputs with losses below 0 at 0; the other half has them.
        let mass_below = above.mass_below(above.output(&0.0.into())).up();
        if let Some(zero) = upper.atoms.first_mut() {
            zero.1 -= mass_below;
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

    /// The atoms of a pair at grid points from `first` to `last`. All losses below the first count as there; those above the
    /// last are left out.
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

    /// Adds the outputs above the last atom, divided between it and infinity so that both distributions keep their mass.
    fn with_outputs_above(mut self, pair: &Pair, grid: Grid) -> Self {
        if let Some((last, mass)) = self.atoms.last_mut() {
            let loss = *last as f64 * grid.step;
            let (infinite, total) =
                pair.split(pair.output(&loss.into()), pair.highest(), loss, f64::INFINITY);
            *mass += total - infinite;
            self.infinite = infinite;
        }
        self
    }

    /// Masses are rounded up, so a total below 1 or NaN means that mass was lost: then the whole loss counts as infinite.
    fn checked(mut self) -> Self {
        let total = self.infinite + self.atoms.iter().map(|(_, mass)| mass).sum::<f64>();
        if !(total >= 1.0 - 1e-11) {
            self.infinite = 1.0;
        }
        self.atoms.retain(|(_, mass)| *mass > 0.0);
        self
    }
}

/// A grid of multiples of a step: all of them near the centre, where a step with a small sampling rate has most of its mass,
/// and with a spacing in proportion to the distance further out. Any choice is sound; this one is nearly as tight as all
/// multiples.
#[derive(Clone, Copy)]
struct Grid {
    step: f64,
    density: i64,
    centre: f64,
}

impl Grid {
    /// Indices stay in the range where an f64 is exact.
    const LAST: f64 = 9e15;

    fn index_below(&self, loss: f64) -> i64 {
        (loss / self.step).floor().clamp(-Self::LAST, Self::LAST) as i64
    }

    fn index_above(&self, loss: f64) -> i64 {
        (loss / self.step).ceil().clamp(-Self::LAST, Self::LAST) as i64
    }

    fn centre_index(&self) -> i64 {
        (self.centre / self.step).round().clamp(-Self::LAST, Self::LAST) as i64
    }

    fn indices(&self, first: i64, last: i64) -> Vec<i64> {
        let centre = self.centre_index();
        let mut indices = Vec::new();
        let mut index = first;
        while index < last {
            indices.push(index);
            let stride = ((index - centre).abs() / self.density).max(1);
            // No cell crosses the centre.
            let next = index.saturating_add(stride);
            index = if index < centre && next > centre { centre } else { next };
        }
        indices.push(last);
        indices
    }
}

/// The pair of distributions that dominates a step.
enum DominatingPair {
    /// A Gaussian, Poisson-sampled or not.
    Pair(Pair),
    /// A fixed-size sample (docs/accounting.md): losses above zero are those of removal, losses below zero those of addition,
    /// and the rest is at zero.
    Fixed { remove: Pair, add: Pair, rest: f64 },
}

/// Adds the mass of a cell at a grid point; no mass if the loss of the cell may be below that of the point.
fn push_cell(atoms: &mut Vec<(i64, f64)>, index: i64, cell: CellMass) {
    atoms.push((index, if cell.excess >= 0.0 { cell.mass } else { 0.0 }));
}

/// The probability of a cell of outputs under both distributions P and Q.
struct CellMass {
    /// A lower bound on its probability under P.
    mass: f64,
    /// A lower bound on `P - e^loss Q`: if it is not negative, the merged cell has at least this `loss`.
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

    /// The losses of the first cell, from which the others are built: at the end where losses are dense, if there is one,
    /// else around the bulk.
    fn first_cell(&self, grid: Grid) -> (f64, f64) {
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
                let centre = (self.bulk() / grid.step).round();
                ((centre - 0.5) * grid.step, (centre + 0.5) * grid.step)
            }
        }
    }

    /// A lower bound on the loss of the merged cell `[low, high)`, and its mass.
    fn merged(&self, low: f64, high: f64, step: f64) -> Option<(f64, f64)> {
        let near = if low.is_finite() { low } else { high };
        let CellMass { mass, excess } = self.cell_mass(low, high, near);
        // The log of P/Q is near - log(1 - (P - e^near Q)/P); then lowered until the bound holds despite rounding.
        let mut loss = near - libm::log1p(-excess / mass);
        let mut decrement = 1e-12 * step;
        while !(self.cell_mass(low, high, loss).excess >= 0.0) {
            loss -= decrement;
            decrement *= 4.0;
            if !(decrement < step) {
                return None;
            }
        }
        (loss.is_finite() && mass > 0.0).then_some((loss, mass))
    }

    /// The end, above `loss`, of a cell that begins at `from` and whose loss is `loss` or slightly more.
    fn cell_end(&self, from: f64, loss: f64, step: f64) -> f64 {
        // Symmetric around `loss`, as for a constant density; then Newton's method.
        let mut end = 2.0 * loss - from;
        for _ in 0..4 {
            let CellMass { mass, excess } = self.cell_mass(from, end, loss);
            let slope = mass / (end - from) * (end - loss).max(0.01 * (loss - from));
            if excess >= 0.0 && excess <= slope * 1e-3 * (loss - from) {
                return end;
            }
            // Overshoots a little: a cell that ends too early has a loss below its point and is useless.
            let next = end - (excess / slope) + 1e-4 * (loss - from);
            if !(next < loss + 2.0 * step) {
                break;
            }
            end = next.max(loss);
        }
        // Newton's method fails where masses fall fast: widens the cell and bisects.
        let is_valid = |end: f64| self.cell_mass(from, end, loss).excess >= 0.0;
        let (mut low, mut high) = (loss, end.max(loss + 0.5 * step));
        for _ in 0..10 {
            if is_valid(high) {
                break;
            }
            (low, high) = (high, loss + 1.5 * (high - loss));
        }
        bisect((low, high), 8, |end| !is_valid(end)).1
    }

    /// The begin, below `loss`, of a cell that ends at `to` and whose loss is `loss` or slightly more.
    fn cell_begin(&self, to: f64, loss: f64, step: f64) -> f64 {
        let mut begin = 2.0 * loss - to;
        for _ in 0..4 {
            let CellMass { mass, excess } = self.cell_mass(begin, to, loss);
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
        // The same fallback; where there is no more mass, the cell extends far down.
        let is_valid = |begin: f64| self.cell_mass(begin, to, loss).excess >= 0.0;
        let (mut low, mut high) = (begin.min(loss - 0.5 * step), loss);
        for _ in 0..60 {
            if !is_valid(low) {
                break;
            }
            (high, low) = (low, loss - 1.5 * (loss - low));
        }
        bisect((low, high), 8, |begin| !is_valid(begin)).1
    }

    /// The mass of the outputs with losses in `[from, to)`, and their excess at `loss`.
    fn cell_mass(&self, from: f64, to: f64, loss: f64) -> CellMass {
        let of_pair = |pair: &Pair, from: f64, to: f64| {
            let (a, b) = (pair.output(&from.into()), pair.output(&to.into()));
            let masses = pair.masses(a.min(b), a.max(b));
            let (excess, rounding) = pair.difference(masses, &loss.into());
            CellMass { mass: pair.mass(masses).down(), excess: excess - rounding }
        };
        match self {
            Self::Pair(pair) => of_pair(pair, from, to),
            Self::Fixed { remove, .. } if from >= 0.0 => of_pair(remove, from, to),
            Self::Fixed { add, .. } if to <= 0.0 => of_pair(add, from, to),
            Self::Fixed { remove, add, rest } => {
                let (below, above) = (of_pair(add, from, 0.0), of_pair(remove, 0.0, to));
                // P and Q have the same mass at loss 0.
                let excess = below.excess + above.excess - libm::expm1(loss) * rest;
                CellMass { mass: below.mass + above.mass + rest, excess }
            }
        }
    }
}

/// A distance that a standard normal variable exceeds with probability at most `tail`.
fn normal_reach(tail: f64) -> f64 {
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

    /// The mass of the other distribution is E e^-L.
    #[test]
    fn both_distributions_keep_their_mass() {
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
    fn a_loss_that_cannot_be_computed_counts_as_infinite() {
        for loss in losses(Sampled::Poisson(0.5), f64::NAN, 1e-3) {
            assert_eq!(loss.infinite, 1.0);
        }
        // Almost no noise: a record is recognised whenever it is sampled, half of the time.
        let [remove, _] = losses(Sampled::Poisson(0.5), 1e-200, 1e300);
        assert!((remove.infinite - 0.5).abs() < 1e-12);
    }
}
