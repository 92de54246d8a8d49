//! What rounds cost under the terms of a budget.

use veilgrad_events::{Budget, Charges, Delta, Epsilon, Mode, Pricing};

use crate::account::{Accountant, Best};
use crate::{Composition, rdp};

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
        // Rényi's number is sound and quick: if it fits, the smaller one does.
        if budget.mode == Mode::Planned
            && rdp::epsilon(&composition, budget.delta)
                .is_ok_and(|found| found.epsilon.get() <= budget.epsilon.get())
        {
            return Ok(());
        }
        let price = price(budget, &composition)?;
        if price <= budget.epsilon.get() {
            return Ok(());
        }
        Err(format!("epsilon would be {price}, and {} is allowed", budget.epsilon.get()))
    }

    /// Of the Rényi divergence at one order, which adds up: the declared one, or in planned mode the one at
    /// which a Gaussian uses all of the budget.
    fn part(&self, budget: &Budget, rounds: Charges<'_>) -> Option<f64> {
        let order = match budget.mode {
            Mode::Planned => 1.0 - 2.0 * budget.delta.get().ln() / budget.epsilon.get(),
            Mode::Adaptive => budget.order?,
        };
        let filter = rdp::Filter::new(order, budget.epsilon, budget.delta).ok()?;
        let composition = Composition::of(rounds, budget.adjacency).ok()?;
        Some((rdp::divergence(&composition, order) / filter.divergence()).next_up())
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

#[cfg(test)]
mod tests {
    use super::*;
    use veilgrad_events::{
        Adjacency, FixedBatch, Folded, NoiseMultiplier, RecordUnit, SampleRate, Sampling,
    };

    fn budget(epsilon: f64, mode: Mode) -> Budget {
        let (epsilon, delta) = (Epsilon::new(epsilon).unwrap(), Delta::new(1e-5).unwrap());
        Budget {
            dataset: "d".to_owned(),
            unit: RecordUnit::Example,
            adjacency: Adjacency::ReplaceOne,
            delta,
            epsilon,
            mode,
            order: Best.order(epsilon, delta).filter(|_| mode == Mode::Adaptive),
        }
    }

    #[test]
    fn rounds_whose_parts_fit_keep_the_budget_however_they_are_divided() {
        let of = |sampling, z| Folded {
            count: 1,
            sampling,
            noise_multiplier: NoiseMultiplier::new(z).unwrap(),
        };
        let poisson = Sampling::Poisson { rate: SampleRate::new(0.01).unwrap() };
        let shuffle = Sampling::Shuffle(FixedBatch::new(1000, 100).unwrap());
        let kinds = [of(poisson, 4.0), of(Sampling::All {}, 40.0), of(shuffle, 60.0)];
        for mode in [Mode::Planned, Mode::Adaptive] {
            for size in [1, 3, 7, 64] {
                let budget = budget(2.0, mode);
                let (mut sum, mut all, mut blocks) = (0.0, Vec::new(), 0);
                loop {
                    let block = kinds.iter().map(|kind| Folded { count: size, ..*kind });
                    let block: Vec<Folded> =
                        block.cycle().skip(blocks).take(1 + blocks % 3).collect();
                    let part = Best.part(&budget, &mut block.iter().copied()).unwrap();
                    assert!(part > 0.0);
                    if sum + part > 1.0 {
                        break;
                    }
                    (sum, blocks) = (sum + part, blocks + 1);
                    all.extend(block);
                }
                let price = Best.price(&budget, &mut all.iter().copied()).unwrap();
                assert!(price <= 2.0, "{mode:?} in blocks of {size}: {price}");
                // Nor are parts so large that they would be of no use.
                assert!(blocks > 1 && price > 1.0, "{mode:?} in blocks of {size}: {price}");
            }
        }
        // A budget of nothing has no parts.
        assert_eq!(Best.part(&budget(0.0, Mode::Planned), &mut kinds.iter().copied()), None);
    }
}
