//! One step's loss under its tilted distribution: masses and losses to sum characteristic functions
//! from, with their errors, and how fast those functions decay.

use crate::number::{LEGENDRE, UNIT, upper_tail};
use crate::output::Direction;
use crate::smooth::Smooth;
use crate::{Sampled, Step};

/// Quadratures over outputs are chosen for an error of e^-DIGITS.
const DIGITS: f64 = 40.0;
/// Rotations are computed afresh every so many frequencies.
pub(crate) const RESTART: usize = 32;
/// At most so many nodes; what needs more is left to the lattice.
const MOST: f64 = 2e5;

pub(crate) struct TiltedStep {
    parts: Parts,
    tilt: f64,
    /// Log of the tilted moment.
    pub(crate) log_moment: f64,
    /// The tilted mean of the loss, roughly.
    pub(crate) centre: f64,
    /// Uniform distributions of these (width, mass) are parts of the loss's.
    layers: Vec<(f64, f64)>,
}

/// Outputs, as tilted masses and centred losses, for all frequencies up to some last one.
pub(crate) struct TiltedNodes {
    pub(crate) mass: Vec<f64>,
    pub(crate) loss: Vec<f64>,
    /// At least the error of the characteristic function, and how that grows with frequency.
    pub(crate) error: f64,
    pub(crate) phase_error: f64,
}

/// Where the mass of a loss comes from.
enum Parts {
    /// From the whole line, where it is analytic: a trapezoid rule.
    Line { curve: Smooth, left: f64, right: f64 },
    /// A fixed-size sample: from outputs above `kink`, once for removal and once for addition, in
    /// panels, and from an atom at zero.
    Kinked { curves: [Smooth; 2], kink: f64, right: f64, atom: f64 },
}

struct Node {
    y: f64,
    /// Log of normal density, tilted exponent and quadrature weight.
    log_mass: f64,
    exponent: f64,
    loss: f64,
    /// In units of UNIT.
    loss_rounding: f64,
}

impl TiltedStep {
    /// `None` for a step without sampling, or one that needs too many nodes.
    ///
    /// `pieces` is how finely the density is bounded from below.
    pub(crate) fn new(step: Step, direction: Direction, tilt: f64, pieces: u32) -> Option<Self> {
        let parts = match step.sampled {
            Sampled::FixedReplaced(q) => {
                let poisson = Step { sampled: Sampled::Poisson(q), z: step.z };
                let remove = Smooth::new(poisson, Direction::Remove)?;
                let add = Smooth::new(poisson, Direction::Add)?;
                let kink = 0.5 / step.z;
                let right = ends(&remove, tilt).1.max(ends(&add, tilt).1).max(kink + 1.0);
                let atom = (1.0 - q) * (1.0 - 2.0 * upper_tail(kink));
                Parts::Kinked { curves: [remove, add], kink, right, atom }
            }
            _ => {
                let curve = Smooth::new(step, direction)?;
                let (left, right) = ends(&curve, tilt);
                Parts::Line { curve, left, right }
            }
        };
        let (log_moment, centre) = (0.0, 0.0);
        let mut step = Self { parts, tilt, log_moment, centre, layers: Vec::new() };
        let (nodes, _) = step.quadrature(0.0)?;
        let top = nodes.iter().map(|n| n.log_mass).fold(f64::MIN, f64::max);
        let (mut sum, mut first) = (0.0, 0.0);
        for node in &nodes {
            let mass = libm::exp(node.log_mass - top);
            sum += mass;
            first += mass * node.loss;
        }
        step.log_moment = top + libm::log(sum);
        step.centre = first / sum;
        if !step.log_moment.is_finite() || !step.centre.is_finite() {
            return None;
        }
        step.layers = step.layers(pieces);
        Some(step)
    }

