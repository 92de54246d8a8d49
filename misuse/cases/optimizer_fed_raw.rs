//! An optimizer that takes released estimates does not accept raw gradients.
#![allow(unused_imports)]

use veilgrad::prelude::*;

fn step(_: &Released<Estimates>) {}

fn train(gradient: Vec<f32>) {
    step(&gradient);
}

fn main() {}
