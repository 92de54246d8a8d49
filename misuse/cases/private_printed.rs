//! A private value cannot be printed or logged.
#![allow(unused_imports)]

use veilgrad::prelude::*;

fn leak(loss: Private<f64>) {
    println!("{loss:?}");
    println!("{loss}");
}

fn main() {}
