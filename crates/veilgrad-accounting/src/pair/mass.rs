//! Probabilities of intervals of outputs with bounds on their rounding errors, and the privacy profile of one step.

use super::likelihood::{Change, Direction, Loss, Pair};
use super::output::{Mass, OutputPair, Outputs, ROUNDING, weighted_difference};
use crate::number::upper_tail;
use crate::{Interval, Sampled, Step};

impl Pair {
    /// The pair whose profile at losses from 0 on is that of a step.
    pub(crate) fn of_profile(step: Step, direction: Direction) -> Self {
        // At these losses the profile of a fixed-size sample is that of removal.
        match step.sampled {
            Sampled::FixedReplaced(_) => Self::new(step, Direction::Remove),
            _ => Self::new(step, direction),
        }
    }

    /// The masses of an interval of outputs without the record, with the record, and with the one that replaces it.
    pub(crate) fn masses(&self, from: f64, to: f64) -> [Mass; 3] {
        let shift = 1.0 / self.z;
        let other = match self.change {
            Change::Replace => normal_mass(from, to, -shift),
            Change::Remove | Change::Add => Mass { value: 0.0, scale: 0.0 },
        };
        [normal_mass(from, to, 0.0), normal_mass(from, to, shift), other]
    }

    /// The mass of an interval of outputs under the distribution that ran.
    pub(crate) fn mass(&self, [without, with, other]: [Mass; 3]) -> Mass {
        match self.change {
            Change::Remove => self.mix(without, with),
            Change::Add => without,
            Change::Replace => self.mix(without, other),
        }
    }

    /// The mass of the same interval under the other distribution.
    fn other_mass(&self, [without, with, _]: [Mass; 3]) -> Mass {
        match self.change {
            Change::Remove => without,
            Change::Add | Change::Replace => self.mix(without, with),
        }
    }

    fn mix(&self, without: Mass, sampled: Mass) -> Mass {
        let mix = |without: f64, sampled: f64| (1.0 - self.q) * without + self.q * sampled;
        let value = mix(without.value, sampled.value);
        Mass { value, scale: mix(without.scale, sampled.scale) }
    }

    /// `P - e^loss Q` of an interval of outputs, computed without large cancellation, and a bound on its rounding error.
    pub(crate) fn difference(&self, masses: [Mass; 3], loss: &Loss) -> (f64, f64) {
        let Loss { growth, growth_less_one, .. } = *loss;
        let factors = match self.change {
            Change::Remove => [-(growth_less_one + self.q), self.q, 0.0],
            Change::Add => [growth * self.q - growth_less_one, -growth * self.q, 0.0],
            Change::Replace => [-(1.0 - self.q) * growth_less_one, -growth * self.q, self.q],
        };
        // The size of the terms of the first factor, which may cancel.
        let formed = growth_less_one.abs() + growth.max(1.0) * self.q;
        weighted_difference(masses, factors, formed)
    }

    /// The masses of all outputs with larger losses.
    fn masses_above(&self, loss: &Loss) -> [Mass; 3] {
        let y = self.output_at(loss);
        match self.change {
            Change::Remove => self.masses(y, f64::INFINITY),
            Change::Add | Change::Replace => self.masses(f64::NEG_INFINITY, y),
        }
    }

    /// Bounds on the profile at a loss, and on `e^loss` times the mass of all outputs with larger losses under the other
    /// distribution, which is minus the slope of the profile. Both are of one set of outputs, which has larger losses up to
    /// the rounding of [`output`](Self::output). For losses that do not overflow.
    pub(crate) fn profile_and_slope(&self, loss: &Loss) -> (Interval, Interval) {
        let masses = self.masses_above(loss);
        let (value, rounding) = self.difference(masses, loss);
        let profile = Interval { lower: value - 4.0 * rounding, upper: value + 4.0 * rounding };
        let (other, growth) = (self.other_mass(masses), loss.growth);
        let slope = Interval {
            lower: growth * other.down() * (1.0 - 1e-14),
            upper: growth * other.up() * (1.0 + 1e-14),
        };
        (profile, slope)
    }
}

impl OutputPair for Pair {
    fn loss(&self, y: f64) -> f64 {
        self.loss_at(y)
    }

    fn output(&self, loss: &Loss) -> f64 {
        self.output_at(loss)
    }

    fn increases(&self) -> bool {
        self.change == Change::Remove
    }

    fn ends(&self, reach: f64) -> (f64, f64) {
        let right = 1.0 / self.z + reach;
        match self.change {
            Change::Remove => (-reach, right),
            Change::Add => (right, -reach),
            Change::Replace => (right, -right),
        }
    }