    /// Nodes for frequencies up to `last`, and at least the log of the error that they leave.
    fn quadrature(&self, last: f64) -> Option<(Vec<Node>, f64)> {
        match &self.parts {
            Parts::Line { curve, left, right } => {
                let digits = DIGITS + curve.log_strip_growth(self.tilt, last);
                let spacing = 2.0 * std::f64::consts::PI * curve.strip() / digits;
                let count = ((right - left) / spacing).ceil();
                if !(count < MOST) {
                    return None;
                }
                let nodes: Vec<Node> = (0..=count as usize)
                    .map(|index| node(curve, self.tilt, left + index as f64 * spacing, spacing))
                    .collect();
                let (log_left, log_right) = curve.log_tails(*left, *right, self.tilt);
                // The integral itself is at least 1. Sums beyond the ends are at most a few times
                // their integrals.
                let largest = nodes.iter().map(|n| n.log_mass).fold(0.0, f64::max);
                let moment = largest + (count + 1.0).ln();
                let error = (moment - DIGITS).max(log_left).max(log_right) + 24f64.ln();
                Some((nodes, error))
            }
            Parts::Kinked { curves, kink, right, atom } => {
                let [remove, add] = curves;
                let z = 0.5 / kink;
                // Panels short against the normal density, the tilted exponent and the oscillation.
                let half = 0.3f64.min(4.0 * z / (1.0 + last)).min(2.0 * z / (1.0 + self.tilt));
                let count = ((right - kink) / (2.0 * half)).ceil();
                if !(40.0 * count < MOST) {
                    return None;
                }
                let mut nodes = Vec::with_capacity(40 * count as usize + 1);
                let mut error = f64::NEG_INFINITY;
                for panel in 0..count as usize {
                    let middle = kink + (2 * panel + 1) as f64 * half;
                    for curve in curves {
                        for (x, weight) in LEGENDRE {
                            for y in [middle - x * half, middle + x * half] {
                                nodes.push(node(curve, self.tilt, y, weight * half));
                            }
                        }
                        error = error.max(panel_error(curve, self.tilt, last, middle, half, z));
                    }
                }
                nodes.push(Node {
                    y: 0.0,
                    log_mass: atom.ln(),
                    exponent: 0.0,
                    loss: 0.0,
                    loss_rounding: 0.0,
                });
                let (_, log_remove) = remove.log_tails(0.0, *right, self.tilt);
                let (_, log_add) = add.log_tails(0.0, *right, self.tilt);
                let panels = error + (2.0 * count).ln();
                Some((nodes, panels.max(log_remove).max(log_add) + 8f64.ln()))
            }
        }
    }

    /// About how many nodes frequencies up to `last` need.
    pub(crate) fn size(&self, last: f64) -> f64 {
        match &self.parts {
            Parts::Line { curve, left, right } => {
                let digits = DIGITS + curve.log_strip_growth(self.tilt, last);
                (right - left) * digits / (2.0 * std::f64::consts::PI * curve.strip())
            }
            Parts::Kinked { kink, right, .. } => {
                let z = 0.5 / kink;
                20.0 * (right - kink) * (4.0 + (1.0 + last) / (4.0 * z) + self.tilt / z)
            }
        }
    }

    /// Nodes for frequencies up to `last`, normalised.
    pub(crate) fn nodes(&self, last: f64) -> Option<TiltedNodes> {
        let (raw, log_error) = self.quadrature(last)?;
        let mut nodes = TiltedNodes {
            mass: Vec::with_capacity(raw.len()),
            loss: Vec::with_capacity(raw.len()),
            error: 0.0,
            phase_error: 0.0,
        };
        let (mut masses, mut exponents, mut losses) = (0.0, 0.0, 0.0);
        let centre = self.centre.abs();
        for node in &raw {
            let mass = libm::exp(node.log_mass - self.log_moment);
            let loss = node.loss - self.centre;
            masses += mass;
            // Roundings in units of UNIT: of the loss, of the exponent, of the mass.
            let off = 4.0 * node.loss.abs() + node.loss_rounding;
            let size = node.exponent.abs() + node.y * node.y + self.log_moment.abs();
            exponents += mass * (8.0 * size + 16.0 + (2.0 + 2.0 * self.tilt) * off);
            losses += mass * (off + 4.0 * (loss.abs() + centre));
            nodes.mass.push(mass);
            nodes.loss.push(loss);
        }
        // Masses round with their exponents; rotations a few times until they are restarted; sums by
        // the length of a lane. What the masses miss of 1 was lost, too.
        let lane = raw.len() as f64 / 8.0 + 16.0 + 5.0 * RESTART as f64;
        let rounding = UNIT * (exponents + lane * masses);
        nodes.error = rounding + (log_error - self.log_moment).exp() + (masses - 1.0).abs();
        nodes.phase_error = UNIT * losses;
        Some(nodes)
    }

    fn layers(&self, count: u32) -> Vec<(f64, f64)> {
        let pieces = |curve: &Smooth, left: f64, right: f64| {
            let at = |i: u32| left + (right - left) * f64::from(i) / f64::from(count);
            let pieces = (0..count).map(|i| self.piece(curve, at(i), at(i + 1))).collect();
            stack(pieces)
        };
        match &self.parts {
            Parts::Line { curve, left, right } => pieces(curve, *left, *right),
            Parts::Kinked { curves, kink, right, .. } => {
                curves.iter().flat_map(|curve| pieces(curve, *kink, *right)).collect()
            }
        }
    }

