//! The dominating pair (P, Q) of a sampled Gaussian: the distributions of its output on neighbouring datasets.
//! Likelihood ratio and privacy loss as functions of the output, real or complex, and probabilities of intervals of outputs
//! with bounds on their rounding errors.

mod analytic;
mod likelihood;
mod mass;

pub(crate) use likelihood::{Change, Direction, EquallySpaced, Loss, Pair, Point};
pub(crate) use mass::{normal_mass, step_delta};
