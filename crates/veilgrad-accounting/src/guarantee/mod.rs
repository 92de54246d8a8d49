//! Accountants, prices, claims and statements, and the bounds on attacks that follow from them.

mod accountant;
mod attack;
pub mod claim;
mod curve;
mod ledger;
mod price;
pub mod statement;
mod triangle;
mod tuning;
mod verdict;

pub use accountant::{Accountant, Guarantee, Pld, Rdp, Tightest, check_accountant};
pub use attack::{advantage, true_positive_rate};
pub use curve::{Profile, spent};
pub use ledger::of_ledger;
pub use triangle::ByTriangle;
pub use tuning::{RunLaw, Tuned, Tuning};
pub use verdict::RunVerdict;
