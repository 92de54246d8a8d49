//! Sampled ids are private.
#![allow(unused_imports)]

use veilgrad::prelude::*;

fn leak(sample: Sample) {
    println!("{sample:?}");
}

fn main() {}
