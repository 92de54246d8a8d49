//! There is no way to read a sum without noise.
#![allow(unused_imports)]

use veilgrad::prelude::*;

fn leak(sum: ClippedSum) {
    println!("{sum:?}");
    let _ = sum.records;
}

fn main() {}
