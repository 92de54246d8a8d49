//! A sum goes into one release.
#![allow(unused_imports)]

use veilgrad::prelude::*;

fn twice(sum: ClippedSum, one: Sample, two: Sample, noise: &mut impl NoiseSource) {
    let _ = sum.release(one, noise);
    let _ = sum.release(two, noise);
}

fn main() {}
