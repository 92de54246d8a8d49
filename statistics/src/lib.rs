//! Statistical tests of exact randomness, with a stated probability of a false alarm.
//!
//! Every check computes a two-sided tail probability of its statistic and fails below [`ALPHA`]. Tails are
//! exact (Poisson, coins), or those of a normal approximation with the exact mean and variance. The approximation is used
//! only where counts are so large that even this far out its tail is right up to a small factor. The probability of a
//! false alarm in m checks is then about m times [`ALPHA`].

pub mod audit;
pub mod correlated;
pub mod karney;
pub mod law;
pub mod noise;
pub mod release;
pub mod sample;

/// The tail probability below which a check fails.
pub const ALPHA: f64 = 1e-9;

/// One statistical test and its tail probability.
#[derive(Debug, Clone)]
pub struct Check {
    /// What was checked.
    pub name: String,
    /// The probability of a deviation at least as large, under the exact distribution.
    pub tail: f64,
}

impl Check {
    /// Whether the check passes: its tail probability is at least [`ALPHA`].
    #[must_use]
    pub fn holds(&self) -> bool {
        self.tail >= ALPHA
    }

    /// A check of a deviation, given in standard deviations of a normal variable.
    pub fn by_deviations(name: impl Into<String>, deviations: f64) -> Self {
        // NaN fails.
        let tail = libm::erfc(deviations.abs() / std::f64::consts::SQRT_2);
        Self { name: name.into(), tail: if tail.is_nan() { 0.0 } else { tail } }
    }

    /// Pearson's chi-square test of counts against expectations. Cells with an expectation below 50 are merged with their
    /// neighbours.
    pub fn chi_square(name: impl Into<String>, counts: &[u64], expected: &[f64]) -> Self {
        let (mut chi2, mut cells) = (0.0, 0.0);
        let (mut count, mut expectation) = (0.0, 0.0);
        let mut pending = (0.0, 0.0);
        for (found, expect) in counts.iter().zip(expected) {
            count += *found as f64;
            expectation += expect;
            if expectation >= 50.0 {
                // The last full cell is kept back: the rest of the cells is merged into it.
                if pending.1 > 0.0 {
                    chi2 += (pending.0 - pending.1) * (pending.0 - pending.1) / pending.1;
                    cells += 1.0;
                }
                pending = (count, expectation);
                (count, expectation) = (0.0, 0.0);
            }
        }
        pending = (pending.0 + count, pending.1 + expectation);
        chi2 += (pending.0 - pending.1) * (pending.0 - pending.1) / pending.1;
        cells += 1.0;
        let freedom: f64 = cells - 1.0;
        if freedom < 1.0 {
            return Self { name: name.into(), tail: 1.0 };
        }
        Self::by_dispersion(name, chi2, freedom)
    }

    /// A check of a chi-square statistic, by the approximation of Wilson and Hilferty.
    pub fn by_dispersion(name: impl Into<String>, chi2: f64, freedom: f64) -> Self {
        let spread = 2.0 / (9.0 * freedom);
        Self::by_deviations(name, ((chi2 / freedom).cbrt() - (1.0 - spread)) / spread.sqrt())
    }

    /// A check of a Poisson count: twice the smaller of its exact tails.
    pub fn poisson(name: impl Into<String>, count: u64, expected: f64) -> Self {
        if expected > 1e5 {
            return Self::by_deviations(name, (count as f64 - expected) / expected.sqrt());
        }
        let term = |k: u64| {
            let k = k as f64;
            (k * expected.ln() - expected - libm::lgamma(k + 1.0)).exp()
        };
        let below: f64 = (0..=count).map(term).sum();
        let reach = 100 + (40.0 * expected.sqrt()) as u64;
        let above: f64 = (count..count + reach).map(term).sum();
        Self { name: name.into(), tail: (2.0 * below.min(above)).min(1.0) }
    }

    /// A check of how many of some fair coins show heads: twice the smaller of its exact tails.
    pub fn coins(name: impl Into<String>, heads: u64, coins: u64) -> Self {
        let factorial = |k: u64| libm::lgamma(k as f64 + 1.0);
        let term = |k: u64| {
            let ways = factorial(coins) - factorial(k) - factorial(coins - k);
            (ways - coins as f64 * std::f64::consts::LN_2).exp()
        };
        let below: f64 = (0..=heads).map(term).sum();
        let above: f64 = (heads..=coins).map(term).sum();
        Self { name: name.into(), tail: (2.0 * below.min(above)).min(1.0) }
    }
}

/// Probability that a standard normal variable exceeds `x`.
#[must_use]
pub fn upper_tail(x: f64) -> f64 {
    libm::erfc(x / std::f64::consts::SQRT_2) / 2.0
}

/// Probability that a standard normal variable lies in `[low, high)`, without cancellation.
#[must_use]
pub fn normal_probability(low: f64, high: f64) -> f64 {
    if low >= 0.0 {
        upper_tail(low) - upper_tail(high)
    } else if high <= 0.0 {
        upper_tail(-high) - upper_tail(-low)
    } else {
        1.0 - upper_tail(-low) - upper_tail(high)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tails_are_those_of_tables() {
        assert!((Check::by_deviations("", 1.959_963_985).tail - 0.05).abs() < 1e-9);
        assert!((normal_probability(-1.0, 1.0) - 0.682_689_492_137).abs() < 1e-12);
        assert!((normal_probability(4.0, 5.0) / 3.138_459_3e-5 - 1.0).abs() < 1e-6);
        // Chi-square with 10 degrees of freedom exceeds 23.209 with probability 0.01.
        let expected = [1000.0; 11];
        let mut counts = [1000u64; 11];
        counts[0] += 108;
        counts[1] -= 108;
        let check = Check::chi_square("", &counts, &expected);
        assert!((check.tail / 2.0 - 0.01).abs() < 0.002, "{}", check.tail);
        // 40 of 40 coins: twice 2^-40. 8 or fewer of 20: 0.2517.
        assert!((Check::coins("", 40, 40).tail / 2f64.powi(-39) - 1.0).abs() < 1e-9);
        assert!((Check::coins("", 8, 20).tail - 0.5034).abs() < 1e-4);
        // 10 or fewer of 20 expected: 0.0108 below, both tails 0.0216.
        assert!((Check::poisson("", 10, 20.0).tail - 0.0216).abs() < 1e-3);
    }
}
