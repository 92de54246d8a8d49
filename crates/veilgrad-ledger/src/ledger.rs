//! Opening, verifying, reading and appending to a ledger.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use veilgrad_events::{
    Budget, Epsilon, Event, Folded, History, LedgerError, Mode, Pricing, ProcessIdentity, RunHeader,
};

use crate::author::Author;
use crate::chain::{Chained, Head};
use crate::entry::Entry;
use crate::error::StoreError;
use crate::files::anchor_path;
use crate::location::Location;
use crate::options::Options;
use crate::postgresql::Postgres;
use crate::sqlite::Sqlite;
use crate::state::{NewPlan, State, check_budget};
use crate::store::{Rows, Store, Verified, Visitor};
use crate::witness::Witness;

/// An open privacy ledger.
///
/// # Guarantee
/// All rows are verified against the hash chain and the anchor when the ledger is opened, and rows of other processes
/// before they are used. A handle whose files were replaced, whose write failed, or that was copied by a fork appends
/// nothing.
///
/// # Example
/// ```
/// use veilgrad_events::{Adjacency, Budget, Delta, Epsilon, Mode, RecordUnit};
/// use veilgrad_ledger::{Ledger, Options};
///
/// # let directory = std::env::temp_dir().join(format!("veilgrad-ledger-{}", std::process::id()));
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
/// drop(ledger);
/// // Opening it verifies every row.
/// let ledger = Ledger::read(&path, Options::default())?;
/// assert!(ledger.state().datasets().contains_key("visits"));
/// assert_eq!(ledger.head().sequence, 2); // the ledger and the budget
/// # std::fs::remove_dir_all(directory)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Ledger {
    location: Location,
    pub(crate) store: Box<dyn Store>,
    pub(crate) verified: Verified,
    witness: Option<Witness>,
    /// The process that may append; `None` if the ledger was opened read-only.
    process: Option<ProcessIdentity>,
}

impl Ledger {
    /// Opens a ledger to charge it. Verifies all of it. If a file is ahead of its anchor, appends a `recovered` row.
    ///
    /// # Errors
    /// When it is not a ledger, does not verify, cannot be written, or is on a network file system, or the identity of
    /// this process cannot be determined.
    pub fn open(location: impl Into<Location>, options: Options) -> Result<Self, StoreError> {
        let (location, mut verified) = (location.into(), Verified::default());
        let process = Some(ProcessIdentity::current()?);
        let store: Box<dyn Store> = match &location {
            Location::File(path) => Box::new(Sqlite::open(path, &options, &mut verified)?),
            Location::Postgres(address) => {
                Box::new(Postgres::open(address, &options, &mut verified)?)
            }
        };
        Ok(Self { location, store, verified, witness: options.witness, process })
    }

    /// Opens a ledger read-only: verifies all of it and changes nothing.
    ///
    /// # Errors
    /// When it is not a ledger, does not verify, or is on a network file system.
    pub fn read(location: impl Into<Location>, options: Options) -> Result<Self, StoreError> {
        let (location, mut verified) = (location.into(), Verified::default());
        let store: Box<dyn Store> = match &location {
            Location::File(path) => Box::new(Sqlite::read(path, &options, &mut verified)?),
            Location::Postgres(address) => {
                Box::new(Postgres::read(address, &options, &mut verified)?)
            }
        };
        Ok(Self { location, store, verified, witness: None, process: None })
    }

    /// Whether there is a ledger at a location. A damaged one counts.
    ///
    /// # Errors
    /// When a server cannot be asked.
    pub fn exists(location: &Location, options: &Options) -> Result<bool, StoreError> {
        match location {
            Location::File(path) => Ok(path.exists()),
            Location::Postgres(address) => Postgres::exists(address, options),
        }
    }

    /// Locks the ledger, catches up, and appends the rows that `entries` returns, durably.
    pub(crate) fn append(
        &mut self,
        mut entries: impl FnMut(&Self) -> Result<Vec<Entry>, StoreError>,
        pricing: Option<&dyn Pricing>,
    ) -> Result<(), StoreError> {
        self.check_writable()?;
        let before = self.verified.head.sequence;
        let mut attempt = |ledger: &mut Self| {
            let entries = entries(ledger)?;
            ledger.write(&entries, pricing)
        };
        // What fails without the lock is decided again with it, unless it is unknown what was written.
        let unlocked = self.store.may_append_unlocked().then(|| attempt(self));
        let appended = match unlocked {
            Some(Ok(())) => Ok(()),
            Some(Err(error)) if self.store.is_poisoned() => Err(error),
            _ => self.store.lock(&mut self.verified).and_then(|()| attempt(self)),
        };
        // Other processes need not wait for the witness.
        self.store.unlock();
        appended?;
        match &self.witness {
            Some(witness) if self.verified.head.sequence > before => {
                witness.record(&self.verified.head)
            }
            _ => Ok(()),
        }
    }

