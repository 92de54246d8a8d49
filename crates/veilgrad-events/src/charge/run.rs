//! Runs: a run stores the charge first, then grants permits.

use super::permit::{Permits, RunFacts, unique_id};
use super::process::ProcessIdentity;
use super::store::{LedgerError, LedgerStore};
use crate::event::{
    Adjacency, Close, Event, Insecure, NoiseMechanism, Reservation, Round, Rounds, RunHeader,
};

/// A run in progress: the only source of permits.
///
/// # Guarantee
/// A permit exists only if its charge was appended before. After a failed append the run is poisoned and grants no
/// further permit, unless the error says that nothing was appended ([`LedgerError::BudgetExhausted`],
/// [`LedgerError::Busy`]). A forked child cannot use its copies of a run and its permits.
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
    /// Opens a run. If its header declares a plan, only the rounds of the plan can be charged, in order,
    /// and a store with a budget refuses the run unless all of them fit.
    ///
    /// # Errors
    /// When the store refuses the event, the header is that of a [`TuningRun`](super::TuningRun), or the identity of this
    /// process cannot be determined.
    pub fn open(store: S, header: RunHeader) -> Result<Self, LedgerError> {
        if header.tuning.is_some() {
            let why = "the header is that of a tuning, which is charged as a whole";
            return Err(LedgerError::Refused(why.to_owned()));
        }
        Self::open_any(store, header)
    }

    /// Opens a run, or the run as which a tuning is charged.
    pub(super) fn open_any(store: S, header: RunHeader) -> Result<Self, LedgerError> {
        let facts = RunFacts {
            id: unique_id(),
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

    /// Opens a run that is marked insecure for good: for tests with seeded noise or none.
    ///
    /// # Errors
    /// As for [`open`](Self::open).
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
    /// An unused permit stays charged; there is no refund.
    ///
    /// # Errors
    /// Nothing was charged after [`LedgerError::PrivateCount`] (the policy stores the number of records, which is
    /// private under add/remove adjacency), [`LedgerError::BudgetExhausted`], [`LedgerError::Busy`] and
    /// [`LedgerError::NotPlanned`]. After any other error of the store the run is poisoned.
    pub fn reserve(&mut self, round: &Round, rounds: u64) -> Result<Permits, LedgerError> {
        let block = [Rounds { count: rounds, round: round.clone() }];
        let mut permits = self.reserve_each(&block)?;
        permits.pop().ok_or_else(|| LedgerError::Refused("no permits were granted".to_owned()))
    }

    /// Charges different rounds at once, all or none, and returns the permits of each entry: for schedules whose
    /// sample rate or noise changes from round to round.
    ///
    /// # Errors
    /// As for [`reserve`](Self::reserve).
    pub fn reserve_each(&mut self, block: &[Rounds]) -> Result<Vec<Permits>, LedgerError> {
        let mut next = self.next_round;
        let (mut events, mut permits) = (Vec::new(), Vec::new());
        for charge in block {
            if charge.round.sampling().reveals_record_count(self.adjacency) {
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

    /// Closes the run and returns the store.
    ///
    /// # Errors
    /// When the store refuses the event.
    pub fn close(mut self) -> Result<S, LedgerError> {
        self.append(&[Event::Close(Close {})])?;
        Ok(self.store)
    }

    /// The ledger store, read-only.
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
        let nothing_appended = |error: &LedgerError| {
            matches!(error, LedgerError::BudgetExhausted(_) | LedgerError::Busy(_))
        };
        self.poisoned = result.as_ref().is_err_and(|error| !nothing_appended(error));
        result
    }
}

/// Cumulative round counts of a plan, to find a round in it by binary search.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PlanEnds(Vec<u64>);

impl PlanEnds {
    /// The cumulative round counts of `plan`.
    #[must_use]
    pub fn new(plan: &[Rounds]) -> Self {
        let add_count = |end: &mut u64, part: &Rounds| {
            *end = end.saturating_add(part.count);
            Some(*end)
        };
        Self(plan.iter().scan(0, add_count).collect())
    }

    /// Whether `charge` is what `plan` has from round `first` on; clip norms of queries with an integer grid may have been
    /// adapted since. `plan` must be the plan given to [`new`](Self::new).
    #[must_use]
    pub fn follows(&self, plan: &[Rounds], first: u64, charge: &Rounds) -> bool {
        let last = first.saturating_add(charge.count);
        let (mut next, mut found) = (first, 0);
        let from = self.0.partition_point(|end| *end <= first);
        for (part, end) in plan.iter().zip(&self.0).skip(from) {
            let common = last.min(*end).saturating_sub(next);
            if common > 0 && !part.round.differs_in_clip_norms_at_most(&charge.round) {
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

    /// Compares with a search in the plan written out round by round. The plan has empty parts and equal neighbours.
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

    /// Reference implementation of `follows`, in u128 so that nothing overflows.
    fn is_planned(plan: &[Rounds], first: u64, charge: &Rounds) -> bool {
        let (first, last) = (u128::from(first), u128::from(first) + u128::from(charge.count));
        let (mut start, mut covered) = (0u128, 0);
        for part in plan {
            // Round numbers have 64 bits, so plans end there.
            let end = (start + u128::from(part.count)).min(u128::from(u64::MAX));
            let common = end.min(last).saturating_sub(start.max(first));
            covered += if part.round == charge.round { common } else { 0 };
            start = end;
        }
        covered == u128::from(charge.count)
    }

    /// Compares with the reference on all plans of at most three parts with these counts and two kinds of rounds.
    fn compare_with_reference(counts: &[u64], firsts: &[u64]) {
        let kinds = [1.0, 2.0].map(|noise| rounds(0, noise).round);
        let parts: Vec<Rounds> = counts
            .iter()
            .flat_map(|count| kinds.clone().map(|round| Rounds { count: *count, round }))
            .collect();
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
        compare_with_reference(&[0, 1, 2, 3], &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
    }

    #[test]
    fn plans_and_charges_of_the_largest_numbers_neither_wrap_nor_fit_by_accident() {
        let extremes = [0, 1, 2, u64::MAX / 2, u64::MAX / 2 + 1, u64::MAX - 1, u64::MAX];
        compare_with_reference(&extremes, &extremes);
    }
}
