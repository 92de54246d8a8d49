//! Charge first, then release: the ledger's contract and the permits it grants.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::{
    Adjacency, Close, Event, Insecure, NoiseMechanism, ProcessIdentity, RecordUnit, Reservation,
    Round, Rounds, RunHeader, UnknownProcess,
};

/// Where events are kept. Open for implementors; [`check_ledger_store`] tests the contract.
///
/// # Guarantee
/// An implementation must return `Ok` from [`append`](LedgerStore::append) only when the event will
/// survive whatever the store claims to survive (for a durable store: power loss), and must never
/// remove or change an appended event. A store with a budget checks it inside `append`, together
/// with the pending event, and answers [`LedgerError::BudgetExhausted`] without appending.
pub trait LedgerStore {
    /// Appends events, all of them or none.
    ///
    /// # Errors
    /// [`LedgerError::BudgetExhausted`] when nothing was appended and later, smaller charges may
    /// still fit; [`LedgerError::Busy`] when nothing was appended and the same may succeed later. Any
    /// other error leaves it unknown whether the events are stored.
    fn append(&mut self, events: &[Event]) -> Result<(), LedgerError>;

    /// Shows every event in the order in which they were appended.
    ///
    /// # Errors
    /// When the store cannot be read or does not verify.
    fn visit(&self, visitor: &mut dyn FnMut(&Event)) -> Result<(), LedgerError>;
}

impl<S: LedgerStore + ?Sized> LedgerStore for &mut S {
    fn append(&mut self, events: &[Event]) -> Result<(), LedgerError> {
        (**self).append(events)
    }

    fn visit(&self, visitor: &mut dyn FnMut(&Event)) -> Result<(), LedgerError> {
        (**self).visit(visitor)
    }
}

/// Why a ledger did not take a charge.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LedgerError {
    /// The budget does not cover the charge; nothing was charged.
    #[error("the budget does not cover this charge: {0}")]
    BudgetExhausted(String),
    /// The store failed or refused.
    #[error("ledger refused: {0}")]
    Refused(String),
    /// The policy would put the number of records into the ledger, where it is private.
    #[error(
        "this sampling policy makes the number of records public, which is private under \
         add-remove adjacency; use Poisson sampling, or replace-one or zero-out adjacency"
    )]
    PrivateCount,
    /// An earlier write failed, so what is on disk is unknown; open the ledger again.
    #[error("an earlier ledger write failed; open the ledger again before charging more")]
    Poisoned,
    /// Another process kept the store too long; nothing was appended.
    #[error("the ledger is busy: {0}")]
    Busy(String),
    /// Rounds that are not the next ones of the declared plan.
    #[error("round {0} and those after it are not what the run's plan says")]
    NotPlanned(u64),
    /// The process is a fork of the one that opened the run; both would count the same charges.
    #[error("this process was forked from the one that opened the run; open a run of its own")]
    Forked,
}

impl From<UnknownProcess> for LedgerError {
    fn from(error: UnknownProcess) -> Self {
        Self::Refused(error.to_string())
    }
}

/// A run in progress: the only source of permits.
///
/// # Guarantee
/// A permit exists only if its charge was appended before. After any failed append other than an
/// exhausted budget the run is poisoned and grants no further permit. A forked child's copy of a run
/// charges nothing, and its copies of permits are worth nothing.
pub struct Run<S: LedgerStore> {
    store: S,
    id: u64,
    process: ProcessIdentity,
    unit: RecordUnit,
    adjacency: Adjacency,
    plan: Option<Vec<Rounds>>,
    next_round: u64,
    insecure: bool,
    poisoned: bool,
}

impl<S: LedgerStore> Run<S> {
    /// Opens a run. If its header declares a plan, only the rounds of the plan can be charged, in their
    /// order, and a store with a budget refuses the run unless all of them fit.
    ///
    /// # Errors
    /// When the store does not take the event, or this process could not be told from a forked copy.
    pub fn open(store: S, header: RunHeader) -> Result<Self, LedgerError> {
        let (unit, adjacency, plan) = (header.unit, header.adjacency, header.plan.clone());
        let mut run = Self {
            store,
            id: unique(),
            process: ProcessIdentity::current()?,
            unit,
            adjacency,
            plan,
            next_round: 0,
            insecure: false,
            poisoned: false,
        };
        run.append(&[Event::Open(header)])?;
        Ok(run)
    }

