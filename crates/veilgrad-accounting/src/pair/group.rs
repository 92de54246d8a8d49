//! The pair of a Poisson sample of which one person has several records: a mixture of Gaussians with binomial weights.

use super::likelihood::{Direction, Loss};
use super::mass::normal_mass;
use super::output::{Mass, OutputPair, Outputs, weighted_difference};
use crate::number::UNIT;

/// With the person's records, the output is `N(j/z, 1)` with probability `weights[j]`; without them it is `N(0, 1)`.
#[derive(Debug, Clone)]
pub(crate) struct GroupPair {
    /// The probability that none of the records is sampled, and that j = 1, 2, ... of them are.
    none: f64,
    weights: Vec<f64>,
    log_weights: Vec<f64>,
    /// The sum of `weights`.
    some: f64,
    z: f64,
    direction: Direction,
}

impl GroupPair {
    pub(crate) fn new(rate: f64, records: u64, z: f64, direction: Direction) -> Self {
        let none = libm::exp(records as f64 * libm::log1p(-rate));
        let odds = rate / (1.0 - rate);
        let mut weights = Vec::new();
        let mut weight = none;
        for j in 1..=records {
            weight *= (records - j + 1) as f64 / j as f64 * odds;
            weights.push(weight);
        }
        let some = weights.iter().sum();
        let log_weights = weights.iter().map(|weight: &f64| weight.ln()).collect();
        Self { none, weights, log_weights, some, z, direction }
    }

    pub(crate) fn records(&self) -> u64 {
        self.weights.len() as u64
    }

    /// An upper bound on the error of losses by the rounding of the weights.
    pub(crate) fn loss_error(&self) -> f64 {
        (16.0 + 8.0 * self.weights.len() as f64) * UNIT
    }

    /// `log(none + sum_j weights[j] e^{j y/z - j^2/(2 z^2)})` and its slope.
    fn log_ratio(&self, y: f64) -> (f64, f64) {
        let exponent = |j: f64| j * (y / self.z - 0.5 * j / (self.z * self.z));
        let terms = || (1..).map(f64::from).zip(&self.weights);
        let top = terms().map(|(j, _)| exponent(j)).fold(0.0, f64::max);
        if top > 600.0 {
            let (mut sum, mut slope) = (self.none * (-top).exp(), 0.0);
            for (j, weight) in terms() {
                let term = weight * (exponent(j) - top).exp();
                sum += term;
                slope += j / self.z * term;
            }
            return (top + sum.ln(), slope / sum);
        }
        let (mut excess, mut slope) = (0.0, 0.0);
        for (j, weight) in terms() {
            let less_one = libm::expm1(exponent(j));
            excess += weight * less_one;
            slope += j / self.z * weight * (less_one + 1.0);
        }
        // The weights and `none` sum to 1, so 1 + excess is the ratio.
        (libm::log1p(excess), slope / (1.0 + excess))
    }

    /// The output at which [`log_ratio`](Self::log_ratio), which is increasing and convex, has this value.
    fn inverse_log_ratio(&self, value: f64) -> f64 {
        if value <= self.none.ln() || libm::expm1(value) <= -self.some {
            return f64::NEG_INFINITY;
        }
        // Where one term alone would give the value, all together give at least as much: not left of the root. From there
        // Newton's method approaches it monotonically.
        let log_excess = if value > 40.0 { value } else { (libm::expm1(value) + self.some).ln() };
        let alone = (1..)
            .map(f64::from)
            .zip(&self.log_weights)
            .map(|(j, log_weight)| self.z * (log_excess - log_weight) / j + 0.5 * j / self.z);
        let mut y = alone.fold(f64::INFINITY, f64::min);
        if !y.is_finite() {
            y = 0.5 / self.z;
        }
        for _ in 0..200 {
            let (found, slope) = self.log_ratio(y);
            let step = (found - value) / slope;
            // Far to the left slopes vanish; doubling the distance is enough.
            let step =
                if step.is_finite() { step.clamp(-8.0 - y.abs(), 8.0 + y.abs()) } else { -8.0 };
            y -= step;
            if step.abs() <= 4.0 * UNIT * (1.0 + y.abs()) || y < -60.0 {
                break;
            }
        }
        if y < -60.0 { f64::NEG_INFINITY } else { y }
    }
}

