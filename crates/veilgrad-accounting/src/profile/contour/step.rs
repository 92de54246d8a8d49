//! One step's loss under its tilted distribution: masses and losses to sum characteristic functions
//! from, with their errors, and how fast those functions decay.

use realfft::num_complex::Complex64;

use crate::cumulant::quadrature::{
    MOST_NODES, QuadratureNode, ends, node, panel_error, shifted_node,
};
use crate::cumulant::truncation::Truncated;
use crate::number::{UNIT, legendre, upper_tail};
use crate::pair::{Direction, Pair};
use crate::{Sampled, Step, work};

/// Quadratures over outputs are chosen for an error of e^-DIGITS.
pub(crate) const DIGITS: f64 = 40.0;
/// `e^{i t loss}` at equally spaced t is computed by repeated complex multiplication: one frequency at a time within a
/// block of BLOCK, block by block within BLOCK blocks, and then afresh, so that rounding does not build up.
pub(crate) const BLOCK: usize = 32;

/// The tilted privacy loss of one step: its moment, its centre, and a lower bound of its density.
pub(crate) struct TiltedStep {
    parts: Parts,
    tilt: f64,
    digits: f64,
    /// Log of the tilted moment, and at least its error.
    pub(crate) log_moment: f64,
    pub(crate) moment_error: f64,
    /// The tilted mean of the loss, roughly.
    pub(crate) centre: f64,
    /// Uniform distributions of these (width, mass) are parts of the loss's.
    layers: Vec<(f64, f64)>,
    /// At least the probability of outputs that were cut off.
    pub(crate) infinite: f64,
}

/// Outputs, as tilted masses and centred losses, for all frequencies up to some last one. Both are complex
/// where the integral is taken off the real line.
pub(crate) struct TiltedNodes {
    pub(crate) mass: Vec<Complex64>,
    pub(crate) loss: Vec<Complex64>,
    /// The error of the characteristic function at frequency t is at most `error`, and at most
    /// `quadrature + growth * t`.
    pub(crate) error: f64,
    pub(crate) quadrature: f64,
    pub(crate) growth: f64,
}

/// How a step's loss is integrated over outputs.
enum Parts {
    /// The loss is analytic on the whole line: a trapezoid rule on `[left, right]`.
    Line { pair: Pair, left: f64, right: f64 },
    /// The largest losses are truncated: Gauss-Legendre panels.
    Truncated(Truncated),
    /// The loss of a fixed-size sample, which has a kink at zero: Gauss-Legendre panels over outputs above `kink`, for
    /// removal and for addition, and an atom at loss zero.
    FixedSize { pairs: [Pair; 2], kink: f64, right: f64, atom: f64 },
}

impl TiltedStep {
    /// `None` for a step without sampling, or one that needs too many nodes.
    ///
    /// `pieces` is how finely the density is bounded from below.
    pub(crate) fn new(
        step: Step,
        direction: Direction,
        tilt: f64,
        pieces: u32,
        tail: f64,
    ) -> Option<Self> {
        Self::with_digits(step, direction, tilt, pieces, tail, DIGITS)
    }

