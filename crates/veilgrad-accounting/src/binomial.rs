//! Certified tails of the binomial distribution.

use crate::Interval;
use crate::number::UNIT;

/// Bounds on `P(Binomial(trials, p) >= successes)`.
///
/// # Guarantee
/// The probability lies in the interval, rounding errors included, if `libm`'s exp and logarithms err by at most 2 units in the
/// last place. Relative to the smaller of the two tails, the width is below 1e-8 for up to 10^9 trials.
///
/// Proof: docs/accounting.md, "Binomial tails".
pub(crate) fn at_least(successes: u64, trials: u64, p: f64) -> Interval {
    if successes == 0 || p >= 1.0 {
        return Interval { lower: 1.0, upper: 1.0 };
    }
    if successes > trials || p <= 0.0 {
        return Interval { lower: 0.0, upper: 0.0 };
    }
    // Larger numbers are not exact in f64.
    if trials >= 1 << 53 {
        return Interval { lower: 0.0, upper: 1.0 };
    }
    let q = 1.0 - p;
    if successes as f64 > trials as f64 * p {
        return tail(successes, trials, p, q);
    }
    // At most `successes - 1` successes: at least as many failures.
    let fewer = tail(trials - successes + 1, trials, q, p);
    let up = 1.0 + 2.0 * UNIT;
    Interval {
        lower: ((1.0 - fewer.upper) / up).max(0.0),
        upper: ((1.0 - fewer.lower) * up).min(1.0),
    }
}

/// The terms of a tail that are added one by one. What follows them is bounded by a geometric series.
const MOST_TERMS: u64 = 1 << 21;
/// The log of a probability below which only an upper bound is given, because terms could underflow.
const LEAST_LOG: f64 = -600.0;
/// More than `e^LEAST_LOG`.
const LEAST: f64 = 1e-260;

/// Bounds on `P(Binomial(n, p) >= k)` for `n p < k <= n`, up to rounding, where p and q, of sum 1, have relative errors of at
/// most one rounding.
fn tail(k: u64, n: u64, p: f64, q: f64) -> Interval {
    let (log_first, mut error) = log_probability(k, n, p, q);
    let ratio = |j: u64| (n - j) as f64 * p / ((j + 1) as f64 * q);
    // Ratios decrease and are at most 1, rounding aside. So the tail is at most n times its first term, and n < 2^53 < e^37.
    if log_first + error + 38.0 < LEAST_LOG {
        return Interval { lower: 0.0, upper: LEAST };
    }
    let (mut term, mut sum, mut rest) = (1.0, 1.0, 0.0);
    let mut terms = 1u64;
    for j in k..n {
        let ratio = ratio(j);
        term *= ratio;
        // All later ratios are smaller than this one.
        rest = if ratio < 1.0 { term / (1.0 - ratio) } else { f64::INFINITY };
        if rest < 1e-17 * sum || terms == MOST_TERMS {
            break;
        }
        (sum, rest, terms) = (sum + term, 0.0, terms + 1);
    }
    // A ratio has at most six roundings, a term one more for each ratio, and the sum one for each term.
    error += 8.0 * UNIT * (terms + 8) as f64;
    // `e^x - 1 <= 2 x` for x up to 1.
    let factor = if error < 0.5 { 2.0 * error } else { f64::INFINITY };
    let first = libm::exp(log_first);
    let lower = first * sum * (1.0 - factor).max(0.0);
    // `1 - ratio` loses digits only where the ratio is close to 1; doubling covers that.
    let upper = first * (sum + 2.0 * rest) * (1.0 + factor);
    Interval { lower, upper: if upper < 1.0 { upper } else { 1.0 } }
}

/// The log of `P(Binomial(n, p) = k)` for `1 <= k <= n`, and a bound on its error.
///
/// With `m = n - k` and Stirling's formula `ln i! = i ln i - i + ln(2 pi i)/2 + s(i)` it is
/// `ln(n/(2 pi k m))/2 + s(n) - s(k) - s(m) - d(k, n p) - d(m, n q)` (Loader 2000), in which no large numbers cancel.
fn log_probability(k: u64, n: u64, p: f64, q: f64) -> (f64, f64) {
    let (trials, successes, failures) = (n as f64, k as f64, (n - k) as f64);
    if k == n {
        let log = trials * libm::log(p);
        return (log, 8.0 * UNIT * log.abs() + 4.0 * UNIT * trials);
    }
    let (one, one_error) = deviance(successes, trials * p);
    let (other, other_error) = deviance(failures, trials * q);
    let root = 0.5 * libm::log(trials / (std::f64::consts::TAU * successes * failures));
    let corrections = stirling(n) - stirling(k) - stirling(n - k);
    let log = root + corrections - one - other;
    let sizes = root.abs() + one + other + 1.0;
    (log, one_error + other_error + 3.0 * STIRLING_ERROR + 8.0 * UNIT * sizes)
}

