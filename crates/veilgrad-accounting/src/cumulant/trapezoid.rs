//! The cumulant of an analytic loss, by the trapezoid rule over outputs.

use super::closed_bound::ClosedBound;
use super::jet::Jet;
use super::quadrature::{LEAST_REACH, LOG_SUM_FROM, MOST_TRAPEZOID_NODES};
use crate::number::{UNIT, exp_beyond_linear};
use crate::pair::{Pair, Point};
use crate::work;

/// Trapezoid nodes of one step; more are added as larger tilts need them.
pub(crate) struct Nodes {
    pair: Pair,
    /// For tilts that need too many nodes.
    bound: ClosedBound,
    /// Node i lies at `(first + i) * spacing`.
    spacing: f64,
    first: i64,
    nodes: std::collections::VecDeque<TrapezoidNode>,
}

struct TrapezoidNode {
    /// Log of the normal density times the spacing.
    log_density: f64,
    density: f64,
    point: Point,
}

impl Nodes {
    pub(crate) fn new(pair: Pair, bound: ClosedBound) -> Self {
        let nodes = std::collections::VecDeque::new();
        let mut new = Self { pair, bound, spacing: f64::NAN, first: 0, nodes };
        // Accurate for tilts up to 10; for larger ones `at` checks the spacing.
        new.refine(10.0);
        new
    }

    fn node(&self, index: i64) -> TrapezoidNode {
        let y = index as f64 * self.spacing;
        let log_density = -0.5 * y * y + (self.spacing / (2.0 * std::f64::consts::PI).sqrt()).ln();
        TrapezoidNode { log_density, density: log_density.exp(), point: self.pair.at(y) }
    }

    /// Adds nodes until the mass beyond them is negligible at this tilt; false if that takes too many.
    fn reach(&mut self, tilt: f64) -> bool {
        const STRIDE: i64 = 8;
        let last = |nodes: &Self| nodes.first + nodes.nodes.len() as i64 - 1;
        // E e^{tL} is at least 1 for positive tilts, and at least the largest term.
        let mut largest = f64::NEG_INFINITY;
        for node in &self.nodes {
            largest = largest.max(node.log_density + node.point.weight + tilt * node.point.loss);
        }
        loop {
            let (left, right) =
                (self.first as f64 * self.spacing, last(self) as f64 * self.spacing);
            let (log_left, log_right) = self.pair.log_tails(left, right, tilt);
            let negligible = largest.max(0.0) - self.pair.digits();
            let (to_left, to_right) = (!(log_left < negligible), !(log_right < negligible));
            if !to_left && !to_right {
                return true;
            }
            if self.nodes.len() > MOST_TRAPEZOID_NODES {
                return false;
            }
            let mut added = Vec::new();
            for _ in 0..STRIDE {
                if to_left {
                    self.first -= 1;
                    let node = self.node(self.first);
                    added.push(node.log_density + node.point.weight + tilt * node.point.loss);
                    self.nodes.push_front(node);
                }
                if to_right {
                    let node = self.node(last(self) + 1);
                    added.push(node.log_density + node.point.weight + tilt * node.point.loss);
                    self.nodes.push_back(node);
                }
            }
            largest = added.into_iter().fold(largest, f64::max);
        }
    }

    /// `K(tilt)` of one round, rounded up, and its derivatives.
    pub(crate) fn at(&mut self, tilt: f64) -> Jet {
        if !self.reach(tilt) {
            return self.bound.at(tilt);
        }
        let quadrature = (self.pair.log_growth(self.pair.strip(tilt), tilt, 0.0)
            - 2.0 * std::f64::consts::PI * self.pair.strip(tilt) / self.spacing)
            .exp();
        if !(quadrature < 2.0 * (-self.pair.digits()).exp()) {
            // The nodes are too coarse for this tilt.
            return if self.refine(tilt) { self.at(tilt) } else { self.bound.at(tilt) };
        }
        work::spend(4 * self.nodes.len() as u64);
        let exponent = |node: &TrapezoidNode| node.point.weight + tilt * node.point.loss;
        let log_mass = |node: &TrapezoidNode| node.log_density + exponent(node);
        let top = self.nodes.iter().map(log_mass).fold(f64::NEG_INFINITY, f64::max);
        let (mut sum, mut size, mut first, mut second) = (0.0, 0.0, 0.0, 0.0);
        let (mut total, mut formed) = (0.0, 0.0);
        if top < LOG_SUM_FROM {
            let subtracts_linear_term = self.pair.subtracts_linear_term();
            for node in &self.nodes {
                let a = exponent(node);
                let mass = libm::exp(node.log_density + a);
                // The excess over 1, without terms of expectation zero, so that nothing cancels for small q.
                let term = match (subtracts_linear_term, a > 30.0) {
                    // The density underflows, so the linear terms would be zero or NaN.
                    _ if node.density == 0.0 => mass,
                    (true, false) => {
                        let bend =
                            node.point.weight_beyond_linear + tilt * node.point.loss_beyond_linear;
                        node.density * (exp_beyond_linear(a) + bend)
                    }
                    (true, true) => {
                        let bend =
                            node.point.weight_beyond_linear + tilt * node.point.loss_beyond_linear;
                        mass + node.density * (bend - 1.0 - a)
                    }
                    (false, false) => node.density * libm::expm1(a),
                    (false, true) => mass - node.density,
                };
                sum += term;
                size += term.abs();
                // The rounding error of a term: of its parts, before they cancel, and of their exponents.
                let parts = match subtracts_linear_term && a <= 30.0 {
                    true => {
                        exp_beyond_linear(a).abs()
                            + node.point.weight_beyond_linear.abs()
                            + (tilt * node.point.loss_beyond_linear).abs()
                    }
                    false => 0.0,
                };
                let parts = if node.density > 0.0 { node.density * parts } else { 0.0 };
                formed += 8.0 * parts + (node.log_density.abs() + a.abs() + 8.0) * term.abs();
                total += mass;
                first += mass * node.point.loss;
                second += mass * node.point.loss * node.point.loss;
            }
            let rounding =
                UNIT * ((64.0 + self.nodes.len() as f64) * size + 4.0 * formed) + 4.0 * quadrature;
            let value = libm::log1p(sum + rounding) * (1.0 + 4.0 * UNIT);
            return Jet::of_moments(value, total, first, second);
        }
        for node in &self.nodes {
            let mass = libm::exp(node.log_density + exponent(node) - top);
            total += mass;
            first += mass * node.point.loss;
            second += mass * node.point.loss * node.point.loss;
        }
        // The rounding errors of the exponents and of the sum.
        let rounding = (8.0 * top.abs() + 64.0 + self.nodes.len() as f64) * UNIT + 4.0 * quadrature;
        Jet::of_moments(top + total.ln() + rounding, total, first, second)
    }

    /// Replaces the nodes with finer ones, for tilts up to twice this one; false if that takes too many.
    fn refine(&mut self, tilt: f64) -> bool {
        let strip = self.pair.strip(2.0 * tilt);
        let growth = self.pair.log_growth(strip, 2.0 * tilt, 0.0);
        self.spacing = 2.0 * std::f64::consts::PI * strip / (self.pair.digits() + growth);
        let reach = (LEAST_REACH / self.spacing).ceil() as i64;
        self.nodes.clear();
        if reach >= MOST_TRAPEZOID_NODES as i64 {
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
