//! Seeds exist only behind the feature insecure-testing.
#![allow(unused_imports)]

use veilgrad::prelude::*;

fn seeded(plan: &RoundPlan) {
    let _ = veilgrad::mechanism::insecure::seeded_noise(plan, 42);
}

fn main() {}
