//! A private value cannot slip into a log.
#![allow(unused_imports)]

use veilgrad::prelude::*;

fn leak(loss: Private<f64>) {
    println!("{loss:?}");
    println!("{loss}");
}

fn main() {}
