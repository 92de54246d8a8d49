//! The privacy loss distribution of one step, on a grid, never smaller than the truth.

use crate::{Sampled, Step};

/// Which of two neighbours is the one that ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    /// The record is there and might not be.
    Remove,
    /// The record is not there and might be.
    Add,
}

/// Masses at multiples of a grid step, and a mass at infinity.
///
/// # Guarantee
/// Connect-the-dots (Doroshenko et al. 2022): the pair of distributions with these losses dominates
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
}

impl StepLoss {
    /// The loss of a step on multiples of `grid`; beyond a tail of probability about `tail` the loss
    /// counts as infinite.
    pub(crate) fn new(step: Step, direction: Direction, grid: f64, tail: f64) -> Self {
        let curve = Curve::new(step, direction);
        let reach = reach_of(tail);
        // Outputs y, standard normal without the record, shifted by 1/z with it.
        let (first, last) = (-reach, 1.0 / step.z + reach);
        let (from, to) = match direction {
            Direction::Remove => (curve.loss(first), curve.loss(last)),
            Direction::Add => (curve.loss(last), curve.loss(first)),
        };
        let indices = grid_indices((from / grid).floor() as i64, (to / grid).ceil() as i64);
        let mut atoms: Vec<(i64, f64)> = indices.iter().map(|index| (*index, 0.0)).collect();
        let mut below = curve.output(indices.first().copied().unwrap_or(0) as f64 * grid);
        // All that lies below the first grid point counts as if it were there.
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
        let infinite = curve.mass_above(below).up();
        // Masses are rounded up, so less than 1 in all, or no number, means that something was lost:
        // then nothing is certain, and all loss counts as infinite.
        let total = infinite + atoms.iter().map(|(_, mass)| mass).sum::<f64>();
        let whole = total >= 1.0 - 1e-11;
        atoms.retain(|(_, mass)| *mass > 0.0);
        Self { atoms, infinite: if whole { infinite } else { 1.0 } }
    }
}

/// Grid points: every one near zero, where most of the mass of a small sampling rate lies, then
/// ever fewer, in proportion to the distance. (Any choice is sound; this one is nearly as tight as
/// all of them.)
fn grid_indices(first: i64, last: i64) -> Vec<i64> {
    const DENSITY: i64 = 512;
    let mut indices = Vec::new();
    let mut index = first;
    while index < last {
        indices.push(index);
        let stride = (index.abs() / DENSITY).max(1);
        // Strides shrink towards zero so that no cell crosses into the dense part.
        let next = index + stride;
        index = if index < 0 && next > 0 { 0 } else { next };
    }
    indices.push(last);
    indices
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
    direction: Direction,
}

impl Curve {
    fn new(step: Step, direction: Direction) -> Self {
        let q = match step.sampled {
            Sampled::Always => 1.0,
            Sampled::Poisson(q) => q,
        };
        Self { q, z: step.z, direction }
    }

    /// `log((1-q) + q e^{y/z - 1/(2z^2)})` with the sign of the direction.
    fn loss(&self, y: f64) -> f64 {
        let exponent = y / self.z - 0.5 / (self.z * self.z);
        let loss = if self.q == 1.0 {
            exponent
        } else if exponent > 30.0 {
            // log(q e^x (1 + (1-q)/(q e^x)))
            self.q.ln() + exponent + libm::log1p((1.0 - self.q) / self.q * (-exponent).exp())
        } else {
            libm::log1p(self.q * libm::expm1(exponent))
        };
        match self.direction {
            Direction::Remove => loss,
            Direction::Add => -loss,
        }
    }

    /// The output at which the loss is `loss`; infinite beyond the largest or smallest.
    fn output(&self, loss: f64) -> f64 {
        let loss = match self.direction {
            Direction::Remove => loss,
            Direction::Add => -loss,
        };
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

    /// Masses of an interval of outputs without and with the record.
    fn masses(&self, from: f64, to: f64) -> (Mass, Mass) {
        let shift = 1.0 / self.z;
        (normal_mass(from, to), normal_mass(from - shift, to - shift))
    }

    /// The probability, under the distribution that ran, of losses below that at `y`.
    fn mass_below(&self, y: f64) -> Mass {
        match self.direction {
            Direction::Remove => self.mix(self.masses(f64::NEG_INFINITY, y)),
            Direction::Add => normal_mass(y, f64::INFINITY),
        }
    }

    fn mass_above(&self, y: f64) -> Mass {
        match self.direction {
            Direction::Remove => self.mix(self.masses(y, f64::INFINITY)),
            Direction::Add => normal_mass(f64::NEG_INFINITY, y),
        }
    }

    fn mix(&self, (without, with): (Mass, Mass)) -> Mass {
        let mix = |without: f64, with: f64| (1.0 - self.q) * without + self.q * with;
        Mass { value: mix(without.value, with.value), scale: mix(without.scale, with.scale) }
    }

    /// Splits the mass of a cell of losses `[low, low + width)` between its ends so that both
    /// distributions keep their mass: returns the upper part, rounded up, and the whole.
    fn split(&self, below: f64, above: f64, low: f64, width: f64) -> (f64, f64) {
        let (from, to) = if below < above { (below, above) } else { (above, below) };
        let (without, with) = self.masses(from, to);
        // P - e^low Q = a with - b without, where nothing large cancels.
        let (mass, a, b) = match self.direction {
            Direction::Remove => (self.mix((without, with)), self.q, libm::expm1(low) + self.q),
            Direction::Add => {
                let growth = low.exp();
                (without, -growth * self.q, growth * (1.0 - self.q) - 1.0)
            }
        };
        let rounding = a.abs() * (with.scale + with.value)
            + (b.abs() + 1e-16) * (without.scale + without.value);
        let difference = a * with.value - b * without.value + ROUNDING * rounding;
        let upper = difference / -libm::expm1(-width) * (1.0 + 1e-15);
        (upper.clamp(0.0, mass.up()), mass.up())
    }
}

/// The probability of `[from, to)` under the standard normal distribution, from the tails that are
/// smaller.
fn normal_mass(from: f64, to: f64) -> Mass {
    let (value, scale) = if from >= 0.0 {
        (upper_tail(from) - upper_tail(to), upper_tail(from))
    } else if to <= 0.0 {
        (upper_tail(-to) - upper_tail(-from), upper_tail(-to))
    } else {
        (1.0 - upper_tail(-from) - upper_tail(to), 1.0)
    };
    // Not `max`: what is no number must stay visible.
    Mass { value: if value < 0.0 { 0.0 } else { value }, scale }
}

/// `P(y > x)`.
fn upper_tail(x: f64) -> f64 {
    0.5 * libm::erfc(x * std::f64::consts::FRAC_1_SQRT_2)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn losses(sampled: Sampled, z: f64, grid: f64) -> [StepLoss; 2] {
        [Direction::Remove, Direction::Add]
            .map(|direction| StepLoss::new(Step { sampled, z }, direction, grid, 1e-20))
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
