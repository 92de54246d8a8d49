//! A quick tilted moment of one step, for compositions of thousands of distinct steps.

use super::jet::Jet;
use super::quadrature::ends;
use crate::number::UNIT;
use crate::pair::{Direction, EquallySpaced, Pair};
use crate::{Sampled, Step, work};

/// Quadratures of jets are chosen for an error of e^-DIGITS.
const DIGITS: f64 = 32.0;
const MOST_NODES: f64 = 4000.0;

/// A reused allocation for the nodes of one step: mass and loss.
#[derive(Default)]
pub(crate) struct Scratch {
    nodes: Vec<(f64, f64)>,
}

/// The log of the tilted moment of a step, and an upper bound on its error.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Moments {
    pub(crate) log_moment: f64,
    pub(crate) error: f64,
}

/// The tilted moment, by a quadrature with an error of about e^-digits; `None` for steps that are not Poisson sampled or
/// need too many nodes.
pub(crate) fn moments(
    step: Step,
    direction: Direction,
    tilt: f64,
    digits: f64,
    scratch: &mut Scratch,
) -> Option<Moments> {
    tilted(step, direction, tilt, digits, scratch).map(|(found, _)| found)
}

/// An upper bound on the log of the tilted moment, and approximate derivatives.
pub(crate) fn quick_jet(
    step: Step,
    direction: Direction,
    tilt: f64,
    scratch: &mut Scratch,
) -> Option<Jet> {
    let (Moments { log_moment, error }, total) = tilted(step, direction, tilt, DIGITS, scratch)?;
    let (mut first, mut second) = (0.0, 0.0);
    for (mass, loss) in &scratch.nodes {
        first += mass * loss;
        second += mass * loss * loss;
    }
    Some(Jet::of_moments(log_moment + error, total, first, second))
}

/// The moment, and the sum of the masses of the nodes.
fn tilted(
    step: Step,
    direction: Direction,
    tilt: f64,
    digits: f64,
    scratch: &mut Scratch,
) -> Option<(Moments, f64)> {
    if !matches!(step.sampled, Sampled::Poisson(_) | Sampled::PoissonReplaced(_)) {
        return None;
    }
    let pair = Pair::analytic(step, direction)?;
    let (left, right) = ends(&pair, tilt, digits);
    let strip = pair.strip(tilt);
    let growth = pair.log_growth(strip, tilt, 0.0);
    let spacing = 2.0 * std::f64::consts::PI * strip / (digits + growth);
    let count = ((right - left) / spacing).ceil();
    if !(count < MOST_NODES) {
        return None;
    }
    work::spend(work::NODE * count as u64);
    scratch.nodes.clear();
    let scale = libm::log(spacing / (2.0 * std::f64::consts::PI).sqrt());
    let mut top = f64::MIN;
    for (y, weight, loss) in pair.equally_spaced(left, spacing).take(count as usize + 1) {
        let log_mass = weight + tilt * loss + scale - 0.5 * y * y;
        top = top.max(log_mass);
        scratch.nodes.push((log_mass, loss));
    }
    let (mut total, mut largest) = (0.0, 0.0f64);
    for (mass, loss) in &mut scratch.nodes {
        *mass = libm::exp(*mass - top);
        total += *mass;
        largest = largest.max(loss.abs());
    }
    let log_moment = top + libm::log(total);
    let (log_left, log_right) = pair.log_tails(left, right, tilt);
    // As in the other quadratures: the integral is at least 1, and sums beyond the ends are a few times their integrals.
    let moment = (top + (count + 1.0).ln()).max(0.0);
    let quadrature = ((moment - digits).max(log_left).max(log_right) - log_moment).exp() * 24.0;
    // Rounding errors of the exponent of a mass, from the size of its terms, and of its loss.
    let reach = left.abs().max(right);
    let loss_rounding =
        4.0 * largest + 4.0 * (reach + 1.0 / step.z) / step.z + EquallySpaced::ROUNDING;
    let exponent = (1.0 + tilt) * largest + reach * reach + log_moment.abs();
    let relative = 8.0 * exponent + 512.0 + (2.0 + 2.0 * tilt) * loss_rounding + count;
    let error = UNIT * relative + quadrature;
    (log_moment + error).is_finite().then_some((Moments { log_moment, error }, total))
}