    /// The same with quadratures whose error is e^-digits.
    pub(crate) fn with_digits(
        step: Step,
        direction: Direction,
        tilt: f64,
        pieces: u32,
        tail: f64,
        digits: f64,
    ) -> Option<Self> {
        let mut infinite = 0.0;
        let parts = match step.sampled {
            Sampled::FixedReplaced(q) => {
                let poisson = Step { sampled: Sampled::Poisson(q), z: step.z };
                let remove = Pair::analytic(poisson, Direction::Remove)?;
                let add = Pair::analytic(poisson, Direction::Add)?;
                let kink = 0.5 / step.z;
                let right =
                    ends(&remove, tilt, digits).1.max(ends(&add, tilt, digits).1).max(kink + 1.0);
                let atom = (1.0 - q) * (1.0 - 2.0 * upper_tail(kink));
                Parts::FixedSize { pairs: [remove, add], kink, right, atom }
            }
            _ => {
                let pair = Pair::analytic(step, direction)?;
                if let Some(truncated) = Truncated::new(pair, tail) {
                    infinite = truncated.infinite();
                    Parts::Truncated(truncated)
                } else {
                    let (left, right) = ends(&pair, tilt, digits);
                    Parts::Line { pair, left, right }
                }
            }
        };
        let (log_moment, centre, moment_error) = (0.0, 0.0, f64::INFINITY);
        let layers = Vec::new();
        let mut step =
            Self { parts, tilt, digits, log_moment, moment_error, centre, layers, infinite };
        let (nodes, log_error) = step.quadrature(0.0)?;
        let top = nodes.iter().map(|n| n.log_mass.re).fold(f64::MIN, f64::max);
        let (mut sum, mut first, mut rounding) = (0.0, 0.0, 0.0);
        for node in &nodes {
            let mass = libm::exp(node.log_mass.re - top);
            sum += mass;
            first += mass * node.loss.re;
            rounding += mass * step.mass_rounding(node, top);
        }
        step.log_moment = top + libm::log(sum);
        step.centre = first / sum;
        let rounding = UNIT * (rounding / sum + nodes.len() as f64 + 8.0);
        step.moment_error = rounding + (log_error - step.log_moment).exp();
        if !step.log_moment.is_finite() || !step.centre.is_finite() {
            return None;
        }
        step.layers = step.layers(pieces);
        Some(step)
    }

    /// Nodes for frequencies up to `last`, and at least the log of the error that they leave.
    fn quadrature(&self, last: f64) -> Option<(Vec<QuadratureNode>, f64)> {
        match &self.parts {
            Parts::Line { pair, left, right } => {
                let Rule { spacing, shift } = self.rule(pair, last);
                let count = ((right - left) / spacing).ceil();
                if !(count < MOST_NODES) || work::NODE * count as u64 > work::left() {
                    return None;
                }
                work::spend(work::NODE * count as u64);
                let nodes: Vec<QuadratureNode> = (0..=count as usize)
                    .map(|index| left + index as f64 * spacing)
                    .map(|y| match shift {
                        0.0 => node(pair, self.tilt, y, spacing),
                        shift => shifted_node(pair, self.tilt, y, shift, spacing),
                    })
                    .collect();
                let (log_left, log_right) = pair.log_tails(*left, *right, self.tilt);
                // The integral itself is at least 1 unless something was cut off. Sums beyond the ends
                // are at most a few times their integrals, and larger off the line.
                let largest = nodes.iter().map(|n| n.log_mass.re).fold(0.0, f64::max);
                let moment = (largest + (count + 1.0).ln()).max(self.log_moment);
                let off = pair.log_growth(shift, self.tilt, 0.0);
                let ends = log_left.max(log_right) + off;
                Some((nodes, (moment - self.digits).max(ends) + 24f64.ln()))
            }
            Parts::Truncated(truncated) => truncated.quadrature(self.tilt, last),
            Parts::FixedSize { pairs, kink, right, atom } => {
                let [remove, add] = pairs;
                let z = 0.5 / kink;
                // Panels short against the normal density, the tilted exponent and the oscillation.
                let half = 0.3f64.min(4.0 * z / (1.0 + last)).min(2.0 * z / (1.0 + self.tilt));
                let count = ((right - kink) / (2.0 * half)).ceil();
                if !(40.0 * count < MOST_NODES) || 40 * work::NODE * count as u64 > work::left() {
                    return None;
                }
                work::spend(40 * work::NODE * count as u64);
                let mut nodes = Vec::with_capacity(40 * count as usize + 1);
                let mut error = f64::NEG_INFINITY;
                for panel in 0..count as usize {
                    let middle = kink + (2 * panel + 1) as f64 * half;
                    for pair in pairs {
                        let places = legendre(middle, half);
                        nodes.extend(places.map(|(y, weight)| node(pair, self.tilt, y, weight)));
                        error = error.max(panel_error(pair, self.tilt, last, middle, half, z));
                    }
                }
                nodes.push(QuadratureNode {
                    log_mass: Complex64::from(atom.ln()),
                    loss: Complex64::ZERO,
                    size: 0.0,
                    loss_rounding: 0.0,
                });
                let (_, log_remove) = remove.log_tails(0.0, *right, self.tilt);
                let (_, log_add) = add.log_tails(0.0, *right, self.tilt);
                let panels = error + (2.0 * count).ln();
                Some((nodes, panels.max(log_remove).max(log_add) + 8f64.ln()))
            }
        }
    }

