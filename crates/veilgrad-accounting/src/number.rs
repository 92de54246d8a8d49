//! Numerical functions that all accountants share: differences without cancellation, tails, quadrature, root search.

/// The unit roundoff of f64, rounded up.
pub(crate) const UNIT: f64 = 1.2e-16;

/// `e^x - 1 - x`.
pub(crate) fn exp_beyond_linear(x: f64) -> f64 {
    if x.abs() < 0.1 {
        // The Taylor series from its quadratic term on; the remainder after eleven terms is below 1e-20 of the sum.
        let (mut term, mut sum) = (x, 0.0);
        for k in 2..13 {
            term *= x / f64::from(k);
            sum += term;
        }
        return sum;
    }
    libm::expm1(x) - x
}

/// `log(1 + x) - x`.
pub(crate) fn log_beyond_linear(x: f64) -> f64 {
    if x.abs() < 0.05 {
        let (mut power, mut sum) = (-x, 0.0);
        for k in 2..16 {
            power *= -x;
            sum += power / f64::from(k);
        }
        return -sum;
    }
    libm::log1p(x) - x
}

/// `P(y > x)` for a standard normal y.
pub(crate) fn upper_tail(x: f64) -> f64 {
    0.5 * libm::erfc(x * std::f64::consts::FRAC_1_SQRT_2)
}

/// An upper bound on the log of `P(y > x)` for a standard normal y, even where the probability underflows.
pub(crate) fn log_upper_tail(x: f64) -> f64 {
    if x < 30.0 {
        return upper_tail(x).ln() + 1e-12;
    }
    // P(y > x) <= phi(x)/x.
    -0.5 * x * x - x.ln() - 0.918
}

/// Abscissas and weights of the twenty-point Gauss-Legendre rule on [-1, 1], positive half.
const LEGENDRE: [(f64, f64); 10] = [
    (0.076_526_521_133_497_34, 0.152_753_387_130_725_84),
    (0.227_785_851_141_645_07, 0.149_172_986_472_603_74),
    (0.373_706_088_715_419_55, 0.142_096_109_318_382_04),
    (0.510_867_001_950_827_1, 0.131_688_638_449_176_64),
    (0.636_053_680_726_515, 0.118_194_531_961_518_41),
    (0.746_331_906_460_150_8, 0.101_930_119_817_240_44),
    (0.839_116_971_822_218_8, 0.083_276_741_576_704_75),
    (0.912_234_428_251_326, 0.062_672_048_334_109_07),
    (0.963_971_927_277_913_8, 0.040_601_429_800_386_94),
    (0.993_128_599_185_094_9, 0.017_614_007_139_152_118),
];

/// Nodes and weights of the twenty-point rule on `[middle - half, middle + half]`.
pub(crate) fn legendre(middle: f64, half: f64) -> impl Iterator<Item = (f64, f64)> {
    let mirrored_nodes = move |(x, weight): (f64, f64)| {
        [(middle - x * half, weight * half), (middle + x * half, weight * half)]
    };
    LEGENDRE.into_iter().flat_map(mirrored_nodes)
}

/// Bisects the bracket `(low, high)` `halvings` times. `is_left` is true left of the root and false right of it.
pub(crate) fn bisect(
    (mut low, mut high): (f64, f64),
    halvings: u32,
    is_left: impl Fn(f64) -> bool,
) -> (f64, f64) {
    for _ in 0..halvings {
        let middle = 0.5 * (low + high);
        if is_left(middle) { low = middle } else { high = middle }
    }
    (low, high)
}

/// Brackets a root: tries `high`, `high * growth`, `high * growth^2`, ... until one is not left of the root, and returns
/// it after the one before (0 for the first). Gives up after 60 steps with the last two.
pub(crate) fn grow(high: f64, growth: f64, is_left: impl Fn(f64) -> bool) -> (f64, f64) {
    let mut ends = (0.0, high);
    for _ in 0..60 {
        if !is_left(ends.1) {
            break;
        }
        ends = (ends.1, growth * ends.1);
    }
    ends
}

