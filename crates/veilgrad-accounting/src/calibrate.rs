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
        let excess = |log: f64| self.excess(multiplier(log.exp()).and_then(&with));
        let (mut low, mut high) = (0.0, 0.0);
        if excess(high) > 0.0 {
            while excess(high) > 0.0 {
                if high > NOISE.1.ln() {
                    return Err(Unsupported::new(format!(
                        "no noise multiplier up to {:e} keeps epsilon {} at delta {}",
                        NOISE.1,
                        self.epsilon.get(),
                        self.delta.get()
                    )));
                }
                (low, high) = (high, high + 1.0);
            }
        } else {
            while excess(low) <= 0.0 {
                if low < NOISE.0.ln() {
                    // Whatever is asked for, this much noise suffices and less is not worth having.
                    return multiplier(low.exp());
                }
                (low, high) = (low - 1.0, low);
            }
        }
        multiplier(bisect(excess, low, high, TOLERANCE).exp())
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
        let excess = |log: f64| self.excess(rate(log.exp()).and_then(&with));
        if excess(0.0) <= 0.0 {
            return rate(1.0);
        }
        // Rates fall from the right to the left: x = -log q.
        let excess = |x: f64| excess(-x);
        let (mut low, mut high) = (0.0, 1.0);
        while excess(high) > 0.0 {
            if high > -LEAST_RATE.ln() {
                return Err(Unsupported::new(format!(
                    "no rate down to {LEAST_RATE:e} keeps epsilon {} at delta {}",
                    self.epsilon.get(),
                    self.delta.get()
                )));
            }
            (low, high) = (high, high + 2.0);
        }
        rate((-bisect(excess, low, high, TOLERANCE)).exp())
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

/// The right end, where `f <= 0`, of a bracket that is closed to `tolerance`.
fn bisect(f: impl Fn(f64) -> f64, mut left: f64, mut right: f64, tolerance: f64) -> f64 {
    let (mut at_left, mut at_right) = (f(left), f(right));
    let mut halve = false;
    while right - left > tolerance {
        // The secant, a little to its right so that both ends move; halving where it does not help.
        let secant = right - at_right * (right - left) / (at_right - at_left);
        let usable = !halve && at_left.is_finite() && secant > left && secant < right;
        let next = if usable {
            (secant + 0.3 * tolerance).min(right - 0.3 * tolerance).max(left + 0.3 * tolerance)
        } else {
            0.5 * (left + right)
        };
        let before = right - left;
        let value = f(next);
        if value <= 0.0 {
            (right, at_right) = (next, value);
        } else {
            (left, at_left) = (next, value);
        }
        halve = right - left > 0.5 * before;
    }
    right
}
