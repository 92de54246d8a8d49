//! Runs: the charge is stored first, then permits are granted.

use super::permit::{Permits, RunFacts, unique};
use super::process::ProcessIdentity;
use super::store::{LedgerError, LedgerStore};
use crate::event::{
    Adjacency, Close, Event, Insecure, NoiseMechanism, Reservation, Round, Rounds, RunHeader,
};

/// A run in progress: the only source of permits.
///
/// # Guarantee
/// A permit exists only if its charge was appended before. After any failed append other than an
/// exhausted budget the run is poisoned and grants no further permit. A forked child's copy of a run
/// charges nothing, and its copies of permits are worth nothing.
///
/// # Example
/// ```
/// use veilgrad_events::{
///     Adjacency, ClipNorm, LedgerError, MemoryLedger, NoiseStd, RecordUnit, Round, Run, RunHeader,
///     Sampling, SumQuery,
/// };
///
/// let query = SumQuery::new("gradient", ClipNorm::new(1.0)?, NoiseStd::new(1.1)?);
/// let round = Round::new(Sampling::All {}, vec![query])?;
/// let header = RunHeader::new(RecordUnit::Example, Adjacency::AddRemove);
/// let mut run = Run::open(MemoryLedger::with_round_limit(10), header)?;
/// assert_eq!(run.reserve(&round, 8)?.count(), 8); // eight charged rounds, eight permits
/// // Three more do not fit, and nothing is charged for them.
/// assert!(matches!(run.reserve(&round, 3), Err(LedgerError::BudgetExhausted(_))));
/// assert_eq!(run.close()?.rounds()[0].count, 8);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Run<S: LedgerStore> {
    store: S,
    facts: RunFacts,
    adjacency: Adjacency,
    plan: Option<Box<(Vec<Rounds>, PlanEnds)>>,
    next_round: u64,
    poisoned: bool,
}

impl<S: LedgerStore> Run<S> {
    /// Opens a run. If its header declares a plan, only the rounds of the plan can be charged, in their
    /// order, and a store with a budget refuses the run unless all of them fit.
    ///
    /// # Errors
    /// When the store does not take the event, or forked copies of this process could not be recognised.
    pub fn open(store: S, header: RunHeader) -> Result<Self, LedgerError> {
        let facts = RunFacts {
            id: unique(),
            process: ProcessIdentity::current()?,
            unit: header.unit,
            numerics: header.numerics,
            charged_to: store.kind(),
            insecure: false,
        };
        let adjacency = header.adjacency;
        let plan = header.plan.clone().map(|plan| {
            let ends = PlanEnds::new(&plan);
            Box::new((plan, ends))
        });
        let mut run = Self { store, facts, adjacency, plan, next_round: 0, poisoned: false };
        run.append(&[Event::Open(header)])?;
        Ok(run)
    }

    /// Opens a run that protects nothing and says so permanently: for tests with seeded noise or none.
    ///
    /// # Errors
    /// When the store does not take the events.
    pub fn open_insecure(
        store: S,
        header: RunHeader,
        reason: impl Into<String>,
    ) -> Result<Self, LedgerError> {
        let mut run = Self::open(store, header)?;
        run.append(&[Event::Insecure(Insecure { reason: reason.into() })])?;
        run.facts.insecure = true;
        Ok(run)
    }

    /// Charges `rounds` rounds and returns that many permits, to be used in order.
    ///
    /// A permit that is not used stays charged; there is no refund.
    ///
    /// # Errors
    /// [`LedgerError::PrivateCount`] for a policy that stores the number of records in a run under
    /// add/remove adjacency and [`LedgerError::BudgetExhausted`] when the budget does not cover the
    /// rounds, [`LedgerError::NotPlanned`] when they are not the next ones of the run's plan: nothing was
    /// charged then. After any other error the run is poisoned.
    pub fn reserve(&mut self, round: &Round, rounds: u64) -> Result<Permits, LedgerError> {
        let block = [Rounds { count: rounds, round: round.clone() }];
        let mut permits = self.reserve_each(&block)?;
        // One entry makes one block of permits.
        permits.pop().ok_or_else(|| LedgerError::Refused("no permits were granted".to_owned()))
    }

    /// Charges rounds of several kinds at once, all or none, and returns the permits of each: for
    /// schedules in which rates or noise change from round to round.
    ///
    /// # Errors
    /// As for [`reserve`](Self::reserve).
    pub fn reserve_each(&mut self, block: &[Rounds]) -> Result<Vec<Permits>, LedgerError> {
        let mut next = self.next_round;
        let (mut events, mut permits) = (Vec::new(), Vec::new());
        for charge in block {
            let private = self.adjacency == Adjacency::AddRemove;
            if private && charge.round.sampling().records().is_some() {
                return Err(LedgerError::PrivateCount);
            }
            let planned = self.plan.as_deref();
            if planned.is_some_and(|(plan, ends)| !ends.follows(plan, next, charge)) {
                return Err(LedgerError::NotPlanned(next));
            }
            let end = next
                .checked_add(charge.count)
                .ok_or_else(|| LedgerError::Refused("round numbers exceed 64 bits".to_owned()))?;
            if charge.count > 0 {
                let (charge, noise) = (charge.clone(), NoiseMechanism::Gaussian);
                events.push(Event::Reserve(Reservation { first_round: next, charge, noise }));
            }
            let round = charge.round.clone();
            permits.push(Permits { run: self.facts, round, next, end });
            next = end;
        }
        if !events.is_empty() {
            self.append(&events)?;
            self.next_round = next;
        }
        Ok(permits)
    }

    /// Closes the run and gives the store back.
    ///
    /// # Errors
    /// When the store does not take the event.
    pub fn close(mut self) -> Result<S, LedgerError> {
        self.append(&[Event::Close(Close {})])?;
        Ok(self.store)
    }

