//! The ledger of one dataset: what a run charges.

use std::sync::Arc;

use veilgrad_events::{Event, LedgerError, LedgerStore, Pricing};

use crate::entry::Entry;
use crate::error::StoreError;
use crate::ledger::{Ledger, random_id};

/// The ledger of one dataset: what a [`Run`](veilgrad_events::Run) charges.
///
/// # Guarantee
/// The check of the budget, the charge and the anchor are one step for all processes; after an error that
/// leaves it unknown what is on disk, this handle refuses everything.
pub struct DatasetLedger {
    ledger: Ledger,
    dataset: String,
    /// The run that was opened last.
    run: Option<String>,
    pricing: Arc<dyn Pricing + Send + Sync>,
}

impl DatasetLedger {
    pub(crate) fn new(
        ledger: Ledger,
        dataset: &str,
        pricing: Arc<dyn Pricing + Send + Sync>,
    ) -> Self {
        Self { ledger, dataset: dataset.to_owned(), run: None, pricing }
    }

    /// The ledger, to read.
    #[must_use]
    pub const fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// The id of the run that was opened last.
    #[must_use]
    pub fn run(&self) -> Option<&str> {
        self.run.as_deref()
    }

    /// The ledger, for other runs.
    #[must_use]
    pub fn into_ledger(self) -> Ledger {
        self.ledger
    }
}

impl LedgerStore for DatasetLedger {
    fn append(&mut self, events: &[Event]) -> Result<(), LedgerError> {
        let nonce = random_id()?;
        let mut run = self.run.clone();
        let mut entries = Vec::with_capacity(events.len());
        for event in events {
            if matches!(event, Event::Open(_)) {
                run = Some(random_id()?);
            }
            let run = run.clone().ok_or_else(|| {
                StoreError::Refused("an event before its run was opened".to_owned())
            })?;
            let (dataset, nonce) = (self.dataset.clone(), nonce.clone());
            entries.push(Entry::Run { dataset, run, nonce, event: event.clone() });
        }
        self.ledger.append(|_| Ok(entries), Some(&*self.pricing))?;
        self.run = run;
        Ok(())
    }

    fn visit(&self, visitor: &mut dyn FnMut(&Event)) -> Result<(), LedgerError> {
        self.ledger.visit_rows(&mut |sequence, bytes, _| {
            let entry = Entry::from_bytes(bytes)
                .map_err(|why| StoreError::Damaged(format!("row {sequence}: {why}")))?;
            // What was imported was charged, too.
            let entry = match entry {
                Entry::Import { entry, .. } => *entry,
                own => own,
            };
            if let Entry::Run { dataset, event, .. } = &entry
                && *dataset == self.dataset
            {
                visitor(event);
            }
            Ok(())
        })?;
        Ok(())
    }
}
