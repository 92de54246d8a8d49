//! What earlier checks of a budget found, so that a charge costs what it adds.

use std::collections::BTreeMap;

use veilgrad_events::{Budget, Folded, Meter, Pricing};

use crate::run_state::RunState;

/// Which part of a budget is used at most, by what was counted so far.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// The terms of the meter.
    budget: Option<Budget>,
    /// None where the pricing has no meter for these terms.
    meter: Option<Box<dyn Meter>>,
    /// For every run, how many of its entries were counted, and how many rounds of the last of these.
    counted: BTreeMap<u64, Counted>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Counted {
    entries: usize,
    of_last: u64,
    apart: usize,
}

/// A copy counts from the beginning.
impl Clone for Tally {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl Tally {
    /// Counts what was charged since, and returns the part of the budget that is used at most; none if that
    /// cannot be told.
    pub(crate) fn count(
        &mut self,
        pricing: &dyn Pricing,
        budget: &Budget,
        runs: &BTreeMap<u64, RunState>,
    ) -> Option<f64> {
        if self.budget.as_ref() != Some(budget) {
            let meter = pricing.meter(budget);
            *self = Self { budget: Some(budget.clone()), meter, ..Self::default() };
        }
        let meter = self.meter.as_mut()?;
        for (number, run) in runs {
            let counted = self.counted.entry(*number).or_default();
            let fresh = run.rounds.iter().enumerate().skip(counted.entries.saturating_sub(1));
            for (place, charge) in fresh {
                // The last entry that was counted may have grown.
                let known = if place + 1 == counted.entries { counted.of_last } else { 0 };
                let count = charge.count.saturating_sub(known);
                if count > 0 {
                    meter.add(*number, Folded { count, ..*charge });
                }
            }
            for charge in run.apart.iter().skip(counted.apart) {
                // As a separate run: it must not shift the numbers of the others.
                meter.add(u64::MAX - *number, *charge);
            }
            *counted = Counted {
                entries: run.rounds.len(),
                of_last: run.rounds.last().map_or(0, |last| last.count),
                apart: run.apart.len(),
            };
        }
        Some(meter.part())
    }
}
