//! A copied sum could be released twice.
#![allow(unused_imports)]

use veilgrad::prelude::*;

fn copy(sum: &ClippedSum) -> ClippedSum {
    sum.clone()
}

fn main() {}
