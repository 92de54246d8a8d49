//! The tests of the crate in one program, but for `replay`: linking one for every file took longer than running most of them.

mod canaries;
mod checkpoint;
mod common;
mod correlated;
mod driver;
mod federated;
mod frozen;
mod groups;
mod hostile;
mod peers;
mod recorded;
mod shapes;
mod slots;
mod training;
mod units;
