//! The privacy cost of all runs on a dataset.

use crate::event::{Budget, Delta, Epsilon, Folded, RunCount};

/// The rounds of one run, in order.
///
/// Accountants need to know where a run begins, because shuffled epochs are counted from there.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RunRounds<'a> {
    /// Whether all rounds that the run may charge were declared when it was opened. If not, they may depend on
    /// earlier outputs, and only adaptive composition applies.
    pub planned: bool,
    /// The rounds that it charged.
    pub rounds: &'a [Folded],
    /// If these are the rounds of one run of a tuning, the distribution of the number of such runs. They then cost what the
    /// best of that number of runs costs.
    pub tuning: Option<RunCount>,
}

/// An accountant for budgets: computes the epsilon that rounds cost.
///
/// # Guarantee
/// The result is an upper bound on the true epsilon. In adaptive mode, or if a run was not planned, it holds for every
/// adaptive choice of rounds.
pub trait Pricing {
    /// An upper bound on the epsilon of all these runs together, at the budget's delta.
    ///
    /// # Errors
    /// Says why no bound exists for these rounds; they then fit no budget.
    fn price(&self, budget: &Budget, runs: &[RunRounds<'_>]) -> Result<f64, String>;

    /// Checks that all these runs together stay within the budget.
    ///
    /// # Errors
    /// Says what epsilon would be, or why no bound exists.
    fn check(&self, budget: &Budget, runs: &[RunRounds<'_>]) -> Result<(), String> {
        let price = self.price(budget, runs)?;
        if price <= budget.epsilon.get() {
            return Ok(());
        }
        Err(format!("epsilon would be {price}, and {} is allowed", budget.epsilon.get()))
    }

    /// A running total for this budget, if costs add up. With it a ledger does not recompute the cost of all
    /// earlier rounds for every charge.
    fn meter(&self, _budget: &Budget) -> Option<Box<dyn Meter>> {
        None
    }

    /// The Rényi order that leaves adaptive runs the most room within (epsilon, delta), if the pricing uses one.
    fn order(&self, epsilon: Epsilon, delta: Delta) -> Option<f64>;
}

/// A running upper bound on the fraction of a budget that rounds use.
///
/// # Guarantee
/// Runs without tunings whose [`part`](Meter::part) is at most 1 stay within the budget, however their rounds are split into charges
/// and whatever the order of the charges of different runs.
pub trait Meter: Send + Sync + std::fmt::Debug {
    /// Adds the next rounds of a run.
    fn add(&mut self, run: u64, rounds: Folded);

    /// An upper bound on the fraction of the budget that is used; infinite if no bound exists.
    fn part(&self) -> f64;
}
