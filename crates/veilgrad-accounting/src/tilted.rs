//! One step's loss under its tilted distribution: masses and losses to sum characteristic functions
//! from, with their errors, and how fast those functions decay.

use realfft::num_complex::Complex64;

use crate::cut::Cut;
use crate::number::{LEGENDRE, UNIT, upper_tail};
use crate::output::Direction;
use crate::smooth::Smooth;
use crate::{Sampled, Step, work};

/// Quadratures over outputs are chosen for an error of e^-DIGITS.
pub(crate) const DIGITS: f64 = 40.0;
/// Rotations are turned on for so many frequencies, then so many times by that many at once, then computed
/// afresh.
pub(crate) const BLOCK: usize = 32;
/// At most so many nodes; what needs more is left to the lattice.
pub(crate) const MOST: f64 = 2e5;

pub(crate) struct TiltedStep {
    parts: Parts,
    tilt: f64,
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
    /// At least the error of the characteristic function at any frequency; what it is at 0, and how it grows
    /// from there.
    pub(crate) error: f64,
    pub(crate) quadrature: f64,
    pub(crate) growth: f64,
}

/// Where the mass of a loss comes from.
enum Parts {
    /// From the whole line, where it is analytic: a trapezoid rule.
    Line { curve: Smooth, left: f64, right: f64 },
    /// From the line without its outputs of the largest losses: panels.
    Cut(Cut),
    /// A fixed-size sample: from outputs above `kink`, once for removal and once for addition, in
    /// panels, and from an atom at zero.
    Kinked { curves: [Smooth; 2], kink: f64, right: f64, atom: f64 },
}