/// `x ln(x/mean) + mean - x`, and a bound on its error, where the mean has a relative error of at most three roundings.
fn deviance(x: f64, mean: f64) -> (f64, f64) {
    let difference = x - mean;
    let t = difference / mean;
    // The derivative by the mean is `1 - x/mean`.
    let from_mean = 4.0 * UNIT * difference.abs();
    if t.abs() < 0.1 {
        // `(1+t) ln(1+t) - t`, whose terms are `(-t)^j / (j (j-1))`; those that are left out are below 1e-18 of the sum.
        let (mut power, mut sum) = (-t, 0.0);
        for j in 2..19 {
            power *= -t;
            sum += power / f64::from(j * (j - 1));
        }
        let deviance = mean * sum;
        return (deviance, from_mean + 64.0 * UNIT * deviance);
    }
    let product = x * libm::log(x / mean);
    let error = from_mean + 8.0 * UNIT * (x + product.abs() + difference.abs());
    (product - difference, error)
}

/// An upper bound on the error of [`stirling`].
const STIRLING_ERROR: f64 = 2e-13;

/// `ln i! - (i ln i - i + ln(2 pi i)/2)` for i from 1.
fn stirling(i: u64) -> f64 {
    let x = i as f64;
    if i < 16 {
        // Factorials up to 22! are exact in f64. The numbers below are at most 30, with a few roundings each.
        let factorial: f64 = (1..=i).map(|j| j as f64).product();
        let formula = x * libm::log(x) - x + 0.5 * libm::log(std::f64::consts::TAU * x);
        return libm::log(factorial) - formula;
    }
    // The series alternates and envelops the function; the next term is below 1/(1188 * 16^9) = 1.3e-14.
    let square = 1.0 / (x * x);
    (1.0 / 12.0 - square * (1.0 / 360.0 - square * (1.0 / 1260.0 - square / 1680.0))) / x
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
    fn tails_contain_the_sums_of_their_terms() {
        for trials in [1, 2, 10, 15, 16, 17, 77, 500] {
            for successes in [0, 1, trials / 3, trials / 2, trials - 1, trials, trials + 1] {
                for p in [1e-3, 0.1, 0.5, 0.73] {
                    let found = at_least(successes, trials, p);
                    let (slow, rounding) = (slow_tail(successes, trials, p), 1e-12);
                    let name = format!("{successes} of {trials} at {p}: {found:?} {slow}");
                    assert!(found.lower <= slow + rounding * slow.max(0.1), "{name}");
                    assert!(found.upper >= slow - rounding * slow.max(0.1), "{name}");
                    assert!(found.upper - found.lower <= 1e-11 * found.upper + LEAST, "{name}");
                }
            }
        }
    }

    /// Sums of the terms with 60 digits, for the f64 nearest to p; 25 of the digits are shown.
    #[allow(clippy::excessive_precision)]
    #[test]
    fn tails_contain_values_of_high_precision_and_are_tight() {
        for (successes, trials, p, exact) in [
            (1, 1, 0.3, 0.2999999999999999888977698),
            (3, 5, 0.1, 0.008560000000000001348920975),
            (20, 20, 0.7, 0.0007979226629761189975747288),
            (12, 17, 0.999, 0.9999999999999877401788489),
            (1, 1_000_000, 1e-9, 0.0009995001671245086444135467),
            (319, 59999, 256.0 / 60000.0, 0.00007825362591242494576275194),
            (351, 60000, 256.0 / 60000.0, 9.962275001413571516102988e-9),
            (512, 60000, 256.0 / 60000.0, 2.285958546245910663803522e-45),
            (230, 60000, 256.0 / 60000.0, 0.9534307988319862839218927),
            (8192, 60000, 0.125, 1.735908107018512784978328e-17),
            (501_000, 1_000_000, 0.5, 0.02280414993269104321015483),
            (499_000, 1_000_000, 0.5, 0.9773038320453278719519777),
            (1_006_000, 1_000_000_000, 1e-3, 1.006917164090888594361827e-9),
            (500_100_000, 1_000_000_000, 0.5, 1.270074179877283387326134e-10),
            (500_003_000_000, 1_000_000_000_000, 0.5, 9.865937208324471143181929e-10),
            (60, 100, 1e-4, 1.369225423429127272483474e-212),
            (15, 16, 0.5, 0.0002593994140625),
            (17, 40, 0.4, 0.4318682519667184023427947),
        ] {
            let found = at_least(successes, trials, p);
            let name = format!("{successes} of {trials} at {p}: {found:?} {exact}");
            assert!(found.lower <= exact && exact <= found.upper, "{name}");
            let width = if trials <= 1_000_000_000 { 1e-8 } else { 1e-7 };
            assert!(found.upper - found.lower <= width * exact, "{name}");
        }
        // Below the range of f64: 4.8e-1042 and 6.6e-43389.
        for (successes, trials, p) in
            [(2000, 60000, 256.0 / 60000.0), (999_999_990, 1_000_000_000, 0.9999)]
        {
            assert_eq!(at_least(successes, trials, p), Interval { lower: 0.0, upper: LEAST });
        }
        // Where too many terms would be needed, the bounds stay sound.
        let wide = at_least((1 << 52) + (1 << 24), (1 << 53) - 1, 0.5);
        assert!(wide.lower > 0.0 && wide.lower < 0.4 && wide.upper > 0.3, "{wide:?}");
    }
}
