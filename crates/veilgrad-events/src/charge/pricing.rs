//! The price of rounds: what the runs on a dataset cost together.

use crate::event::{Budget, Delta, Epsilon, Folded};

/// The rounds of one run, in their order.
///
/// Accountants need to know where a run begins: shuffled epochs are counted from there.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RunRounds<'a> {
    /// Whether all rounds that the run may charge were declared when it was opened. If not, they may have been
    /// chosen from earlier outputs, and only rules for adaptive runs apply.
    pub planned: bool,
    /// What it charged.
    pub rounds: &'a [Folded],
}

/// Says what rounds cost under the terms of a budget.
///
/// # Guarantee
/// The answer is never below the truth. In adaptive mode, or where a run was not planned, it holds however rounds
/// were chosen.
pub trait Pricing {
    /// An upper bound of the epsilon of all these runs together, at the budget's delta.
    ///
    /// # Errors
    /// Says why these rounds have no price; they then fit no budget.
    fn price(&self, budget: &Budget, runs: &[RunRounds<'_>]) -> Result<f64, String>;

    /// Whether all these runs together keep the budget.
    ///
    /// # Errors
    /// Says what they would cost, or why they have no price.
    fn check(&self, budget: &Budget, runs: &[RunRounds<'_>]) -> Result<(), String> {
        let price = self.price(budget, runs)?;
        if price <= budget.epsilon.get() {
            return Ok(());
        }
        Err(format!("epsilon would be {price}, and {} is allowed", budget.epsilon.get()))
    }

    /// A meter for this budget, if parts of it can be added up. With it a ledger need not price all earlier
    /// rounds again for every charge.
    fn meter(&self, _budget: &Budget) -> Option<Box<dyn Meter>> {
        None
    }

    /// The Rényi order at which adaptive runs are best kept within (epsilon, delta), if the pricing needs one.
    fn order(&self, epsilon: Epsilon, delta: Delta) -> Option<f64>;
}

/// Adds up which part of a budget rounds use at most.
///
/// # Guarantee
/// Runs whose [`part`](Meter::part) is at most 1 keep the budget, however their rounds are divided into charges
/// and in whatever order the charges of different runs come.
pub trait Meter: Send + Sync + std::fmt::Debug {
    /// Counts the next rounds of a run.
    fn add(&mut self, run: u64, rounds: Folded);

    /// An upper bound of the part that is used; infinite if there is none.
    fn part(&self) -> f64;
}
