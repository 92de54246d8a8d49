//! Noise that is used twice can be subtracted.
#![allow(unused_imports)]

use veilgrad::prelude::*;

fn twice(sums: [ClippedSum; 2], samples: [Sample; 2], noise: Noise) {
    let ([one, two], [first, second]) = (sums, samples);
    let _ = one.release(first, noise);
    let _ = two.release(second, noise);
}

fn main() {}
