//! The database: opened, verified, appended to.

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
use crate::hold::is_held;
use crate::place::{
    Identity, VersionError, anchor_path, beside, check_version, find, sync_directory,
};
use crate::schema::{STEPS, migrate};
use crate::state::{State, check};
use crate::witness::Witness;

/// Says that what is in the WAL stays there when the last handle closes.
const KEEP_LOG: DbConfig = DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE;
/// How long a process waits for another that writes, unless its options say otherwise.
const PATIENCE: Duration = Duration::from_secs(60);

/// So many rows at most are durable in the anchor only: syncing the WAL with every charge would take twice as long.
const MOST_LAGGING: usize = 16;
/// A WAL of so many bytes goes into the database.
const LONG_LOG: u64 = 4 << 20;
/// What a transaction writes besides its rows: the rest of a page of rows, and the page of the head.
const PAGES: u64 = 2 << 12;

/// Sees a row: its number, bytes and hash.
type Visitor<'a> = dyn FnMut(u64, &[u8], Hash) -> Result<(), StoreError> + 'a;

/// How a ledger is opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Serve a ledger on a network file system, whose locks and syncs may not be what they seem.
    pub allow_network: bool,
    /// How long to wait for another process that holds the ledger; then the answer is
    /// [`StoreError::Busy`], and nothing was appended. 60 seconds by default.
    pub patience: Duration,
    /// Where the head is written after every charge, besides the ledger.
    pub witness: Option<Witness>,
}

impl Default for Options {
    fn default() -> Self {
        Self { allow_network: false, patience: PATIENCE, witness: None }
    }
}

/// An open ledger.
///
/// # Guarantee
/// What it holds was verified against its chain and its anchor when it was opened, and every row that
/// others append is verified before it is believed. A handle whose files were replaced, that failed to
/// write, or that was copied into a forked child appends nothing.
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
/// // Whoever opens it verifies every row.
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
    /// The process that may append; `None` if it was opened to read.
    process: Option<ProcessIdentity>,
    patience: Duration,
    pub(crate) head: Head,
    pub(crate) state: State,
    /// Rows that the anchor holds and the database does not have yet.
    pub(crate) pending: Rows,
    /// The bytes of rows that this handle put into the database since its WAL was last synced. The anchor has
    /// them, durably.
    pub(crate) lagging: Vec<Vec<u8>>,
    /// How many bytes went into the WAL since it last went into the database.
    logged: u64,
    /// Whether there are rows of others that may not be on disk yet.
    pub(crate) unsettled: bool,
    pub(crate) poisoned: bool,
}

