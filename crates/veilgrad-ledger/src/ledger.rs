//! Opening, verifying, reading and appending to a ledger.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags, OptionalExtension, TransactionBehavior};
use veilgrad_events::{
    Budget, Epsilon, Event, Folded, History, LedgerError, Mode, Pricing, ProcessIdentity, RunHeader,
};

use crate::anchor::{self, Anchor};
use crate::chain::{Chained, Hash, Head};
use crate::database::{Rows, insert, open_to_read, prepare};
use crate::entry::Entry;
use crate::error::{StoreError, file_error};
use crate::files::{
    Identity, VersionError, anchor_path, beside, check_version, find, sync_directory,
};
use crate::hold::is_held;
use crate::schema::{STEPS, migrate};
use crate::state::{NewPlan, State, check_budget};
use crate::witness::Witness;

/// The SQLite option that keeps the WAL when the last handle closes.
const KEEP_WAL: DbConfig = DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE;
/// The default time to wait for another process that writes.
const PATIENCE: Duration = Duration::from_secs(60);

/// The most rows that are durable in the anchor only. Syncing the WAL with every charge would take twice as long.
const MAX_UNSYNCED_ROWS: usize = 16;
/// A WAL with more bytes than this is checkpointed into the database.
const CHECKPOINT_BYTES: u64 = 4 << 20;
/// The bytes that a transaction writes besides its rows: the rest of a page of rows, and the page of the head.
const TRANSACTION_OVERHEAD: u64 = 2 << 12;

/// A function that is called with the number, bytes and hash of a row.
type Visitor<'a> = dyn FnMut(u64, &[u8], Hash) -> Result<(), StoreError> + 'a;

/// Options for opening a ledger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Allow a network file system, whose locks and syncs may not be reliable.
    pub allow_network: bool,
    /// How long to wait for another process that holds the ledger. After that the result is
    /// [`StoreError::Busy`], and nothing is appended. 60 seconds by default.
    pub patience: Duration,
    /// Where to write the head after every charge, in addition to the ledger.
    pub witness: Option<Witness>,
}

impl Default for Options {
    fn default() -> Self {
        Self { allow_network: false, patience: PATIENCE, witness: None }
    }
}

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
    pub(crate) path: PathBuf,
    pub(crate) connection: Connection,
    pub(crate) anchor: Anchor,
    identity: Identity,
    witness: Option<Witness>,
    /// The process that may append; `None` if the ledger was opened read-only.
    process: Option<ProcessIdentity>,
    patience: Duration,
    pub(crate) head: Head,
    pub(crate) state: State,
    /// Rows that are in the anchor but not in the database yet.
    pub(crate) pending: Rows,
    /// Rows that this handle committed since the WAL was last synced. They are durable in the anchor.
    pub(crate) unsynced: Vec<Vec<u8>>,
    /// The number of bytes written to the WAL since the last checkpoint.
    wal_bytes: u64,
    /// Whether rows of other processes may not be on disk yet.
    pub(crate) others_unsynced: bool,
    pub(crate) poisoned: bool,
}

