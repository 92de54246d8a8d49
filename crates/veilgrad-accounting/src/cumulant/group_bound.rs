//! A closed-form upper bound on the cumulant of a Poisson sample with several records of one person.

use super::jet::Jet;
use crate::number::UNIT;

/// With `W_j` the likelihood ratio of a round that samples j of the records, the L^a norm of `W_j` is `e^{(a-1) j^2/(2 z^2)}`, and
/// Minkowski's inequality bounds that of their binomial mixture. When the records are added, losses are at most minus the log
/// of the probability that none of them is sampled. The bound is the larger one of both directions.
#[derive(Debug, Clone)]
pub(crate) struct GroupBound {
    /// The log of the weight of every number of sampled records, and the exponent of its norm.
    terms: Vec<(f64, f64)>,
    largest: f64,
}

impl GroupBound {
    pub(crate) fn new(rate: f64, records: u64, z: f64) -> Self {
        let none = records as f64 * libm::log1p(-rate);
        let log_odds = (rate / (1.0 - rate)).ln();
        let (mut log_weight, mut terms) = (none, vec![(none, 0.0)]);
        for j in 1..=records {
            log_weight += ((records - j + 1) as f64 / j as f64).ln() + log_odds;
            let norm = j as f64 / z;
            terms.push((log_weight, 0.5 * norm * norm));
        }
        Self { terms, largest: -none }
    }

    /// An upper bound on `K(tilt)`, and the derivatives of the bound.
    pub(crate) fn at(&self, tilt: f64) -> Jet {
        let exponents = || self.terms.iter().map(|(weight, norm)| weight + tilt * norm);
        let top = exponents().fold(f64::MIN, f64::max);
        let (mut sum, mut first, mut second) = (0.0, 0.0, 0.0);
        for ((_, norm), exponent) in self.terms.iter().zip(exponents()) {
            let mass = (exponent - top).exp();
            sum += mass;
            first += mass * norm;
            second += mass * norm * norm;
        }
        let (order, mean) = (1.0 + tilt, first / sum);
        // The weights sum to 1: a log of at least 0.
        let log = (top + sum.ln()).max(0.0);
        let size = top.abs() + 1.0 + self.terms.len() as f64;
        let log = log + 16.0 * UNIT * size;
        let added = tilt * self.largest * (1.0 + 64.0 * UNIT);
        if added > order * log {
            return Jet { value: added, first: self.largest, second: 0.0 };
        }
        Jet {
            value: order * log,
            first: log + order * mean,
            second: 2.0 * mean + order * (second / sum - mean * mean),
        }
    }
}
