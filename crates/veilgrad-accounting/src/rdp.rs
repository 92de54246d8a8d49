//! Rényi differential privacy of a composition, at any real order, and its epsilon.

use veilgrad_events::{Delta, Epsilon};

use crate::moment::log_moment;
use crate::{Composition, Sampled, Step, Unsupported};

/// Relative room for the rounding of moments and their sums.
const SLACK: f64 = 1e-11;

/// The Rényi divergence of one step at order `alpha > 1`, the larger of both directions.
#[must_use]
pub fn step_divergence(step: Step, alpha: f64) -> f64 {
    match step.sampled {
        Sampled::Always => alpha / (2.0 * step.z * step.z),
        Sampled::Poisson(q) => {
            let remove = log_moment(alpha, q, step.z) / (alpha - 1.0);
            let add = log_moment(1.0 - alpha, q, step.z) / (alpha - 1.0);
            // A moment that could not be computed bounds nothing.
            if remove.is_nan() || add.is_nan() { f64::INFINITY } else { remove.max(add) }
        }
    }
}

/// The Rényi divergence of a composition at order `alpha > 1`.
#[must_use]
pub fn divergence(composition: &Composition, alpha: f64) -> f64 {
    let steps = composition.steps().iter();
    steps.map(|(step, count)| *count as f64 * step_divergence(*step, alpha)).sum()
}

/// An epsilon and the order that gave it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RdpEpsilon {
    /// The bound.
    pub epsilon: Epsilon,
    /// The order at which it holds.
    pub order: f64,
}

/// The epsilon that a divergence `r` at order `alpha` gives for `delta` (Canonne, Kamath, Steinke
/// 2020, proposition 12).
fn epsilon_at(r: f64, alpha: f64, delta: f64) -> f64 {
    r * (1.0 + SLACK) + libm::log1p(-1.0 / alpha) - (delta.ln() + alpha.ln()) / (alpha - 1.0)
}

/// The smallest epsilon over all orders.
///
/// # Guarantee
/// Any order gives a valid bound; the search only looks for a good one. An epsilon below 0 is 0.
///
/// # Errors
/// When no order gives a finite bound.
pub fn epsilon(composition: &Composition, delta: Delta) -> Result<RdpEpsilon, Unsupported> {
    let at = |log_excess: f64| {
        let alpha = 1.0 + log_excess.exp();
        let epsilon = epsilon_at(divergence(composition, alpha), alpha, delta.get());
        if epsilon.is_nan() { f64::INFINITY } else { epsilon }
    };
    // A coarse scan of ln(alpha - 1) until it gets worse, then golden section around the best.
    let (mut best, mut worse) = ((0.0, f64::INFINITY), 0);
    for x in (-20..=60).map(|i| f64::from(i) * 0.35) {
        let epsilon = at(x);
        worse = if epsilon < best.1 { 0 } else { worse + 1 };
        if epsilon < best.1 {
            best = (x, epsilon);
        }
        if worse == 4 && best.1.is_finite() {
            break;
        }
    }
    let (mut low, mut high) = (best.0 - 0.35, best.0 + 0.35);
    let ratio = (5f64.sqrt() - 1.0) / 2.0;
    let (mut left, mut right) = (high - ratio * (high - low), low + ratio * (high - low));
    let (mut at_left, mut at_right) = (at(left), at(right));
    for _ in 0..40 {
        if at_left < at_right {
            (high, right, at_right) = (right, left, at_left);
            left = high - ratio * (high - low);
            at_left = at(left);
        } else {
            (low, left, at_left) = (left, right, at_right);
            right = low + ratio * (high - low);
            at_right = at(right);
        }
    }
    let candidates = [best, (left, at_left), (right, at_right)];
    let best = candidates.into_iter().fold(best, |a, b| if b.1 < a.1 { b } else { a });
    let epsilon = Epsilon::new(best.1.max(0.0))
        .map_err(|_| Unsupported::new("no order has a finite Rényi divergence"))?;
    Ok(RdpEpsilon { epsilon, order: 1.0 + best.0.exp() })
}
