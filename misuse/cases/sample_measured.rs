//! The size of a sample is private.
#![allow(unused_imports)]

use veilgrad::prelude::*;

fn leak(sample: Sample) -> usize {
    sample.len()
}

fn main() {}
