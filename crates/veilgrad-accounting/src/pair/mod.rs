//! One pair of distributions (P, Q) per sampled Gaussian: what its outputs look like with a record and without it.
//! The likelihood ratio and the privacy loss as functions of the output, also off the real line, and probabilities of
//! intervals of outputs with their roundings.

mod analytic;
mod likelihood;
mod mass;

pub(crate) use likelihood::{Change, Direction, EquallySpaced, Pair, Point};
pub(crate) use mass::{normal_mass, step_delta};