impl Ledger {
    /// Opens a ledger to charge it. Verifies all of it, and appends a `recovered` row if the database is ahead of
    /// its anchor.
    ///
    /// # Errors
    /// When it is not a ledger, does not verify, cannot be written, or is on a network file system, or the identity of
    /// this process cannot be determined.
    pub fn open(path: &Path, options: Options) -> Result<Self, StoreError> {
        let path = find(path, options.allow_network)?;
        let path = path.as_path();
        let anchor = Anchor::open(path, true)?;
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(path, flags)?;
        if connection.is_readonly("main")? {
            return Err(StoreError::Refused(format!(
                "{} is read-only, and charges must be written",
                path.display()
            )));
        }
        // Until all of it is verified, closing this handle must not change the files.
        connection.set_db_config(KEEP_WAL, true)?;
        prepare(path, &connection, options.patience)?;
        if matches!(check_version(&connection), Err(VersionError::Backup)) {
            return Err(StoreError::Refused(format!(
                "{} is a backup, which lacks what was charged since; to continue from it, import it into a \
                 new ledger or into one that has those charges",
                path.display()
            )));
        }
        let process = ProcessIdentity::current()?;
        let mut ledger = Self::new(path, connection, anchor, Some(process), options.patience);
        // Reads most of it before the lock is taken, so that others wait less.
        ledger.catch_up()?;
        let _lock = ledger.anchor.lock(ledger.patience)?;
        let connection = &ledger.connection;
        let mode: String =
            connection.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get(0))?;
        if mode != "wal" {
            return Err(StoreError::Refused(format!("its journal cannot be a WAL, but is {mode}")));
        }
        // This code syncs the WAL, not SQLite: rows that are not synced are durable in the anchor.
        ledger.connection.pragma_update(None, "synchronous", "NORMAL")?;
        ledger.connection.pragma_update(None, "wal_autocheckpoint", 0)?;
        if let Err(VersionError::Old(version)) = check_version(&ledger.connection) {
            let transaction =
                ledger.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            migrate(&transaction, &STEPS, version)?;
            transaction.commit()?;
        }
        // The process that created the WAL may have died before its directory entry was on disk.
        sync_directory(path)?;
        ledger.recover()?;
        ledger.identity = Identity::of(path);
        // Killed processes may have left a long WAL.
        let wal = std::fs::metadata(beside(path, "-wal"));
        ledger.wal_bytes = wal.map_or(0, |wal| wal.len());
        ledger.connection.set_db_config(KEEP_WAL, false)?;
        ledger.witness = options.witness;
        Ok(ledger)
    }

    /// Opens a ledger read-only: verifies all of it and changes nothing.
    ///
    /// # Errors
    /// When it is not a ledger, does not verify, or is on a network file system.
    pub fn read(path: &Path, options: Options) -> Result<Self, StoreError> {
        let path = find(path, options.allow_network)?;
        let path = path.as_path();
        let anchor = Anchor::open(path, false)?;
        let connection = open_to_read(path, options.patience)?;
        let mut ledger = Self::new(path, connection, anchor, None, options.patience);
        ledger.catch_up()?;
        Ok(ledger)
    }

    fn new(
        path: &Path,
        connection: Connection,
        anchor: Anchor,
        process: Option<ProcessIdentity>,
        patience: Duration,
    ) -> Self {
        Self {
            path: path.to_owned(),
            connection,
            anchor,
            identity: Identity::of(path),
            witness: None,
            process,
            patience,
            head: Head::default(),
            state: State::default(),
            pending: Vec::new(),
            unsynced: Vec::new(),
            wal_bytes: 0,
            others_unsynced: false,
            poisoned: false,
        }
    }

    /// Locks the ledger, catches up, and appends the rows that `entries` returns, durably.
    pub(crate) fn append(
        &mut self,
        entries: impl FnOnce(&Self) -> Result<Vec<Entry>, StoreError>,
        pricing: Option<&dyn Pricing>,
    ) -> Result<(), StoreError> {
        let process = self
            .process
            .ok_or_else(|| StoreError::Refused("the ledger was opened read-only".to_owned()))?;
        if !process.is_current() {
            return Err(StoreError::Refused(LedgerError::Forked.to_string()));
        }
        if self.poisoned {
            return Err(StoreError::Refused(LedgerError::Poisoned.to_string()));
        }
        let lock = self.anchor.lock(self.patience)?;
        if self.identity != Identity::of(&self.path) {
            self.poisoned = true;
            return Err(StoreError::Damaged(
                "its files were removed or replaced while it was open".to_owned(),
            ));
        }
        let before = self.head.sequence;
        self.recover()?;
        let entries = entries(self)?;
        self.write(&entries, pricing)?;
        // Other processes need not wait for the witness.
        drop(lock);
        match &self.witness {
            Some(witness) if self.head.sequence > before => witness.record(&self.head),
            _ => Ok(()),
        }
    }

    /// Appends rows; the caller holds the lock and has caught up.
    pub(crate) fn write(
        &mut self,
        entries: &[Entry],
        pricing: Option<&dyn Pricing>,
    ) -> Result<(), StoreError> {
        if entries.is_empty() {
            return Ok(());
        }
        let rows = match self.stage(entries, pricing) {
            Ok(rows) => rows,
            Err(error) => {
                // Back to the state on disk.
                self.reset();
                self.catch_up()?;
                return Err(error);
            }
        };
        let Some((sequence, _, hash)) = rows.last() else { return Ok(()) };
        let head = Head { id: self.state.id.clone(), sequence: *sequence, hash: *hash };
        // The database first: if another process holds it, nothing has been written.
        if let Err(error) = execute(&self.connection, "BEGIN IMMEDIATE") {
            self.reset();
            self.catch_up()?;
            return Err(StoreError::Busy(error.to_string()));
        }
        // From here on the state on disk is unknown until all of it is written.
        self.poisoned = true;
        if let Err(error) = self.commit(&head, rows) {
            // Other processes should not wait for a handle that failed.
            let _ = execute(&self.connection, "ROLLBACK");
            return Err(error);
        }
        self.head = head;
        self.poisoned = false;
        Ok(())
    }

    /// Commits rows in the open transaction and makes them durable: in the anchor if it has room for them, else in the
    /// database's WAL.
    fn commit(&mut self, head: &Head, rows: Rows) -> Result<(), StoreError> {
        insert(&self.connection, &rows)?;
        execute(&self.connection, "COMMIT")?;
        let bytes: u64 = rows.iter().map(|(_, bytes, _)| bytes.len() as u64).sum();
        self.wal_bytes += bytes + TRANSACTION_OVERHEAD;
        self.unsynced.extend(rows.into_iter().map(|(_, bytes, _)| bytes));
        let bytes = self.unsynced.iter().map(|row| row.len() + 1).sum::<usize>();
        if self.unsynced.len() <= MAX_UNSYNCED_ROWS && bytes <= anchor::MAX_ROW_BYTES {
            self.anchor.write(head, &self.unsynced)?;
            return self.anchor.sync(false);
        }
        self.sync_wal()?;
        self.anchor.write(head, &[])?;
        self.anchor.sync(false)?;
        if self.wal_bytes > CHECKPOINT_BYTES {
            self.connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()))?;
            self.wal_bytes = 0;
        }
        Ok(())
    }

    pub(crate) fn sync_wal(&mut self) -> Result<(), StoreError> {
        let wal = beside(&self.path, "-wal");
        // Opening and closing the WAL is harmless: SQLite has no locks on this file.
        std::fs::File::open(&wal)
            .and_then(|file| file.sync_data())
            .map_err(|cause| file_error(&wal, cause))?;
        self.unsynced.clear();
        Ok(())
    }

    /// Applies entries to the state, checks the budgets of their datasets, and returns the rows to store.
    fn stage(
        &mut self,
        entries: &[Entry],
        pricing: Option<&dyn Pricing>,
    ) -> Result<Rows, StoreError> {
        let (mut sequence, mut hash) = (self.head.sequence, self.head.hash);
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
                        let known = self.state.datasets.contains_key(&budget.dataset);
                        !known && self.state.has_lost_rows()
                    }),
                    _ => None,
                },
                _ => None,
            };
            if let Some(budget) = new_budget {
                self.state.check_new(&budget.dataset).map_err(StoreError::Refused)?;
            }
            self.state.apply(sequence, entry).map_err(StoreError::Refused)?;
            // Only charges and plans need room; other events are always appended.
            match entry {
                Entry::Run { event: Event::Reserve(_), dataset, run, .. } => {
                    touched.insert(dataset);
                    // If the file of a hold was deleted, other runs may hold that budget by now.
                    if !self.state.declared_plan(dataset, run) || !is_held(&self.path, run) {
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
                holding.retain(|number| *number <= self.head.sequence);
            }
            let Some(dataset) = self.state.datasets.get_mut(name) else { continue };
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

    pub(crate) fn reset(&mut self) {
        self.pending.clear();
        self.state = State::default();
        self.head = Head::default();
    }

    /// Creates a dataset with a budget.
    ///
    /// # Errors
    /// When the dataset has one, the budget is invalid, or the ledger cannot be written.
    pub fn create_budget(&mut self, budget: Budget) -> Result<(), StoreError> {
        check_budget(&budget).map_err(StoreError::Refused)?;
        self.append(|_| Ok(vec![Entry::Budget { budget }]), None)
    }

    /// Lowers the epsilon of a budget.
    ///
    /// # Errors
    /// When there is no such dataset, or the budget would be raised.
    pub fn tighten(&mut self, dataset: &str, epsilon: Epsilon) -> Result<(), StoreError> {
        let dataset = dataset.to_owned();
        let tighten = |ledger: &Self| {
            let known = ledger.state.datasets.get(&dataset);
            if known.is_some_and(|known| epsilon.get() > known.budget.epsilon.get()) {
                let why = "a budget may be lowered, never raised";
                return Err(StoreError::Refused(why.to_owned()));
            }
            Ok(vec![Entry::Tighten { dataset, epsilon }])
        };
        self.append(tighten, None)
    }

    /// The numbers of the runs of a dataset that hold budget for their whole plans now: those that declared a plan, are
    /// not closed, and whose processes are alive on this host.
    pub fn holding(&self, dataset: &str) -> BTreeSet<u64> {
        let runs = self.state.datasets.get(dataset).into_iter().flat_map(|known| &known.runs);
        let open = runs
            .filter(|(_, run)| run.header.plan.is_some() && !run.closed && run.source.is_none());
        let held = open.filter(|(_, run)| is_held(&self.path, &run.id));
        held.map(|(number, _)| *number).collect()
    }

    /// The datasets, budgets and runs of the ledger.
    pub const fn state(&self) -> &State {
        &self.state
    }

    /// The head of the hash chain.
    pub const fn head(&self) -> &Head {
        &self.head
    }

    /// The path of the database.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Calls `visitor` with every row: its number, bytes and hash.
    ///
    /// # Errors
    /// When the database cannot be read, or the visitor fails.
    pub fn visit_rows(&self, visitor: &mut Visitor<'_>) -> Result<(), StoreError> {
        let mut statement = self.connection.prepare_cached(
            "SELECT sequence, bytes, hash FROM event WHERE sequence <= ?1 ORDER BY sequence",
        )?;
        // Pending rows may be in the database by now; they are visited once.
        let stored = self.head.sequence.saturating_sub(self.pending.len() as u64);
        let last = i64::try_from(stored).unwrap_or(i64::MAX);
        let mut rows = statement.query([last])?;
        while let Some(row) = rows.next()? {
            let sequence: i64 = row.get(0)?;
            let (bytes, hash): (Vec<u8>, Vec<u8>) = (row.get(1)?, row.get(2)?);
            let hash = Hash::from_slice(&hash)
                .ok_or_else(|| StoreError::Damaged(format!("row {sequence} has no hash")))?;
            visitor(u64::try_from(sequence).unwrap_or(0), &bytes, hash)?;
        }
        // Rows that are only in the anchor are charged as well.
        self.pending.iter().try_for_each(|(sequence, bytes, hash)| visitor(*sequence, bytes, *hash))
    }

    /// Checks that the chain contains this head, such as a published one or that of a checkpoint.
    ///
    /// # Errors
    /// When it does not: the ledger was rolled back, or it is a different ledger.
    pub fn contains(&self, head: &Head) -> Result<(), StoreError> {
        if head.id != self.head.id {
            return Err(StoreError::Damaged(format!(
                "it is ledger {}, and the head is of ledger {}",
                self.head.id, head.id
            )));
        }
        let sequence = i64::try_from(head.sequence).unwrap_or(i64::MAX);
        let hash: Option<Vec<u8>> = self
            .connection
            .query_row("SELECT hash FROM event WHERE sequence = ?1", [sequence], |row| row.get(0))
            .optional()?;
        let pending = self.pending.iter().find(|(sequence, _, _)| *sequence == head.sequence);
        let stored = hash.as_deref().and_then(Hash::from_slice);
        match stored.or(pending.map(|(_, _, hash)| *hash)) {
            Some(hash) if hash == head.hash => Ok(()),
            Some(_) => Err(StoreError::Damaged(format!(
                "row {} is not the one of the head: this is another branch",
                head.sequence
            ))),
            None => Err(StoreError::Damaged(format!(
                "it ends at row {}, and the head is row {}: it was rolled back",
                self.head.sequence, head.sequence
            ))),
        }
    }

    /// The path of the anchor of a database.
    pub fn anchor_path(database: &Path) -> PathBuf {
        anchor_path(database)
    }
}

impl Drop for Ledger {
    fn drop(&mut self) {
        // After a failure, the files are left unchanged for inspection.
        if self.poisoned || !self.unsynced.is_empty() && self.sync_wal().is_err() {
            let _ = self.connection.set_db_config(KEEP_WAL, true);
        }
    }
}

fn execute(connection: &Connection, statement: &str) -> rusqlite::Result<usize> {
    connection.prepare_cached(statement)?.execute([])
}

/// 32 random hexadecimal digits.
pub(crate) fn random_id() -> Result<String, StoreError> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)
        .map_err(|error| StoreError::Refused(format!("no random numbers: {error}")))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

impl History for Ledger {
    fn contains(&self, head: &Head) -> Result<(), LedgerError> {
        Ok(Self::contains(self, head)?)
    }
}
