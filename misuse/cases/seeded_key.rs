//! Seeds exist only behind the feature insecure-testing.
#![allow(unused_imports)]

use veilgrad::prelude::*;

fn seeded() {
    let _ = veilgrad::random::RoundKey::from_seed(42, Default::default());
}

fn main() {}
