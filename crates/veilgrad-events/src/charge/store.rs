//! The contract of a ledger store, and its errors.

use super::process::UnknownProcess;
use crate::event::{Event, NoiseMechanism, Reservation, Round, Rounds};

/// What kind of store a round was charged to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum LedgerKind {
    /// A file that survives a crash and a power loss.
    Durable,
    /// A [`MemoryLedger`](super::MemoryLedger): for tests and notebooks, forgotten with the process.
    Memory,
    /// A store that does not say what it survives.
    Other,
}

/// Storage for ledger events. Implementors can test the contract with [`check_ledger_store`].
///
/// # Guarantee
/// An implementation must return `Ok` from [`append`](LedgerStore::append) only when the events will
/// survive whatever the store claims to survive (for a durable store: power loss). It must never
/// remove or change an appended event. A store with a budget checks inside `append` that the new events fit, and
/// otherwise returns [`LedgerError::BudgetExhausted`] without appending.
pub trait LedgerStore {
    /// Appends events, all of them or none.
    ///
    /// # Errors
    /// [`LedgerError::BudgetExhausted`] when nothing was appended and later, smaller charges may
    /// still fit; [`LedgerError::Busy`] when nothing was appended and a retry may succeed. After any other
    /// error it is unknown whether the events are stored.
    fn append(&mut self, events: &[Event]) -> Result<(), LedgerError>;

    /// Calls `visitor` with every event, oldest first.
    ///
    /// # Errors
    /// When the store cannot be read or fails verification.
    fn visit(&self, visitor: &mut dyn FnMut(&Event)) -> Result<(), LedgerError>;

    /// The kind of this store, which estimates report as `charged_to`. Only a store that survives a power loss may
    /// return [`LedgerKind::Durable`].
    fn kind(&self) -> LedgerKind {
        LedgerKind::Other
    }
}

impl<S: LedgerStore + ?Sized> LedgerStore for &mut S {
    fn append(&mut self, events: &[Event]) -> Result<(), LedgerError> {
        (**self).append(events)
    }

    fn visit(&self, visitor: &mut dyn FnMut(&Event)) -> Result<(), LedgerError> {
        (**self).visit(visitor)
    }

    fn kind(&self) -> LedgerKind {
        (**self).kind()
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
    /// The sampling policy would write the number of records, which is private, into the ledger.
    #[error(
        "this sampling policy makes the number of records public, which is private under \
         add-remove adjacency; use Poisson sampling, or replace-one or zero-out adjacency"
    )]
    PrivateCount,
    /// An earlier write failed, so it is unknown what is on disk; open the ledger again.
    #[error("an earlier ledger write failed; open the ledger again before charging more")]
    Poisoned,
    /// Another process held the lock on the store too long; nothing was appended.
    #[error("the ledger is busy: {0}")]
    Busy(String),
    /// The rounds are not the next ones of the declared plan.
    #[error("round {0} and those after it are not the next rounds of the run's plan")]
    NotPlanned(u64),
    /// This process is a fork of the one that opened the run; both would use the same charges.
    #[error("this process was forked from the one that opened the run; open another run")]
    Forked,
}

impl From<UnknownProcess> for LedgerError {
    fn from(error: UnknownProcess) -> Self {
        Self::Refused(error.to_string())
    }
}

/// Checks a store against the contract of [`LedgerStore`], on a store without a budget.
///
/// # Errors
/// Says which part of the contract does not hold.
pub fn check_ledger_store(store: &mut impl LedgerStore, round: &Round) -> Result<(), String> {
    let read_events = |store: &dyn LedgerStore| {
        let mut events = Vec::new();
        store.visit(&mut |event| events.push(event.clone())).map_err(|e| e.to_string())?;
        Ok::<_, String>(events)
    };
    let mut expected = read_events(store)?;
    for rounds in [1, 3, 1, 32] {
        let charge = Rounds { count: rounds, round: round.clone() };
        let noise = NoiseMechanism::Gaussian;
        let event = Event::Reserve(Reservation { first_round: 0, charge, noise });
        let slice = std::slice::from_ref(&event);
        store.append(slice).map_err(|e| e.to_string())?;
        expected.push(event);
        if read_events(store)? != expected {
            return Err("events read back differ from those appended".to_owned());
        }
    }
    Ok(())
}
