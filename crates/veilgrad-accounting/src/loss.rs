//! The privacy loss distribution of one step, on a grid, never smaller than the truth.

use crate::contour::Interval;
use crate::number::{UNIT, upper_tail};
use crate::{Sampled, Step};

/// Which of two neighbours is the one that ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    /// The record is there and might not be.
    Remove,
    /// The record is not there and might be.
    Add,
}

/// Which way losses are moved to the grid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rounded {
    Up,
    Down,
}

/// Masses at multiples of a grid step, and a mass at infinity.
///
/// # Guarantee
/// Rounded up: connect-the-dots (Doroshenko et al. 2022): the pair of distributions with these losses dominates
/// the step's pair, so that its hockey-stick divergences, also of any composition, are never smaller.
/// Rounding moves mass to larger losses.
pub(crate) struct StepLoss {
    /// Grid index and mass, indices ascending.
    pub(crate) atoms: Vec<(i64, f64)>,
    pub(crate) infinite: f64,
}

/// Roundings of a mass, in units of the larger of the two tails that it is the difference of: those of
/// the error function, its argument far out, and the difference. Generous.
const ROUNDING: f64 = 4e-15;

/// A probability, and the size of what it was computed from.
#[derive(Clone, Copy)]
struct Mass {
    value: f64,
    scale: f64,
}

impl Mass {
    /// At least the true probability.
    fn up(self) -> f64 {
        self.value + ROUNDING * self.scale
    }

    /// At most the true probability.
    fn down(self) -> f64 {
        self.value - ROUNDING * self.scale
    }
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
        let grid = Grid { step: grid, density };
        let curve = Curve::new(step, direction);
        match (rounded, step.sampled) {
            (Rounded::Up, Sampled::FixedReplaced(q)) => {
                Self::fixed(q, step.z, grid, tail).checked()
            }
            (Rounded::Up, _) => Self::of(&curve, grid, tail).checked(),
            // A fixed-size sample costs at least what removal from it does.
            (Rounded::Down, _) => Self::rounded_down(&curve, grid, tail),
        }
    }

    /// Every output's loss is moved down to a grid point, which makes no divergence of any composition
    /// larger; what lies below the first is left out.
    fn rounded_down(curve: &Curve, grid: Grid, tail: f64) -> Self {
        let (from, to) = curve.range(reach_of(tail));
        let indices = grid.indices(grid.below(from), grid.above(to));
        let mut atoms = Vec::with_capacity(indices.len());
        let mut above = f64::NAN;
        for (place, index) in indices.iter().enumerate().rev() {
            let below = curve.output(*index as f64 * grid.step);
            let mass = if place + 1 == indices.len() {
                curve.mass_above(below)
            } else {
                let (from, to) = if below < above { (below, above) } else { (above, below) };
                curve.mass(curve.masses(from, to))
            };
            above = below;
            let mass = mass.down();
            if mass > 0.0 {
                atoms.push((*index, mass));
            }
        }
        atoms.reverse();
        Self { atoms, infinite: 0.0 }
    }

    fn of(curve: &Curve, grid: Grid, tail: f64) -> Self {
        let (from, to) = curve.range(reach_of(tail));
        Self::between(curve, grid, grid.below(from), grid.above(to))
    }

    /// The pair that dominates a fixed-size sample (docs/accounting.md): losses above zero are those
    /// of removal, losses below zero those of addition, and what is left is at zero.
    fn fixed(q: f64, z: f64, grid: Grid, tail: f64) -> Self {
        let curve = |kind| Curve { q, z, kind };
        let reach = reach_of(tail);
        let (above, below) = (curve(Kind::Remove), curve(Kind::Add));
        let highest = grid.above(above.range(reach).1);
        let lowest = grid.below(below.range(reach).0);
        let mut upper = Self::between(&above, grid, 0, highest);
        let mut lower = Self::between(&below, grid, lowest, 0);
        // Each half was given the other's side at zero and at infinity; neither has it.
        let mass_above = above.mass_below(above.output(0.0)).up();
        if let Some(zero) = upper.atoms.first_mut() {
            zero.1 -= mass_above;
        }
        lower.infinite = 0.0;
        let rest = (1.0 - q) * normal_mass(-0.5 / z, 0.5 / z, 0.0).up();
        let mut atoms = std::mem::take(&mut lower.atoms);
        let zero = atoms.pop().map_or(0.0, |(_, mass)| mass);
        let mut others = upper.atoms.into_iter();
        let first = others.next().map_or(0.0, |(_, mass)| mass);
        atoms.push((0, zero + first + rest + 1e-15));
        atoms.extend(others);
        Self { atoms, infinite: upper.infinite }
    }

    /// The atoms of a curve at grid points from `first` to `last`: all below counts as at the first,
    /// all above as infinite.
    fn between(curve: &Curve, grid: Grid, first: i64, last: i64) -> Self {
        let indices = grid.indices(first, last);
        let grid = grid.step;
        let mut atoms: Vec<(i64, f64)> = indices.iter().map(|index| (*index, 0.0)).collect();
        let mut below = curve.output(first as f64 * grid);
        let lowest = curve.mass_below(below);
        if let Some(first) = atoms.first_mut() {
            first.1 += lowest.up();
        }
        let mut rest = atoms.as_mut_slice();
        while let [lower, others @ ..] = rest
            && let Some(upper) = others.first_mut()
        {
            let (low, high) = (lower.0 as f64 * grid, upper.0 as f64 * grid);
            let above = curve.output(high);
            let (up, total) = curve.split(below, above, low, high - low);
            upper.1 += up;
            lower.1 += total - up;
            below = above;
            rest = others;
        }
        Self { atoms, infinite: curve.mass_above(below).up() }
    }

    /// Masses are rounded up, so less than 1 in all, or no number, means that something was lost: then
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

