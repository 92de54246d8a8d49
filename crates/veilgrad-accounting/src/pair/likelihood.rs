//! The likelihood ratio and the privacy loss of a sampled Gaussian, as functions of its output.
//!
//! Outputs y are standard normal without the record, and shifted by 1/z in rounds that sample it. The likelihood ratio of a
//! round with the record, sampled at rate q, is `1 + u(y)` with `u(y) = q (e^{y/z - 1/(2z^2)} - 1)`.

use crate::number::log_beyond_linear;
use crate::{Sampled, Step};

/// Which of two neighbouring datasets is the one that ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    /// The record is there and might not be.
    Remove,
    /// The record is not there and might be.
    Add,
}

/// The two distributions that one step's privacy loss compares. The loss is a monotone function of the output y; under
/// the neighbour that ran, y has density `e^{weight(y)}` relative to the standard normal one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pair {
    pub(crate) q: f64,
    pub(crate) z: f64,
    pub(crate) change: Change,
}

/// Which two distributions a loss compares.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Change {
    /// weight = loss = log(1 + u(y)).
    Remove,
    /// weight = 0, loss = -log(1 + u(y)).
    Add,
    /// weight = log(1 + u(-y)), loss = log(1 + u(-y)) - log(1 + u(y)).
    Replace,
}

/// Weight and loss of a [`Pair`] at one output.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Point {
    pub(crate) weight: f64,
    pub(crate) loss: f64,
    /// `weight` and `loss` without their linear term in u. Since `E u = 0`, leaving that term out changes no expectation,
    /// and the small excess of a moment over 1 is summed without cancellation.
    pub(crate) weight_beyond_linear: f64,
    pub(crate) loss_beyond_linear: f64,
}

/// A privacy loss and its exponential, which many pairs share.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Loss {
    pub(crate) value: f64,
    /// `e^value`, and `e^value - 1`.
    pub(crate) growth: f64,
    pub(crate) growth_less_one: f64,
}

impl From<f64> for Loss {
    fn from(value: f64) -> Self {
        Self { value, growth: libm::exp(value), growth_less_one: libm::expm1(value) }
    }
}

impl Pair {
    pub(crate) fn new(step: Step, direction: Direction) -> Self {
        let change = match (step.sampled, direction) {
            (Sampled::PoissonReplaced(_), _) => Change::Replace,
            (_, Direction::Remove) => Change::Remove,
            (_, Direction::Add) => Change::Add,
        };
        Self { q: step.rate(), z: step.z, change }
    }

    /// The pair of a Poisson sampled step, whose loss is analytic in the output; `None` for other steps.
    pub(crate) fn analytic(step: Step, direction: Direction) -> Option<Self> {
        let analytic = matches!(step.sampled, Sampled::Poisson(_) | Sampled::PoissonReplaced(_));
        analytic.then(|| Self::new(step, direction))
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

    /// The privacy loss at the output y.
    pub(super) fn loss_at(&self, y: f64) -> f64 {
        match self.change {
            Change::Remove => self.log_ratio(y),
            Change::Add => -self.log_ratio(y),
            Change::Replace => self.log_ratio(-y) - self.log_ratio(y),
        }
    }

    /// The output with this loss; infinite if no output has it.
    pub(super) fn output_at(&self, loss: &Loss) -> f64 {
        match self.change {
            Change::Remove => self.inverse_log_ratio(loss.value, loss.growth_less_one),
            Change::Add => self.inverse_log_ratio(-loss.value, libm::expm1(-loss.value)),
            Change::Replace => {
                // The loss is odd in y. For l >= 0 the root X = e^{y/z} of e^l q a X^2 + (1-q)(e^l - 1) X - q a = 0, with
                // a = e^{-1/(2z^2)}: for X = e^{-l/2} W that is (1/W - W)/2 = (1-q)/(q a) sinh(l/2).
                let y = -self.z * (0.5 * loss.value.abs() + self.log_half_root(loss));
                if loss.value >= 0.0 { y } else { -y }
            }
        }
    }

    /// `asinh((1-q)/q sinh(l/2) e^{1/(2z^2)})` for `l = |loss|`, also where the argument overflows.
    fn log_half_root(&self, loss: &Loss) -> f64 {
        let odds = (1.0 - self.q) / self.q;
        let l = loss.value.abs();
        if odds == 0.0 || l == 0.0 {
            return 0.0;
        }
        let twice_sinh = (loss.growth_less_one / loss.growth.sqrt()).abs();
        let exponent = 0.5 / (self.z * self.z);
        let argument = 0.5 * odds * twice_sinh * libm::exp(exponent);
        if argument < 1e150 {
            return libm::asinh(argument);
        }
        // 2 sinh(l/2) = e^{l/2} (1 - e^{-l})
        let log_twice = odds.ln() + 0.5 * l + (-libm::expm1(-l)).ln() + exponent;
        if log_twice > 300.0 { log_twice } else { libm::asinh(0.5 * log_twice.exp()) }
    }

    /// The output with this log of the likelihood ratio, given also `growth_less_one`, its exponential minus 1.
    fn inverse_log_ratio(&self, loss: f64, growth_less_one: f64) -> f64 {
        if self.q == 1.0 {
            return self.z * loss + 0.5 / self.z;
        }
        let exponent = if loss > 30.0 {
            loss - self.q.ln() + libm::log1p(-(1.0 - self.q) * (-loss).exp())
        } else {
            let ratio = growth_less_one / self.q;
            if ratio <= -1.0 {
                return f64::NEG_INFINITY;
            }
            libm::log1p(ratio)
        };
        self.z * exponent + 0.5 / self.z
    }

    /// `(log(1 + u), log(1 + u) - u)` at y.
    fn ratio(&self, y: f64) -> (f64, f64) {
        let exponent = y / self.z - 0.5 / (self.z * self.z);
        if exponent > 700.0 {
            // The ratio itself would overflow; its log does not.
            let log =
                self.q.ln() + exponent + libm::log1p((1.0 - self.q) / self.q * (-exponent).exp());
            (log, log - self.q * libm::expm1(exponent))
        } else {
            let u = self.q * libm::expm1(exponent);
            (libm::log1p(u), log_beyond_linear(u))
        }
    }

    /// Weight and loss at the output y.
    pub(crate) fn at(&self, y: f64) -> Point {
        let (up, up_bend) = self.ratio(y);
        let ((weight, weight_beyond_linear), (loss, loss_beyond_linear)) = match self.change {
            Change::Remove => ((up, up_bend), (up, up_bend)),
            Change::Add => ((0.0, 0.0), (-up, -up_bend)),
            Change::Replace => {
                let (down, down_bend) = self.ratio(-y);
                ((down, down_bend), (down - up, down_bend - up_bend))
            }
        };
        Point { weight, loss, weight_beyond_linear, loss_beyond_linear }
    }

    /// Iterates over output, weight and loss at `left`, `left + spacing`, ...: quicker than [`at`](Self::at).
    pub(crate) fn equally_spaced(&self, left: f64, spacing: f64) -> EquallySpaced<'_> {
        let ratio = libm::exp(spacing / self.z);
        EquallySpaced { pair: self, left, spacing, ratio, up: 0.0, down: 0.0, index: 0 }
    }
}

