//! `K(t) = log E e^{t L}` of the privacy loss L of a composition, with derivatives, at real tilts.

use crate::convex::Convex;
use crate::cut::Cut;
use crate::number::{LEGENDRE, UNIT, exp_beyond_linear};
use crate::output::Direction;
use crate::smooth::Smooth;
use crate::tilted::panel_error;
use crate::{Composition, Sampled, Step, work};

/// Where sums over outputs begin: beyond it, untilted, less than 1e-40 is left.
const REACH: f64 = 13.5;
/// Below this noise multiplier sampling is not worth its nodes, whose number grows like 1/z^2.
pub(crate) const SMALLEST: f64 = 0.01;
/// At most so many nodes; what needs more is infinite.
const MOST: usize = 1 << 14;
/// How closely the logs of tilts are found on which only work and tightness depend.
const ROUGH_TILT: f64 = 0.01;
/// Terms above e^MODERATE are summed as logs.
const MODERATE: f64 = 200.0;

/// A value with its first and second derivative.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Jet {
    pub(crate) value: f64,
    pub(crate) first: f64,
    pub(crate) second: f64,
}

impl Jet {
    pub(crate) fn add_scaled(&mut self, factor: f64, other: Self) {
        self.value += factor * other.value;
        self.first += factor * other.first;
        self.second += factor * other.second;
    }
}

/// What helps a transform to converge, and what it costs: nothing by default.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Aid {
    /// Outputs with the largest losses, of about this probability in one round, count as infinite. What is
    /// left has small moments, so that tilts may be large.
    pub(crate) tail: f64,
    /// One more round, without sampling, of this 1/z^2: it smooths the loss.
    pub(crate) variance: f64,
}

/// The cumulant of a composition in one direction, from above where there are thousands of distinct steps. Remembers
/// the points that it needed.
pub(crate) struct Cumulant {
    steps: Vec<(StepCumulant, f64)>,
}

impl Cumulant {
    pub(crate) fn new(composition: &Composition, direction: Direction) -> Self {
        Self::aided(composition, direction, Aid::default())
    }

    /// The cumulant of the finite losses with an aid.
    pub(crate) fn aided(composition: &Composition, direction: Direction, aid: Aid) -> Self {
        let of = |(step, count): &(Step, u64)| {
            (StepCumulant::new(*step, direction, aid.tail), *count as f64)
        };
        let mut steps: Vec<_> = composition.coarse().steps().iter().map(of).collect();
        if aid.variance > 0.0 {
            steps.push((StepCumulant::Gaussian(aid.variance.sqrt().recip()), 1.0));
        }
        Self { steps }
    }

    /// `K(tilt)`, rounded up, and its derivatives, for `tilt > 0`; infinite where it cannot be
    /// computed.
    pub(crate) fn at(&mut self, tilt: f64) -> Jet {
        let mut sum = Jet::default();
        for (step, count) in &mut self.steps {
            sum.add_scaled(*count, step.at(tilt));
        }
        sum.value *= 1.0 + 4.0 * UNIT * self.steps.len() as f64;
        if sum.value.is_nan() {
            sum.value = f64::INFINITY;
        }
        sum
    }

    /// The smallest `psi(tilt)/tilt` over tilts, where `psi = K + extra` is convex: returns that tilt.
    /// Any tilt gives a bound; this only looks for a good one.
    pub(crate) fn best_ratio(&mut self, extra: impl Fn(f64) -> Jet) -> f64 {
        self.increasing_root(ROUGH_TILT, |tilt, k| ratio_slope(tilt, k, extra(tilt)))
    }

    /// The tilt at which `K'(tilt) + extra'(tilt)` passes `slope`.
    pub(crate) fn best_slope(&mut self, slope: f64, extra: impl Fn(f64) -> Jet) -> f64 {
        self.increasing_root(ROUGH_TILT, |tilt, k| k.first + extra(tilt).first - slope)
    }

