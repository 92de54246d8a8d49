//! A private value cannot be used as a plain one.
#![allow(unused_imports)]

use veilgrad::prelude::*;

fn norm(x: &[f32]) -> f32 {
    x.iter().map(|x| x * x).sum()
}

fn leak(gradient: Private<Vec<f32>>) -> f32 {
    norm(&gradient)
}

fn main() {}
