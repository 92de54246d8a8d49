//! One pair of distributions (P, Q) per sampled Gaussian: what its outputs look like with a record and without it.
//!
//! - `likelihood`: the likelihood ratio, and the privacy loss as a function of the output.
//! - `mass`: probabilities of intervals of outputs, with their roundings, and the profile of one step.
//! - `analytic`: the same off the real line, with the bounds that quadratures need.

mod analytic;
mod likelihood;
mod mass;

pub(crate) use likelihood::{Change, Direction, EquallySpaced, Pair, Point};
pub(crate) use mass::{normal_mass, step_delta};