    /// The tilt at which `f(tilt, K(tilt))`, which increases, passes zero; the log of the tilt is this close.
    ///
    /// K can grow by hundreds of orders of magnitude between two tilts, so secants are only taken while
    /// they at least halve the bracket.
    pub(crate) fn increasing_root(
        &mut self,
        close: f64,
        mut f: impl FnMut(f64, Jet) -> f64,
    ) -> f64 {
        const LARGEST: f64 = 40.0;
        let mut at = |log_tilt: f64| {
            let tilt = log_tilt.exp();
            let value = f(tilt, self.at(tilt));
            // Where nothing can be computed the tilt is too large.
            if value.is_nan() { f64::INFINITY } else { value }
        };
        let (mut low, mut high) = (1.0, 1.0);
        let mut at_low = at(low);
        let mut at_high = at_low;
        while at_low > 0.0 && low > -LARGEST {
            (high, at_high) = (low, at_low);
            low -= 1.0 + (1.0 - low) / 2.0;
            at_low = at(low);
        }
        while at_high <= 0.0 && high < LARGEST {
            (low, at_low) = (high, at_high);
            high += 1.0;
            at_high = at(high);
        }
        let mut halve = false;
        while high - low > close {
            let before = high - low;
            let secant = low - at_low * before / (at_high - at_low);
            // A little into the larger part, so that both ends move.
            let room = 0.3 * close;
            let secant = if secant - low < high - secant { secant + room } else { secant - room };
            let usable = !halve && at_high.is_finite() && secant > low && secant < high;
            let middle = if usable { secant } else { 0.5 * (low + high) };
            let value = at(middle);
            if value > 0.0 {
                (high, at_high) = (middle, value);
            } else {
                (low, at_low) = (middle, value);
            }
            halve = high - low > 0.5 * before;
        }
        (0.5 * (low + high)).exp()
    }
}

/// `tilt psi' - psi`, which increases and is zero where `psi(tilt)/tilt` is smallest, for `psi = K + extra`.
pub(crate) fn ratio_slope(tilt: f64, k: Jet, extra: Jet) -> f64 {
    tilt * (k.first + extra.first) - (k.value + extra.value)
}

enum StepCumulant {
    /// The Gaussian: tilt (tilt + 1) / (2 z^2).
    Gaussian(f64),
    /// So little noise that the nodes are not worth it.
    Convex(Convex),
    Smooth(Nodes),
    Fixed(Panels),
    Cut(Cut),
}

impl StepCumulant {
    fn new(step: Step, direction: Direction, tail: f64) -> Self {
        if step.z < SMALLEST {
            return Self::Convex(Convex::new(step, direction));
        }
        if let Sampled::FixedReplaced(q) = step.sampled {
            return Self::Fixed(Panels::new(q, step.z));
        }
        match Smooth::new(step, direction) {
            Some(smooth) => match Cut::new(smooth, tail) {
                Some(cut) => Self::Cut(cut),
                None => Self::Smooth(Nodes::new(smooth, Convex::new(step, direction))),
            },
            None => Self::Gaussian(step.z),
        }
    }

    fn at(&mut self, tilt: f64) -> Jet {
        match self {
            Self::Gaussian(z) => gaussian_jet(*z, tilt),
            Self::Convex(bound) => bound.at(tilt),
            Self::Smooth(nodes) => nodes.at(tilt),
            Self::Fixed(panels) => panels.at(tilt),
            Self::Cut(cut) => cut.jet(tilt),
        }
    }
}

/// `tilt (tilt + 1) / (2 z^2)`, rounded up.
pub(crate) fn gaussian_jet(z: f64, tilt: f64) -> Jet {
    let rate = 0.5 / (z * z);
    let value = rate * tilt * (tilt + 1.0) * (1.0 + 8.0 * UNIT);
    Jet { value, first: rate * (2.0 * tilt + 1.0), second: 2.0 * rate }
}

/// Trapezoid nodes of one step, as many as the tilts so far needed.
struct Nodes {
    smooth: Smooth,
    /// For tilts that need too many nodes.
    bound: Convex,
    /// The spacing and, by index of the first, where the nodes lie.
    spacing: f64,
    first: i64,
    nodes: std::collections::VecDeque<Node>,
}

