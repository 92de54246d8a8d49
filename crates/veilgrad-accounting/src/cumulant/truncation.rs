//! Truncation: the privacy loss distribution with its largest losses moved to infinity.
//!
//! Outputs beyond some distance count as infinite losses. Integrals over the remaining outputs are computed by
//! Gauss-Legendre panels. For characteristic functions the integration path runs parallel to the real line, on the side
//! where `|e^{i t loss}| <= 1`, and then perpendicularly down to its end point on the line.

use realfft::num_complex::Complex64;

use super::jet::Jet;
use super::quadrature::{
    HIGH, MOST_NODES, QuadratureNode, WIDE, legendre_error, node, shifted_node,
};
use crate::number::{UNIT, bisect, legendre};
use crate::pair::Pair;
use crate::work;

/// The largest growth of the tilted exponent over half a panel.
const STEEP: f64 = 2.0;
/// Where integrals begin: the normal probability below this is less than e^-98.
const START: f64 = -14.0;

/// A pair whose largest losses count as infinite.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Truncated {
    pair: Pair,
    /// Outputs up to this distance on the side of large losses are kept.
    end: f64,
}

/// A Gauss-Legendre panel of the integration path: its middle (distance along the line towards large losses, distance
/// from the real line), half its width, and whether it is perpendicular to the line.
struct Panel {
    middle: (f64, f64),
    half: f64,
    perpendicular: bool,
}

impl Truncated {
    /// `None` if nothing has to be truncated.
    pub(crate) fn new(pair: Pair, tail: f64) -> Option<Self> {
        if !(tail > 0.0) || !pair.is_unbounded() {
            return None;
        }
        let (_, end) = bisect((0.0, 50.0), 80, |distance| pair.tail_probability(distance) > tail);
        (pair.tail_probability(end) <= tail).then_some(Self { pair, end })
    }

    /// An upper bound on the probability of the losses that count as infinite.
    pub(crate) fn infinite(&self) -> f64 {
        self.pair.tail_probability(self.end)
    }

    pub(crate) const fn pair(&self) -> &Pair {
        &self.pair
    }

    /// The interval of outputs that are kept, as distances on the side of large losses.
    pub(crate) fn ends(&self) -> (f64, f64) {
        (START.min(self.end - 1.0), self.end)
    }

    fn exponent(&self, distance: f64, tilt: f64) -> f64 {
        let point = self.pair.at(self.pair.outward(distance));
        point.weight + tilt * point.loss
    }

    fn slope(&self, distance: f64) -> f64 {
        let y = self.pair.outward(distance);
        self.pair.steepest(y, y)
    }

    /// Panels along a line parallel to the real one, at distance `height`.
    fn along(&self, tilt: f64, strip: f64, height: f64) -> Vec<Panel> {
        let (start, end) = self.ends();
        let mut panels = Vec::new();
        let mut position = end;
        // Starts at the end, where exponents are steepest.
        while position > start {
            let steepest = (2.0 + tilt) * self.slope(position);
            let half = (strip / HIGH).min(STEEP / steepest).min(0.5 * (position - start).max(1e-9));
            panels.push(Panel { middle: (position - half, height), half, perpendicular: false });
            position -= 2.0 * half;
            if panels.len() as f64 * 20.0 > MOST_NODES {
                break;
            }
        }
        work::spend(work::NODE * panels.len() as u64);
        panels
    }

    /// The panels of the integration path for frequencies up to `last`.
    fn path(&self, tilt: f64, last: f64) -> Vec<Panel> {
        if last == 0.0 {
            return self.along(tilt, self.pair.one_sided_strip(tilt), 0.0);
        }
        let height = 0.5 * self.pair.one_sided_strip(tilt);
        let mut panels = self.along(tilt, height, height);
        // Down to the line, in panels that halve until the oscillation is slow compared with the last panel.
        let slowest = 0.5 / (last * self.slope(self.end + 1e-3) + 1e-9);
        let steep = STEEP / ((2.0 + tilt) * self.slope(self.end));
        let mut top = height;
        while top > 0.0 {
            let whole = top <= slowest;
            let half = if whole { 0.5 * top } else { 0.25 * top };
            let half = half.min(steep);
            panels.push(Panel { middle: (self.end, top - half), half, perpendicular: true });
            top = if whole && half >= 0.5 * top { 0.0 } else { top - 2.0 * half };
            if panels.len() as f64 * 20.0 > MOST_NODES {
                break;
            }
        }
        panels
    }

