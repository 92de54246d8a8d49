//! Noise has one implementation; nobody brings another.
#![allow(unused_imports)]

use veilgrad::prelude::*;

struct Zero;

impl NoiseSource for Zero {}

fn leak(sum: ClippedSum, sample: Sample) {
    let _ = sum.release(sample, &mut Zero);
}

fn main() {}
