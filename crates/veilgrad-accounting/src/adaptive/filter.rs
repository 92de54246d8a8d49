//! A Rényi filter: rounds may be chosen from earlier outputs as long as it admits them.

use veilgrad_events::{Delta, Epsilon};

use crate::rdp::{conversion, divergence};
use crate::{Composition, Unsupported};

/// A budget at one order, declared before the first round, under which every later round may be chosen
/// from earlier outputs (Feldman, Zrnic 2021).
///
/// # Guarantee
/// As long as every round is admitted before it runs, all rounds together cost at most
/// [`epsilon`](Self::epsilon) at the declared delta, however they were chosen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Filter {
    order: f64,
    divergence: f64,
    epsilon: Epsilon,
    delta: Delta,
}

impl Filter {
    /// The filter at `order` whose budget is exactly (epsilon, delta).
    ///
    /// # Errors
    /// When the order is not above 1, or too low for any divergence to give this epsilon.
    pub fn new(order: f64, epsilon: Epsilon, delta: Delta) -> Result<Self, Unsupported> {
        if !(order > 1.0 && order.is_finite()) {
            return Err(Unsupported::new(format!("order {order}: must be above 1")));
        }
        let tilt = order - 1.0;
        let conversion_cost = (conversion(tilt).value - delta.get().ln()) / tilt;
        // Rounded down.
        let divergence =
            (epsilon.get() - conversion_cost) - 1e-14 * (epsilon.get() + conversion_cost.abs());
        if !(divergence > 0.0) {
            return Err(Unsupported::new(format!(
                "order {order}: the conversion to (epsilon, delta) alone costs {conversion_cost}, more than {}",
                epsilon.get()
            )));
        }
        Ok(Self { order, divergence, epsilon, delta })
    }

    /// The filter for a budget that lets most rounds like these through.
    ///
    /// # Errors
    /// When no order leaves room for any.
    pub fn for_rounds_like(
        typical: &Composition,
        epsilon: Epsilon,
        delta: Delta,
    ) -> Result<Self, Unsupported> {
        let orders = (0..=80).map(|i| 1.0 + (f64::from(i) * 0.1 - 1.0).exp());
        let share = |filter: &Self| filter.divergence / divergence(typical, filter.order);
        orders
            .filter_map(|order| Self::new(order, epsilon, delta).ok())
            .max_by(|a, b| share(a).total_cmp(&share(b)))
            .ok_or_else(|| Unsupported::new("no order leaves room for any round"))
    }

    /// Whether all these rounds, the next ones included, stay within the budget.
    #[must_use]
    pub fn admits(&self, rounds: &Composition) -> bool {
        divergence(rounds, self.order) <= self.divergence
    }

    /// The Rényi divergence that all rounds together may have at that order.
    #[must_use]
    pub const fn divergence(&self) -> f64 {
        self.divergence
    }

    /// The order of the budget.
    #[must_use]
    pub const fn order(&self) -> f64 {
        self.order
    }

    /// What all admitted rounds cost at most.
    #[must_use]
    pub const fn epsilon(&self) -> Epsilon {
        self.epsilon
    }

    /// The delta for which this was declared.
    #[must_use]
    pub const fn delta(&self) -> Delta {
        self.delta
    }
}