/// Golden-section search for the minimum of a unimodal `f` in `[low, high]`: an approximate minimiser and its value. Every
/// step shrinks the bracket by `ratio`, about 0.618.
pub(crate) fn golden_section(
    mut f: impl FnMut(f64) -> f64,
    (mut low, mut high): (f64, f64),
    ratio: f64,
    steps: u32,
) -> (f64, f64) {
    let (mut a, mut b) = (high - ratio * (high - low), low + ratio * (high - low));
    let (mut at_a, mut at_b) = (f(a), f(b));
    for _ in 0..steps {
        if at_a < at_b {
            (high, b, at_b) = (b, a, at_a);
            a = high - ratio * (high - low);
            at_a = f(a);
        } else {
            (low, a, at_a) = (a, b, at_b);
            b = low + ratio * (high - low);
            at_b = f(b);
        }
    }
    if at_a < at_b { (a, at_a) } else { (b, at_b) }
}

/// Brackets the root of the decreasing function `f`, given `f(left) > 0 >= f(right)`: returns a bracket of relative width
/// `tolerance`, or what 200 steps reach.
pub(crate) fn bracket_root(
    mut f: impl FnMut(f64) -> f64,
    mut left: f64,
    mut right: f64,
    tolerance: f64,
) -> (f64, f64) {
    let (mut at_left, mut at_right) = (f(left), f(right));
    let mut side = 0;
    for round in 0..200 {
        if right - left <= tolerance * right.abs().max(left.abs()) {
            break;
        }
        // Regula falsi (Illinois variant); every fourth step bisects, so that it always converges.
        let secant = right - at_right * (right - left) / (at_right - at_left);
        let inside = secant > left && secant < right;
        let next = if round % 4 < 3 && inside { secant } else { 0.5 * (left + right) };
        if next <= left || next >= right {
            break;
        }
        let value = f(next);
        if value > 0.0 {
            (left, at_left) = (next, value);
            if side == 1 {
                at_right *= 0.5;
            }
            side = 1;
        } else {
            (right, at_right) = (next, value);
            if side == -1 {
                at_left *= 0.5;
            }
            side = -1;
        }
    }
    (left, right)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_agree_with_the_functions_where_they_meet() {
        for x in [-0.0999, 0.0999, 0.04, -0.04] {
            assert!((exp_beyond_linear(x) / (libm::expm1(x) - x) - 1.0).abs() < 1e-12);
            assert!((log_beyond_linear(x) / (libm::log1p(x) - x) - 1.0).abs() < 1e-12);
        }
        assert_eq!(exp_beyond_linear(1e-9), 5.0e-19 + 1e-27 / 6.0);
        assert!((log_beyond_linear(1e-9) / -5.0e-19 - 1.0).abs() < 1e-8);
    }

    #[test]
    fn logs_of_tails_are_never_too_small() {
        for x in [-5.0, 0.0, 3.0, 29.9, 30.1, 37.0] {
            let (log, exact) = (log_upper_tail(x), upper_tail(x).ln());
            assert!(log >= exact && log < exact + 3e-3, "{x} {log} {exact}");
        }
    }

    #[test]
    fn the_legendre_rule_integrates_polynomials_of_degree_39() {
        for power in (0..=38).step_by(2) {
            let sum: f64 = LEGENDRE.iter().map(|(x, w)| 2.0 * w * x.powi(power)).sum();
            let exact = 2.0 / f64::from(power + 1);
            assert!((sum / exact - 1.0).abs() < 4e-15, "{power} {sum} {exact}");
        }
    }

    #[test]
    fn roots_are_bracketed() {
        let (left, right) = bracket_root(|x| 2.0 - x * x * x, 0.0, 100.0, 1e-14);
        let root = 2f64.cbrt();
        assert!(left <= root && root <= right + 1e-15 && right - left < 1e-13);
    }
}
