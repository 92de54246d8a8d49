//! A permit allows one release; a copy would allow a second one.
#![allow(unused_imports)]

use veilgrad::prelude::*;

fn twice(permit: RoundPermit) -> (RoundPermit, RoundPermit) {
    (permit.clone(), permit)
}

fn main() {}