    fn bulk(&self) -> f64 {
        let shift = if self.q > 0.5 { 1.0 / self.z } else { 0.0 };
        match self.change {
            Change::Remove => self.loss_at(shift),
            Change::Add => self.loss_at(0.0),
            Change::Replace => self.loss_at(-shift),
        }
    }

    fn interval(&self, from: f64, to: f64, loss: &Loss) -> Outputs {
        let masses = self.masses(from, to);
        let (difference, rounding) = self.difference(masses, loss);
        Outputs { mass: self.mass(masses), difference, rounding }
    }
}

/// The probability of `[from, to)` under the normal distribution around `mean`, computed from the smaller tails.
pub(crate) fn normal_mass(from: f64, to: f64, mean: f64) -> Mass {
    let (low, high) = (from - mean, to - mean);
    let (value, tail, end) = if low >= 0.0 {
        let tail = upper_tail(low);
        (tail - upper_tail(high), tail, low)
    } else if high <= 0.0 {
        let tail = upper_tail(-high);
        (tail - upper_tail(-low), tail, -high)
    } else {
        (1.0 - upper_tail(-low) - upper_tail(high), 1.0, 0.0)
    };
    // The relative error of a tail is its argument times the rounding error of that argument, which grows with |mean|.
    // Subnormal tails have no accurate digits; MIN_POSITIVE covers them.
    let digits = 1.0 + end * (end + mean.abs()) / 8.0;
    let scale = if tail == 0.0 { 0.0 } else { tail * digits } + f64::MIN_POSITIVE / ROUNDING;
    // Not `max`: NaN must stay visible.
    Mass { value: if value < 0.0 { 0.0 } else { value }, scale }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The mass of a narrow interval is a difference of nearly equal tails.
    #[test]
    fn masses_of_narrow_intervals_are_enclosed() {
        let density = |x: f64| (-0.5 * x * x).exp() / (2.0 * std::f64::consts::PI).sqrt();
        for i in 0..400 {
            let from = -9.0 + 0.045 * f64::from(i);
            for width in [1e-3, 1e-5, 1e-7, 1e-9, 1e-11] {
                let to = from + width;
                // By the midpoint rule, whose relative error is below width^2/24 (x^2 + 1).
                let (exact, middle) = ((to - from) * density(from + 0.5 * width), from.abs() + 1.0);
                let error = exact * (width * width * middle * middle / 12.0 + 1e-13);
                let mass = normal_mass(from, to, 0.0);
                assert!(mass.up() >= exact - error, "{from} {width}: {} {exact}", mass.up());
                assert!(mass.down() <= exact + error, "{from} {width}: {} {exact}", mass.down());
            }
        }
    }

    /// A profile is the largest `P - e^loss Q` of any set of outputs: here, of all below or above any output.
    #[test]
    fn no_set_of_outputs_is_worse_than_the_profile() {
        let mut tight = 0;
        for (sampled, z) in [0.02, 0.3, 4.0, 1e4, 1e9, 763_489_202_175_905.9]
            .into_iter()
            .flat_map(|z| [1e-9, 0.016_357_015_085_041_438, 0.7].map(|q| (q, z)))
            .flat_map(|(q, z)| [(Sampled::Poisson(q), z), (Sampled::PoissonReplaced(q), z)])
        {
            for direction in [Direction::Remove, Direction::Add] {
                let pair = Pair::of_profile(Step { sampled, z }, direction);
                for output in [-6.0, -2.0, -0.5, 0.1, 1.0, 3.0, 8.0] {
                    let loss = pair.loss(output);
                    if !(loss > 0.0 && loss < 600.0) {
                        continue;
                    }
                    let delta = pair.delta(loss);
                    for moved in [-1.0, -0.1, -1e-3, 0.0, 1e-3, 0.1, 1.0] {
                        let y = output + moved * output.abs();
                        let masses = match pair.change {
                            Change::Remove => pair.masses(y, f64::INFINITY),
                            Change::Add | Change::Replace => pair.masses(f64::NEG_INFINITY, y),
                        };
                        let (value, rounding) = pair.difference(masses, &loss.into());
                        let what = format!("{pair:?} {loss} {y}: {value} {delta:?}");
                        assert!(value - 4.0 * rounding <= delta.upper, "{what}");
                    }
                    tight += i32::from(delta.lower > 0.9 * delta.upper);
                }
            }
        }
        assert!(tight > 50, "{tight}");
    }
}
