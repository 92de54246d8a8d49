//! Noise is secret.
#![allow(unused_imports)]

use veilgrad::prelude::*;

fn show(noise: Noise) {
    println!("{noise:?}");
}

fn main() {}
