//! A key that is copied repeats its stream.
#![allow(unused_imports)]

use veilgrad::prelude::*;

use veilgrad::random::RoundKey;

fn copy(key: &RoundKey) -> RoundKey {
    key.clone()
}

fn main() {}
