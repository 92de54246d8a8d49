//! Closed-form upper bounds on the cumulant of a sampled Gaussian, for noise so small or tilts so large that quadrature
//! over outputs would need too many nodes.

use super::jet::{Jet, gaussian_jet};
use crate::number::UNIT;
use crate::pair::Direction;
use crate::{Sampled, Step};

/// The closed-form bound of a step.
///
/// With W the likelihood ratio of a sampled round and `c = 1/(2 z^2)`, at the order `a = 1 + tilt`:
/// - removal: `E (1 - q + q W)^a` is at most `(1 - q + q e^{c tilt})^a`, by Minkowski's inequality in L^a, where
///   the norm of W is `e^{c tilt}`;
/// - addition: losses are at most `-log(1 - q)`;
/// - replacement: moments are jointly convex in both distributions, so at most `1 - q + q e^{4 c tilt a}`;
/// - all other steps: the Gaussian without sampling, since sampling only lowers the cumulant.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ClosedBound {
    Remove { q: f64, z: f64 },
    Add { largest: f64 },
    Replace { q: f64, z: f64 },
    Always { z: f64 },
}

impl ClosedBound {
    pub(crate) fn new(step: Step, direction: Direction) -> Self {
        match (step.sampled, direction) {
            (Sampled::Poisson(q), Direction::Remove) => Self::Remove { q, z: step.z },
            (Sampled::Poisson(q), Direction::Add) => Self::Add { largest: -libm::log1p(-q) },
            (Sampled::PoissonReplaced(q), _) => Self::Replace { q, z: step.z },
            (
                Sampled::Always
                | Sampled::FixedReplaced(_)
                | Sampled::Allocated(_)
                | Sampled::Truncated(_)
                | Sampled::PoissonGroup { .. },
                _,
            ) => Self::Always { z: step.without_sampling() },
        }
    }

    /// An upper bound on `K(tilt)`, and the derivatives of the bound.
    pub(crate) fn at(&self, tilt: f64) -> Jet {
        match *self {
            Self::Remove { q, z } => {
                let order = 1.0 + tilt;
                let slope = 0.5 / (z * z);
                let inner = log_mixed(q, slope * tilt, slope, 0.0);
                Jet {
                    value: order * inner.value * (1.0 + 16.0 * UNIT),
                    first: inner.value + order * inner.first,
                    second: 2.0 * inner.first + order * inner.second,
                }
            }
            Self::Add { largest } => {
                Jet { value: tilt * largest * (1.0 + 8.0 * UNIT), first: largest, second: 0.0 }
            }
            Self::Replace { q, z } => {
                let gaussian = gaussian_jet(0.5 * z, tilt);
                let mixed = log_mixed(q, gaussian.value, gaussian.first, gaussian.second);
                Jet { value: mixed.value * (1.0 + 16.0 * UNIT), ..mixed }
            }
            Self::Always { z } => gaussian_jet(z, tilt),
        }
    }
}

/// `log(1 - q + q e^x)` and its derivatives, given those of x.
fn log_mixed(q: f64, x: f64, first: f64, second: f64) -> Jet {
    let (value, weight) = if x > 700.0 {
        let rest = (1.0 - q) / q * (-x).exp();
        (q.ln() + x + libm::log1p(rest), 1.0 / (1.0 + rest))
    } else {
        let beyond = q * libm::expm1(x);
        (libm::log1p(beyond), q * x.exp() / (1.0 + beyond))
    };
    // The rounding error of `q.ln() + x` is relative to x.
    let value = value + 4.0 * UNIT * if x > 700.0 { x } else { 0.0 };
    let second = weight * second + weight * (1.0 - weight) * first * first;
    Jet { value, first: weight * first, second }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Composition;
    use crate::cumulant::Cumulant;
    use veilgrad_events::{Adjacency, NoiseMultiplier, SampleRate};

    #[test]
    fn closed_bounds_are_never_below_the_quadrature() {
        for adjacency in [Adjacency::AddRemove, Adjacency::ReplaceOne] {
            for (q, z) in [(1e-3, 0.3), (0.1, 1.0), (0.6, 3.0), (1e-6, 0.1)] {
                let (rate, noise) = (SampleRate::new(q).unwrap(), NoiseMultiplier::new(z).unwrap());
                let rounds = Composition::poisson(rate, noise, 1, adjacency).unwrap();
                let (step, _) = rounds.steps()[0];
                for direction in [Direction::Remove, Direction::Add] {
                    let mut exact = Cumulant::new(&rounds, direction);
                    for tilt in [1e-3, 0.1, 1.0, 7.0, 40.0] {
                        let (found, exact) = (
                            ClosedBound::new(step, direction).at(tilt).value,
                            exact.at(tilt).value,
                        );
                        let what = format!("{adjacency} {q} {z} {direction:?} {tilt}");
                        assert!(found >= exact * (1.0 - 1e-9), "{what}: {found} {exact}");
                    }
                }
            }
        }
    }
}