    /// The store, to read.
    pub fn store(&self) -> &S {
        &self.store
    }

    fn append(&mut self, events: &[Event]) -> Result<(), LedgerError> {
        if self.poisoned {
            return Err(LedgerError::Poisoned);
        }
        if !self.facts.process.is_current() {
            return Err(LedgerError::Forked);
        }
        let result = self.store.append(events);
        let known = |error: &LedgerError| {
            matches!(error, LedgerError::BudgetExhausted(_) | LedgerError::Busy(_))
        };
        self.poisoned = result.as_ref().is_err_and(|error| !known(error));
        result
    }
}

/// Where the parts of a plan end, so that rounds are found in it without a pass over all that come before them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PlanEnds(Vec<u64>);

impl PlanEnds {
    /// Of this plan.
    #[must_use]
    pub fn new(plan: &[Rounds]) -> Self {
        let end = |end: &mut u64, part: &Rounds| {
            *end = end.saturating_add(part.count);
            Some(*end)
        };
        Self(plan.iter().scan(0, end).collect())
    }

    /// Whether the same plan has these rounds from round `first` on.
    #[must_use]
    pub fn follows(&self, plan: &[Rounds], first: u64, charge: &Rounds) -> bool {
        let last = first.saturating_add(charge.count);
        let (mut next, mut found) = (first, 0);
        let from = self.0.partition_point(|end| *end <= first);
        for (part, end) in plan.iter().zip(&self.0).skip(from) {
            let common = last.min(*end).saturating_sub(next);
            if common > 0 && part.round != charge.round {
                return false;
            }
            (next, found) = (next + common, found + common);
            if next >= last {
                break;
            }
        }
        found == charge.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ClipNorm, NoiseStd, Sampling, SumQuery};

    fn rounds(count: u64, noise: f64) -> Rounds {
        let (clip, noise) = (ClipNorm::new(1.0).unwrap(), NoiseStd::new(noise).unwrap());
        let query = SumQuery::new("g", clip, noise);
        Rounds { count, round: Round::new(Sampling::All {}, vec![query]).unwrap() }
    }

    /// Every block of every kind, beside the plan written out round by round; parts without rounds, and neighbours that
    /// are alike, among them.
    #[test]
    fn rounds_are_found_in_a_plan_where_they_are_and_nowhere_else() {
        let plan = [(2, 1.0), (0, 2.0), (3, 2.0), (1, 2.0), (0, 1.0), (2, 1.0)];
        let plan = plan.map(|(count, noise)| rounds(count, noise));
        let ends = PlanEnds::new(&plan);
        let each: Vec<&Round> = plan
            .iter()
            .flat_map(|part| std::iter::repeat_n(&part.round, part.count as usize))
            .collect();
        for first in 0..10 {
            for count in 0..10 {
                for noise in [1.0, 2.0, 3.0] {
                    let charge = rounds(count as u64, noise);
                    let planned = count == 0
                        || each
                            .get(first..first + count)
                            .is_some_and(|part| part.iter().all(|round| **round == charge.round));
                    let found = ends.follows(&plan, first as u64, &charge);
                    assert_eq!(found, planned, "{first} {count} {noise}");
                }
            }
        }
        assert!(!ends.follows(&plan, u64::MAX, &rounds(2, 1.0)));
    }

    /// Where a charge is in a plan, by intervals of whole numbers that cannot overflow.
    fn is_planned(plan: &[Rounds], first: u64, charge: &Rounds) -> bool {
        let (first, last) = (u128::from(first), u128::from(first) + u128::from(charge.count));
        let (mut start, mut covered) = (0u128, 0);
        for part in plan {
            // Rounds have numbers of 64 bits: no plan goes further.
            let end = (start + u128::from(part.count)).min(u128::from(u64::MAX));
            let common = end.min(last).saturating_sub(start.max(first));
            covered += if part.round == charge.round { common } else { 0 };
            start = end;
        }
        covered == u128::from(charge.count)
    }

    /// All plans of at most three parts, of these counts and two kinds of rounds, and all charges.
    fn compare(counts: &[u64], firsts: &[u64]) {
        let kinds = [1.0, 2.0].map(|noise| rounds(0, noise).round);
        let of = |count, kind: usize| Rounds { count, round: kinds[kind].clone() };
        let parts: Vec<Rounds> =
            counts.iter().flat_map(|count| [of(*count, 0), of(*count, 1)]).collect();
        let mut plans: Vec<Vec<Rounds>> = vec![Vec::new()];
        for length in 0..3 {
            let longer = plans.iter().filter(|plan| plan.len() == length).flat_map(|plan| {
                parts.iter().map(|part| [plan.as_slice(), std::slice::from_ref(part)].concat())
            });
            plans.extend(longer.collect::<Vec<_>>());
        }
        for plan in &plans {
            let ends = PlanEnds::new(plan);
            for (first, charge) in
                firsts.iter().flat_map(|first| parts.iter().map(move |charge| (*first, charge)))
            {
                let found = ends.follows(plan, first, charge);
                assert_eq!(found, is_planned(plan, first, charge), "{plan:?} {first} {charge:?}");
            }
        }
    }

    #[test]
    fn every_charge_is_found_in_every_small_plan_exactly_where_it_is() {
        compare(&[0, 1, 2, 3], &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
    }

    #[test]
    fn plans_and_charges_of_the_largest_numbers_neither_wrap_nor_fit_by_accident() {
        let extremes = [0, 1, 2, u64::MAX / 2, u64::MAX / 2 + 1, u64::MAX - 1, u64::MAX];
        compare(&extremes, &extremes);
    }
}
