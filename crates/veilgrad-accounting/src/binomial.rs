//! Tails of the binomial distribution.

/// `P(Binomial(trials, p) >= successes)`: the incomplete beta function `I_p(successes, trials - successes + 1)`.
pub(crate) fn at_least(successes: u64, trials: u64, p: f64) -> f64 {
    if successes == 0 || p >= 1.0 {
        return 1.0;
    }
    if successes > trials || p <= 0.0 {
        return 0.0;
    }
    let (a, b) = (successes as f64, (trials - successes) as f64 + 1.0);
    let log_front =
        libm::lgamma(a + b) - libm::lgamma(a) - libm::lgamma(b) + a * p.ln() + b * libm::log1p(-p);
    // The continued fraction converges fast on one side of the mean.
    if p < (a + 1.0) / (a + b + 2.0) {
        (log_front.exp() * beta_fraction(a, b, p) / a).min(1.0)
    } else {
        (1.0 - log_front.exp() * beta_fraction(b, a, 1.0 - p) / b).max(0.0)
    }
}

/// The continued fraction of the incomplete beta function, by Lentz's method.
fn beta_fraction(a: f64, b: f64, x: f64) -> f64 {
    const TINY: f64 = 1e-300;
    let away_from_zero = |value: f64| if value.abs() < TINY { TINY } else { value };
    let mut c = 1.0;
    let mut d = 1.0 / away_from_zero(1.0 - (a + b) * x / (a + 1.0));
    let mut value = d;
    // Converges in about sqrt(trials) steps.
    for m in 1..200_000 {
        let m = f64::from(m);
        let even = m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m));
        d = 1.0 / away_from_zero(1.0 + even * d);
        c = away_from_zero(1.0 + even / c);
        value *= d * c;
        let odd = -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0));
        d = 1.0 / away_from_zero(1.0 + odd * d);
        c = away_from_zero(1.0 + odd / c);
        value *= d * c;
        if (d * c - 1.0).abs() < 1e-15 {
            break;
        }
    }
    value
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The tail, term by term.
    pub(crate) fn slow_tail(successes: u64, trials: u64, p: f64) -> f64 {
        let mut term = (1.0 - p).powi(trials as i32);
        let mut sum = if successes == 0 { term } else { 0.0 };
        for k in 0..trials {
            term *= (trials - k) as f64 / (k + 1) as f64 * p / (1.0 - p);
            if k + 1 >= successes {
                sum += term;
            }
        }
        sum
    }

    #[test]
    fn tails_equal_the_sums_of_their_terms() {
        for trials in [1, 2, 10, 77, 500] {
            for successes in [0, 1, trials / 3, trials / 2, trials] {
                for p in [1e-3, 0.1, 0.5, 0.73] {
                    let (fast, slow) =
                        (at_least(successes, trials, p), slow_tail(successes, trials, p));
                    assert!(
                        (fast - slow).abs() < 1e-11 * slow + 1e-13,
                        "{successes} of {trials} at {p}: {fast} {slow}"
                    );
                }
            }
        }
    }
}
