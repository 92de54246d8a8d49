//! An optimizer's step takes released estimates, not raw gradients.
#![allow(unused_imports)]

use veilgrad::nn::{Optimizer, Sgd, Weights};
use veilgrad::prelude::*;

fn train(weights: Weights<'_>, gradient: Vec<f32>) {
    Sgd::plain().step(weights, &gradient, 0.1, 1);
}

fn main() {}
