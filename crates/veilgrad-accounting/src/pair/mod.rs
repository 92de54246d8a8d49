//! The dominating pair (P, Q) of a sampled Gaussian: the distributions of its output on neighbouring datasets.
//! Likelihood ratio and privacy loss as functions of the output, real or complex, and probabilities of intervals of outputs
//! with bounds on their rounding errors.

mod analytic;
mod group;
mod likelihood;
mod mass;
mod output;
mod step_profile;

pub(crate) use group::GroupPair;
pub(crate) use likelihood::{Change, Direction, EquallySpaced, Loss, Pair, Point};
pub(crate) use mass::normal_mass;
pub(crate) use output::OutputPair;
pub(crate) use step_profile::step_delta;