    /// The coarser of two rules for frequencies up to `last`: on the real line, or beside it.
    ///
    /// Beside it, in the middle of a strip that has the real line for one edge, `e^{i t loss}` has a
    /// modulus of at most 1 whatever the frequency, so that nothing has to follow its oscillation.
    fn rule(&self, pair: &Pair, last: f64) -> Rule {
        let spacing = |distance: f64, growth: f64| {
            2.0 * std::f64::consts::PI * distance / (self.digits + growth)
        };
        let strip = pair.strip(self.tilt);
        let on = spacing(strip, pair.log_growth(strip, self.tilt, last));
        let strip = pair.one_sided_strip(self.tilt);
        let beside = spacing(0.5 * strip, pair.log_growth(strip, self.tilt, 0.0));
        if last > 0.0 && beside > on {
            return Rule { spacing: beside, shift: 0.5 * strip };
        }
        Rule { spacing: on, shift: 0.0 }
    }

    /// About how many nodes frequencies up to `last` need.
    pub(crate) fn size(&self, last: f64) -> f64 {
        match &self.parts {
            Parts::Line { pair, left, right } => (right - left) / self.rule(pair, last).spacing,
            Parts::Truncated(truncated) => truncated.size(self.tilt, last),
            Parts::FixedSize { kink, right, .. } => {
                let z = 0.5 / kink;
                20.0 * (right - kink) * (4.0 + (1.0 + last) / (4.0 * z) + self.tilt / z)
            }
        }
    }

    /// At least the error of a mass relative to `e^scale`, in unit roundoffs.
    fn mass_rounding(&self, node: &QuadratureNode, scale: f64) -> f64 {
        let off = 4.0 * node.loss.norm() + node.loss_rounding;
        8.0 * (node.size + scale.abs()) + 16.0 + (2.0 + 2.0 * self.tilt) * off
    }

    pub(crate) fn nodes(&self, last: f64) -> Option<TiltedNodes> {
        let (raw, log_error) = self.quadrature(last)?;
        let mut nodes = TiltedNodes {
            mass: Vec::with_capacity(raw.len()),
            loss: Vec::with_capacity(raw.len()),
            error: 0.0,
            quadrature: 2.0 * (log_error - self.log_moment).exp(),
            growth: 0.0,
        };
        // The terms are m (e^{i t l} - 1), of modulus at most 2 |m| and at most t |m l|. Their roundings: five for each
        // of at most 2 BLOCK complex multiplications, and one for each addition of a lane.
        let lane = raw.len() as f64 / 8.0 + 16.0 + 5.0 * 2.0 * BLOCK as f64;
        let (mut any, mut growth) = (0.0, 0.0);
        let (mut sum, mut losses) = (Complex64::ZERO, 0.0);
        let centre = self.centre.abs();
        for node in &raw {
            let modulus = libm::exp(node.log_mass.re - self.log_moment);
            let mass = Complex64::from_polar(modulus, node.log_mass.im);
            let loss = node.loss - self.centre;
            sum += mass;
            // Roundings in units of UNIT: of the loss, of the exponent, of the mass.
            let off = 4.0 * node.loss.norm() + node.loss_rounding;
            let relative = self.mass_rounding(node, self.log_moment) + lane;
            any += modulus * 2.0 * relative;
            growth += modulus * (loss.norm() * relative + off + 4.0 * (loss.norm() + centre));
            losses += modulus * loss.norm();
            nodes.mass.push(mass);
            nodes.loss.push(loss);
        }
        // The masses should sum to 1: the difference is an error, too.
        let missing_mass = (sum - 1.0).norm();
        nodes.error = UNIT * any + 2.0 * missing_mass + nodes.quadrature;
        nodes.growth = UNIT * growth + missing_mass * losses;
        Some(nodes)
    }

