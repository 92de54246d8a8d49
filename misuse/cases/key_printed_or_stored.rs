//! A key can be neither logged nor stored.
#![allow(unused_imports)]

use veilgrad::prelude::*;

use veilgrad::random::RoundKey;

fn store<T: serde::Serialize>(_: T) {}

fn save(key: RoundKey) {
    println!("{key:?}");
    store(key);
}

fn main() {}
