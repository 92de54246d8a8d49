//! A round is released once: no second draw of noise on the same sample.
#![allow(unused_imports)]

use veilgrad::prelude::*;

fn twice(sums: [ClippedSum; 2], sample: Sample, noise: [Noise; 2]) {
    let ([first, second], [one, two]) = (sums, noise);
    let _ = first.release(sample, one);
    let _ = second.release(sample, two);
}

fn main() {}
