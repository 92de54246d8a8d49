//! A sum without noise cannot be serialised.
#![allow(unused_imports)]

use veilgrad::prelude::*;

fn store<T: serde::Serialize>(_: T) {}

fn save(sum: ClippedSum) {
    store(sum);
}

fn main() {}