    fn layers(&self, count: u32) -> Vec<(f64, f64)> {
        let pieces = |pair: &Pair, left: f64, right: f64| {
            let place = |i: u32| left + (right - left) * f64::from(i) / f64::from(count);
            let pieces = (0..count).map(|i| self.piece(pair, place(i), place(i + 1))).collect();
            stack(pieces)
        };
        match &self.parts {
            Parts::Line { pair, left, right } => pieces(pair, *left, *right),
            Parts::Truncated(truncated) => {
                let (from, to) = truncated.ends();
                let (from, to) = (truncated.pair().outward(from), truncated.pair().outward(to));
                pieces(truncated.pair(), from.min(to), from.max(to))
            }
            Parts::FixedSize { pairs, kink, right, .. } => {
                pairs.iter().flat_map(|pair| pieces(pair, *kink, *right)).collect()
            }
        }
    }

    /// The losses of an interval of outputs, and at most their tilted density: the normal density and
    /// the exponent are smallest at an end, and the slope of the loss is at most `steepest`.
    fn piece(&self, pair: &Pair, from: f64, to: f64) -> Piece {
        let exponent = |y: f64| {
            let point = pair.at(y);
            (point.weight + self.tilt * point.loss, point.loss)
        };
        let ((a, loss_a), (b, loss_b)) = (exponent(from), exponent(to));
        let density = -0.5 * (from * from).max(to * to) + a.min(b) - self.log_moment;
        let height =
            libm::exp(density) / (2.0 * std::f64::consts::PI).sqrt() / pair.steepest(from, to)
                * (1.0 - 1e-6);
        let height = if height.is_finite() { height } else { 0.0 };
        Piece { low: loss_a.min(loss_b), high: loss_a.max(loss_b), height }
    }

    /// At most `-log |characteristic function|` for every frequency from t on.
    pub(crate) fn decay(&self, t: f64) -> f64 {
        // 1 - |characteristic function| is at least this: a uniform layer has the modulus |sinc|.
        let deficit: f64 = self
            .layers
            .iter()
            .map(|(width, mass)| mass * (1.0 - largest_sinc(0.5 * t * width)))
            .sum();
        // Below 1, even if rounding made the masses sum to more.
        -libm::log1p(-deficit.clamp(0.0, 0.999))
    }
}

/// A trapezoid rule: its spacing, and how far from the real line it is.
struct Rule {
    spacing: f64,
    shift: f64,
}

/// An interval of losses, and at most their density there.
#[derive(Clone)]
struct Piece {
    low: f64,
    high: f64,
    height: f64,
}

/// Neighbouring pieces as uniform layers (width, mass): a stack around the highest piece, from which outwards pieces
/// are made to fall, and another one of what that leaves, because large losses may be far from the others.
fn stack(mut pieces: Vec<Piece>) -> Vec<(f64, f64)> {
    let mut layers = Vec::with_capacity(2 * pieces.len());
    for _ in 0..2 {
        let mut falling = pieces.clone();
        fall(&mut falling);
        for (piece, used) in pieces.iter_mut().zip(&falling) {
            piece.height -= used.height;
        }
        let mut rest = falling.as_slice();
        let mut level = 0.0;
        while let (Some(first), Some(last)) = (rest.first(), rest.last()) {
            // Losses run up or down with outputs.
            let width = first.high.max(last.high) - first.low.min(last.low);
            let height = first.height.min(last.height);
            if height > level {
                layers.push((width, (height - level) * width));
                level = height;
            }
            let lower = first.height <= last.height;
            let keep = if lower { rest.get(1..) } else { rest.get(..rest.len() - 1) };
            rest = keep.unwrap_or_default();
        }
    }
    layers
}

