//! A permit allows one sample.
#![allow(unused_imports)]

use veilgrad::prelude::*;

fn twice(permit: RoundPermit) {
    let _ = Sample::draw(permit, &mut AllRecords, 9);
    let _ = Sample::draw(permit, &mut AllRecords, 9);
}

fn main() {}
