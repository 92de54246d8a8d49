//! A round is released once: no second draw of noise on the same sample.
#![allow(unused_imports)]

use veilgrad::prelude::*;

fn twice(first: ClippedSum, second: ClippedSum, sample: Sample, noise: &mut impl NoiseSource) {
    let _ = first.release(sample, noise);
    let _ = second.release(sample, noise);
}

fn main() {}
