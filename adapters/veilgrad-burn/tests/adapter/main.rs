//! Tests of the adapter: compared with `veilgrad-nn`, compared with Burn, and on its own.
#![allow(missing_docs)]

mod common;

mod canaries;
mod checkpoints;
mod correlated;
mod document;
mod isolation;
mod layers;
mod misfits;
mod refusals;
mod replay;
mod slots;
mod sums;
