//! What rounds cost under the terms of a budget.

use veilgrad_events::{Budget, Charges, Delta, Epsilon, Mode, Pricing};

use crate::account::{Accountant, Best};
use crate::{Composition, Unsupported, rdp};

fn price(budget: &Budget, composition: &Composition) -> Result<f64, String> {
    let epsilon = match (budget.mode, budget.order) {
        (Mode::Planned, _) => Best.epsilon(composition, budget.delta).map(|found| found.epsilon),
        (Mode::Adaptive, Some(order)) => {
            rdp::epsilon_on_orders(composition, budget.delta, &[order])
                .map(|found| found.epsilon.get())
        }
        (Mode::Adaptive, None) => {
            return Err("an adaptive budget needs an order that was declared with it".to_owned());
        }
    };
    epsilon.map_err(|error| error.to_string())
}

impl Pricing for Best {
    /// In planned mode the smallest sound epsilon; in adaptive mode that of the Rényi divergence at the
    /// declared order, which is what a filter keeps.
    fn price(&self, budget: &Budget, rounds: Charges<'_>) -> Result<f64, String> {
        let composition = Composition::of(rounds, budget.adjacency);
        price(budget, &composition.map_err(|error| error.to_string())?)
    }

    fn check(&self, budget: &Budget, rounds: Charges<'_>) -> Result<(), String> {
        let composition =
            Composition::of(rounds, budget.adjacency).map_err(|error| error.to_string())?;
        // Rényi's numbers are sound and quick: if one fits, the smaller one does. First at the order at
        // which a Gaussian uses all of the budget, then at the best.
        if budget.mode == Mode::Planned {
            let cap = budget.epsilon.get();
            let fits = |found: Result<rdp::RdpEpsilon, Unsupported>| {
                found.is_ok_and(|found| found.epsilon.get() <= cap)
            };
            let order = 1.0 - 2.0 * budget.delta.get().ln() / cap;
            if fits(rdp::epsilon_on_orders(&composition, budget.delta, &[order]))
                || fits(rdp::epsilon(&composition, budget.delta))
            {
                return Ok(());
            }
        }
        let price = price(budget, &composition)?;
        if price <= budget.epsilon.get() {
            return Ok(());
        }
        Err(format!("epsilon would be {price}, and {} is allowed", budget.epsilon.get()))
    }

    /// The order that leaves the most room for Gaussians.
    fn order(&self, epsilon: Epsilon, delta: Delta) -> Option<f64> {
        let room = |order: &f64| {
            let free = rdp::Filter::new(*order, epsilon, delta).map_or(0.0, |f| f.divergence());
            free / order
        };
        let orders = (0..=120).map(|i| 1.0 + (f64::from(i) * 0.1 - 2.0).exp());
        orders.max_by(|a, b| room(a).total_cmp(&room(b))).filter(|order| room(order) > 0.0)
    }
}
