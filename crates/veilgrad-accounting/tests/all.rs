//! The tests of the crate in one program: linking one for every file took longer than running most of them.

mod allocation;
mod audit;
mod claim;
mod correlated;
mod epsilon;
mod extremes;
mod group;
mod outputs;
mod pure;
mod rdp;
mod shuffle;
mod sweep;
mod terms;
mod truncated;
