//! A ledger in memory.

use super::store::{LedgerError, LedgerKind, LedgerStore};
use crate::event::{Event, Rounds, run_length};

/// A ledger in memory, for tests and notebooks: it forgets all charges when it is dropped.
///
/// It enforces the order "charge, then release" and nothing else. After the process ends, nothing records what was
/// released, and the next run starts with a full budget. For real data use a durable store; estimates say
/// which [`LedgerKind`] they were charged to.
///
/// # Example
/// ```
/// use veilgrad_events::{Adjacency, LedgerKind, LedgerStore, MemoryLedger, RecordUnit, Run, RunHeader};
///
/// let mut ledger = MemoryLedger::new();
/// Run::open(&mut ledger, RunHeader::new(RecordUnit::Example, Adjacency::AddRemove))?.close()?;
/// assert_eq!(ledger.events().len(), 2); // opened and closed
/// assert_eq!(ledger.kind(), LedgerKind::Memory);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Default)]
pub struct MemoryLedger {
    events: Vec<Event>,
    round_limit: Option<u64>,
    charged: u64,
}

impl MemoryLedger {
    /// An empty ledger without a budget.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty ledger that grants at most `limit` rounds.
    #[must_use]
    pub fn with_round_limit(limit: u64) -> Self {
        Self { round_limit: Some(limit), ..Self::default() }
    }

    /// All events, oldest first.
    #[must_use]
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// The charged rounds for an accountant, identical consecutive rounds joined. Those of a
    /// [`TuningRun`](super::TuningRun) are the rounds of one of its runs, which cost less than the tuning.
    #[must_use]
    pub fn rounds(&self) -> Vec<Rounds> {
        run_length(self.events.iter().filter_map(|event| match event {
            Event::Reserve(reservation) => Some(reservation.charge.clone()),
            _ => None,
        }))
    }

    /// Whether any run is marked insecure, so that epsilon is infinite.
    #[must_use]
    pub fn is_insecure(&self) -> bool {
        self.events.iter().any(|event| matches!(event, Event::Insecure(_)))
    }
}

impl LedgerStore for MemoryLedger {
    fn append(&mut self, events: &[Event]) -> Result<(), LedgerError> {
        let mut counts = events.iter().map(|event| match event {
            Event::Reserve(reservation) => reservation.charge.count,
            _ => 0,
        });
        let charged = counts.try_fold(self.charged, u64::checked_add);
        let is_within_limit = |sum: &u64| self.round_limit.is_none_or(|limit| *sum <= limit);
        self.charged = charged.filter(is_within_limit).ok_or_else(|| {
            let why = format!("more rounds after {} would exceed the limit", self.charged);
            LedgerError::BudgetExhausted(why)
        })?;
        self.events.extend_from_slice(events);
        Ok(())
    }

    fn visit(&self, visitor: &mut dyn FnMut(&Event)) -> Result<(), LedgerError> {
        self.events.iter().for_each(visitor);
        Ok(())
    }

    fn kind(&self) -> LedgerKind {
        LedgerKind::Memory
    }
}
