//! A sum begins with the sample of its round.
#![allow(unused_imports)]

use veilgrad::prelude::*;

fn begin(plan: &RoundPlan) -> ClippedSum {
    plan.begin()
}

fn main() {}
