//! One step under its tilted distribution: quadrature nodes from which its characteristic function is summed, bounds on
//! the errors, and bounds on how fast the function decays.

use realfft::num_complex::Complex64;

use crate::cumulant::quadrature::{
    MOST_NODES, QuadratureNode, ends, node, panel_error, quick_nodes, shifted_node,
};
use crate::cumulant::truncation::Truncated;
use crate::number::{UNIT, legendre, upper_tail};
use crate::pair::{Direction, Pair};
use crate::{Sampled, Step, work};

/// Target for the relative error of quadratures over outputs: e^-DIGITS.
pub(crate) const DIGITS: f64 = 40.0;
/// `e^{i t loss}` at equally spaced t is computed by repeated complex multiplication: one frequency at a time within a
/// block of BLOCK, block by block within BLOCK blocks, and then from scratch, which keeps rounding errors small.
pub(crate) const BLOCK: usize = 32;

/// The tilted privacy loss of one step: its moment, its mean, and a lower bound on its density.
pub(crate) struct TiltedStep {
    quadrature: Quadrature,
    tilt: f64,
    digits: f64,
    /// Log of the tilted moment, and an upper bound on its error.
    pub(crate) log_moment: f64,
    pub(crate) moment_error: f64,
    /// The approximate mean of the tilted loss.
    pub(crate) centre: f64,
    /// A lower bound on the density of the loss: a sum of uniform distributions, each a (width, mass).
    layers: Vec<(f64, f64)>,
    /// An upper bound on the probability of the truncated outputs.
    pub(crate) infinite: f64,
}

/// Quadrature nodes for all frequencies up to some last one: tilted masses and losses minus their mean. Both are complex
/// where the integration path is off the real line.
pub(crate) struct TiltedNodes {
    pub(crate) mass: Vec<Complex64>,
    pub(crate) loss: Vec<Complex64>,
    /// The error of the characteristic function at frequency t is at most
    /// `min(error, quadrature_error + error_slope * t)`.
    pub(crate) error: f64,
    pub(crate) quadrature_error: f64,
    pub(crate) error_slope: f64,
}

/// How expectations over the outputs of a step are computed.
enum Quadrature {
    /// The loss is analytic on the whole line: a trapezoid rule on `[left, right]`.
    Line { pair: Pair, left: f64, right: f64 },
    /// With the largest losses truncated: Gauss-Legendre panels.
    Truncated(Truncated),
    /// The loss of a fixed-size sample, which has a kink at zero: Gauss-Legendre panels over outputs above `kink`, for
    /// removal and for addition, and an atom at loss zero.
    FixedSize { pairs: [Pair; 2], kink: f64, right: f64, atom: f64 },
}

impl TiltedStep {
    /// `None` for a step without sampling, or one that needs too many nodes. `pieces` is the number of intervals on which
    /// the density is bounded from below.
    pub(crate) fn new(
        step: Step,
        direction: Direction,
        tilt: f64,
        pieces: u32,
        tail: f64,
    ) -> Option<Self> {
        Self::with_digits(step, direction, tilt, pieces, tail, DIGITS)
    }

