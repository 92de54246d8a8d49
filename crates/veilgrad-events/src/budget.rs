//! What a dataset may cost in all, and who says what it has cost.

use serde::{Deserialize, Serialize};

use crate::{Adjacency, Delta, Epsilon, Folded, Mode, RecordUnit};

/// The budget of one dataset: one promise that all its runs keep together.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Budget {
    /// A name that its owner chose; never a hash of the data.
    pub dataset: String,
    /// What a record is.
    pub unit: RecordUnit,
    /// Which datasets are neighbours.
    pub adjacency: Adjacency,
    /// The delta of the promise.
    pub delta: Delta,
    /// What all runs together must not exceed.
    pub epsilon: Epsilon,
    /// Whether rounds may be chosen from earlier outputs.
    pub mode: Mode,
    /// In adaptive mode, the Rényi order at which the budget is kept, declared once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order: Option<f64>,
}

/// Rounds, one after another.
pub type Charges<'a> = &'a mut (dyn Iterator<Item = Folded> + 'a);

/// Says what rounds cost under the terms of a budget.
///
/// # Guarantee
/// The answer is never below the truth. In adaptive mode it holds however rounds were chosen.
pub trait Pricing {
    /// An upper bound of the epsilon of all these rounds together, at the budget's delta.
    ///
    /// # Errors
    /// Says why these rounds have no price; they then fit no budget.
    fn price(&self, budget: &Budget, rounds: Charges<'_>) -> Result<f64, String>;

    /// Whether all these rounds together keep the budget.
    ///
    /// # Errors
    /// Says what they would cost, or why they have no price.
    fn check(&self, budget: &Budget, rounds: Charges<'_>) -> Result<(), String> {
        let price = self.price(budget, rounds)?;
        if price <= budget.epsilon.get() {
            return Ok(());
        }
        Err(format!("epsilon would be {price}, and {} is allowed", budget.epsilon.get()))
    }

    /// Which part of the budget these rounds use at most, if that can be told: rounds whose parts add up to no
    /// more than 1 keep the budget, however they are divided into charges. With it a ledger need not price
    /// all earlier rounds again for every charge.
    fn part(&self, _budget: &Budget, _rounds: Charges<'_>) -> Option<f64> {
        None
    }

    /// The order at which an adaptive budget is best kept, if the pricing needs one.
    fn order(&self, epsilon: Epsilon, delta: Delta) -> Option<f64>;
}
