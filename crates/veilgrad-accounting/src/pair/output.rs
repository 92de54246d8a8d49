//! Pairs of distributions of one real output whose privacy loss is monotone in it: what their profile and their
//! discretisation need.

use super::likelihood::Loss;
use crate::Interval;
use crate::number::UNIT;

/// A generous bound on the rounding error of a mass, relative to the larger of the two tails whose difference it is: that of
/// the error function, of its argument, and of the difference.
pub(crate) const ROUNDING: f64 = 4e-15;

/// A probability, and the scale of its rounding error.
#[derive(Clone, Copy)]
pub(crate) struct Mass {
    pub(crate) value: f64,
    pub(crate) scale: f64,
}

impl Mass {
    /// An upper bound on the true probability.
    pub(crate) fn up(self) -> f64 {
        self.value + ROUNDING * self.scale
    }

    /// A lower bound on the true probability.
    pub(crate) fn down(self) -> f64 {
        self.value - ROUNDING * self.scale
    }
}

/// The probabilities of an interval of outputs under P, which ran, and under Q.
#[derive(Clone, Copy)]
pub(crate) struct Outputs {
    /// The probability under P.
    pub(crate) mass: Mass,
    /// `P - e^loss Q` at the loss that was asked for, and a bound on its rounding error.
    pub(crate) difference: f64,
    pub(crate) rounding: f64,
}

/// A pair of distributions (P, Q) of a real output, with a privacy loss that is monotone in the output.
pub(crate) trait OutputPair {
    /// The privacy loss at the output y.
    fn loss(&self, y: f64) -> f64;

    /// The inverse of [`loss`](Self::loss): the output with this loss; infinite if no output has it.
    ///
    /// The masses of cells of a lattice are computed from their actual ends, so that their bounds do not depend on its rounding:
    /// outputs only have to be ordered like their losses (reversed where losses decrease with the output). A profile at one
    /// loss depends on the square of its error, because the outputs with larger losses are the worst set of outputs.
    fn output(&self, loss: &Loss) -> f64;

    /// Whether the loss increases with the output.
    fn increases(&self) -> bool;

    /// The outputs with the lowest and the highest loss within `reach` of the means of both distributions.
    fn ends(&self, reach: f64) -> (f64, f64);

    /// The loss of about the likeliest output.
    fn bulk(&self) -> f64;

    /// The probabilities of the outputs in `[from, to)`, with their difference at `loss` computed without large cancellation.
    fn interval(&self, from: f64, to: f64, loss: &Loss) -> Outputs;

    /// The (infinite) output with the largest loss.
    fn highest(&self) -> f64 {
        if self.increases() { f64::INFINITY } else { f64::NEG_INFINITY }
    }

    /// The outputs with losses above that at `y`.
    fn outputs_above(&self, y: f64, loss: &Loss) -> Outputs {
        match self.increases() {
            true => self.interval(y, f64::INFINITY, loss),
            false => self.interval(f64::NEG_INFINITY, y, loss),
        }
    }

    /// The probability, under the distribution that ran, of losses below that at `y`.
    fn mass_below(&self, y: f64) -> Mass {
        let zero = Loss::from(0.0);
        match self.increases() {
            true => self.interval(f64::NEG_INFINITY, y, &zero).mass,
            false => self.interval(y, f64::INFINITY, &zero).mass,
        }
    }

    /// Splits the mass of a cell of losses `[low, low + width)` between its ends so that both distributions keep their mass.
    /// Returns the share of the upper end and the whole mass, both rounded up.
    fn split(&self, below: f64, above: f64, low: f64, width: f64) -> (f64, f64) {
        let (from, to) = if below < above { (below, above) } else { (above, below) };
        let Outputs { mass, difference, rounding } = self.interval(from, to, &Loss::from(low));
        let upper = (difference + rounding) / -libm::expm1(-width) * (1.0 + 1e-15);
        // Not `clamp`, which panics at NaN.
        let whole = mass.up();
        // e^low overflows above 700.
        let upper = if low > 700.0 { whole } else { upper };
        let upper = if upper < 0.0 { 0.0 } else { upper };
        (if upper > whole { whole } else { upper }, whole)
    }

    /// Bounds on delta of this one step: the mass of losses above epsilon minus `e^epsilon` times that under the neighbour.
    fn delta(&self, epsilon: f64) -> Interval {
        let loss = Loss::from(epsilon);
        let Outputs { mass, difference, rounding } = self.outputs_above(self.output(&loss), &loss);
        if epsilon > 700.0 {
            // e^epsilon overflows; the mass alone is an upper bound.
            return Interval { lower: 0.0, upper: mass.up() };
        }
        Interval { lower: difference - 4.0 * rounding, upper: difference + 4.0 * rounding }
    }

    /// The smallest and the largest loss of outputs within `reach` of the means of both distributions. The largest is lowered
    /// to the loss at which delta of the step falls to `tail`.
    fn range(&self, reach: f64, tail: f64) -> (f64, f64) {
        let (lowest, mut high) = self.ends(reach);
        let mut low = 0.0;
        // An accuracy of 0.01 in the output is enough.
        for _ in 0..64 {
            if (high - low).abs() <= 0.01 {
                break;
            }
            let middle = 0.5 * (low + high);
            if self.delta(self.loss(middle)).upper <= tail { high = middle } else { low = middle }
        }
        (self.loss(lowest), self.loss(high))
    }
}

/// `P - e^loss Q` and a bound on its rounding error, where `factors` are the coefficients of the `masses` in it and `formed` the
/// size of the terms of the first factor, which may cancel.
pub(super) fn weighted_difference(
    masses: impl IntoIterator<Item = Mass>,
    factors: impl IntoIterator<Item = f64>,
    formed: f64,
) -> (f64, f64) {
    let (mut difference, mut rounding) = (0.0, None);
    for (factor, mass) in factors.into_iter().zip(masses) {
        difference += factor * mass.value;
        let sum = rounding.unwrap_or(8.0 * UNIT * formed * mass.value);
        rounding = Some(sum + ROUNDING * factor.abs() * (mass.scale + mass.value));
    }
    (difference, rounding.unwrap_or(0.0))
}
