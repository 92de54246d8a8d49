//! What earlier checks of a budget found, so that a charge costs what it adds.

use std::collections::BTreeMap;

use veilgrad_events::{Budget, Delta, Epsilon, Folded, Pricing};

use crate::state::RunState;

/// Which part of a budget is used at most, by what was counted so far.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tally {
    /// The cap of which it is a part, and its delta.
    cap: Option<(Epsilon, Delta)>,
    part: f64,
    /// For every run, how many of its entries were counted, and how many rounds of the last of these.
    counted: BTreeMap<u64, (usize, u64)>,
    /// What was counted last, and its part: mostly the next charge is the same.
    last: Option<(Vec<Folded>, f64)>,
}

impl Tally {
    /// Counts what was charged since, and returns the part that is used at most with `still` to come; none
    /// if nobody can tell.
    pub(crate) fn count(
        &mut self,
        pricing: &dyn Pricing,
        budget: &Budget,
        runs: &BTreeMap<u64, RunState>,
        still: &[Folded],
    ) -> Option<f64> {
        // Another cap is another whole.
        let cap = Some((budget.epsilon, budget.delta));
        if self.cap != cap {
            *self = Self { cap, ..Self::default() };
        }
        let fresh: Vec<Folded> = self.fresh(runs).filter(|rounds| rounds.count > 0).collect();
        let part = match &self.last {
            Some((last, part)) if *last == fresh => *part,
            _ => pricing.part(budget, &mut fresh.iter().copied())?,
        };
        self.last = Some((fresh, part));
        self.part = (self.part + part).next_up();
        let end =
            |run: &RunState| (run.rounds.len(), run.rounds.last().map_or(0, |last| last.count));
        self.counted = runs.iter().map(|(number, run)| (*number, end(run))).collect();
        if still.is_empty() {
            return Some(self.part);
        }
        let more = pricing.part(budget, &mut still.iter().copied())?;
        Some((self.part + more).next_up())
    }

    /// Rounds that were not counted.
    fn fresh<'a>(&'a self, runs: &'a BTreeMap<u64, RunState>) -> impl Iterator<Item = Folded> + 'a {
        runs.iter().flat_map(|(number, run)| {
            let (entries, rounds) = self.counted.get(number).copied().unwrap_or_default();
            let fresh = run.rounds.iter().enumerate().skip(entries.saturating_sub(1));
            fresh.map(move |(place, charge)| {
                // The last that was counted may have grown.
                let known = if place + 1 == entries { rounds } else { 0 };
                Folded { count: charge.count.saturating_sub(known), ..*charge }
            })
        })
    }
}