/// Losses at equally spaced outputs, whose likelihood ratios are a geometric sequence.
pub(crate) struct EquallySpaced<'a> {
    pair: &'a Pair,
    left: f64,
    spacing: f64,
    /// Factor between the likelihood ratios of neighbouring outputs.
    ratio: f64,
    /// `e^{y/z - 1/(2z^2)}` at the last output y, and at -y.
    up: f64,
    down: f64,
    index: usize,
}

impl EquallySpaced<'_> {
    /// The likelihood ratio is computed anew after this many outputs, to bound the rounding error.
    const STRETCH: usize = 16;
    /// An upper bound on the rounding error of a loss in unit roundoffs, apart from that of its exponent. Every output adds
    /// two roundings and that of the ratio, whose exponent is below 1/2.
    pub(crate) const ROUNDING: f64 = 64.0;

    fn log_ratio(&self, y: f64, likelihood: f64) -> f64 {
        if likelihood < 1e300 {
            libm::log1p(self.pair.q * (likelihood - 1.0))
        } else {
            self.pair.ratio(y).0
        }
    }
}

impl Iterator for EquallySpaced<'_> {
    /// Output, weight, loss.
    type Item = (f64, f64, f64);

    fn next(&mut self) -> Option<Self::Item> {
        let (change, z) = (self.pair.change, self.pair.z);
        let y = self.left + self.index as f64 * self.spacing;
        if self.index.is_multiple_of(Self::STRETCH) {
            let likelihood = |y: f64| libm::exp(y / z - 0.5 / (z * z));
            self.up = likelihood(y);
            self.down = if change == Change::Replace { likelihood(-y) } else { 0.0 };
        } else {
            self.up *= self.ratio;
            self.down /= self.ratio;
        }
        self.index += 1;
        let up = self.log_ratio(y, self.up);
        Some(match change {
            Change::Remove => (y, up, up),
            Change::Add => (y, 0.0, -up),
            Change::Replace => {
                let down = self.log_ratio(-y, self.down);
                (y, down, down - up)
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::number::UNIT;

    #[test]
    fn equally_spaced_losses_agree_with_single_ones() {
        let sampled = [Sampled::Poisson(0.01), Sampled::PoissonReplaced(0.3)];
        for (sampled, z) in sampled.into_iter().flat_map(|one| [(one, 0.3), (one, 2.0)]) {
            for direction in [Direction::Remove, Direction::Add] {
                let pair = Pair::analytic(Step { sampled, z }, direction).unwrap();
                let (left, spacing) = (-9.0, 0.13 * z);
                for (y, weight, loss) in pair.equally_spaced(left, spacing).take(200) {
                    let exact = pair.at(y);
                    let units = EquallySpaced::ROUNDING + pair.loss_rounding(y);
                    let error = UNIT * (units + 4.0 * (loss.abs() + weight.abs()));
                    assert!((loss - exact.loss).abs() <= error, "{pair:?} {y}: {loss} {exact:?}");
                    assert!((weight - exact.weight).abs() <= error, "{pair:?} {y}: {weight}");
                }
            }
        }
    }
}