/// Lowers pieces so that they fall from the highest one outwards.
fn fall(pieces: &mut [Piece]) {
    let highest = pieces.iter().map(|piece| piece.height).fold(0.0, f64::max);
    let peak = pieces.iter().position(|piece| piece.height >= highest).unwrap_or(0);
    let (before, after) = pieces.split_at_mut(peak);
    let outwards = |piece: &mut Piece, lowest: &mut f64| {
        *lowest = lowest.min(piece.height);
        piece.height = *lowest;
    };
    let (mut left, mut right) = (f64::INFINITY, f64::INFINITY);
    before.iter_mut().rev().for_each(|piece| outwards(piece, &mut left));
    after.iter_mut().for_each(|piece| outwards(piece, &mut right));
}

/// At least `|sin x / x|` for every argument from x on.
fn largest_sinc(x: f64) -> f64 {
    // The second largest maximum of |sin x / x|, at x = 4.49.
    const SECOND: f64 = 0.217_234;
    if x < 1e-4 {
        // sin x / x <= 1 - x^2/6 + x^4/120
        1.0 - x * x / 6.0 * (1.0 - 1e-9)
    } else if x < std::f64::consts::PI {
        (libm::sin(x) / x).max(SECOND)
    } else {
        SECOND.min(1.0 / x)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The characteristic function at t from nodes for frequencies up to `last`.
    fn transform(step: &TiltedStep, t: f64, last: f64) -> (Complex64, bool) {
        let nodes = step.nodes(last).unwrap();
        let turn = |loss: &Complex64| (Complex64::I * t * loss).exp();
        let sum = nodes.mass.iter().zip(&nodes.loss).map(|(mass, loss)| mass * turn(loss)).sum();
        (sum, nodes.loss.iter().any(|loss| loss.im != 0.0))
    }

    #[test]
    fn characteristic_functions_are_the_same_beside_the_real_line_and_on_it() {
        let poisson = |q: f64, z: f64| Step { sampled: Sampled::Poisson(q), z };
        let replaced = |q: f64, z: f64| Step { sampled: Sampled::PoissonReplaced(q), z };
        let mut differ = false;
        for step in [poisson(0.3, 0.7), poisson(1e-4, 2.0), replaced(0.1, 1.0), replaced(0.6, 6.0)]
        {
            for direction in [Direction::Remove, Direction::Add] {
                // Beside the line, and in panels up to a cut that cuts nothing.
                for (tail, tilt) in [(0.0, 3.0), (0.0, 40.0), (1e-60, 1.0), (1e-60, 3.0)] {
                    let on = TiltedStep::new(step, direction, tilt, 16, 0.0).unwrap();
                    let beside = TiltedStep::new(step, direction, tilt, 16, tail).unwrap();
                    let what = format!("{step:?} {direction:?} {tail} {tilt}");
                    // They are off by roundings of their own, which are counted.
                    let off = (on.log_moment - beside.log_moment).abs();
                    let counted = on.moment_error + beside.moment_error;
                    assert!(off <= counted && counted < 1e-9, "{what}: {off} {counted}");
                    differ |= off > 0.0;
                    for t in [0.1, 1.0, 5.0] {
                        let (value, shifted) = transform(&beside, t, 1e5);
                        let (exact, not_shifted) = transform(&on, t, t);
                        assert!(shifted && (!not_shifted || tilt > 10.0), "{what}");
                        assert!((value - exact).norm() < 1e-12, "{what} {t}: {value} {exact}");
                    }
                }
            }
        }
        assert!(differ);
    }
}
