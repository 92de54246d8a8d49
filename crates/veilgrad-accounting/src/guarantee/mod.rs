//! What may be promised: accountants, claims and statements.
//!
//! - `accountant`: epsilon and delta of a composition; `price`: what rounds cost under a budget.
//! - `claim`: what may be claimed, and why; `ledger`: the same for a whole ledger.
//! - `statement`: a claim in plain words; `attack` and `curve`: what it means for an attacker.

mod accountant;
mod attack;
pub mod claim;
mod curve;
mod ledger;
mod price;
pub mod statement;
mod verdict;

pub use accountant::{Accountant, Guarantee, Pld, Rdp, Tightest, check_accountant};
pub use attack::{advantage, true_positive_rate};
pub use curve::{Profile, spent};
pub use ledger::of_ledger;
pub use verdict::RunVerdict;
