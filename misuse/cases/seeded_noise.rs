//! Seeds exist only behind the feature insecure-testing.
#![allow(unused_imports)]

use veilgrad::prelude::*;

fn seeded() {
    let _ = veilgrad::mechanism::insecure::SeededNoise::new(42);
}

fn main() {}
