//! A certificate is for one record.
#![allow(unused_imports)]

use veilgrad::prelude::*;

fn twice(certificate: &veilgrad::mechanism::Certificate) -> veilgrad::mechanism::Certificate {
    certificate.clone()
}

fn main() {}
