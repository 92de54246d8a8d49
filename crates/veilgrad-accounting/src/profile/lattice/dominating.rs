//! The pair of distributions that dominates a step, and its cells of outputs.

use std::rc::Rc;

use super::allocation::EpochLaw;
use super::grid::{Grid, Rounded};
use crate::number::bisect;
use crate::pair::{Change, Direction, GroupPair, OutputPair, Pair, normal_mass};
use crate::{Sampled, Step};

/// The pair of distributions that dominates a step, ready to be discretised.
pub(crate) enum DominatingPair {
    /// A Gaussian, Poisson-sampled or not.
    Pair(Pair),
    /// A Poisson sample with several records of one person.
    Group(GroupPair),
    /// An epoch of random allocation.
    Epoch(Epoch),
    /// A truncated Poisson sample.
    Mixture(Mixture),
    /// A fixed-size sample (docs/accounting.md): losses above zero are those of removal, losses below zero those of addition,
    /// and the rest is at zero.
    Fixed { remove: Pair, add: Pair, rest: f64 },
}

/// An epoch of random allocation in one direction: the law of its likelihood ratio, rounded up and down.
pub(crate) struct Epoch {
    pub(super) upper: Rc<EpochLaw>,
    pub(super) lower: Option<Rc<EpochLaw>>,
    pub(super) direction: Direction,
}

/// A mixture of pairs.
pub(crate) struct Mixture {
    /// Weights, rounded up, and pairs.
    pub(super) parts: Vec<(f64, DominatingPair)>,
    /// The weight of rounds without a loss, rounded up.
    pub(super) rest: f64,
    /// The same weights, rounded down.
    pub(super) least: (Vec<f64>, f64),
}

/// The probability of a cell of outputs under both distributions P and Q.
pub(super) struct CellMass {
    /// A lower bound on its probability under P.
    pub(super) mass: f64,
    /// A lower bound on `P - e^loss Q`: if it is not negative, the merged cell has at least this `loss`.
    pub(super) excess: f64,
}

impl CellMass {
    fn new(pair: &impl OutputPair, from: f64, to: f64, loss: f64) -> Self {
        let (a, b) = (pair.output(&from.into()), pair.output(&to.into()));
        let found = pair.interval(a.min(b), a.max(b), &loss.into());
        Self { mass: found.mass.down(), excess: found.difference - found.rounding }
    }
}

impl DominatingPair {
    /// The pair of a step. Laws of epochs leave out extreme outputs, of probability about `tail`.
    pub(crate) fn new(step: Step, direction: Direction, tail: f64) -> Self {
        let q = match step.sampled {
            Sampled::FixedReplaced(q) => q,
            Sampled::PoissonGroup { rate, records } => {
                return Self::Group(GroupPair::new(rate, records, step.z, direction));
            }
            Sampled::Truncated(sample) => {
                let part = |(weight, step): (f64, Step)| (weight, Self::new(step, direction, tail));
                return Self::Mixture(Mixture {
                    parts: sample.parts(step.z).map(part).collect(),
                    rest: sample.absent,
                    least: sample.least_weights(),
                });
            }
            Sampled::Allocated(rounds) => {
                let law = |rounded| EpochLaw::new(rounds, step.z, tail, rounded);
                return match law(Rounded::Up) {
                    Some(upper) => {
                        Self::Epoch(Epoch { upper, lower: law(Rounded::Down), direction })
                    }
                    // The epoch costs at most as much as a round without sampling.
                    None => Self::Pair(Pair::new(step, direction)),
                };
            }
            Sampled::Always | Sampled::Poisson(_) | Sampled::PoissonReplaced(_) => {
                return Self::Pair(Pair::new(step, direction));
            }
        };
        let pair = |change| Pair { q, z: step.z, change };
        let kink = 0.5 / step.z;
        let rest = (1.0 - q) * normal_mass(-kink, kink, 0.0).down();
        Self::Fixed { remove: pair(Change::Remove), add: pair(Change::Add), rest }
    }

    /// About how much more work a cell is than that of one sampled Gaussian. Cells of groups are found by Newton's method.
    pub(super) fn normals_per_cell(&self) -> u64 {
        match self {
            Self::Pair(_) | Self::Fixed { .. } | Self::Epoch(_) => 1,
            Self::Group(pair) => 4 * pair.records(),
            Self::Mixture(mixture) => mixture.parts.len() as u64,
        }
    }

    /// An upper bound on delta of the step at `epsilon >= 0`; infinite where it cannot be computed.
    pub(crate) fn delta(&self, epsilon: f64) -> f64 {
        let delta = match self {
            Self::Pair(pair) => pair.delta(epsilon).upper,
            // At these losses the profile of a fixed-size sample is that of removal.
            Self::Fixed { remove, .. } => remove.delta(epsilon).upper,
            Self::Group(pair) => pair.delta((epsilon - pair.loss_error()).max(0.0)).upper,
            Self::Epoch(epoch) => epoch.upper.delta(epoch.direction, epsilon),
            Self::Mixture(Mixture { parts, .. }) => {
                parts.iter().map(|(weight, pair)| weight * pair.delta(epsilon)).sum()
            }
        };
        if delta.is_nan() { f64::INFINITY } else { delta }
    }

    pub(super) fn range(&self, reach: f64, tail: f64) -> (f64, f64) {
        match self {
            Self::Pair(pair) => pair.range(reach, tail),
            Self::Fixed { remove, add, .. } => {
                (add.range(reach, tail).0, remove.range(reach, tail).1)
            }
            Self::Group(pair) => pair.range(reach, tail),
            Self::Epoch(_) | Self::Mixture(_) => (0.0, 0.0),
        }
    }

    pub(super) fn bulk(&self) -> f64 {
        match self {
            Self::Pair(pair) => pair.bulk(),
            Self::Group(pair) => pair.bulk(),
            Self::Mixture(Mixture { parts, .. }) => {
                parts.first().map_or(0.0, |(_, pair)| pair.bulk())
            }
            Self::Fixed { .. } | Self::Epoch(_) => 0.0,
        }
    }

    /// The losses of the first cell, from which the others are built: at the end where losses are dense, if there is one,
    /// else around the bulk.
    pub(super) fn first_cell(&self, grid: Grid) -> (f64, f64) {
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
    pub(super) fn merged(&self, low: f64, high: f64, step: f64) -> Option<(f64, f64)> {
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
    pub(super) fn cell_end(&self, from: f64, loss: f64, step: f64) -> f64 {
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
    pub(super) fn cell_begin(&self, to: f64, loss: f64, step: f64) -> f64 {
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
    pub(super) fn cell_mass(&self, from: f64, to: f64, loss: f64) -> CellMass {
        let of_pair = |pair: &Pair, from: f64, to: f64| CellMass::new(pair, from, to, loss);
        match self {
            // Their laws are merged as a whole, or part by part.
            Self::Epoch(_) | Self::Mixture(_) => CellMass { mass: 0.0, excess: f64::NEG_INFINITY },
            Self::Group(pair) => CellMass::new(pair, from, to, loss),
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