impl OutputPair for GroupPair {
    fn loss(&self, y: f64) -> f64 {
        let (value, _) = self.log_ratio(y);
        if self.direction == Direction::Remove { value } else { -value }
    }

    fn output(&self, loss: &Loss) -> f64 {
        match self.direction {
            Direction::Remove => self.inverse_log_ratio(loss.value),
            Direction::Add => self.inverse_log_ratio(-loss.value),
        }
    }

    fn increases(&self) -> bool {
        self.direction == Direction::Remove
    }

    fn ends(&self, reach: f64) -> (f64, f64) {
        let right = self.weights.len() as f64 / self.z + reach;
        if self.direction == Direction::Remove { (-reach, right) } else { (right, -reach) }
    }

    fn bulk(&self) -> f64 {
        self.loss(if self.some > 0.5 { 1.0 / self.z } else { 0.0 })
    }

    fn interval(&self, from: f64, to: f64, loss: &Loss) -> Outputs {
        let without = normal_mass(from, to, 0.0);
        let shifted = |j: f64| normal_mass(from, to, j / self.z);
        let masses: Vec<Mass> =
            (1..).map(f64::from).take(self.weights.len()).map(shifted).collect();
        let Loss { growth, growth_less_one, .. } = *loss;
        let (first, sign) = match self.direction {
            Direction::Remove => (-(growth_less_one + self.some), 1.0),
            Direction::Add => (growth * self.some - growth_less_one, -growth),
        };
        let formed = growth_less_one.abs() + growth.max(1.0) * self.some;
        let factors = self.weights.iter().map(|weight| sign * weight);
        let (difference, rounding) = weighted_difference(
            std::iter::once(without).chain(masses.iter().copied()),
            std::iter::once(first).chain(factors),
            formed,
        );
        let mass = match self.direction {
            Direction::Add => without,
            Direction::Remove => {
                let mut sum =
                    Mass { value: self.none * without.value, scale: self.none * without.scale };
                for (weight, mass) in self.weights.iter().zip(&masses) {
                    sum.value += weight * mass.value;
                    sum.scale += weight * (mass.scale + mass.value);
                }
                sum
            }
        };
        Outputs { mass, difference, rounding }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::number::upper_tail;

    #[test]
    fn outputs_are_where_losses_are() {
        for (rate, records, z) in [(0.01, 2, 1.0), (0.3, 5, 0.5), (1e-5, 3, 2.0), (0.7, 2, 8.0)] {
            for direction in [Direction::Remove, Direction::Add] {
                let pair = GroupPair::new(rate, records, z, direction);
                for y in [-4.0, -1.0, 0.3, 2.0, 9.0, 25.0] {
                    let loss = pair.loss(y);
                    let found = pair.output(&loss.into());
                    // Where the loss is flat its inverse is not determined by an f64.
                    let again = pair.loss(found);
                    assert!(
                        (again - loss).abs() <= 1e-13 * (1.0 + loss.abs())
                            || found == f64::NEG_INFINITY,
                        "{pair:?} {y}: {found} {again} {loss}"
                    );
                }
            }
        }
    }

    /// The profile is the largest `P - e^eps Q` of any half-line.
    #[test]
    fn the_profile_is_that_of_the_best_half_line() {
        let (rate, records, z) = (0.2, 3, 0.8);
        let weights = [0.512, 0.384, 0.096, 0.008];
        let mixed =
            |c: f64| -> f64 { (0..4).map(|j| weights[j] * upper_tail(c - j as f64 / z)).sum() };
        for epsilon in [0.0, 0.5, 2.0] {
            let g = f64::exp(epsilon);
            let cuts = (-800..1600).map(|i| 0.005 * f64::from(i));
            let remove = cuts.clone().map(|c| mixed(c) - g * upper_tail(c)).fold(0.0, f64::max);
            let add =
                cuts.map(|c| (1.0 - upper_tail(c)) - g * (1.0 - mixed(c))).fold(0.0, f64::max);
            for (direction, exact) in [(Direction::Remove, remove), (Direction::Add, add)] {
                let found = GroupPair::new(rate, records, z, direction).delta(epsilon);
                assert!(found.upper >= exact && found.lower <= exact + 1e-5, "{found:?} {exact}");
                assert!(found.upper <= exact + 1e-5, "{direction:?} {epsilon}: {found:?} {exact}");
            }
        }
    }
}
