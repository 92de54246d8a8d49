//! Noise of earlier rounds can be neither copied, logged nor stored.
#![allow(unused_imports)]

use veilgrad::mechanism::CorrelatedNoise;

fn store<T: serde::Serialize>(_: T) {}

fn copy(noise: &CorrelatedNoise) -> CorrelatedNoise {
    noise.clone()
}

fn save(noise: CorrelatedNoise) {
    println!("{noise:?}");
    store(noise);
}

fn main() {}
