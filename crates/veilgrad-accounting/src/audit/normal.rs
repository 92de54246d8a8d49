//! The normal distribution and its quantiles.

use crate::number::upper_tail;

/// `P(y <= x)` for a standard normal y.
pub(super) fn normal(x: f64) -> f64 {
    upper_tail(-x)
}

/// The x with `P(y <= x) = probability`, with an error of about `1e-14 (1 + |x|)`; infinite at 0 and 1.
pub(super) fn quantile(probability: f64) -> f64 {
    if !(probability > 0.0) {
        return f64::NEG_INFINITY;
    }
    if probability > 0.5 {
        return if probability < 1.0 { -quantile(1.0 - probability) } else { f64::INFINITY };
    }
    // Hastings' approximation (Abramowitz and Stegun 26.2.23) has an error of 4.5e-4; each Halley step triples the digits.
    let t = (-2.0 * probability.ln()).sqrt();
    let numerator = 2.515_517 + t * (0.802_853 + t * 0.010_328);
    let denominator = 1.0 + t * (1.432_788 + t * (0.189_269 + t * 0.001_308));
    let mut x = numerator / denominator - t;
    for _ in 0..3 {
        let density = (-0.5 * x * x).exp() / (2.0 * std::f64::consts::PI).sqrt();
        let newton_step = (normal(x) - probability) / density;
        x -= newton_step / (1.0 + 0.5 * x * newton_step);
    }
    x
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_tables() {
        for (probability, exact) in [
            (0.5, 0.0),
            (0.975, 1.959_963_984_540_054),
            (0.05, -1.644_853_626_951_472_7),
            (1e-6, -4.753_424_308_822_899),
            (1e-15, -7.941_345_326_170_997),
        ] {
            assert!((quantile(probability) - exact).abs() < 1e-12, "{probability}");
        }
        for x in [-6.0, -2.5, -0.1, 0.4, 1.0, 3.0] {
            assert!((quantile(normal(x)) - x).abs() < 1e-10, "{x}");
        }
        assert_eq!((quantile(0.0), quantile(1.0)), (f64::NEG_INFINITY, f64::INFINITY));
    }
}
