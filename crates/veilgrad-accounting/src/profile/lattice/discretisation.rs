//! Discretisation: the privacy loss distribution of one step on a grid, rounded up (connect-the-dots) for upper bounds
//! on delta and rounded down (merged outputs) for lower bounds.

use super::dominating::{CellMass, DominatingPair, Epoch};
use super::grid::{Grid, Rounded};
use crate::number::UNIT;
use crate::pair::{Direction, OutputPair, Pair, normal_mass};

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
        dominating: &DominatingPair,
        grid: f64,
        tail: f64,
        density: i64,
        rounded: Rounded,
    ) -> Self {
        let grid = Grid { step: grid, density, centre: dominating.bulk() };
        match (rounded, dominating) {
            (Rounded::Up, DominatingPair::Fixed { remove, add, .. }) => {
                Self::fixed_size(remove, add, grid, tail).checked()
            }
            (Rounded::Up, DominatingPair::Pair(pair)) => Self::connected(pair, grid, tail),
            (Rounded::Up, DominatingPair::Group(pair)) => {
                Self { offset: pair.loss_error(), ..Self::connected(pair, grid, tail) }
            }
            (_, DominatingPair::Epoch(epoch)) => Self::of_epoch(epoch, grid, rounded),
            (Rounded::Up, DominatingPair::Mixture(mixture)) => {
                let part = |(weight, pair): &(f64, DominatingPair)| {
                    let Grid { step, density, .. } = grid;
                    (*weight, Self::new(pair, step, tail, density, rounded))
                };
                Self::mixed(mixture.parts.iter().map(part).collect(), mixture.rest, grid.step)
                    .checked()
            }
            (Rounded::Down, DominatingPair::Mixture(mixture)) => {
                let (weights, rest) = &mixture.least;
                let part = |(weight, (_, pair)): (&f64, &(f64, DominatingPair))| {
                    (*weight, Self::new(pair, grid.step, tail, density, rounded))
                };
                let parts = weights.iter().zip(&mixture.parts).map(part).collect();
                Self::mixed(parts, *rest, grid.step)
            }
            (Rounded::Down, dominating) => {
                let merged = Self::merged(dominating, grid, tail);
                let error = match dominating {
                    DominatingPair::Group(pair) => pair.loss_error(),
                    _ => 0.0,
                };
                Self { offset: merged.offset - error, ..merged }
            }
        }
    }

    /// Connect-the-dots for a pair whose loss is monotone in its output.
    fn connected(pair: &impl OutputPair, grid: Grid, tail: f64) -> Self {
        let (from, to) = pair.range(normal_reach(tail), tail);
        Self::between(pair, grid, grid.index_below(from), grid.index_above(to))
            .with_outputs_above(pair, grid)
            .checked()
    }

    /// An epoch of random allocation: losses are logs of its likelihood ratio, or minus them.
    fn of_epoch(epoch: &Epoch, grid: Grid, rounded: Rounded) -> Self {
        let none = || Self { atoms: Vec::new(), infinite: 0.0, offset: 0.0 };
        let law = match rounded {
            Rounded::Up => Some(&epoch.upper),
            Rounded::Down => epoch.lower.as_ref(),
        };
        let Some(law) = law else { return none() };
        let (low, high) = law.range();
        let (first, last) = (grid.index_below(low) - 1, grid.index_above(high) + 1);
        // A lower law needs equal distances, and far fewer points than an index could hold.
        if rounded == Rounded::Down && (last - first) as f64 > MOST_MERGED {
            return none();
        }
        let indices = match rounded {
            Rounded::Up => grid.indices(first, last),
            Rounded::Down => (first..=last).collect(),
        };
        let (loss_error, mass_error) = law.errors();
        let loss_error = loss_error + 64.0 * UNIT * (1.0 + low.abs() + high.abs());
        let side = if rounded == Rounded::Up { 1.0 } else { -1.0 };
        let scale = 1.0 + side * (2.0 * mass_error + loss_error + 1e-14);
        let atoms = law.on_indices(&indices, grid.step, rounded);
        let infinite = match (rounded, epoch.direction) {
            (Rounded::Up, Direction::Remove) => law.infinite(),
            (Rounded::Up, Direction::Add) => law.zero(),
            (Rounded::Down, _) => 0.0,
        };
        let mut atoms: Vec<(i64, f64)> = match epoch.direction {
            Direction::Remove => {
                let with = |(index, mass): (i64, f64)| {
                    (index, scale * mass * libm::exp(index as f64 * grid.step))
                };
                atoms.into_iter().map(with).collect()
            }
            Direction::Add => {
                atoms.into_iter().rev().map(|(index, mass)| (-index, scale * mass)).collect()
            }
        };
        atoms.retain(|(_, mass)| *mass > 0.0);
        let offset = side * loss_error;
        let found = Self { atoms, infinite: infinite * scale, offset };
        if rounded == Rounded::Up { found.checked() } else { found }
    }

    /// A mixture of which both neighbours choose the same part, with the same weights; `rest` is the weight of rounds without
    /// a loss. Losses are moved down to the grid of the first part: parts that are rounded up have no offsets.
    fn mixed(parts: Vec<(f64, Self)>, rest: f64, step: f64) -> Self {
        let offset = parts.first().map_or(0.0, |(_, part)| part.offset);
        let down = |from: f64| {
            let shift = (from - offset) / step;
            // Despite rounding, no loss is moved up.
            if shift == 0.0 { 0 } else { (shift - 1e-6).floor().clamp(-1e9, 1e9) as i64 }
        };
        let (mut atoms, mut infinite) = (vec![(down(0.0), rest)], 0.0);
        for (weight, part) in &parts {
            let shift = down(part.offset);
            atoms.extend(part.atoms.iter().map(|(index, mass)| (*index + shift, weight * mass)));
            infinite += weight * part.infinite;
        }
        atoms.retain(|(_, mass)| *mass > 0.0);
        atoms.sort_unstable_by_key(|(index, _)| *index);
        atoms.dedup_by(|(index, mass), (known, sum)| {
            let is_same = index == known;
            if is_same {
                *sum += *mass;
            }
            is_same
        });
        Self { atoms, infinite, offset }
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
    fn between(pair: &impl OutputPair, grid: Grid, first: i64, last: i64) -> Self {
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
    fn with_outputs_above(mut self, pair: &impl OutputPair, grid: Grid) -> Self {
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

/// Beyond this many grid points an epoch has no lower bound.
const MOST_MERGED: f64 = 4e6;

/// Adds the mass of a cell at a grid point; no mass if the loss of the cell may be below that of the point.
fn push_cell(atoms: &mut Vec<(i64, f64)>, index: i64, cell: CellMass) {
    atoms.push((index, if cell.excess >= 0.0 { cell.mass } else { 0.0 }));
}

/// A distance that a standard normal variable exceeds with probability at most `tail`.
fn normal_reach(tail: f64) -> f64 {
    // P(y > r) <= exp(-r^2/2)/2 for r >= 0.
    (-2.0 * (2.0 * tail).ln()).max(1.0).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Sampled, Step};

    fn losses(sampled: Sampled, z: f64, grid: f64) -> [StepLoss; 2] {
        [Direction::Remove, Direction::Add].map(|direction| {
            let pair = DominatingPair::new(Step { sampled, z }, direction, 1e-20);
            StepLoss::new(&pair, grid, 1e-20, 512, Rounded::Up)
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
