//! Quadrature over outputs: nodes, integration limits and error bounds.

use realfft::num_complex::Complex64;

use crate::pair::{EquallySpaced, Pair};

/// Quadratures cover at least `[-LEAST_REACH, LEAST_REACH]`: a standard normal output lies outside with probability below 1e-40.
pub(crate) const LEAST_REACH: f64 = 13.5;
/// At most this many nodes; a cumulant that needs more is bounded in closed form instead.
pub(crate) const MOST_TRAPEZOID_NODES: usize = 1 << 14;
/// Sums with terms above e^LOG_SUM_FROM are computed as log-sum-exp, since e^709 overflows.
pub(crate) const LOG_SUM_FROM: f64 = 200.0;
/// Below this noise multiplier cumulants are bounded in closed form: the number of nodes grows like 1/z^2.
pub(crate) const LEAST_NOISE: f64 = 0.01;
/// At most this many nodes; a contour that needs more is left to the lattice.
pub(crate) const MOST_NODES: f64 = 2e5;

/// A node of a quadrature over outputs.
pub(crate) struct QuadratureNode {
    /// The log of normal density times tilted likelihood times quadrature weight.
    pub(crate) log_mass: Complex64,
    pub(crate) loss: Complex64,
    /// The size of the terms of `log_mass`, to bound its rounding error, and the error of weight and loss in units of UNIT.
    pub(crate) size: f64,
    pub(crate) loss_rounding: f64,
}

/// The node at the real output y.
pub(crate) fn node(pair: &Pair, tilt: f64, y: f64, weight: f64) -> QuadratureNode {
    let point = pair.at(y);
    let exponent = point.weight + tilt * point.loss;
    let scale = libm::log(weight / (2.0 * std::f64::consts::PI).sqrt());
    QuadratureNode {
        log_mass: Complex64::from(exponent - 0.5 * y * y + scale),
        loss: Complex64::from(point.loss),
        size: exponent.abs() + y * y,
        loss_rounding: pair.loss_rounding(y),
    }
}

/// `count` nodes at equally spaced outputs from `left` on, all within `reach` of 0. The bound on their rounding errors is larger
/// than that of [`node`].
pub(crate) fn quick_nodes(
    pair: &Pair,
    tilt: f64,
    (left, reach): (f64, f64),
    spacing: f64,
    count: usize,
) -> Vec<QuadratureNode> {
    let scale = libm::log(spacing / (2.0 * std::f64::consts::PI).sqrt());
    // The slope of a loss is at most 2/z.
    let loss_rounding = 8.0 * (reach + 1.0 / pair.z) / pair.z + EquallySpaced::ROUNDING;
    let node = |(y, weight, loss): (f64, f64, f64)| {
        let exponent = weight + tilt * loss;
        QuadratureNode {
            log_mass: Complex64::from(exponent - 0.5 * y * y + scale),
            loss: Complex64::from(loss),
            size: exponent.abs() + y * y,
            loss_rounding,
        }
    };
    pair.equally_spaced(left, spacing).take(count).map(node).collect()
}

/// The node at the distance `shift` from the real line.
pub(crate) fn shifted_node(
    pair: &Pair,
    tilt: f64,
    y: f64,
    shift: f64,
    weight: f64,
) -> QuadratureNode {
    let (point, loss) = pair.at_shifted(y, shift);
    let exponent = point + tilt * loss;
    let output = Complex64::new(y, pair.side(shift));
    let scale = libm::log(weight / (2.0 * std::f64::consts::PI).sqrt());
    QuadratureNode {
        log_mass: exponent - 0.5 * output * output + scale,
        loss,
        size: exponent.norm() + output.norm_sqr(),
        loss_rounding: 4.0 * loss.norm() + pair.shifted_rounding(y, shift),
    }
}

/// Integration limits: the tilted mass outside them is negligible compared with e^-digits.
pub(crate) fn ends(pair: &Pair, tilt: f64, digits: f64) -> (f64, f64) {
    // The normal tail there is about e^-digits.
    let start = (2.0 * digits).sqrt();
    let (mut left, mut right) = (-start, start);
    // The largest exponent stands in for the log of the moment, which is accurate enough here.
    let exponent = |y: f64| {
        let point = pair.at(y);
        point.weight + tilt * point.loss - 0.5 * y * y
    };
    let mut largest: f64 = 0.0;
    for _ in 0..4000 {
        let (log_left, log_right) = pair.log_tails(left, right, tilt);
        largest = largest.max(exponent(left)).max(exponent(right));
        let negligible = largest - digits - 3.0;
        if log_left < negligible && log_right < negligible {
            break;
        }
        left -= if log_left < negligible { 0.0 } else { 0.5 };
        right += if log_right < negligible { 0.0 } else { 0.5 };
    }
    (left, right)
}

/// Gauss-Legendre panels are so short that integrands are analytic in a Bernstein ellipse of this parameter around each.
const ELLIPSE: f64 = 4.0;
/// The half axes of that ellipse, for a panel of half width 1.
pub(crate) const WIDE: f64 = 0.5 * (ELLIPSE + 1.0 / ELLIPSE);
pub(crate) const HIGH: f64 = 0.5 * (ELLIPSE - 1.0 / ELLIPSE);

/// An upper bound on the log of the error of the twenty-point rule on a panel, from the ends of its ellipse, half its width
/// and the log of the largest modulus on the ellipse without the normal density (Trefethen, Approximation Theory and
/// Approximation Practice, theorem 19.3).
pub(crate) fn legendre_error((from, to): (f64, f64), half: f64, log_modulus: f64) -> f64 {
    const DEGREE: f64 = 38.0;
    let nearest = if from > 0.0 {
        from
    } else if to < 0.0 {
        to
    } else {
        0.0
    };
    let rule = (64.0 / 15.0 * half / (1.0 - ELLIPSE.powi(-2))).ln() - DEGREE * ELLIPSE.ln();
    log_modulus - 0.5 * nearest * nearest + rule
}

/// An upper bound on the log of the error of that rule on a panel of the real line, for the tilted moment at frequencies
/// up to `last`.
pub(crate) fn panel_error(
    pair: &Pair,
    tilt: f64,
    last: f64,
    middle: f64,
    half: f64,
    z: f64,
) -> f64 {
    let (wide, high) = (WIDE * half, HIGH * half);
    let angle = high / z;
    if !(angle < 1.5) {
        return f64::INFINITY;
    }
    let (from, to) = (middle - wide, middle + wide);
    let exponent = |y: f64| {
        let point = pair.at(y);
        point.weight + tilt * point.loss
    };
    // The exponent is monotone; the modulus of 1 + u shrinks at most by the cosine of half the angle.
    let largest = exponent(from).max(exponent(to)) - tilt * libm::log(libm::cos(0.5 * angle));
    // The constant of the rule rounded up, to e^0.07.
    let margin = 0.07 + (1.0 - ELLIPSE.powi(-2)).ln();
    legendre_error((from, to), half, largest + 0.5 * high * high + angle * last + margin)
}
