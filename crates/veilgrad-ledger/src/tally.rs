//! A running total of a budget, so that the check of a charge is proportional to what it adds.

use std::collections::BTreeMap;

use veilgrad_events::{Budget, Folded, Meter, Pricing};

use crate::run_state::RunState;

/// An upper bound on the used fraction of a budget, from the charges counted so far.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// The order that the pricing gave for the terms of the dataset, which never change; finding it takes longer than a charge.
    order: Option<Option<f64>>,
    /// The budget of the meter.
    budget: Option<Budget>,
    /// `None` if the pricing has no meter for this budget.
    meter: Option<Box<dyn Meter>>,
    /// What is counted of every run, by its number.
    counted: BTreeMap<u64, Counted>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Counted {
    /// The number of entries of `rounds`.
    entries: usize,
    /// The number of rounds of the last of these.
    last_count: u64,
    /// The number of entries of `apart`.
    apart: usize,
}

/// A clone is empty, and counts from the beginning.
impl Clone for Tally {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl Tally {
    /// The pricing's order for the dataset, from `find` the first time.
    pub(crate) fn order(&mut self, find: impl FnOnce() -> Option<f64>) -> Option<f64> {
        *self.order.get_or_insert_with(find)
    }

    /// Counts new charges, and returns an upper bound on the used fraction of the budget; `None` without a meter, and where
    /// a run is a tuning, whose cost is not the sum of its rounds'.
    pub(crate) fn count(
        &mut self,
        pricing: &dyn Pricing,
        budget: &Budget,
        runs: &BTreeMap<u64, RunState>,
    ) -> Option<f64> {
        if runs.values().any(|run| run.header.tuning.is_some()) {
            return None;
        }
        if self.budget.as_ref() != Some(budget) {
            let meter = pricing.meter(budget);
            let (budget, order) = (Some(budget.clone()), self.order);
            *self = Self { order, budget, meter, counted: BTreeMap::new() };
        }
        let meter = self.meter.as_mut()?;
        for (number, run) in runs {
            let counted = self.counted.entry(*number).or_default();
            let uncounted = run.rounds.iter().enumerate().skip(counted.entries.saturating_sub(1));
            for (index, charge) in uncounted {
                // The last counted entry may have grown.
                let known = if index + 1 == counted.entries { counted.last_count } else { 0 };
                let count = charge.count.saturating_sub(known);
                if count > 0 {
                    meter.add(*number, Folded { count, ..*charge });
                }
            }
            for charge in run.apart.iter().skip(counted.apart) {
                // As a separate run, so that the round numbers of this one do not shift.
                meter.add(u64::MAX - *number, *charge);
            }
            *counted = Counted {
                entries: run.rounds.len(),
                last_count: run.rounds.last().map_or(0, |last| last.count),
                apart: run.apart.len(),
            };
        }
        Some(meter.part())
    }
}