struct Node {
    /// Log of the normal density times the spacing.
    log_density: f64,
    density: f64,
    weight: f64,
    loss: f64,
    weight_bend: f64,
    loss_bend: f64,
}

impl Nodes {
    fn new(smooth: Smooth, bound: Convex) -> Self {
        let nodes = std::collections::VecDeque::new();
        let mut new = Self { smooth, bound, spacing: f64::NAN, first: 0, nodes };
        // Tilts up to 10 keep the digits; beyond, the spacing is checked where it is used.
        new.refine(10.0);
        new
    }

    fn node(&self, index: i64) -> Node {
        let y = index as f64 * self.spacing;
        let log_density = -0.5 * y * y + (self.spacing / (2.0 * std::f64::consts::PI).sqrt()).ln();
        let point = self.smooth.at(y);
        Node {
            log_density,
            density: log_density.exp(),
            weight: point.weight,
            loss: point.loss,
            weight_bend: point.weight_bend,
            loss_bend: point.loss_bend,
        }
    }

    /// Adds nodes until what lies beyond them does not count at this tilt; false if that takes too many.
    fn reach(&mut self, tilt: f64) -> bool {
        const STRIDE: i64 = 8;
        let last = |nodes: &Self| nodes.first + nodes.nodes.len() as i64 - 1;
        // E e^{tL} >= 1 for tilts above 0, and at least the largest term.
        let mut largest = f64::NEG_INFINITY;
        for node in &self.nodes {
            largest = largest.max(node.log_density + node.weight + tilt * node.loss);
        }
        loop {
            let (left, right) =
                (self.first as f64 * self.spacing, last(self) as f64 * self.spacing);
            let (log_left, log_right) = self.smooth.log_tails(left, right, tilt);
            let enough = largest.max(0.0) - self.smooth.digits();
            let (to_left, to_right) = (!(log_left < enough), !(log_right < enough));
            if !to_left && !to_right {
                return true;
            }
            if self.nodes.len() > MOST {
                return false;
            }
            let mut added = Vec::new();
            for _ in 0..STRIDE {
                if to_left {
                    self.first -= 1;
                    let node = self.node(self.first);
                    added.push(node.log_density + node.weight + tilt * node.loss);
                    self.nodes.push_front(node);
                }
                if to_right {
                    let node = self.node(last(self) + 1);
                    added.push(node.log_density + node.weight + tilt * node.loss);
                    self.nodes.push_back(node);
                }
            }
            largest = added.into_iter().fold(largest, f64::max);
        }
    }