pub(crate) struct Node {
    /// Log of normal density, tilted exponent and quadrature weight.
    pub(crate) log_mass: Complex64,
    pub(crate) loss: Complex64,
    /// Sizes of what the log was added up from, and of the error of weight and loss, in units of UNIT.
    pub(crate) size: f64,
    pub(crate) loss_rounding: f64,
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
        let mut infinite = 0.0;
        let parts = match step.sampled {
            Sampled::FixedReplaced(q) => {
                let poisson = Step { sampled: Sampled::Poisson(q), z: step.z };
                let remove = Smooth::new(poisson, Direction::Remove)?;
                let add = Smooth::new(poisson, Direction::Add)?;
                let kink = 0.5 / step.z;
                let right =
                    ends(&remove, tilt, DIGITS).1.max(ends(&add, tilt, DIGITS).1).max(kink + 1.0);
                let atom = (1.0 - q) * (1.0 - 2.0 * upper_tail(kink));
                Parts::Kinked { curves: [remove, add], kink, right, atom }
            }
            _ => {
                let curve = Smooth::new(step, direction)?;
                if let Some(cut) = Cut::new(curve, tail) {
                    infinite = cut.infinite();
                    Parts::Cut(cut)
                } else {
                    let (left, right) = ends(&curve, tilt, DIGITS);
                    Parts::Line { curve, left, right }
                }
            }
        };
        let (log_moment, centre) = (0.0, 0.0);
        let moment_error = f64::INFINITY;
        let layers = Vec::new();
        let mut step = Self { parts, tilt, log_moment, moment_error, centre, layers, infinite };
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
    fn quadrature(&self, last: f64) -> Option<(Vec<Node>, f64)> {
        match &self.parts {
            Parts::Line { curve, left, right } => {
                let Rule { spacing, shift } = self.rule(curve, last);
                let count = ((right - left) / spacing).ceil();
                if !(count < MOST) || work::NODE * count as u64 > work::left() {
                    return None;
                }
                work::spend(work::NODE * count as u64);
                let nodes: Vec<Node> = (0..=count as usize)
                    .map(|index| left + index as f64 * spacing)
                    .map(|y| match shift {
                        0.0 => node(curve, self.tilt, y, spacing),
                        shift => shifted_node(curve, self.tilt, y, shift, spacing),
                    })
                    .collect();
                let (log_left, log_right) = curve.log_tails(*left, *right, self.tilt);
                // The integral itself is at least 1 unless something was cut off. Sums beyond the ends
                // are at most a few times their integrals, and larger off the line.
                let largest = nodes.iter().map(|n| n.log_mass.re).fold(0.0, f64::max);
                let moment = (largest + (count + 1.0).ln()).max(self.log_moment);
                let off = curve.log_growth(shift, self.tilt, 0.0);
                let ends = log_left.max(log_right) + off;
                Some((nodes, (moment - DIGITS).max(ends) + 24f64.ln()))
            }
            Parts::Cut(cut) => cut.quadrature(self.tilt, last),
            Parts::Kinked { curves, kink, right, atom } => {
                let [remove, add] = curves;
                let z = 0.5 / kink;
                // Panels short against the normal density, the tilted exponent and the oscillation.
                let half = 0.3f64.min(4.0 * z / (1.0 + last)).min(2.0 * z / (1.0 + self.tilt));
                let count = ((right - kink) / (2.0 * half)).ceil();
                if !(40.0 * count < MOST) || 40 * work::NODE * count as u64 > work::left() {
                    return None;
                }
                work::spend(40 * work::NODE * count as u64);
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
    fn rule(&self, curve: &Smooth, last: f64) -> Rule {
        let spacing =
            |distance: f64, growth: f64| 2.0 * std::f64::consts::PI * distance / (DIGITS + growth);
        let strip = curve.strip(self.tilt);
        let on = spacing(strip, curve.log_growth(strip, self.tilt, last));
        let strip = curve.one_sided_strip(self.tilt);
        let beside = spacing(0.5 * strip, curve.log_growth(strip, self.tilt, 0.0));
        if last > 0.0 && beside > on {
            return Rule { spacing: beside, shift: 0.5 * strip };
        }
        Rule { spacing: on, shift: 0.0 }
    }

    /// About how many nodes frequencies up to `last` need.
    pub(crate) fn size(&self, last: f64) -> f64 {
        match &self.parts {
            Parts::Line { curve, left, right } => (right - left) / self.rule(curve, last).spacing,
            Parts::Cut(cut) => cut.size(self.tilt, last),
            Parts::Kinked { kink, right, .. } => {
                let z = 0.5 / kink;
                20.0 * (right - kink) * (4.0 + (1.0 + last) / (4.0 * z) + self.tilt / z)
            }
        }
    }

    /// At least the error of a mass relative to `e^scale`, in unit roundoffs.
    fn mass_rounding(&self, node: &Node, scale: f64) -> f64 {
        let off = 4.0 * node.loss.norm() + node.loss_rounding;
        8.0 * (node.size + scale.abs()) + 16.0 + (2.0 + 2.0 * self.tilt) * off
    }

    /// Nodes for frequencies up to `last`, normalised.
    pub(crate) fn nodes(&self, last: f64) -> Option<TiltedNodes> {
        let (raw, log_error) = self.quadrature(last)?;
        let mut nodes = TiltedNodes {
            mass: Vec::with_capacity(raw.len()),
            loss: Vec::with_capacity(raw.len()),
            error: 0.0,
            quadrature: 2.0 * (log_error - self.log_moment).exp(),
            growth: 0.0,
        };
        // What is summed is m (e^{i t l} - 1), of modulus at most 2 |m|, and at most t |m l|.
        // Turns round a few times until they are computed afresh; sums by the length of a lane.
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
        // What the masses miss of 1 was lost, too.
        let lost = (sum - 1.0).norm();
        nodes.error = UNIT * any + 2.0 * lost + nodes.quadrature;
        nodes.growth = UNIT * growth + lost * losses;
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
            Parts::Cut(cut) => {
                let (from, to) = cut.ends();
                let (from, to) = (cut.curve().outward(from), cut.curve().outward(to));
                pieces(cut.curve(), from.min(to), from.max(to))
            }
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

pub(crate) fn node(curve: &Smooth, tilt: f64, y: f64, weight: f64) -> Node {
    let point = curve.at(y);
    let exponent = point.weight + tilt * point.loss;
    let scale = libm::log(weight / (2.0 * std::f64::consts::PI).sqrt());
    Node {
        log_mass: Complex64::from(exponent - 0.5 * y * y + scale),
        loss: Complex64::from(point.loss),
        size: exponent.abs() + y * y,
        loss_rounding: curve.loss_rounding(y),
    }
}

/// The same at the distance `shift` from the real line.
pub(crate) fn shifted_node(curve: &Smooth, tilt: f64, y: f64, shift: f64, weight: f64) -> Node {
    let (point, loss) = curve.at_shifted(y, shift);
    let exponent = point + tilt * loss;
    let at = Complex64::new(y, curve.side(shift));
    let scale = libm::log(weight / (2.0 * std::f64::consts::PI).sqrt());
    Node {
        log_mass: exponent - 0.5 * at * at + scale,
        loss,
        size: exponent.norm() + at.norm_sqr(),
        loss_rounding: 4.0 * loss.norm() + curve.shifted_rounding(y, shift),
    }
}

/// A trapezoid rule: its spacing, and how far from the real line it is.
struct Rule {
    spacing: f64,
    shift: f64,
}

/// Outputs beyond which the tilted mass does not count against e^-digits.
pub(crate) fn ends(curve: &Smooth, tilt: f64, digits: f64) -> (f64, f64) {
    // The normal tail has e^-digits there.
    let start = (2.0 * digits).sqrt();
    let (mut left, mut right) = (-start, start);
    // The largest exponent bounds the moment from below well enough to find the ends.
    let exponent = |y: f64| {
        let point = curve.at(y);
        point.weight + tilt * point.loss - 0.5 * y * y
    };
    let mut largest: f64 = 0.0;
    for _ in 0..4000 {
        let (log_left, log_right) = curve.log_tails(left, right, tilt);
        largest = largest.max(exponent(left)).max(exponent(right));
        let enough = largest - digits - 3.0;
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
