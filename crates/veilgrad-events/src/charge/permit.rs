//! Permits: the right to run a round, granted only after its charge.

use std::sync::atomic::{AtomicU64, Ordering};

use super::process::ProcessIdentity;
use super::store::LedgerKind;
use crate::event::{Numerics, RecordUnit, Round};

/// An id that is unique in this process.
pub(super) fn unique_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// The facts about a run that all its permits carry.
#[derive(Clone, Copy)]
pub(super) struct RunFacts {
    pub(super) id: u64,
    pub(super) process: ProcessIdentity,
    pub(super) unit: RecordUnit,
    pub(super) numerics: Numerics,
    pub(super) charged_to: LedgerKind,
    pub(super) insecure: bool,
}

/// An iterator over the permits of one charged block.
pub struct Permits {
    pub(super) run: RunFacts,
    pub(super) round: Round,
    pub(super) next: u64,
    pub(super) end: u64,
}

impl Iterator for Permits {
    type Item = RoundPermit;

    fn next(&mut self) -> Option<RoundPermit> {
        if self.next == self.end {
            return None;
        }
        let number = self.next;
        self.next += 1;
        Some(RoundPermit { id: unique_id(), run: self.run, number, round: self.round.clone() })
    }
}

/// The right to run one charged round: to draw one sample and release its sums once.
///
/// # Guarantee
/// Only [`Run`](super::Run) creates it, after the charge was appended. It cannot be cloned, copied or
/// serialised, drawing a sample consumes it, and another process cannot use it.
pub struct RoundPermit {
    id: u64,
    run: RunFacts,
    number: u64,
    round: Round,
}

impl RoundPermit {
    /// The id of the permit, unique in this process.
    #[must_use]
    pub const fn id(&self) -> u64 {
        self.id
    }

    /// The id of the run, unique in this process.
    #[must_use]
    pub const fn run(&self) -> u64 {
        self.run.id
    }

    /// The unit of privacy, from the run's header.
    #[must_use]
    pub const fn unit(&self) -> RecordUnit {
        self.run.unit
    }

    /// Whether the arithmetic of the run is proven exact, from its header.
    #[must_use]
    pub const fn numerics(&self) -> Numerics {
        self.run.numerics
    }

    /// Whether this is the process that charged the round. A forked child must not use its copy of the
    /// parent's permits.
    #[must_use]
    pub fn is_of_this_process(&self) -> bool {
        self.run.process.is_current()
    }

    /// The process that charged the round.
    #[must_use]
    pub const fn process(&self) -> ProcessIdentity {
        self.run.process
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

    /// Whether the run is marked insecure.
    #[must_use]
    pub const fn is_insecure(&self) -> bool {
        self.run.insecure
    }

    /// What kind of ledger the round was charged to.
    #[must_use]
    pub const fn charged_to(&self) -> LedgerKind {
        self.run.charged_to
    }
}
