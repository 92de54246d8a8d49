//! The ledger of one dataset, which a run charges.

use std::sync::Arc;

use veilgrad_events::{Event, LedgerError, LedgerKind, LedgerStore, Pricing};

use crate::entry::Entry;
use crate::error::StoreError;
use crate::id::random_id;
use crate::ledger::Ledger;
use crate::store::Hold;
use crate::tally::Tally;

/// The durable ledger of one dataset, which a [`Run`](veilgrad_events::Run) charges.
///
/// # Guarantee
/// Checking the budget, charging and writing the anchor are atomic between processes. After an error that leaves it
/// unknown what is on disk, this handle refuses everything.
///
/// A run that declares its plan holds budget for all of it from when it is opened until it is closed, another run is
/// opened, this handle is dropped, or its process ends. No other run is granted what it holds. A hold is not a
/// charge, and its end refunds nothing.
///
/// # Example
/// ```
/// use std::sync::Arc;
///
/// use veilgrad_accounting::Tightest;
/// use veilgrad_events::{
///     Adjacency, Budget, ClipNorm, Delta, Epsilon, Mode, NoiseStd, RecordUnit, Round, Run, RunHeader,
///     Sampling, SumQuery,
/// };
/// use veilgrad_ledger::{Ledger, Options};
///
/// # let directory = std::env::temp_dir().join(format!("veilgrad-dataset-{}", std::process::id()));
/// # std::fs::create_dir_all(&directory)?;
/// let path = directory.join("ledger.db");
/// let mut ledger = Ledger::create(&path, Options::default())?;
/// ledger.create_budget(Budget {
///     dataset: "visits".to_owned(),
///     unit: RecordUnit::Example,
///     adjacency: Adjacency::AddRemove,
///     delta: Delta::new(1e-5)?,
///     epsilon: Epsilon::new(3.0)?,
///     mode: Mode::Planned,
///     order: None,
/// })?;
///
/// let query = SumQuery::new("gradient", ClipNorm::new(1.0)?, NoiseStd::new(10.0)?);
/// let round = Round::new(Sampling::All {}, vec![query])?;
/// let header = RunHeader::new(RecordUnit::Example, Adjacency::AddRemove);
/// let mut run = Run::open(ledger.dataset("visits", Arc::new(Tightest))?, header)?;
/// assert_eq!(run.reserve(&round, 1)?.count(), 1); // on disk before the permit exists
/// assert!(run.reserve(&round, 1_000_000).is_err()); // beyond the budget
/// # std::fs::remove_dir_all(directory)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct DatasetLedger {
    ledger: Ledger,
    dataset: String,
    /// The run that was opened last.
    run: Option<String>,
    /// The budget that it holds for its plan.
    hold: Option<Hold>,
    pricing: Arc<dyn Pricing + Send + Sync>,
}

impl DatasetLedger {
    /// The ledger, read-only.
    pub const fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// The id of the run that was opened last.
    pub fn run(&self) -> Option<&str> {
        self.run.as_deref()
    }

    /// Returns the ledger, for other runs.
    #[must_use]
    pub fn into_ledger(self) -> Ledger {
        self.ledger
    }
}

impl Ledger {
    /// The ledger of one dataset, for a run.
    ///
    /// # Errors
    /// When there is no such dataset.
    pub fn dataset(
        mut self,
        name: &str,
        pricing: Arc<dyn Pricing + Send + Sync>,
    ) -> Result<DatasetLedger, StoreError> {
        let Some(dataset) = self.verified.state.datasets.get_mut(name) else {
            return Err(StoreError::Refused(match self.state().alike(name) {
                Some(alike) => format!("there is no dataset {name:?}; did you mean {alike:?}?"),
                None => format!("there is no dataset {name:?}; create its budget first"),
            }));
        };
        // The running total may come from another pricing.
        dataset.tally = Tally::default();
        let dataset = name.to_owned();
        Ok(DatasetLedger { ledger: self, dataset, run: None, hold: None, pricing })
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
        // The run that holds budget after these events.
        let mut holder = self.hold.as_ref().and(self.run.clone());
        for entry in &entries {
            match entry {
                Entry::Run { event: Event::Open(header), run, .. } => {
                    holder = header.plan.as_ref().map(|_| run.clone());
                }
                Entry::Run { event: Event::Close(_), .. } => holder = None,
                _ => {}
            }
        }
        let mut new_hold = None;
        let take_hold = |ledger: &Ledger| {
            let new = holder.as_ref().filter(|holder| self.run.as_ref() != Some(holder));
            if let Some(new) = new.filter(|_| new_hold.is_none()) {
                new_hold = Some(ledger.store.take_hold(new)?);
            }
            Ok(entries.clone())
        };
        self.ledger.append(take_hold, Some(&*self.pricing))?;
        if new_hold.is_some() || holder.is_none() {
            self.hold = new_hold;
        }
        self.run = run;
        Ok(())
    }

    fn visit(&self, visitor: &mut dyn FnMut(&Event)) -> Result<(), LedgerError> {
        self.ledger.visit_rows(&mut |sequence, bytes, _| {
            let entry = Entry::from_bytes(bytes)
                .map_err(|why| StoreError::Damaged(format!("row {sequence}: {why}")))?;
            // Imported rows are charged, too.
            if let Entry::Run { dataset, event, .. } = &entry.original()
                && *dataset == self.dataset
            {
                visitor(event);
            }
            Ok(())
        })?;
        Ok(())
    }

    fn kind(&self) -> LedgerKind {
        LedgerKind::Durable
    }
}