    /// The same with a custom number of digits in place of `DIGITS`.
    pub(crate) fn with_digits(
        step: Step,
        direction: Direction,
        tilt: f64,
        pieces: u32,
        tail: f64,
        digits: f64,
    ) -> Option<Self> {
        let mut infinite = 0.0;
        let quadrature = match step.sampled {
            Sampled::FixedReplaced(q) => {
                let poisson = Step { sampled: Sampled::Poisson(q), z: step.z };
                let remove = Pair::analytic(poisson, Direction::Remove)?;
                let add = Pair::analytic(poisson, Direction::Add)?;
                let kink = 0.5 / step.z;
                let right =
                    ends(&remove, tilt, digits).1.max(ends(&add, tilt, digits).1).max(kink + 1.0);
                let atom = (1.0 - q) * (1.0 - 2.0 * upper_tail(kink));
                Quadrature::FixedSize { pairs: [remove, add], kink, right, atom }
            }
            _ => {
                let pair = Pair::analytic(step, direction)?;
                if let Some(truncated) = Truncated::new(pair, tail) {
                    infinite = truncated.infinite();
                    Quadrature::Truncated(truncated)
                } else {
                    let (left, right) = ends(&pair, tilt, digits);
                    Quadrature::Line { pair, left, right }
                }
            }
        };
        let (log_moment, centre, moment_error) = (0.0, 0.0, f64::INFINITY);
        let layers = Vec::new();
        let mut step =
            Self { quadrature, tilt, digits, log_moment, moment_error, centre, layers, infinite };
        let (nodes, log_error) = step.nodes_and_log_error(0.0)?;
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

    /// Nodes for frequencies up to `last`, and an upper bound on the log of the quadrature error.
    fn nodes_and_log_error(&self, last: f64) -> Option<(Vec<QuadratureNode>, f64)> {
        match &self.quadrature {
            Quadrature::Line { pair, left, right } => {
                let Rule { spacing, shift } = self.rule(pair, last);
                let count = ((right - left) / spacing).ceil();
                if !(count < MOST_NODES) || work::NODE * count as u64 > work::left() {
                    return None;
                }
                work::spend(work::NODE * count as u64);
                let outputs = (0..=count as usize).map(|index| left + index as f64 * spacing);
                let nodes: Vec<QuadratureNode> = match shift {
                    // With fewer digits, losses need fewer as well.
                    0.0 if self.digits < DIGITS => {
                        let reach = left.abs().max(right.abs());
                        quick_nodes(pair, self.tilt, (*left, reach), spacing, count as usize + 1)
                    }
                    0.0 => outputs.map(|y| node(pair, self.tilt, y, spacing)).collect(),
                    shift => {
                        outputs.map(|y| shifted_node(pair, self.tilt, y, shift, spacing)).collect()
                    }
                };
                let (log_left, log_right) = pair.log_tails(*left, *right, self.tilt);
                // The integral itself is at least 1 unless outputs were truncated. Sums beyond the ends are at most a
                // few times their integrals, and grow with the distance from the real line.
                let largest = nodes.iter().map(|n| n.log_mass.re).fold(0.0, f64::max);
                let moment = (largest + (count + 1.0).ln()).max(self.log_moment);
                let growth = pair.log_growth(shift, self.tilt, 0.0);
                let ends = log_left.max(log_right) + growth;
                Some((nodes, (moment - self.digits).max(ends) + 24f64.ln()))
            }
            Quadrature::Truncated(truncated) => truncated.quadrature(self.tilt, last),
            Quadrature::FixedSize { pairs, kink, right, atom } => {
                let [remove, add] = pairs;
                let z = 0.5 / kink;
                // Panels are short compared with the scales of the normal density, the tilted exponent and the oscillation.
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
                        let points = legendre(middle, half);
                        nodes.extend(points.map(|(y, weight)| node(pair, self.tilt, y, weight)));
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

    /// The trapezoid rule with the wider spacing for frequencies up to `last`: on the real line, or parallel to it.
    ///
    /// The parallel line runs through the middle of a strip that has the real line as one edge. There `e^{i t loss}` has a
    /// modulus of at most 1 at every frequency t, so that the spacing need not resolve its oscillation.
    fn rule(&self, pair: &Pair, last: f64) -> Rule {
        let spacing = |distance: f64, growth: f64| {
            2.0 * std::f64::consts::PI * distance / (self.digits + growth)
        };
        let strip = pair.strip(self.tilt);
        let on_line = spacing(strip, pair.log_growth(strip, self.tilt, last));
        let strip = pair.one_sided_strip(self.tilt);
        let parallel = spacing(0.5 * strip, pair.log_growth(strip, self.tilt, 0.0));
        if last > 0.0 && parallel > on_line {
            return Rule { spacing: parallel, shift: 0.5 * strip };
        }
        Rule { spacing: on_line, shift: 0.0 }
    }

    /// The approximate number of nodes for frequencies up to `last`.
    pub(crate) fn node_count(&self, last: f64) -> f64 {
        match &self.quadrature {
            Quadrature::Line { pair, left, right } => {
                (right - left) / self.rule(pair, last).spacing
            }
            Quadrature::Truncated(truncated) => truncated.node_count(self.tilt, last),
            Quadrature::FixedSize { kink, right, .. } => {
                let z = 0.5 / kink;
                20.0 * (right - kink) * (4.0 + (1.0 + last) / (4.0 * z) + self.tilt / z)
            }
        }
    }

    /// An upper bound on the rounding error of a mass relative to `e^scale`, in unit roundoffs.
    fn mass_rounding(&self, node: &QuadratureNode, scale: f64) -> f64 {
        8.0 * (node.size + scale.abs()) + 16.0 + (2.0 + 2.0 * self.tilt) * loss_rounding(node)
    }

    /// Normalised nodes for frequencies up to `last`, with error bounds.
    pub(crate) fn nodes(&self, last: f64) -> Option<TiltedNodes> {
        let (raw, log_error) = self.nodes_and_log_error(last)?;
        let mut nodes = TiltedNodes {
            mass: Vec::with_capacity(raw.len()),
            loss: Vec::with_capacity(raw.len()),
            error: 0.0,
            quadrature_error: 2.0 * (log_error - self.log_moment).exp(),
            error_slope: 0.0,
        };
        // The terms are m (e^{i t l} - 1), of modulus at most 2 |m| and at most t |m l|. Each is rounded five times for each
        // of at most 2 BLOCK complex multiplications, and in `product::sum` at most log2(length) + 8 times, which is less than
        // length / 8 + 16.
        let term_rounding = raw.len() as f64 / 8.0 + 16.0 + 5.0 * 2.0 * BLOCK as f64;
        let (mut constant, mut slope) = (0.0, 0.0);
        let (mut sum, mut losses) = (Complex64::ZERO, 0.0);
        let centre = self.centre.abs();
        for node in &raw {
            let modulus = libm::exp(node.log_mass.re - self.log_moment);
            let mass = Complex64::from_polar(modulus, node.log_mass.im);
            let loss = node.loss - self.centre;
            sum += mass;
            // In units of UNIT.
            let relative = self.mass_rounding(node, self.log_moment) + term_rounding;
            let centring = 4.0 * (loss.norm() + centre);
            constant += modulus * 2.0 * relative;
            slope += modulus * (loss.norm() * relative + loss_rounding(node) + centring);
            losses += modulus * loss.norm();
            nodes.mass.push(mass);
            nodes.loss.push(loss);
        }
        // The masses should sum to 1; the difference counts as an error.
        let missing_mass = (sum - 1.0).norm();
        nodes.error = UNIT * constant + 2.0 * missing_mass + nodes.quadrature_error;
        nodes.error_slope = UNIT * slope + missing_mass * losses;
        Some(nodes)
    }

    /// The lower bound on the density, computed from `count` intervals of outputs.
    fn layers(&self, count: u32) -> Vec<(f64, f64)> {
        let pieces = |pair: &Pair, left: f64, right: f64| {
            let output = |i: u32| left + (right - left) * f64::from(i) / f64::from(count);
            let pieces = (0..count).map(|i| self.piece(pair, output(i), output(i + 1))).collect();
            uniform_layers(pieces)
        };
        match &self.quadrature {
            Quadrature::Line { pair, left, right } => pieces(pair, *left, *right),
            Quadrature::Truncated(truncated) => {
                let (from, to) = truncated.ends();
                let (from, to) = (truncated.pair().outward(from), truncated.pair().outward(to));
                pieces(truncated.pair(), from.min(to), from.max(to))
            }
            Quadrature::FixedSize { pairs, kink, right, .. } => {
                pairs.iter().flat_map(|pair| pieces(pair, *kink, *right)).collect()
            }
        }
    }

    /// The losses of an interval of outputs and a lower bound on their tilted density: the normal density and the exponent
    /// are smallest at an end of the interval, and the slope of the loss is at most `steepest`.
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

    /// A lower bound on `-log |characteristic function|` at all frequencies from t on.
    pub(crate) fn decay(&self, t: f64) -> f64 {
        // A lower bound on 1 - |characteristic function|, since that of a uniform layer has the modulus |sinc|.
        let deficit: f64 = self
            .layers
            .iter()
            .map(|(width, mass)| mass * (1.0 - largest_sinc(0.5 * t * width)))
            .sum();
        // Keeps the logarithm finite if rounding makes the masses sum to more than 1.
        -libm::log1p(-deficit.clamp(0.0, 0.999))
    }
}

/// An upper bound on the rounding error of the loss of a node, in unit roundoffs.
fn loss_rounding(node: &QuadratureNode) -> f64 {
    4.0 * node.loss.norm() + node.loss_rounding
}

/// A trapezoid rule: its spacing, and its distance from the real line.
struct Rule {
    spacing: f64,
    shift: f64,
}

/// An interval of losses, and a lower bound on their density there.
#[derive(Clone)]
struct Piece {
    low: f64,
    high: f64,
    height: f64,
}

/// Neighbouring pieces as a sum of uniform layers, each a (width, mass). A first stack of layers covers a unimodal
/// minorant of the pieces, a second one what that leaves uncovered: large losses may form a peak of their own.
fn uniform_layers(mut pieces: Vec<Piece>) -> Vec<(f64, f64)> {
    let mut layers = Vec::with_capacity(2 * pieces.len());
    for _ in 0..2 {
        let mut unimodal = pieces.clone();
        make_unimodal(&mut unimodal);
        for (piece, used) in pieces.iter_mut().zip(&unimodal) {
            piece.height -= used.height;
        }
        let mut rest = unimodal.as_slice();
        let mut level = 0.0;
        while let (Some(first), Some(last)) = (rest.first(), rest.last()) {
            // Losses increase or decrease with outputs.
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

/// Lowers pieces so that heights decrease from the highest piece outwards.
fn make_unimodal(pieces: &mut [Piece]) {
    let highest = pieces.iter().map(|piece| piece.height).fold(0.0, f64::max);
    let peak = pieces.iter().position(|piece| piece.height >= highest).unwrap_or(0);
    let (before, after) = pieces.split_at_mut(peak);
    let lower_to = |piece: &mut Piece, lowest: &mut f64| {
        *lowest = lowest.min(piece.height);
        piece.height = *lowest;
    };
    let (mut left, mut right) = (f64::INFINITY, f64::INFINITY);
    before.iter_mut().rev().for_each(|piece| lower_to(piece, &mut left));
    after.iter_mut().for_each(|piece| lower_to(piece, &mut right));
}

/// An upper bound on `|sin y / y|` for all `y >= x`.
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
    fn characteristic_functions_are_the_same_on_the_real_line_and_parallel_to_it() {
        let poisson = |q: f64, z: f64| Step { sampled: Sampled::Poisson(q), z };
        let replaced = |q: f64, z: f64| Step { sampled: Sampled::PoissonReplaced(q), z };
        let mut differ = false;
        for step in [poisson(0.3, 0.7), poisson(1e-4, 2.0), replaced(0.1, 1.0), replaced(0.6, 6.0)]
        {
            for direction in [Direction::Remove, Direction::Add] {
                // Parallel to the line, and in panels with a truncation that removes next to nothing.
                for (tail, tilt) in [(0.0, 3.0), (0.0, 40.0), (1e-60, 1.0), (1e-60, 3.0)] {
                    let on_line = TiltedStep::new(step, direction, tilt, 16, 0.0).unwrap();
                    let parallel = TiltedStep::new(step, direction, tilt, 16, tail).unwrap();
                    let what = format!("{step:?} {direction:?} {tail} {tilt}");
                    // They differ by rounding errors, within their bounds.
                    let error = (on_line.log_moment - parallel.log_moment).abs();
                    let bound = on_line.moment_error + parallel.moment_error;
                    assert!(error <= bound && bound < 1e-9, "{what}: {error} {bound}");
                    differ |= error > 0.0;
                    for t in [0.1, 1.0, 5.0] {
                        let (value, shifted) = transform(&parallel, t, 1e5);
                        let (exact, not_shifted) = transform(&on_line, t, t);
                        assert!(shifted && (!not_shifted || tilt > 10.0), "{what}");
                        assert!((value - exact).norm() < 1e-12, "{what} {t}: {value} {exact}");
                    }
                }
            }
        }
        assert!(differ);
    }
}