/// The profile of a single step at `epsilon >= 0`.
pub(crate) fn step_delta(step: Step, direction: Direction, epsilon: f64) -> Interval {
    // A fixed-size sample has there the profile of removal.
    let direction = match step.sampled {
        Sampled::FixedReplaced(_) => Direction::Remove,
        _ => direction,
    };
    let delta = Curve::new(step, direction).delta(epsilon);
    let upper = if delta.upper.is_nan() { f64::INFINITY } else { delta.upper };
    Interval { lower: delta.lower, upper }
}

/// Multiples of a step: every one near zero, where most of the mass of a small sampling rate lies, then
/// ever fewer, in proportion to the distance. (Any choice is sound; this one is nearly as tight as all
/// of them.)
#[derive(Clone, Copy)]
struct Grid {
    step: f64,
    density: i64,
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

    fn indices(&self, first: i64, last: i64) -> Vec<i64> {
        let mut indices = Vec::new();
        let mut index = first;
        while index < last {
            indices.push(index);
            let stride = (index.abs() / self.density).max(1);
            // Strides shrink towards zero so that no cell crosses into the dense part.
            let next = index.saturating_add(stride);
            index = if index < 0 && next > 0 { 0 } else { next };
        }
        indices.push(last);
        indices
    }
}

/// A distance beyond which a standard normal variable lies with probability at most `tail`.
fn reach_of(tail: f64) -> f64 {
    // P(y > r) <= exp(-r^2/2)/2 for r >= 0.
    (-2.0 * (2.0 * tail).ln()).max(1.0).sqrt()
}

/// The loss as a monotone function of the output y, and its inverse.
struct Curve {
    q: f64,
    z: f64,
    kind: Kind,
}

/// Which two distributions a loss compares: a round without the record, with it, or with another one
/// in its place, each in its share of rounds.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Remove,
    Add,
    Replace,
}

impl Curve {
    fn new(step: Step, direction: Direction) -> Self {
        let (q, kind) = match (step.sampled, direction) {
            (Sampled::PoissonReplaced(q), _) => (q, Kind::Replace),
            (Sampled::Poisson(q) | Sampled::FixedReplaced(q), Direction::Remove) => {
                (q, Kind::Remove)
            }
            (Sampled::Poisson(q) | Sampled::FixedReplaced(q), Direction::Add) => (q, Kind::Add),
            (Sampled::Always, Direction::Remove) => (1.0, Kind::Remove),
            (Sampled::Always, Direction::Add) => (1.0, Kind::Add),
        };
        Self { q, z: step.z, kind }
    }