impl Ledger {
    /// Opens a ledger to charge it: verifies all of it, and notes a recovery if the database is ahead of
    /// its anchor.
    ///
    /// # Errors
    /// When it is not a ledger, does not verify, cannot be written, or lies on a network file system, or
    /// forked copies of this process could not be recognised.
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
        // Until all of it is verified, nothing of it may be tidied away when this handle closes.
        connection.set_db_config(KEEP_LOG, true)?;
        prepare(path, &connection, options.patience)?;
        if matches!(check_version(&connection), Err(VersionError::Backup)) {
            return Err(StoreError::Refused(format!(
                "{} is a backup, which lacks what was charged since; to go on from it, import it into a \
                 new ledger or into one that has those charges",
                path.display()
            )));
        }
        let process = ProcessIdentity::current()?;
        let mut ledger = Self::with(path, connection, anchor, Some(process), options.patience);
        // Most of it without keeping others waiting.
        ledger.catch_up()?;
        let _lock = ledger.anchor.lock(ledger.patience)?;
        let connection = &ledger.connection;
        let mode: String =
            connection.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get(0))?;
        if mode != "wal" {
            return Err(StoreError::Refused(format!("its journal cannot be a WAL, but is {mode}")));
        }
        // The WAL is synced here, not by SQLite: what it does not have for sure is in the anchor.
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
        // Processes that were killed may have left a long one.
        let log = std::fs::metadata(beside(path, "-wal"));
        ledger.logged = log.map_or(0, |log| log.len());
        ledger.connection.set_db_config(KEEP_LOG, false)?;
        ledger.witness = options.witness;
        Ok(ledger)
    }

    /// Opens a ledger to read it: verifies all of it and changes nothing.
    ///
    /// # Errors
    /// When it is not a ledger, does not verify, or lies on a network file system.
    pub fn read(path: &Path, options: Options) -> Result<Self, StoreError> {
        let path = find(path, options.allow_network)?;
        let path = path.as_path();
        let anchor = Anchor::open(path, false)?;
        let connection = open_to_read(path, options.patience)?;
        let mut ledger = Self::with(path, connection, anchor, None, options.patience);
        ledger.catch_up()?;
        Ok(ledger)
    }

    fn with(
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
            lagging: Vec::new(),
            logged: 0,
            unsettled: false,
            poisoned: false,
        }
    }

    /// Checks and appends rows, durably: the whole write path.
    pub(crate) fn append(
        &mut self,
        entries: impl FnOnce(&Self) -> Result<Vec<Entry>, StoreError>,
        pricing: Option<&dyn Pricing>,
    ) -> Result<(), StoreError> {
        let process = self
            .process
            .ok_or_else(|| StoreError::Refused("the ledger was opened to read".to_owned()))?;
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
        // Others need not wait for the witness.
        drop(lock);
        match &self.witness {
            Some(witness) if self.head.sequence > before => witness.see(&self.head),
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
                // Back to the state that is on disk.
                self.forget();
                self.catch_up()?;
                return Err(error);
            }
        };
        let Some((sequence, _, hash)) = rows.last() else { return Ok(()) };
        let head = Head { id: self.state.id.clone(), sequence: *sequence, hash: *hash };
        // The database first: if another process holds it, nothing has been written.
        if let Err(error) = execute(&self.connection, "BEGIN IMMEDIATE") {
            self.forget();
            self.catch_up()?;
            return Err(StoreError::Busy(error.to_string()));
        }
        // From here on the state on disk is unknown until all of it is written.
        self.poisoned = true;
        if let Err(error) = self.put(&head, rows) {
            // Other processes should not wait for a handle that failed.
            let _ = execute(&self.connection, "ROLLBACK");
            return Err(error);
        }
        self.head = head;
        self.poisoned = false;
        Ok(())
    }

    /// Puts rows into the database and ends the transaction that was begun; makes them durable, in the anchor
    /// if it has room for them, else in the database's WAL.
    fn put(&mut self, head: &Head, rows: Rows) -> Result<(), StoreError> {
        insert(&self.connection, &rows)?;
        execute(&self.connection, "COMMIT")?;
        self.logged += rows.iter().map(|(_, bytes, _)| bytes.len() as u64).sum::<u64>() + PAGES;
        self.lagging.extend(rows.into_iter().map(|(_, bytes, _)| bytes));
        let bytes = self.lagging.iter().map(|row| row.len() + 1).sum::<usize>();
        if self.lagging.len() <= MOST_LAGGING && bytes <= anchor::MOST {
            self.anchor.write(head, &self.lagging)?;
            return self.anchor.sync(false);
        }
        self.sync_log()?;
        self.anchor.write(head, &[])?;
        self.anchor.sync(false)?;
        if self.logged > LONG_LOG {
            self.connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()))?;
            self.logged = 0;
        }
        Ok(())
    }

    pub(crate) fn sync_log(&mut self) -> Result<(), StoreError> {
        let log = beside(&self.path, "-wal");
        // Closing another handle on it does no harm: SQLite keeps its locks elsewhere.
        std::fs::File::open(&log)
            .and_then(|file| file.sync_data())
            .map_err(|cause| file_error(&log, cause))?;
        self.lagging.clear();
        Ok(())
    }

    /// Takes rows into the state, checks the budgets that they touch, and forms what is to be stored.
    fn stage(
        &mut self,
        entries: &[Entry],
        pricing: Option<&dyn Pricing>,
    ) -> Result<Rows, StoreError> {
        let (mut sequence, mut hash) = (self.head.sequence, self.head.hash);
        let mut rows = Vec::with_capacity(entries.len());
        let (mut touched, mut plans) = (BTreeSet::new(), Vec::new());
        // Datasets that need budget beyond what running plans already hold.
        let mut more = BTreeSet::new();
        for entry in entries {
            sequence += 1;
            let begun = match entry {
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
            if let Some(budget) = begun {
                self.state.check_new(&budget.dataset).map_err(StoreError::Refused)?;
            }
            self.state.apply(sequence, entry).map_err(StoreError::Refused)?;
            // Only charges and plans need room; that a run ended or protects nothing is noted in any case.
            match entry {
                Entry::Run { event: Event::Reserve(_), dataset, run, .. } => {
                    touched.insert(dataset);
                    // A hold may have lapsed, if its file was deleted: other runs may hold that budget by now.
                    if !self.state.declared_plan(dataset, run) || !is_held(&self.path, run) {
                        more.insert(dataset);
                    }
                }
                Entry::Run {
                    event: Event::Open(RunHeader { plan: Some(plan), mode, .. }),
                    dataset,
                    ..
                } => {
                    touched.insert(dataset);
                    more.insert(dataset);
                    let folded: Result<Vec<_>, _> = plan.iter().map(Folded::try_from).collect();
                    let folded = folded.map_err(|error| StoreError::Refused(error.to_string()))?;
                    plans.push((dataset, (*mode == Mode::Planned, folded)));
                }
                _ => {}
            }
            let bytes = entry.to_bytes().map_err(StoreError::Refused)?;
            hash = hash.after(&bytes);
            rows.push((sequence, bytes, hash));
        }
        let Some(pricing) = pricing else { return Ok(rows) };
        for name in touched {
            // A charge within a plan has its budget reserved; any other charge must leave what running plans hold.
            let mut holding = BTreeSet::new();
            if more.contains(name) {
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
            let new = plans.iter().filter(|(of, _)| *of == name).map(|(_, plan)| plan.clone());
            dataset
                .check(pricing, &new.collect::<Vec<_>>(), &holding)
                .map_err(|why| StoreError::BudgetExhausted(format!("dataset {name:?}: {why}")))?;
        }
        Ok(rows)
    }

    pub(crate) fn forget(&mut self) {
        self.pending.clear();
        self.state = State::default();
        self.head = Head::default();
    }

    /// Begins a dataset with a budget.
    ///
    /// # Errors
    /// When the dataset has one, the terms are not valid, or the ledger cannot be written.
    pub fn create_budget(&mut self, budget: Budget) -> Result<(), StoreError> {
        check(&budget).map_err(StoreError::Refused)?;
        self.append(|_| Ok(vec![Entry::Budget { budget }]), None)
    }

    /// Lowers a budget.
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

    /// The runs of a dataset that hold room for their whole plans now, by their numbers: those that declared a plan,
    /// have not ended, and whose processes live on this host.
    pub fn holding(&self, dataset: &str) -> BTreeSet<u64> {
        let runs = self.state.datasets.get(dataset).into_iter().flat_map(|known| &known.runs);
        let open = runs
            .filter(|(_, run)| run.header.plan.is_some() && !run.closed && run.source.is_none());
        let held = open.filter(|(_, run)| is_held(&self.path, &run.id));
        held.map(|(number, _)| *number).collect()
    }

    /// What all rows together say.
    pub const fn state(&self) -> &State {
        &self.state
    }

    /// Where the chain ends.
    pub const fn head(&self) -> &Head {
        &self.head
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Shows every row: its number, bytes and hash.
    ///
    /// # Errors
    /// When the database cannot be read, or the visitor says so.
    pub fn visit_rows(&self, visitor: &mut Visitor<'_>) -> Result<(), StoreError> {
        let mut statement = self.connection.prepare_cached(
            "SELECT sequence, bytes, hash FROM event WHERE sequence <= ?1 ORDER BY sequence",
        )?;
        // What is pending may be in the database by now, and is shown once.
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
        // What only the anchor holds was charged as well.
        self.pending.iter().try_for_each(|(sequence, bytes, hash)| visitor(*sequence, bytes, *hash))
    }

    /// Whether the chain holds this head: what was published, or kept in a checkpoint.
    ///
    /// # Errors
    /// When it does not: the ledger was rolled back, or is another one.
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
        // After a failure, files are left as they are, for inspection.
        if self.poisoned || !self.lagging.is_empty() && self.sync_log().is_err() {
            let _ = self.connection.set_db_config(KEEP_LOG, true);
        }
    }
}

fn execute(connection: &Connection, statement: &str) -> rusqlite::Result<usize> {
    connection.prepare_cached(statement)?.execute([])
}

/// 32 hexadecimal digits, drawn at random.
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
