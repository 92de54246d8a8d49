//! A private value cannot be serialised.
#![allow(unused_imports)]

use veilgrad::prelude::*;

fn store<T: serde::Serialize>(_: T) {}

fn save(gradient: Private<Vec<f32>>) {
    store(gradient);
}

fn main() {}