    /// Refuses a ledger that was opened read-only, by another process, or whose last write failed.
    pub(crate) fn check_writable(&self) -> Result<(), StoreError> {
        let process = self
            .process
            .ok_or_else(|| StoreError::Refused("the ledger was opened read-only".to_owned()))?;
        if !process.is_current() {
            return Err(StoreError::Refused(LedgerError::Forked.to_string()));
        }
        if self.store.is_poisoned() {
            return Err(StoreError::Refused(LedgerError::Poisoned.to_string()));
        }
        Ok(())
    }

    /// Appends rows; the caller holds the lock and has caught up.
    fn write(
        &mut self,
        entries: &[Entry],
        pricing: Option<&dyn Pricing>,
    ) -> Result<(), StoreError> {
        if entries.is_empty() {
            return Ok(());
        }
        let written = self.stage(entries, pricing).and_then(|rows| {
            let Some((sequence, _, hash)) = rows.last() else { return Ok(()) };
            let id = self.verified.state.id.clone();
            let head = Head { id, sequence: *sequence, hash: *hash };
            self.store.append(&head, rows)?;
            self.verified.head = head;
            Ok(())
        });
        if written.is_err() && !self.store.is_poisoned() {
            // Nothing was written: back to the stored state.
            self.verified = Verified::default();
            self.store.catch_up(&mut self.verified)?;
        }
        written
    }

    /// Applies entries to the state, checks the budgets of their datasets, and returns the rows to store.
    fn stage(
        &mut self,
        entries: &[Entry],
        pricing: Option<&dyn Pricing>,
    ) -> Result<Rows, StoreError> {
        let (mut sequence, mut hash) = (self.verified.head.sequence, self.verified.head.hash);
        let mut rows = Vec::with_capacity(entries.len());
        let (mut touched, mut plans) = (BTreeSet::new(), Vec::new());
        // Datasets that need budget beyond what running plans already hold.
        let mut needs_room = BTreeSet::new();
        for entry in entries {
            sequence += 1;
            let new_budget = match entry {
                Entry::Budget { budget } => Some(budget),
                Entry::Import { entry, .. } => match &**entry {
                    Entry::Budget { budget } => Some(budget).filter(|budget| {
                        let known = self.verified.state.datasets.contains_key(&budget.dataset);
                        !known && self.verified.state.has_lost_rows()
                    }),
                    _ => None,
                },
                _ => None,
            };
            if let Some(budget) = new_budget {
                self.verified.state.check_new(&budget.dataset).map_err(StoreError::Refused)?;
            }
            self.verified.state.apply(sequence, entry).map_err(StoreError::Refused)?;
            // Only charges and plans need room; other events are always appended.
            match entry {
                Entry::Run { event: Event::Reserve(_), dataset, run, .. } => {
                    touched.insert(dataset);
                    // If the file of a hold was deleted, other runs may hold that budget by now.
                    if !self.verified.state.declared_plan(dataset, run) || !self.is_held(run) {
                        needs_room.insert(dataset);
                    }
                }
                Entry::Run {
                    event: Event::Open(RunHeader { plan: Some(plan), mode, tuning, .. }),
                    dataset,
                    ..
                } => {
                    touched.insert(dataset);
                    needs_room.insert(dataset);
                    let folded: Result<Vec<_>, _> = plan.iter().map(Folded::try_from).collect();
                    let rounds = folded.map_err(|error| StoreError::Refused(error.to_string()))?;
                    let (planned, tuning) = (*mode == Mode::Planned, *tuning);
                    plans.push((dataset, NewPlan { planned, rounds, tuning }));
                }
                _ => {}
            }
            let bytes = entry.to_bytes().map_err(StoreError::Refused)?;
            hash = hash.after(&bytes);
            rows.push((sequence, bytes, hash));
        }
        let Some(pricing) = pricing else { return Ok(rows) };
        for name in touched {
            // A charge within a held plan has its budget reserved; any other charge must not use what running plans hold.
            let mut holding = BTreeSet::new();
            if needs_room.contains(name) {
                holding = self.holding(name);
                holding.retain(|number| *number <= self.verified.head.sequence);
            }
            let Some(dataset) = self.verified.state.datasets.get_mut(name) else { continue };
            if let Some(reason) = dataset.insecure() {
                return Err(StoreError::BudgetExhausted(format!(
                    "dataset {name:?} had a run that protects nothing ({reason}); its epsilon is \
                     infinite"
                )));
            }
            let new_plans =
                plans.iter().filter(|(dataset, _)| *dataset == name).map(|(_, plan)| plan.clone());
            dataset
                .check(pricing, &new_plans.collect::<Vec<_>>(), &holding)
                .map_err(|why| StoreError::BudgetExhausted(format!("dataset {name:?}: {why}")))?;
        }
        Ok(rows)
    }