    fn at(&mut self, tilt: f64) -> Jet {
        if !self.reach(tilt) {
            return self.bound.at(tilt);
        }
        let quadrature = (self.smooth.log_growth(self.smooth.strip(tilt), tilt, 0.0)
            - 2.0 * std::f64::consts::PI * self.smooth.strip(tilt) / self.spacing)
            .exp();
        if !(quadrature < 2.0 * (-self.smooth.digits()).exp()) {
            // Too coarse for this tilt: finer nodes.
            return if self.refine(tilt) { self.at(tilt) } else { self.bound.at(tilt) };
        }
        work::spend(4 * self.nodes.len() as u64);
        let exponent = |node: &Node| node.weight + tilt * node.loss;
        let log_mass = |node: &Node| node.log_density + exponent(node);
        let top = self.nodes.iter().map(log_mass).fold(f64::NEG_INFINITY, f64::max);
        let (mut sum, mut size, mut first, mut second) = (0.0, 0.0, 0.0, 0.0);
        let (mut total, mut formed) = (0.0, 0.0);
        if top < MODERATE {
            let bends = self.smooth.bends();
            for node in &self.nodes {
                let a = exponent(node);
                let mass = libm::exp(node.log_density + a);
                // What exceeds 1, less terms of expectation zero: nothing cancels for small q.
                let term = match (bends, a > 30.0) {
                    // So far out the linear terms are nothing, or no number.
                    _ if node.density == 0.0 => mass,
                    (true, false) => {
                        let bend = node.weight_bend + tilt * node.loss_bend;
                        node.density * (exp_beyond_linear(a) + bend)
                    }
                    (true, true) => {
                        let bend = node.weight_bend + tilt * node.loss_bend;
                        mass + node.density * (bend - 1.0 - a)
                    }
                    (false, false) => node.density * libm::expm1(a),
                    (false, true) => mass - node.density,
                };
                sum += term;
                size += term.abs();
                // Roundings of a term: of its parts, before they cancel, and of their exponents.
                let parts = match bends && a <= 30.0 {
                    true => {
                        exp_beyond_linear(a).abs()
                            + node.weight_bend.abs()
                            + (tilt * node.loss_bend).abs()
                    }
                    false => 0.0,
                };
                let parts = if node.density > 0.0 { node.density * parts } else { 0.0 };
                formed += 8.0 * parts + (node.log_density.abs() + a.abs() + 8.0) * term.abs();
                total += mass;
                first += mass * node.loss;
                second += mass * node.loss * node.loss;
            }
            let (mean, square) = (first / total, second / total);
            let rounding =
                UNIT * ((64.0 + self.nodes.len() as f64) * size + 4.0 * formed) + 4.0 * quadrature;
            let value = libm::log1p(sum + rounding) * (1.0 + 4.0 * UNIT);
            return Jet { value, first: mean, second: square - mean * mean };
        }
        for node in &self.nodes {
            let mass = libm::exp(node.log_density + exponent(node) - top);
            total += mass;
            first += mass * node.loss;
            second += mass * node.loss * node.loss;
        }
        let (mean, square) = (first / total, second / total);
        // The roundings of the exponents, and of the sum.
        let rounding = (8.0 * top.abs() + 64.0 + self.nodes.len() as f64) * UNIT + 4.0 * quadrature;
        Jet { value: top + total.ln() + rounding, first: mean, second: square - mean * mean }
    }

    /// Nodes for tilts up to twice this one; false if there are too many.
    fn refine(&mut self, tilt: f64) -> bool {
        let strip = self.smooth.strip(2.0 * tilt);
        let growth = self.smooth.log_growth(strip, 2.0 * tilt, 0.0);
        self.spacing = 2.0 * std::f64::consts::PI * strip / (self.smooth.digits() + growth);
        let reach = (REACH / self.spacing).ceil() as i64;
        self.nodes.clear();
        if reach >= MOST as i64 {
            return false;
        }
        self.first = -reach;
        for index in -reach..=reach {
            let node = self.node(index);
            self.nodes.push_back(node);
        }
        true
    }
}

/// Gauss-Legendre panels for the loss of a fixed-size sample, which has a kink at zero.
///
/// The dominating pair (docs/accounting.md) has, for outputs y above 1/(2z), where the sampled round
/// is the likelier one, the loss `log(1 + u)` with density `1 + u` and the loss `-log(1 + u)` with
/// density 1, relative to the standard normal one; the rest is an atom at zero.
struct Panels {
    nodes: Vec<PanelNode>,
    q: f64,
    z: f64,
    end: f64,
    width: f64,
    /// Where the panels lie.
    middles: Vec<f64>,
}

struct PanelNode {
    log_density: f64,
    loss: f64,
    bend: f64,
}

impl Panels {
    fn new(q: f64, z: f64) -> Self {
        let (nodes, middles) = (Vec::new(), Vec::new());
        // Short against the normal density and against the loss.
        let mut panels = Self { nodes, q, z, end: 0.5 / z, width: z.min(1.0), middles };
        panels.extend(REACH + 1.0 / z);
        panels
    }

    /// The loss as a function of the output, in one direction.
    fn curve(&self, direction: Direction) -> Option<Smooth> {
        Smooth::new(Step { sampled: Sampled::Poisson(self.q), z: self.z }, direction)
    }

