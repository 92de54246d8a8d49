//! A sample allows one release, and its ids are private.
#![allow(unused_imports)]

use veilgrad::prelude::*;

fn store<T: serde::Serialize>(_: T) {}

fn keep(sample: Sample) -> Sample {
    let copy = sample.clone();
    store(sample);
    copy
}

fn main() {}
