//! The cumulant of a fixed-size sample, by Gauss-Legendre panels.

use super::jet::{Jet, gaussian_jet};
use super::quadrature::{LEAST_REACH, LOG_SUM_FROM, MOST_TRAPEZOID_NODES, panel_error};
use crate::number::{UNIT, exp_beyond_linear, legendre};
use crate::pair::{Direction, Pair};
use crate::{Sampled, Step, work};

/// Gauss-Legendre panels for the loss of a fixed-size sample, which has a kink at zero.
///
/// The dominating pair (docs/accounting.md) has two losses for each output y above 1/(2z), where the sampled round is the
/// likelier one: `log(1 + u)` with density `1 + u`, and `-log(1 + u)` with density 1, relative to the standard normal
/// density. The remaining mass is an atom at loss zero.
pub(crate) struct Panels {
    nodes: Vec<PanelNode>,
    q: f64,
    z: f64,
    end: f64,
    width: f64,
    /// The middle of every panel.
    middles: Vec<f64>,
}

struct PanelNode {
    log_density: f64,
    loss: f64,
    bend: f64,
}

impl Panels {
    pub(crate) fn new(q: f64, z: f64) -> Self {
        let (nodes, middles) = (Vec::new(), Vec::new());
        // Panels are narrow compared with the scales of the normal density (1) and of the loss (z).
        let mut panels = Self { nodes, q, z, end: 0.5 / z, width: z.min(1.0), middles };
        panels.extend(LEAST_REACH + 1.0 / z);
        panels
    }

    fn pair(&self, direction: Direction) -> Option<Pair> {
        Pair::analytic(Step { sampled: Sampled::Poisson(self.q), z: self.z }, direction)
    }

    /// An upper bound on the quadrature error of all panels at this tilt: for `(1+u)^(1+tilt)`, for `(1+u)^-tilt`, and for
    /// both at tilt 0, which are subtracted.
    fn error(&self, tilt: f64) -> f64 {
        let pairs = [Direction::Remove, Direction::Add].map(|direction| self.pair(direction));
        let mut error = 0.0;
        for middle in &self.middles {
            for pair in pairs.iter().flatten() {
                for tilt in [0.0, tilt] {
                    error += panel_error(pair, tilt, 0.0, *middle, 0.5 * self.width, self.z).exp();
                }
            }
        }
        error
    }

    /// Adds panels until they reach `to`.
    fn extend(&mut self, to: f64) {
        let width = self.width;
        let Some(pair) = self.pair(Direction::Remove) else { return };
        while self.end < to {
            let (centre, half) = (self.end + 0.5 * width, 0.5 * width);
            for (y, weight) in legendre(centre, half) {
                let point = pair.at(y);
                let scale = (weight / (2.0 * std::f64::consts::PI).sqrt()).ln();
                let (loss, bend) = (point.loss, point.loss_beyond_linear);
                self.nodes.push(PanelNode { log_density: scale - 0.5 * y * y, loss, bend });
            }
            self.middles.push(centre);
            self.end += width;
        }
    }

    /// `K(tilt)` of one round, rounded up, and its derivatives.
    pub(crate) fn at(&mut self, tilt: f64) -> Jet {
        // The exponent has a slope of at most (1 + tilt)/z, which shifts the normal density by as much.
        let end = (1.0 + tilt) / self.z + LEAST_REACH;
        // The tilted exponent must not grow much over one panel.
        let width = self.z.min(1.0) * (8.0 / (1.0 + tilt)).min(1.0);
        if !(end / width < MOST_TRAPEZOID_NODES as f64 / 40.0) {
            // Too many panels: use the bound without sampling.
            return gaussian_jet(self.z, tilt);
        }
        if width < 0.99 * self.width {
            // Half as wide as needed, so that refining is rare.
            let (nodes, middles) = (Vec::new(), Vec::new());
            *self = Self { nodes, middles, end: 0.5 / self.z, width: 0.5 * width, ..*self };
        }
        self.extend(end);
        work::spend(work::NODE * self.nodes.len() as u64);
        let quadrature = self.error(tilt);
        let a = 1.0 + tilt;
        let top = self.nodes.iter().map(|n| n.log_density + a * n.loss).fold(f64::MIN, f64::max);
        let (mut sum, mut size, mut first, mut second) = (0.0, 0.0, 0.0, 0.0);
        let shift = if top < LOG_SUM_FROM { 0.0 } else { top };
        for node in &self.nodes {
            let l = node.loss;
            let density = libm::exp(node.log_density - shift);
            let rise_mass = libm::exp(node.log_density + a * l - shift);
            let fall_mass = libm::exp(node.log_density - tilt * l - shift);
            // (1+u)^a - (1+u) + (1+u)^-tilt - 1. Where u is small, the linear terms, which cancel, are left out. The
            // parts may cancel, so their absolute values bound the rounding error.
            let parts = if shift > 0.0 || density == 0.0 {
                [rise_mass, fall_mass, 0.0, 0.0]
            } else if a * l < 30.0 && self.z >= 0.4 {
                [
                    density * exp_beyond_linear(a * l),
                    density * a * node.bend,
                    density * exp_beyond_linear(-tilt * l),
                    -density * tilt * node.bend,
                ]
            } else {
                let rise = libm::exp(node.log_density + l) * libm::expm1(tilt * l);
                [rise, density * libm::expm1(-tilt * l), 0.0, 0.0]
            };
            sum += parts.iter().sum::<f64>();
            size += parts.iter().map(|part| part.abs()).sum::<f64>();
            first += (rise_mass - fall_mass) * l;
            second += (rise_mass + fall_mass) * l * l;
        }
        if shift > 0.0 {
            let rounding = (8.0 * top.abs() + 64.0 + self.nodes.len() as f64) * UNIT;
            // The atom at zero has at most mass 1.
            let total = sum + libm::exp(-shift);
            let error = libm::exp(quadrature.ln() - shift);
            return Jet::of_moments(shift + (total + error).ln() + rounding, total, first, second);
        }
        let excess = sum + quadrature + size * (64.0 + self.nodes.len() as f64) * 8.0 * UNIT;
        Jet::of_moments(libm::log1p(excess), 1.0 + sum, first, second)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CASES: [(f64, f64, f64, f64); 10] = [
        (0.01, 0.35, 1.0, 0.303_860_108_323_995_4),
        (1e-06, 0.35, 1.0, 5.893_748_824_974_249e-9),
        (1e-08, 0.35, 0.001, 3.439_937_734_607_903e-16),
        (1e-09, 0.35, 0.001, 3.498_466_354_824_193e-18),
        (0.0001, 0.25, 0.1, 1.541_624_648_846_128e-5),
        (0.01, 0.39, 0.001, 6.873_218_404_442_542e-6),
        (0.01, 1.0, 0.001, 1.401_498_822_530_591_3e-7),
        (0.001, 2.0, 1e-06, 1.967_570_492_795_649_4e-13),
        (0.3, 0.5, 1e-06, 3.993_046_252_690_917_6e-7),
        (1e-09, 0.6, 0.001, 1.460_494_256_802_889_3e-20),
    ];

    /// `K(tilt)` of one round, computed with 60 digits, also for rates and tilts close to 0.
    #[test]
    fn cumulants_are_never_below_the_truth_and_close() {
        for (q, z, tilt, exact) in CASES {
            let found = Panels::new(q, z).at(tilt).value;
            assert!(found >= exact, "{q} {z} {tilt}: {found:e} {exact:e}");
            assert!(found <= exact * (1.0 + 2e-2), "{q} {z} {tilt}: {found:e} {exact:e}");
        }
    }
}
