//! Only a mechanism releases; not even a struct literal does.
#![allow(unused_imports)]

use veilgrad::prelude::*;

fn forge(gradient: Vec<f32>) -> Released<Vec<f32>> {
    Released(gradient)
}

fn main() {}