    /// The smallest and the largest loss of outputs that are at most `reach` from where a round with
    /// or without the record is centred.
    fn range(&self, reach: f64) -> (f64, f64) {
        let right = 1.0 / self.z + reach;
        match self.kind {
            Kind::Remove => (self.loss(-reach), self.loss(right)),
            Kind::Add => (self.loss(right), self.loss(-reach)),
            Kind::Replace => (self.loss(right), self.loss(-right)),
        }
    }

    /// `log((1-q) + q e^{y/z - 1/(2z^2)})`.
    fn log_ratio(&self, y: f64) -> f64 {
        let exponent = y / self.z - 0.5 / (self.z * self.z);
        if self.q == 1.0 {
            exponent
        } else if exponent > 700.0 {
            // log(q e^x (1 + (1-q)/(q e^x)))
            self.q.ln() + exponent + libm::log1p((1.0 - self.q) / self.q * (-exponent).exp())
        } else {
            libm::log1p(self.q * libm::expm1(exponent))
        }
    }

    fn loss(&self, y: f64) -> f64 {
        match self.kind {
            Kind::Remove => self.log_ratio(y),
            Kind::Add => -self.log_ratio(y),
            Kind::Replace => self.log_ratio(-y) - self.log_ratio(y),
        }
    }

    /// The output at which the loss is `loss`; infinite beyond the largest or smallest. Any output is
    /// sound that falls as losses rise, or rises for removal: cells are split by their masses.
    fn output(&self, loss: f64) -> f64 {
        match self.kind {
            Kind::Remove => self.inverse_log_ratio(loss),
            Kind::Add => self.inverse_log_ratio(-loss),
            Kind::Replace => {
                // The root X = e^{y/z} of e^l q a X^2 + (1-q)(e^l - 1) X - q a = 0 for a loss l >= 0,
                // where a = e^{-1/(2z^2)}; the loss is odd in y.
                let l = loss.abs();
                let log_a = -0.5 / (self.z * self.z);
                let half = 0.5 * (1.0 - self.q) / self.q * -libm::expm1(-l);
                // X = a / (half' + sqrt(half'^2 + a^2 e^l)), all divided by e^l.
                let log_root = if half == 0.0 {
                    -0.5 * l
                } else {
                    let ratio = 2.0 * (log_a - half.ln()) - l;
                    let inner = half.ln() + libm::log1p((1.0 + ratio.exp()).sqrt());
                    if ratio > 600.0 { -0.5 * l } else { log_a - l - inner }
                };
                let y = self.z * log_root;
                if loss >= 0.0 { y } else { -y }
            }
        }
    }

    fn inverse_log_ratio(&self, loss: f64) -> f64 {
        if self.q == 1.0 {
            return self.z * loss + 0.5 / self.z;
        }
        let exponent = if loss > 30.0 {
            loss - self.q.ln() + libm::log1p(-(1.0 - self.q) * (-loss).exp())
        } else {
            let ratio = libm::expm1(loss) / self.q;
            if ratio <= -1.0 {
                return f64::NEG_INFINITY;
            }
            libm::log1p(ratio)
        };
        self.z * exponent + 0.5 / self.z
    }

    /// Masses of an interval of outputs without the record, with it, and with the other one.
    fn masses(&self, from: f64, to: f64) -> [Mass; 3] {
        let shift = 1.0 / self.z;
        let other = match self.kind {
            Kind::Replace => normal_mass(from, to, -shift),
            Kind::Remove | Kind::Add => Mass { value: 0.0, scale: 0.0 },
        };
        [normal_mass(from, to, 0.0), normal_mass(from, to, shift), other]
    }

    /// The mass of an interval of outputs under the distribution that ran.
    fn mass(&self, [without, with, other]: [Mass; 3]) -> Mass {
        let mix = |sampled: Mass| {
            let mix = |without: f64, sampled: f64| (1.0 - self.q) * without + self.q * sampled;
            Mass {
                value: mix(without.value, sampled.value),
                scale: mix(without.scale, sampled.scale),
            }
        };
        match self.kind {
            Kind::Remove => mix(with),
            Kind::Add => without,
            Kind::Replace => mix(other),
        }
    }

