//! The tests of the crate in one program, but for those that fork, are traced or need a server: linking one for every file took longer than running them.

mod altered;
mod audit;
mod backup;
mod budget;
mod common;
mod exchange;
mod hold;
mod ledger;
mod open_run;
mod repair;
mod tuning;
