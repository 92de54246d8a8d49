//! The Gaussian without sampling: closed forms.

use crate::contour::Interval;
use crate::number::{UNIT, bracket_root, upper_tail};

/// `P(y > a) - e^eps P(y > b)` with `a = eps/mu - mu/2`, `b = eps/mu + mu/2`: the profile of a
/// Gaussian whose neighbours are mu standard deviations apart.
pub(crate) fn delta(mu: f64, epsilon: f64) -> Interval {
    if mu == 0.0 {
        return Interval { lower: 0.0, upper: 0.0 };
    }
    let (a, b) = (epsilon / mu - 0.5 * mu, epsilon / mu + 0.5 * mu);
    let first = upper_tail(a);
    // Far out both tails underflow on their own; there delta is at most the first.
    let second = libm::exp(epsilon + log_tail(b));
    let value = first - second;
    // Tails lose digits with the square of their argument, in which eps/mu and mu/2 may cancel.
    let digits = 64.0 + 4.0 * ((epsilon / mu).abs() + mu) * (a.abs() + b.abs()) + 4.0 * epsilon;
    let error = digits * UNIT * (first + second);
    let upper = (value + error).min(first * (1.0 + digits * UNIT) + f64::MIN_POSITIVE);
    Interval { lower: value - error, upper: if upper.is_nan() { f64::INFINITY } else { upper } }
}

/// The log of `P(y > x)`, also where it underflows.
fn log_tail(x: f64) -> f64 {
    if x < 20.0 {
        return upper_tail(x).ln();
    }
    // The continued fraction of Mills' ratio, from its twentieth term back: far below rounding here.
    let mut fraction = x;
    for k in (1..=40).rev() {
        fraction = x + f64::from(k) / fraction;
    }
    -0.5 * x * x - 0.5 * (2.0 * std::f64::consts::PI).ln() - fraction.ln()
}

/// At least the smallest mu whose profile is at least `delta_wanted` at `epsilon`.
pub(crate) fn mu(epsilon: f64, delta_wanted: f64) -> f64 {
    if delta_wanted <= 0.0 {
        return 0.0;
    }
    if delta_wanted >= 1.0 {
        return f64::INFINITY;
    }
    let below = |mu: f64| delta_wanted - delta(mu, epsilon).lower;
    let mut high = 1e-3;
    while below(high) > 0.0 && high < 1e8 {
        high *= 2.0;
    }
    if below(high) > 0.0 {
        return f64::INFINITY;
    }
    bracket_root(below, if high > 1e-3 { 0.5 * high } else { 0.0 }, high, 1e-10).1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epsilon_and_mu_undo_delta() {
        for (mu_true, wanted) in [(1.0, 1e-5), (0.01, 1e-9), (10.0, 1e-12), (100.0, 1e-300)] {
            let log_ratio = |e: f64| (delta(mu_true, e).upper / wanted).ln();
            let (_, upper) = bracket_root(log_ratio, 0.0, 50.0 * mu_true * (mu_true + 1.0), 1e-13);
            let found = mu(upper, wanted);
            assert!((found / mu_true - 1.0).abs() < 1e-6, "{mu_true} {found}");
        }
    }
}
