//! A key that is copied repeats its stream.
#![allow(unused_imports)]

use veilgrad::prelude::*;

use veilgrad::random::{KeyStream, RoundKey};

fn copy(key: &RoundKey, stream: &KeyStream) -> (RoundKey, KeyStream) {
    (key.clone(), stream.clone())
}

fn main() {}