    /// The losses of an interval of outputs, and at most their tilted density: the normal density and
    /// the exponent are smallest at an end, and the slope of the loss is at most `steepest`.
    fn piece(&self, curve: &Smooth, from: f64, to: f64) -> Piece {
        let exponent = |y: f64| {
            let point = curve.at(y);
            (point.weight + self.tilt * point.loss, point.loss)
        };
        let ((a, loss_a), (b, loss_b)) = (exponent(from), exponent(to));
        let density = -0.5 * (from * from).max(to * to) + a.min(b) - self.log_moment;
        let height =
            libm::exp(density) / (2.0 * std::f64::consts::PI).sqrt() / curve.steepest(from, to)
                * (1.0 - 1e-6);
        let height = if height.is_finite() { height } else { 0.0 };
        Piece { low: loss_a.min(loss_b), high: loss_a.max(loss_b), height }
    }

    /// At most `-log |characteristic function|` for every frequency from t on.
    pub(crate) fn decay(&self, t: f64) -> f64 {
        let lost: f64 = self
            .layers
            .iter()
            .map(|(width, mass)| mass * (1.0 - largest_sinc(0.5 * t * width)))
            .sum();
        // Never more than all of it, whatever rounding made of the masses.
        -libm::log1p(-lost.clamp(0.0, 0.999))
    }
}

fn node(curve: &Smooth, tilt: f64, y: f64, weight: f64) -> Node {
    let point = curve.at(y);
    let exponent = point.weight + tilt * point.loss;
    let scale = libm::log(weight / (2.0 * std::f64::consts::PI).sqrt());
    let log_mass = exponent - 0.5 * y * y + scale;
    Node { y, log_mass, exponent, loss: point.loss, loss_rounding: curve.loss_rounding(y) }
}

/// Outputs beyond which the tilted mass does not count.
fn ends(curve: &Smooth, tilt: f64) -> (f64, f64) {
    const START: f64 = 9.0;
    let (mut left, mut right) = (-START, START);
    // The largest exponent bounds the moment from below well enough to find the ends.
    let exponent = |y: f64| {
        let point = curve.at(y);
        point.weight + tilt * point.loss - 0.5 * y * y
    };
    let mut largest: f64 = 0.0;
    for _ in 0..4000 {
        let (log_left, log_right) = curve.log_tails(left, right, tilt);
        largest = largest.max(exponent(left)).max(exponent(right));
        let enough = largest - DIGITS - 3.0;
        if log_left < enough && log_right < enough {
            break;
        }
        left -= if log_left < enough { 0.0 } else { 0.5 };
        right += if log_right < enough { 0.0 } else { 0.5 };
    }
    (left, right)
}

/// At least the log of the error of the rule [`LEGENDRE`] on one panel, for the tilted moment at frequencies up to
/// `last`: the largest modulus on an ellipse around the panel, of parameter 4, over which it is
/// analytic (Trefethen, Approximation Theory and Approximation Practice, theorem 19.3).
pub(crate) fn panel_error(
    curve: &Smooth,
    tilt: f64,
    last: f64,
    middle: f64,
    half: f64,
    z: f64,
) -> f64 {
    const ELLIPSE: f64 = 4.0;
    const DEGREE: f64 = 38.0;
    let (wide, high) =
        (0.5 * half * (ELLIPSE + 1.0 / ELLIPSE), 0.5 * half * (ELLIPSE - 1.0 / ELLIPSE));
    let angle = high / z;
    if !(angle < 1.5) {
        return f64::INFINITY;
    }
    let (from, to) = (middle - wide, middle + wide);
    let exponent = |y: f64| {
        let point = curve.at(y);
        point.weight + tilt * point.loss
    };
    // The exponent is monotone; the modulus of 1 + u shrinks at most by the cosine of half the angle.
    let largest = exponent(from).max(exponent(to)) - tilt * libm::log(libm::cos(0.5 * angle));
    let nearest = if from > 0.0 { from } else { 0.0 };
    let normal = -0.5 * nearest * nearest + 0.5 * high * high;
    let rule = (64.0 / 15.0 * half).ln() - DEGREE * ELLIPSE.ln() + 0.07;
    largest + normal + angle * last + rule
}

/// An interval of losses, and at most their density there.
struct Piece {
    low: f64,
    high: f64,
    height: f64,
}

/// Neighbouring pieces as a stack of uniform layers (width, mass): from the highest piece outwards they
/// are made to fall.
fn stack(mut pieces: Vec<Piece>) -> Vec<(f64, f64)> {
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
    let mut layers = Vec::with_capacity(pieces.len());
    let mut rest = pieces.as_slice();
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
    layers
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
