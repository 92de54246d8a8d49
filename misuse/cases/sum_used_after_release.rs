//! A sum is released once and cannot be used afterwards.
#![allow(unused_imports)]

use veilgrad::prelude::*;

fn twice(sum: ClippedSum, samples: [Sample; 2], noise: [Noise; 2]) {
    let ([first, second], [one, two]) = (samples, noise);
    let _ = sum.release(first, one);
    let _ = sum.release(second, two);
}

fn main() {}
