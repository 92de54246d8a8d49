//! Noise has one source; nobody brings another.
#![allow(unused_imports)]

use veilgrad::prelude::*;

fn zero() -> Noise {
    Noise { groups: Vec::new() }
}

fn main() {}
