//! Noise that is kept can be subtracted.
#![allow(unused_imports)]

use veilgrad::prelude::*;

fn keep(noise: &Noise) -> Noise {
    noise.clone()
}

fn main() {}
