//! A permit that could be stored could be used again after a restart.
#![allow(unused_imports)]

use veilgrad::prelude::*;

fn store<T: serde::Serialize>(_: T) {}

fn save(permit: RoundPermit) {
    store(permit);
}

fn main() {}
