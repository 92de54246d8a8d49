//! Only a mechanism constructs released values: a struct literal does not compile.
#![allow(unused_imports)]

use veilgrad::prelude::*;

fn forge(gradient: Vec<f32>) -> Released<Vec<f32>> {
    Released(gradient)
}

fn main() {}