    /// Opens a run that protects nothing and says so for ever: for tests with seeded or no noise.
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
        run.insecure = true;
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
            if self.plan.as_ref().is_some_and(|plan| !follows(plan, next, charge)) {
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
            let (run, process, unit, insecure) = (self.id, self.process, self.unit, self.insecure);
            permits.push(Permits { run, process, unit, round, next, end, insecure });
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
        if !self.process.is_current() {
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

/// Whether a plan has these rounds from round `first` on.
#[must_use]
pub fn follows(plan: &[Rounds], first: u64, charge: &Rounds) -> bool {
    let last = first.saturating_add(charge.count);
    let (mut begin, mut found) = (0u64, 0);
    for part in plan {
        let end = begin.saturating_add(part.count);
        let common = end.min(last).saturating_sub(begin.max(first));
        if common > 0 && part.round != charge.round {
            return false;
        }
        (begin, found) = (end, found + common);
    }
    found == charge.count
}

/// A number that was not given before in this process.
fn unique() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Permits of one charged block, handed out one at a time.
pub struct Permits {
    run: u64,
    process: ProcessIdentity,
    unit: RecordUnit,
    round: Round,
    next: u64,
    end: u64,
    insecure: bool,
}

impl Iterator for Permits {
    type Item = RoundPermit;

    fn next(&mut self) -> Option<RoundPermit> {
        if self.next == self.end {
            return None;
        }
        let number = self.next;
        self.next += 1;
        Some(RoundPermit {
            id: unique(),
            process: self.process,
            run: self.run,
            unit: self.unit,
            number,
            round: self.round.clone(),
            insecure: self.insecure,
        })
    }
}

/// The right to run one charged round: to draw one sample and release its sums once.
///
/// # Guarantee
/// Only [`Run::reserve`] creates it, after the charge was appended. It cannot be cloned, copied or
/// serialised, drawing a sample consumes it, and it is worth nothing in another process.
pub struct RoundPermit {
    id: u64,
    process: ProcessIdentity,
    run: u64,
    unit: RecordUnit,
    number: u64,
    round: Round,
    insecure: bool,
}

impl RoundPermit {
    /// A number that no other permit of this process has.
    #[must_use]
    pub const fn id(&self) -> u64 {
        self.id
    }

    /// A number that no other run of this process has.
    #[must_use]
    pub const fn run(&self) -> u64 {
        self.run
    }

    /// What a record is, as the run's header says.
    #[must_use]
    pub const fn unit(&self) -> RecordUnit {
        self.unit
    }

    /// Whether this is the process that charged the round. A forked child has a copy of its parent's
    /// permits; it must not use them.
    #[must_use]
    pub fn is_of_this_process(&self) -> bool {
        self.process.is_current()
    }

    /// The process that charged the round.
    #[must_use]
    pub const fn process(&self) -> ProcessIdentity {
        self.process
    }

    /// The number of the round within its run.
    #[must_use]
    pub const fn number(&self) -> u64 {
        self.number
    }

    /// The round that was charged.
    #[must_use]
    pub fn round(&self) -> &Round {
        &self.round
    }

    /// Whether the run is stamped as protecting nothing.
    #[must_use]
    pub const fn is_insecure(&self) -> bool {
        self.insecure
    }
}

/// Checks a store against the contract of [`LedgerStore`], on a store without a budget.
///
/// # Errors
/// Says which part of the contract does not hold.
pub fn check_ledger_store(store: &mut impl LedgerStore, round: &Round) -> Result<(), String> {
    let events = |store: &dyn LedgerStore| {
        let mut events = Vec::new();
        store.visit(&mut |event| events.push(event.clone())).map_err(|e| e.to_string())?;
        Ok::<_, String>(events)
    };
    let mut expected = events(store)?;
    for rounds in [1, 3, 1, 32] {
        let charge = Rounds { count: rounds, round: round.clone() };
        let noise = NoiseMechanism::Gaussian;
        let event = Event::Reserve(Reservation { first_round: 0, charge, noise });
        let slice = std::slice::from_ref(&event);
        store.append(slice).map_err(|e| e.to_string())?;
        expected.push(event);
        if events(store)? != expected {
            return Err("events read back differ from those appended".to_owned());
        }
    }
    Ok(())
}