    /// Creates a dataset with a budget.
    ///
    /// # Errors
    /// When the dataset has one, the budget is invalid, or the ledger cannot be written.
    pub fn create_budget(&mut self, budget: Budget) -> Result<(), StoreError> {
        check_budget(&budget).map_err(StoreError::Refused)?;
        self.append(|_| Ok(vec![Entry::Budget { budget: budget.clone() }]), None)
    }

    /// Lowers the epsilon of a budget.
    ///
    /// # Errors
    /// When there is no such dataset, or the budget would be raised.
    pub fn tighten(&mut self, dataset: &str, epsilon: Epsilon) -> Result<(), StoreError> {
        let dataset = dataset.to_owned();
        let tighten = |ledger: &Self| {
            let known = ledger.verified.state.datasets.get(&dataset);
            if known.is_some_and(|known| epsilon.get() > known.budget.epsilon.get()) {
                let why = "a budget may be lowered, never raised";
                return Err(StoreError::Refused(why.to_owned()));
            }
            Ok(vec![Entry::Tighten { dataset: dataset.clone(), epsilon }])
        };
        self.append(tighten, None)
    }

    /// The numbers of the runs of a dataset that hold budget for their whole plans now: those that declared a plan, are
    /// not closed, and whose processes are alive on this host.
    pub fn holding(&self, dataset: &str) -> BTreeSet<u64> {
        let runs =
            self.verified.state.datasets.get(dataset).into_iter().flat_map(|known| &known.runs);
        let open = runs
            .filter(|(_, run)| run.header.plan.is_some() && !run.closed && run.source.is_none());
        let (numbers, ids): (Vec<u64>, Vec<&str>) =
            open.map(|(number, run)| (*number, run.id.as_str())).unzip();
        let held = self.store.held(&ids);
        numbers.into_iter().zip(held).filter(|(_, held)| *held).map(|(number, _)| number).collect()
    }

    fn is_held(&self, run: &str) -> bool {
        self.store.held(&[run]).into_iter().all(|held| held)
    }

    /// The datasets, budgets and runs of the ledger.
    pub const fn state(&self) -> &State {
        &self.verified.state
    }

    /// The head of the hash chain.
    pub const fn head(&self) -> &Head {
        &self.verified.head
    }

    /// Where the ledger is.
    pub const fn location(&self) -> &Location {
        &self.location
    }

    /// Who wrote each row, by its number, in a ledger on a server; empty for a file.
    ///
    /// # Errors
    /// When the rows cannot be read.
    pub fn authors(&self) -> Result<BTreeMap<u64, Author>, StoreError> {
        self.store.authors()
    }

    /// Calls `visitor` with every row: its number, bytes and hash.
    ///
    /// # Errors
    /// When the rows cannot be read, or the visitor fails.
    pub fn visit_rows(&self, visitor: &mut Visitor<'_>) -> Result<(), StoreError> {
        self.store.visit(&self.verified, visitor)
    }

    /// Checks that the chain contains this head, such as a published one or that of a checkpoint.
    ///
    /// # Errors
    /// When it does not: the ledger was rolled back, or it is a different ledger.
    pub fn contains(&self, head: &Head) -> Result<(), StoreError> {
        if head.id != self.verified.head.id {
            return Err(StoreError::Damaged(format!(
                "it is ledger {}, and the head is of ledger {}",
                self.verified.head.id, head.id
            )));
        }
        match self.store.hash_of(head.sequence)? {
            Some(hash) if hash == head.hash => Ok(()),
            Some(_) => Err(StoreError::Damaged(format!(
                "row {} is not the one of the head: this is another branch",
                head.sequence
            ))),
            None => Err(StoreError::Damaged(format!(
                "it ends at row {}, and the head is row {}: it was rolled back",
                self.verified.head.sequence, head.sequence
            ))),
        }
    }

    /// The path of the anchor of a database.
    pub fn anchor_path(database: &Path) -> PathBuf {
        anchor_path(database)
    }
}

impl History for Ledger {
    fn contains(&self, head: &Head) -> Result<(), LedgerError> {
        Ok(Self::contains(self, head)?)
    }
}
