//! Parameters that keep a budget: the noise, the rate or the number of rounds, always on its safe side.

use veilgrad_events::{Delta, Epsilon, NoiseMultiplier, SampleRate};

use crate::account::Accountant;
use crate::{Composition, Unsupported};

/// Answers are this close to optimal, relatively.
const TOLERANCE: f64 = 1e-6;
/// Noise multipliers that are tried.
const NOISE: (f64, f64) = (1e-2, 1e7);
/// The smallest rate that is tried.
const LEAST_RATE: f64 = 1e-12;
/// More rounds than this are as good as any number.
const MOST_ROUNDS: u64 = 1 << 53;

/// What must not be exceeded.
#[derive(Clone, Copy)]
pub struct Target<'a> {
    /// The budget.
    pub epsilon: Epsilon,
    /// The delta at which it holds.
    pub delta: Delta,
    /// Who accounts.
    pub accountant: &'a dyn Accountant,
}

impl Target<'_> {
    /// By how much a composition exceeds the budget; infinite if that cannot be told.
    fn excess(&self, composition: Result<Composition, Unsupported>) -> f64 {
        composition
            .and_then(|composition| self.accountant.epsilon(&composition, self.delta))
            .map_or(f64::INFINITY, |found| found.epsilon - self.epsilon.get())
    }

    /// The smallest noise multiplier that keeps the budget.
    ///
    /// # Guarantee
    /// Accounting the answer again gives at most the target, and it is within 1e-6 of the smallest
    /// multiplier for which the accountant says so. `with` must cost less with more noise.
    ///
    /// # Errors
    /// When no multiplier keeps the budget, or the accountant cannot speak.
    pub fn noise_multiplier(
        &self,
        with: impl Fn(NoiseMultiplier) -> Result<Composition, Unsupported>,
    ) -> Result<NoiseMultiplier, Unsupported> {
        let multiplier =
            |z: f64| NoiseMultiplier::new(z).map_err(|error| Unsupported::new(error.to_string()));
        // What cannot be accounted at all is said so, not searched.
        with(multiplier(1.0)?)?;
        let excess =
            |log: f64| End { at: log, excess: self.excess(multiplier(log.exp()).and_then(&with)) };
        let mut high = excess(0.0);
        let mut low = high;
        if high.excess > 0.0 {
            while high.excess > 0.0 {
                if high.at > NOISE.1.ln() {
                    return Err(Unsupported::new(format!(
                        "no noise multiplier up to {:e} keeps epsilon {} at delta {:e}",
                        NOISE.1,
                        self.epsilon.get(),
                        self.delta.get()
                    )));
                }
                (low, high) = (high, excess(high.at + 1.0));
            }
        } else {
            while low.excess <= 0.0 {
                if low.at < NOISE.0.ln() {
                    // Whatever is asked for, this much noise suffices and less is not worth having.
                    return multiplier(low.at.exp());
                }
                (low, high) = (excess(low.at - 1.0), low);
            }
        }
        multiplier(close(excess, low, high, TOLERANCE).exp())
    }

    /// The largest sampling rate that keeps the budget.
    ///
    /// # Guarantee
    /// As for [`noise_multiplier`](Self::noise_multiplier). `with` must cost more at a higher rate.
    ///
    /// # Errors
    /// When no rate keeps the budget, or the accountant cannot speak.
    pub fn rate(
        &self,
        with: impl Fn(SampleRate) -> Result<Composition, Unsupported>,
    ) -> Result<SampleRate, Unsupported> {
        let rate = |q: f64| {
            SampleRate::new(q.min(1.0)).map_err(|error| Unsupported::new(error.to_string()))
        };
        with(rate(0.5)?)?;
        // Rates fall from the left to the right: x = -log q.
        let excess = |x: f64| End { at: x, excess: self.excess(rate((-x).exp()).and_then(&with)) };
        let mut low = excess(0.0);
        if low.excess <= 0.0 {
            return rate(1.0);
        }
        let mut high = excess(1.0);
        while high.excess > 0.0 {
            if high.at > -LEAST_RATE.ln() {
                return Err(Unsupported::new(format!(
                    "no rate down to {LEAST_RATE:e} keeps epsilon {} at delta {:e}",
                    self.epsilon.get(),
                    self.delta.get()
                )));
            }
            (low, high) = (high, excess(high.at + 2.0));
        }
        rate((-close(excess, low, high, TOLERANCE)).exp())
    }

    /// The largest number of rounds that keeps the budget, 0 if none does: how many more, if `with`
    /// puts them after those of a ledger.
    ///
    /// # Errors
    /// When the accountant cannot speak, or no number of rounds reaches the budget.
    pub fn rounds(
        &self,
        with: impl Fn(u64) -> Result<Composition, Unsupported>,
    ) -> Result<u64, Unsupported> {
        with(1)?;
        let fits = |rounds: u64| self.excess(with(rounds)) <= 0.0;
        if !fits(1) {
            return Ok(0);
        }
        let (mut low, mut high) = (1, 2);
        while fits(high) {
            if high >= MOST_ROUNDS {
                return Err(Unsupported::new("no number of rounds reaches the budget"));
            }
            (low, high) = (high, high.saturating_mul(4));
        }
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if fits(middle) { low = middle } else { high = middle }
        }
        Ok(low)
    }
}

/// A place that was tried, and by how much it exceeds the budget.
#[derive(Clone, Copy)]
struct End {
    at: f64,
    excess: f64,
}

/// The right end, which keeps the budget, of a bracket that is closed to `tolerance`.
fn close(tried: impl Fn(f64) -> End, mut left: End, mut right: End, tolerance: f64) -> f64 {
    let mut halve = false;
    while right.at - left.at > tolerance {
        let before = right.at - left.at;
        // The secant, a little to its right so that both ends move; halving where it does not help.
        let secant = right.at - right.excess * before / (right.excess - left.excess);
        let usable = !halve && left.excess.is_finite() && secant > left.at && secant < right.at;
        let next = if usable {
            let room = 0.3 * tolerance;
            tried((secant + room).min(right.at - room).max(left.at + room))
        } else {
            tried(0.5 * (left.at + right.at))
        };
        if next.excess <= 0.0 {
            right = next
        } else {
            left = next
        }
        halve = right.at - left.at > 0.5 * before;
    }
    right.at
}