    /// The probability, under the distribution that ran, of losses below that at `y`.
    fn mass_below(&self, y: f64) -> Mass {
        self.mass(match self.kind {
            Kind::Remove => self.masses(f64::NEG_INFINITY, y),
            Kind::Add | Kind::Replace => self.masses(y, f64::INFINITY),
        })
    }

    fn mass_above(&self, y: f64) -> Mass {
        self.mass(match self.kind {
            Kind::Remove => self.masses(y, f64::INFINITY),
            Kind::Add | Kind::Replace => self.masses(f64::NEG_INFINITY, y),
        })
    }

    /// Splits the mass of a cell of losses `[low, low + width)` between its ends so that both
    /// distributions keep their mass: returns the upper part, rounded up, and the whole.
    fn split(&self, below: f64, above: f64, low: f64, width: f64) -> (f64, f64) {
        let (from, to) = if below < above { (below, above) } else { (above, below) };
        let masses = self.masses(from, to);
        let mass = self.mass(masses);
        let (difference, rounding) = self.difference(masses, low);
        let upper = (difference + rounding) / -libm::expm1(-width) * (1.0 + 1e-15);
        // Not `clamp`, which panics at what is no number.
        let whole = mass.up();
        let upper = if upper < 0.0 { 0.0 } else { upper };
        (if upper > whole { whole } else { upper }, whole)
    }

    /// `P - e^low Q` of an interval of outputs, where nothing large cancels, and its rounding.
    fn difference(&self, masses: [Mass; 3], low: f64) -> (f64, f64) {
        let growth = low.exp();
        let factors = match self.kind {
            Kind::Remove => [-(libm::expm1(low) + self.q), self.q, 0.0],
            Kind::Add => [growth * self.q - libm::expm1(low), -growth * self.q, 0.0],
            Kind::Replace => [-(1.0 - self.q) * libm::expm1(low), -growth * self.q, self.q],
        };
        // What the first factor was formed from, which may have cancelled.
        let formed = libm::expm1(low).abs() + growth.max(1.0) * self.q;
        let [without, _, _] = masses;
        let mut difference = 0.0;
        let mut rounding = 8.0 * UNIT * formed * without.value;
        for (factor, mass) in factors.into_iter().zip(masses) {
            difference += factor * mass.value;
            rounding += ROUNDING * factor.abs() * (mass.scale + mass.value);
        }
        (difference, rounding)
    }

    /// The profile of this one step: the mass above a loss less `e^loss` times the other's.
    fn delta(&self, epsilon: f64) -> Interval {
        let y = self.output(epsilon);
        let masses = match self.kind {
            Kind::Remove => self.masses(y, f64::INFINITY),
            Kind::Add | Kind::Replace => self.masses(f64::NEG_INFINITY, y),
        };
        let (value, rounding) = self.difference(masses, epsilon);
        let (value, rounding) = if epsilon > 700.0 {
            // e^epsilon is no number; the mass alone is an upper bound.
            let mass = self.mass(masses).up();
            (0.5 * mass, 0.5 * mass)
        } else {
            (value, 4.0 * rounding)
        };
        Interval { lower: value - rounding, upper: value + rounding }
    }
}

/// The probability of `[from, to)` under the normal distribution around `mean`, from the tails that are
/// smaller.
fn normal_mass(from: f64, to: f64, mean: f64) -> Mass {
    let (low, high) = (from - mean, to - mean);
    let (value, tail, end) = if low >= 0.0 {
        (upper_tail(low) - upper_tail(high), upper_tail(low), low)
    } else if high <= 0.0 {
        (upper_tail(-high) - upper_tail(-low), upper_tail(-high), -high)
    } else {
        (1.0 - upper_tail(-low) - upper_tail(high), 1.0, 0.0)
    };
    // Far out a tail loses digits with its argument, whose own rounding grows with what it was formed
    // from; and where it is hardly a number it has none.
    let digits = 1.0 + end * (end + mean.abs()) / 8.0;
    let scale = if tail == 0.0 { 0.0 } else { tail * digits } + f64::MIN_POSITIVE / ROUNDING;
    // Not `max`: what is no number must stay visible.
    Mass { value: if value < 0.0 { 0.0 } else { value }, scale }
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
