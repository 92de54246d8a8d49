//! Only a mechanism constructs released values.
#![allow(unused_imports)]

use veilgrad::prelude::*;

fn forge(gradient: Vec<f32>) -> Released<Vec<f32>> {
    Released::new(gradient)
}

fn main() {}
