//! A clip norm is not a noise level, and a bare number is neither.
#![allow(unused_imports)]

use veilgrad::prelude::*;

fn exchange(clip: ClipNorm, noise: NoiseStd) {
    let _ = SumQuery::new("w", noise, clip);
    let _ = Group::new("w", ["w"], 1.0);
}

fn main() {}
