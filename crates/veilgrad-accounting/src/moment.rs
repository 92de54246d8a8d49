//! `log A(a)`, `A(a) = E (1 + u)^a` with `u = q (e^{y/z - 1/(2z^2)} - 1)`, y standard normal: the
//! moments of the likelihood ratio of a Poisson-sampled Gaussian, at any real order.

/// Reach of the normal density on either side: beyond it less than 1e-40 is left.
const REACH: f64 = 13.5;
/// The trapezoid rule is chosen for a relative error of about e^-38.
const DIGITS: f64 = 38.0;

/// `log A(a)` for `0 < q < 1`, `z > 0`.
///
/// The integrand is analytic in a strip around the real line, as wide as the branch points of
/// `log(1 + u)` allow, so the trapezoid rule converges exponentially.
pub(crate) fn log_moment(a: f64, q: f64, z: f64) -> f64 {
    let shift = (a / z).max(0.0);
    let strip = (0.999 * std::f64::consts::PI * z).min(8.0);
    let step = 2.0 * std::f64::consts::PI * strip / (DIGITS + strip * strip / 2.0);
    let count = ((shift + 2.0 * REACH) / step).ceil();
    let node = |j: f64| {
        let y = -REACH + j * step;
        let exponent = y / z - 0.5 / (z * z);
        let u = q * libm::expm1(exponent);
        // For large exponents the ratio itself overflows; its log does not.
        let l = if exponent > 30.0 {
            q.ln() + exponent + libm::log1p((1.0 - q) / q * (-exponent).exp())
        } else {
            libm::log1p(u)
        };
        (y, u, l)
    };
    let log_weight = |y: f64| -0.5 * y * y + (step / (2.0 * std::f64::consts::PI).sqrt()).ln();
    // Where the largest term is moderate, sum what exceeds 1 + a u, whose expectation is 1: nothing
    // cancels, however small q is.
    let largest = {
        let (_, _, l) = node(count);
        (a * l).max(a * libm::log1p(-q))
    };
    if largest < 200.0 {
        let mut excess = Sum::default();
        let mut j = 0.0;
        while j <= count {
            let (y, u, l) = node(j);
            excess.add(log_weight(y).exp() * power_excess(a, u, l));
            j += 1.0;
        }
        return libm::log1p(excess.total());
    }
    let mut top = f64::NEG_INFINITY;
    let mut j = 0.0;
    while j <= count {
        let (y, _, l) = node(j);
        top = top.max(log_weight(y) + a * l);
        j += 1.0;
    }
    let mut sum = Sum::default();
    let mut j = 0.0;
    while j <= count {
        let (y, _, l) = node(j);
        sum.add((log_weight(y) + a * l - top).exp());
        j += 1.0;
    }
    top + sum.total().ln()
}

/// `(1 + u)^a - 1 - a u`, for `l = log(1 + u)`.
fn power_excess(a: f64, u: f64, l: f64) -> f64 {
    if (a * l).abs() < 1e-2 && u.abs() < 1e-2 {
        // The binomial series from its second term on.
        let (mut term, mut sum) = (a * u, 0.0);
        for k in 2..12 {
            let k = f64::from(k);
            term *= (a - k + 1.0) / k * u;
            sum += term;
        }
        return sum;
    }
    libm::expm1(a * l) - a * u
}

/// A sum that keeps what rounding would lose (Neumaier).
#[derive(Default)]
struct Sum {
    sum: f64,
    lost: f64,
}

impl Sum {
    fn add(&mut self, value: f64) {
        let next = self.sum + value;
        self.lost += if self.sum.abs() >= value.abs() {
            (self.sum - next) + value
        } else {
            (value - next) + self.sum
        };
        self.sum = next;
    }

    fn total(&self) -> f64 {
        self.sum + self.lost
    }
}