    /// An upper bound on the log of the error of a panel, on the real line or off it.
    fn panel_error(&self, panel: &Panel, tilt: f64, last: f64) -> f64 {
        let (x, height) = panel.middle;
        let (wide, high) = match panel.perpendicular {
            false => (WIDE * panel.half, HIGH * panel.half),
            true => (HIGH * panel.half, WIDE * panel.half),
        };
        let (from, to) = (x - wide, x + wide);
        let farthest = height + high;
        let growth = self.pair.log_growth(farthest, tilt, 0.0);
        // Below the real line e^{i t loss} grows; its slope there is at most 1.5 times that on the line.
        let below = (high - height).max(0.0);
        let (one, other) = (self.pair.outward(from), self.pair.outward(to));
        let steepest = self.pair.steepest(one.min(other), one.max(other));
        let turned = if last > 0.0 { 1.5 * last * below * steepest } else { 0.0 };
        let exponent = self.exponent(to, tilt).max(self.exponent(from, tilt));
        legendre_error((from, to), panel.half, exponent + growth + turned)
    }

    /// Quadrature nodes for frequencies up to `last`, and an upper bound on the log of the quadrature error; `None` if the
    /// nodes are too many.
    pub(crate) fn quadrature(&self, tilt: f64, last: f64) -> Option<(Vec<QuadratureNode>, f64)> {
        let panels = self.path(tilt, last);
        let cost = 20 * work::NODE * panels.len() as u64;
        if panels.len() as f64 * 20.0 > MOST_NODES || cost > work::left() {
            return None;
        }
        work::spend(cost);
        let mut nodes = Vec::with_capacity(20 * panels.len());
        let mut error = f64::NEG_INFINITY;
        for panel in &panels {
            error = error.max(self.panel_error(panel, tilt, last));
            let ((x, height), half) = (panel.middle, panel.half);
            let along = if panel.perpendicular { height } else { x };
            nodes.extend(legendre(along, half).map(|(coordinate, weight)| {
                let y = self.pair.outward(if panel.perpendicular { x } else { coordinate });
                match (panel.perpendicular, height > 0.0) {
                    (false, false) => node(&self.pair, tilt, y, weight),
                    (false, true) => shifted_node(&self.pair, tilt, y, height, weight),
                    (true, _) => {
                        let node = shifted_node(&self.pair, tilt, y, coordinate, weight);
                        // The path runs downwards.
                        let turn = Complex64::new(0.0, -std::f64::consts::FRAC_PI_2);
                        QuadratureNode { log_mass: node.log_mass + turn, ..node }
                    }
                }
            }));
        }
        let (start, _) = self.ends();
        let y = self.pair.outward(start);
        let (left, right) = self.pair.log_tails(y, y, tilt);
        // Exponents only decrease before the start.
        let before = if y < 0.0 { left } else { right };
        let growth = self.pair.log_growth(self.pair.one_sided_strip(tilt), tilt, 0.0);
        let panels = error + (panels.len() as f64).ln();
        Some((nodes, panels.max(before + growth) + 2f64.ln()))
    }

    /// The approximate number of nodes for frequencies up to `last`.
    pub(crate) fn node_count(&self, tilt: f64, last: f64) -> f64 {
        20.0 * self.path(tilt, last).len() as f64
    }

    /// `K(tilt)` of one round, rounded up, and its derivatives.
    pub(crate) fn jet(&self, tilt: f64) -> Jet {
        let infinite = Jet { value: f64::INFINITY, first: f64::INFINITY, second: f64::INFINITY };
        let Some((nodes, log_error)) = self.quadrature(tilt, 0.0) else { return infinite };
        let top = nodes.iter().map(|node| node.log_mass.re).fold(f64::MIN, f64::max).max(0.0);
        let (mut total, mut first, mut second, mut rounding) = (0.0, 0.0, 0.0, 0.0);
        for QuadratureNode { log_mass, loss, size, loss_rounding } in &nodes {
            let mass = libm::exp(log_mass.re - top);
            total += mass;
            first += mass * loss.re;
            second += mass * loss.re * loss.re;
            rounding += mass * (8.0 * size + 16.0 + (2.0 + 2.0 * tilt) * loss_rounding);
        }
        let (mean, square) = (first / total, second / total);
        let error = UNIT * (rounding + nodes.len() as f64 * total) + (log_error - top).exp();
        let value = top + (total + error).ln() + 8.0 * UNIT * (1.0 + top);
        Jet { value, first: mean, second: (square - mean * mean).max(0.0) }
    }
}