    /// At least the error of all panels at this tilt: those of `(1+u)^(1+tilt)`, of `(1+u)^-tilt`, and of both
    /// at tilt 0, which are subtracted.
    fn error(&self, tilt: f64) -> f64 {
        let curves = [Direction::Remove, Direction::Add].map(|direction| self.curve(direction));
        let mut error = 0.0;
        for middle in &self.middles {
            for curve in curves.iter().flatten() {
                for tilt in [0.0, tilt] {
                    error += panel_error(curve, tilt, 0.0, *middle, 0.5 * self.width, self.z).exp();
                }
            }
        }
        error
    }

    fn extend(&mut self, to: f64) {
        let width = self.width;
        let Some(curve) = self.curve(Direction::Remove) else { return };
        while self.end < to {
            let (centre, half) = (self.end + 0.5 * width, 0.5 * width);
            for (x, weight) in LEGENDRE {
                for y in [centre - x * half, centre + x * half] {
                    let point = curve.at(y);
                    let scale = (weight * half / (2.0 * std::f64::consts::PI).sqrt()).ln();
                    self.nodes.push(PanelNode {
                        log_density: scale - 0.5 * y * y,
                        loss: point.loss,
                        bend: point.loss_bend,
                    });
                }
            }
            self.middles.push(centre);
            self.end += width;
        }
    }

    fn at(&mut self, tilt: f64) -> Jet {
        // The exponent grows at most by (1 + tilt)/z, which shifts the normal density by as much.
        let end = (1.0 + tilt) / self.z + REACH;
        // The tilted exponent must not grow much over a panel, either.
        let width = self.z.min(1.0) * (8.0 / (1.0 + tilt)).min(1.0);
        if !(end / width < MOST as f64 / 40.0) {
            // Too many panels: as if always sampled.
            return gaussian_jet(self.z, tilt);
        }
        if width < 0.99 * self.width {
            // Narrower than needed, so that this is rare.
            let (nodes, middles) = (Vec::new(), Vec::new());
            *self = Self { nodes, middles, end: 0.5 / self.z, width: 0.5 * width, ..*self };
        }
        self.extend(end);
        work::spend(work::NODE * self.nodes.len() as u64);
        let quadrature = self.error(tilt);
        let a = 1.0 + tilt;
        let top = self.nodes.iter().map(|n| n.log_density + a * n.loss).fold(f64::MIN, f64::max);
        let (mut sum, mut size, mut first, mut second) = (0.0, 0.0, 0.0, 0.0);
        let shift = if top < MODERATE { 0.0 } else { top };
        for node in &self.nodes {
            let l = node.loss;
            let density = libm::exp(node.log_density - shift);
            let rise_mass = libm::exp(node.log_density + a * l - shift);
            let fall_mass = libm::exp(node.log_density - tilt * l - shift);
            // (1+u)^a - (1+u) + (1+u)^-tilt - 1: less the linear terms, which cancel, where u is small.
            let (rise, fall) = if shift > 0.0 || density == 0.0 {
                (rise_mass, fall_mass)
            } else if a * l < 30.0 && self.z >= 0.4 {
                (
                    density * (exp_beyond_linear(a * l) + a * node.bend),
                    density * (exp_beyond_linear(-tilt * l) - tilt * node.bend),
                )
            } else {
                (rise_mass - libm::exp(node.log_density + l), density * libm::expm1(-tilt * l))
            };
            sum += rise + fall;
            size += rise.abs() + fall.abs();
            first += (rise_mass - fall_mass) * l;
            second += (rise_mass + fall_mass) * l * l;
        }
        if shift > 0.0 {
            let rounding = (8.0 * top.abs() + 64.0 + self.nodes.len() as f64) * UNIT;
            // The atom at zero has at most mass 1.
            let total = sum + libm::exp(-shift);
            let (mean, square) = (first / total, second / total);
            let off = libm::exp(quadrature.ln() - shift);
            return Jet {
                value: shift + (total + off).ln() + rounding,
                first: mean,
                second: square - mean * mean,
            };
        }
        let excess = sum + quadrature + size * (64.0 + self.nodes.len() as f64) * 8.0 * UNIT;
        let total = 1.0 + sum;
        let (mean, square) = (first / total, second / total);
        Jet { value: libm::log1p(excess), first: mean, second: square - mean * mean }
    }
}
