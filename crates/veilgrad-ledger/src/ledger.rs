//! The database: opened, verified, appended to.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rusqlite::{Connection, OpenFlags, OptionalExtension, TransactionBehavior};
use veilgrad_events::{Budget, Epsilon, Event, LedgerError, LedgerStore, Pricing};

use crate::anchor::{self, Anchor, Anchored};
use crate::chain::{Hash, Head};
use crate::entry::Entry;
use crate::error::StoreError;
use crate::state::{State, check};

/// Says in the database's header that this is a ledger: "VeiL".
const APPLICATION: i32 = 0x5665_694c;
/// The version of the tables and of the meaning of rows.
const SCHEMA: i32 = 1;
/// How long a process waits for another that writes.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(60);

const TABLES: &str = "
CREATE TABLE event (
    sequence INTEGER PRIMARY KEY CHECK (sequence > 0),
    bytes BLOB NOT NULL,
    hash BLOB NOT NULL CHECK (length(hash) = 32)
) STRICT;
CREATE TABLE head (
    only INTEGER PRIMARY KEY CHECK (only = 1),
    sequence INTEGER NOT NULL,
    hash BLOB NOT NULL CHECK (length(hash) = 32)
) STRICT;
CREATE TRIGGER event_update BEFORE UPDATE ON event
BEGIN SELECT RAISE(ABORT, 'events are never changed'); END;
CREATE TRIGGER event_delete BEFORE DELETE ON event
BEGIN SELECT RAISE(ABORT, 'events are never deleted'); END;
";

/// Rows to be stored: number, bytes, hash.
type Rows = Vec<(u64, Vec<u8>, Hash)>;

/// Sees a row: its number, bytes and hash.
type Visitor<'a> = dyn FnMut(u64, &[u8], Hash) -> Result<(), StoreError> + 'a;

/// How a ledger is opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Options {
    /// Serve a ledger on a network file system, whose locks and syncs may not be what they seem.
    pub allow_network: bool,
}

/// An open ledger.
///
/// # Guarantee
/// What it holds was verified against its chain and its anchor when it was opened, and every row that
/// others append is verified before it is believed.
pub struct Ledger {
    path: PathBuf,
    connection: Connection,
    anchor: Anchor,
    head: Head,
    state: State,
    /// Rows that the anchor holds and the database does not have yet.
    pending: Rows,
    poisoned: bool,
}

impl Ledger {
    /// Creates an empty ledger; refuses a path that is taken.
    ///
    /// # Errors
    /// When there is a file already, or the files cannot be written.
    pub fn create(path: &Path, options: Options) -> Result<Self, StoreError> {
        Self::create_with(path, options, &[Entry::Create { id: random_id()? }])
    }

    /// Creates a ledger with these first rows.
    pub(crate) fn create_with(
        path: &Path,
        options: Options,
        entries: &[Entry],
    ) -> Result<Self, StoreError> {
        check_file_system(path, options)?;
        let mut open = std::fs::OpenOptions::new();
        open.write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut open, 0o600);
        open.open(path).map_err(|cause| file_error(path, cause))?;
        let anchor = Anchor::create(path)?;
        let mut connection = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
        prepare(&connection)?;
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        transaction.execute_batch(TABLES)?;
        transaction.pragma_update(None, "application_id", APPLICATION)?;
        transaction.pragma_update(None, "user_version", SCHEMA)?;
        transaction
            .execute("INSERT INTO head VALUES (1, 0, ?1)", [Hash::default().0.as_slice()])?;
        transaction.commit()?;
        let mut ledger = Self {
            path: path.to_owned(),
            connection,
            anchor,
            head: Head { id: String::new(), sequence: 0, hash: Hash::default() },
            state: State::default(),
            pending: Vec::new(),
            poisoned: false,
        };
        ledger.write(entries, None)?;
        sync_directory(path)?;
        Ok(ledger)
    }

    /// Opens a ledger to charge it: verifies all of it, and notes a recovery if the database is ahead of
    /// its anchor.
    ///
    /// # Errors
    /// When it is no ledger, does not verify, or lies on a network file system.
    pub fn open(path: &Path, options: Options) -> Result<Self, StoreError> {
        check_file_system(path, options)?;
        let mut ledger = Self::load(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
        let _lock = ledger.anchor.lock()?;
        ledger.recover()?;
        Ok(ledger)
    }

    /// Opens a ledger to read it: verifies all of it and changes nothing.
    ///
    /// # Errors
    /// When it is no ledger or does not verify.
    pub fn read(path: &Path) -> Result<Self, StoreError> {
        let mut ledger = Self::load(path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
        ledger.catch_up()?;
        Ok(ledger)
    }

    fn load(path: &Path, flags: OpenFlags) -> Result<Self, StoreError> {
        let metadata = std::fs::metadata(path).map_err(|cause| file_error(path, cause))?;
        let not = |why: &str| not_a_ledger(path, why);
        if !metadata.is_file() {
            return Err(not("is not a file"));
        }
        let flags = flags | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(path, flags)?;
        prepare(&connection).map_err(|error| not(&error.to_string()))?;
        let pragma = |name: &str| -> Result<i32, StoreError> {
            connection
                .pragma_query_value(None, name, |row| row.get(0))
                .map_err(|error| not(&error.to_string()))
        };
        if pragma("application_id")? != APPLICATION {
            return Err(not("is another program's database, or an empty one"));
        }
        let schema = pragma("user_version")?;
        if schema != SCHEMA {
            return Err(not(&format!(
                "has schema {schema}, and this version understands schema {SCHEMA}"
            )));
        }
        let writable = flags.contains(OpenFlags::SQLITE_OPEN_READ_WRITE);
        Ok(Self {
            path: path.to_owned(),
            connection,
            anchor: Anchor::open(path, writable)?,
            head: Head { id: String::new(), sequence: 0, hash: Hash::default() },
            state: State::default(),
            pending: Vec::new(),
            poisoned: false,
        })
    }

    /// Catches up and completes what a writer that died left behind; whatever is anywhere was charged.
    fn recover(&mut self) -> Result<(), StoreError> {
        let anchored = self.catch_up()?;
        if !self.pending.is_empty() {
            let rows = std::mem::take(&mut self.pending);
            self.poisoned = true;
            self.commit(&rows)?;
            self.poisoned = false;
        }
        if anchored < self.head.sequence {
            self.write(&[Entry::Recovered { anchored }], None)?;
        }
        Ok(())
    }

    /// Verifies and takes in all rows that are not known yet; returns the sequence of the anchor.
    fn catch_up(&mut self) -> Result<u64, StoreError> {
        // The anchor first: whatever it names is in the database, unless that lost something.
        let anchored = self.anchor.read()?;
        let damaged = |why: String| StoreError::Damaged(why);
        let head = {
            let transaction = self.connection.unchecked_transaction()?;
            let mut statement = transaction.prepare_cached(
                "SELECT sequence, bytes, hash FROM event WHERE sequence > ?1 ORDER BY sequence",
            )?;
            let after = i64::try_from(self.head.sequence)
                .map_err(|_| damaged("too many rows".to_owned()))?;
            let mut rows = statement.query([after]).map_err(damaged_database)?;
            while let Some(row) = rows.next().map_err(damaged_database)? {
                let sequence: i64 = row.get(0).map_err(damaged_database)?;
                let bytes: Vec<u8> = row.get(1).map_err(damaged_database)?;
                let stored: Vec<u8> = row.get(2).map_err(damaged_database)?;
                let expected = self.head.sequence + 1;
                if u64::try_from(sequence) != Ok(expected) {
                    return Err(damaged(format!("row {expected} is missing")));
                }
                let hash = self.head.hash.after(&bytes);
                if Hash::from_slice(&stored) != Some(hash) {
                    return Err(damaged(format!("row {expected} does not have its hash")));
                }
                let entry = Entry::from_bytes(&bytes)
                    .map_err(|why| damaged(format!("row {expected}: {why}")))?;
                self.state
                    .apply(expected, &entry)
                    .map_err(|why| damaged(format!("row {expected}: {why}")))?;
                self.head = Head { id: self.state.id.clone(), sequence: expected, hash };
                if let Some(anchored) = &anchored
                    && anchored.head.sequence == expected
                    && anchored.head != self.head
                {
                    return Err(damaged(format!(
                        "row {expected} is not the one that was anchored"
                    )));
                }
            }
            let mut statement = transaction.prepare_cached("SELECT sequence, hash FROM head")?;
            let head: Option<(i64, Vec<u8>)> = statement
                .query_row([], |row| Ok((row.get(0)?, row.get(1)?)))
                .optional()
                .map_err(damaged_database)?;
            head
        };
        let (sequence, hash) = head.ok_or_else(|| damaged("it has no head".to_owned()))?;
        let ours = (i64::try_from(self.head.sequence).ok(), Some(self.head.hash));
        if ours != (Some(sequence), Hash::from_slice(&hash)) {
            return Err(damaged(format!(
                "its head is row {sequence}, and its rows end at {}",
                self.head.sequence
            )));
        }
        let anchored =
            anchored.ok_or_else(|| damaged("no slot of its anchor verifies".to_owned()))?;
        if anchored.head.id != self.head.id {
            return Err(damaged("its anchor is another ledger's".to_owned()));
        }
        if anchored.head.sequence > self.head.sequence {
            self.complete(&anchored)?;
        }
        Ok(anchored.head.sequence)
    }

    /// Takes in the rows of an anchor that the database does not have; they must go on where it ends.
    fn complete(&mut self, anchored: &Anchored) -> Result<(), StoreError> {
        let lost = || {
            StoreError::Damaged(format!(
                "it ends at row {}, and row {} was anchored: rows were lost",
                self.head.sequence, anchored.head.sequence
            ))
        };
        let (mut sequence, mut hash) = (self.head.sequence, self.head.hash);
        let mut rows = Vec::new();
        for bytes in &anchored.rows {
            sequence += 1;
            hash = hash.after(bytes);
            rows.push((sequence, bytes.clone(), hash));
        }
        if (sequence, hash) != (anchored.head.sequence, anchored.head.hash) {
            return Err(lost());
        }
        for (sequence, bytes, _) in &rows {
            let entry = Entry::from_bytes(bytes)
                .and_then(|entry| self.state.apply(*sequence, &entry).map(|()| entry));
            entry.map_err(|why| StoreError::Damaged(format!("anchored row {sequence}: {why}")))?;
        }
        self.head = anchored.head.clone();
        self.pending = rows;
        Ok(())
    }

    /// Checks and appends rows, durably: the whole write path.
    fn append(
        &mut self,
        entries: impl FnOnce(&State, u64) -> Result<Vec<Entry>, StoreError>,
        pricing: Option<&dyn Pricing>,
    ) -> Result<(), StoreError> {
        if self.poisoned {
            return Err(StoreError::Refused(LedgerError::Poisoned.to_string()));
        }
        let _lock = self.anchor.lock()?;
        self.recover()?;
        let entries = entries(&self.state, self.head.sequence + 1)?;
        self.write(&entries, pricing)
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
        let rows = match self.stage(entries, pricing) {
            Ok(rows) => rows,
            Err(error) => {
                // What is not on disk is not believed: back to what is.
                self.forget();
                self.catch_up()?;
                return Err(error);
            }
        };
        let Some((sequence, _, hash)) = rows.last() else { return Ok(()) };
        let head = Head { id: self.state.id.clone(), sequence: *sequence, hash: *hash };
        // From here on nobody knows what is on disk until all of it is.
        self.poisoned = true;
        let bytes: Vec<&[u8]> = rows.iter().map(|(_, bytes, _)| bytes.as_slice()).collect();
        if bytes.iter().map(|row| row.len() + 1).sum::<usize>() <= anchor::MOST {
            // Either can be completed from the other, so both may reach the disk at once.
            self.anchor.write(&head, &bytes)?;
            let anchor = self.anchor.handle()?;
            let synced = std::thread::spawn(move || anchor.sync());
            let committed = self.commit(&rows);
            let synced = synced
                .join()
                .map_err(|_| StoreError::Refused("the anchor could not be synced".to_owned()))?;
            committed.and(synced)?;
        } else {
            self.commit(&rows)?;
            self.anchor.write(&head, &[])?;
            self.anchor.sync()?;
        }
        self.head = head;
        self.poisoned = false;
        Ok(())
    }

    /// Puts rows and the head into the database, durably.
    fn commit(&mut self, rows: &Rows) -> Result<(), StoreError> {
        let number = |sequence: u64| {
            i64::try_from(sequence).map_err(|_| StoreError::Refused("too many rows".to_owned()))
        };
        let transaction =
            self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        {
            let mut insert = transaction.prepare_cached("INSERT INTO event VALUES (?1, ?2, ?3)")?;
            let mut update =
                transaction.prepare_cached("UPDATE head SET sequence = ?1, hash = ?2")?;
            for (sequence, bytes, hash) in rows {
                insert.execute(rusqlite::params![number(*sequence)?, bytes, hash.0])?;
            }
            if let Some((sequence, _, hash)) = rows.last()
                && update.execute(rusqlite::params![number(*sequence)?, hash.0])? != 1
            {
                return Err(StoreError::Damaged("it has no head".to_owned()));
            }
        }
        Ok(transaction.commit()?)
    }

    /// Takes rows into the state, checks the budgets that they touch, and forms what is to be stored.
    fn stage(
        &mut self,
        entries: &[Entry],
        pricing: Option<&dyn Pricing>,
    ) -> Result<Rows, StoreError> {
        let (mut sequence, mut hash) = (self.head.sequence, self.head.hash);
        let mut rows = Vec::with_capacity(entries.len());
        let mut touched = BTreeSet::new();
        for entry in entries {
            sequence += 1;
            self.state.apply(sequence, entry).map_err(StoreError::Refused)?;
            // Only charges need room; that a run ended or protects nothing is noted in any case.
            if matches!(entry, Entry::Run { event: Event::Reserve(_), .. }) {
                touched.extend(entry.dataset());
            }
            let bytes = entry.to_bytes().map_err(StoreError::Refused)?;
            hash = hash.after(&bytes);
            rows.push((sequence, bytes, hash));
        }
        let Some(pricing) = pricing else { return Ok(rows) };
        for dataset in touched.into_iter().filter_map(|name| self.state.datasets.get(name)) {
            let name = &dataset.budget.dataset;
            if let Some(reason) = dataset.insecure() {
                return Err(StoreError::BudgetExhausted(format!(
                    "dataset {name:?} had a run that protects nothing ({reason}); its epsilon is \
                     infinite"
                )));
            }
            pricing
                .check(&dataset.budget, &mut dataset.rounds())
                .map_err(|why| StoreError::BudgetExhausted(format!("dataset {name:?}: {why}")))?;
        }
        Ok(rows)
    }

    fn forget(&mut self) {
        self.pending.clear();
        self.state = State::default();
        self.head = Head { id: String::new(), sequence: 0, hash: Hash::default() };
    }

    /// Begins a dataset with a budget.
    ///
    /// # Errors
    /// When the dataset has one, the terms make no sense, or the ledger cannot be written.
    pub fn create_budget(&mut self, budget: Budget) -> Result<(), StoreError> {
        check(&budget).map_err(StoreError::Refused)?;
        self.append(|_, _| Ok(vec![Entry::Budget { budget }]), None)
    }

    /// Lowers a budget.
    ///
    /// # Errors
    /// When there is no such dataset, or the budget would be raised.
    pub fn tighten(&mut self, dataset: &str, epsilon: Epsilon) -> Result<(), StoreError> {
        let dataset = dataset.to_owned();
        self.append(|_, _| Ok(vec![Entry::Tighten { dataset, epsilon }]), None)
    }

    pub(crate) fn append_import(
        &mut self,
        entries: impl FnOnce(&State) -> Result<Vec<Entry>, StoreError>,
    ) -> Result<u64, StoreError> {
        let mut count = 0;
        self.append(
            |state, _| {
                let entries = entries(state)?;
                count = entries.len() as u64;
                Ok(entries)
            },
            None,
        )?;
        Ok(count)
    }

    /// The store of one dataset, for a run.
    ///
    /// # Errors
    /// When there is no such dataset.
    pub fn dataset(
        self,
        name: &str,
        pricing: Arc<dyn Pricing + Send + Sync>,
    ) -> Result<DatasetLedger, StoreError> {
        if !self.state.datasets.contains_key(name) {
            return Err(StoreError::Refused(format!(
                "there is no dataset {name:?}; create its budget first"
            )));
        }
        Ok(DatasetLedger { ledger: self, dataset: name.to_owned(), run: None, pricing })
    }

    /// What all rows together say.
    #[must_use]
    pub const fn state(&self) -> &State {
        &self.state
    }

    /// Where the chain ends.
    #[must_use]
    pub const fn head(&self) -> &Head {
        &self.head
    }

    /// The file.
    #[must_use]
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
        let last = i64::try_from(self.head.sequence).unwrap_or(i64::MAX);
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
}

/// The ledger of one dataset: what a [`Run`](veilgrad_events::Run) charges.
///
/// # Guarantee
/// The check of the budget, the charge and the anchor are one step for all processes; after an error that
/// leaves it unknown what is on disk, this handle refuses everything.
pub struct DatasetLedger {
    ledger: Ledger,
    dataset: String,
    run: Option<u64>,
    pricing: Arc<dyn Pricing + Send + Sync>,
}

impl DatasetLedger {
    /// The ledger, to read.
    #[must_use]
    pub const fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// The ledger, for other runs.
    #[must_use]
    pub fn into_ledger(self) -> Ledger {
        self.ledger
    }
}

impl LedgerStore for DatasetLedger {
    fn append(&mut self, events: &[Event]) -> Result<(), LedgerError> {
        let (dataset, run, nonce) = (self.dataset.clone(), self.run, random_id()?);
        let mut opened = run;
        let pricing = Arc::clone(&self.pricing);
        self.ledger.append(
            |_, next| {
                let row = |(index, event): (usize, &Event)| {
                    if matches!(event, Event::Open(_)) {
                        opened = Some(next + index as u64);
                    }
                    let run = opened.ok_or_else(|| {
                        StoreError::Refused("an event before its run was opened".to_owned())
                    })?;
                    let (dataset, nonce) = (dataset.clone(), nonce.clone());
                    Ok(Entry::Run { dataset, run, nonce, event: event.clone() })
                };
                events.iter().enumerate().map(row).collect()
            },
            Some(&*pricing),
        )?;
        self.run = opened;
        Ok(())
    }

    fn visit(&self, visitor: &mut dyn FnMut(&Event)) -> Result<(), LedgerError> {
        self.ledger.visit_rows(&mut |sequence, bytes, _| {
            let entry = Entry::from_bytes(bytes)
                .map_err(|why| StoreError::Damaged(format!("row {sequence}: {why}")))?;
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

fn prepare(connection: &Connection) -> Result<(), rusqlite::Error> {
    connection.busy_timeout(PATIENCE)?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.pragma_update(None, "trusted_schema", false)?;
    Ok(())
}

fn damaged_database(error: rusqlite::Error) -> StoreError {
    match &error {
        rusqlite::Error::SqliteFailure(cause, _)
            if matches!(
                cause.code,
                rusqlite::ErrorCode::DatabaseBusy
                    | rusqlite::ErrorCode::SystemIoFailure
                    | rusqlite::ErrorCode::DiskFull
                    | rusqlite::ErrorCode::OutOfMemory
            ) =>
        {
            StoreError::Database(error)
        }
        _ => StoreError::Damaged(error.to_string()),
    }
}

fn not_a_ledger(path: &Path, why: &str) -> StoreError {
    StoreError::NotALedger { path: path.display().to_string(), why: why.to_owned() }
}

fn file_error(path: &Path, cause: std::io::Error) -> StoreError {
    StoreError::File { path: path.display().to_string(), cause }
}

fn random_id() -> Result<String, StoreError> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)
        .map_err(|error| StoreError::Refused(format!("no random numbers: {error}")))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// The directory entries of new files must survive, too.
fn sync_directory(path: &Path) -> Result<(), StoreError> {
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    std::fs::File::open(directory)
        .and_then(|directory| directory.sync_all())
        .map_err(|cause| file_error(directory, cause))
}

/// Refuses file systems on which locks and syncs of other hosts cannot be relied on.
fn check_file_system(path: &Path, options: Options) -> Result<(), StoreError> {
    /// NFS, SMB, SMB2, CIFS, AFS, 9P, FUSE, Coda, Ceph.
    const REMOTE: [u64; 9] = [
        0x6969,
        0x517b,
        0xfe53_4d42,
        0xff53_4d42,
        0x5346_414f,
        0x0102_1997,
        0x6573_5546,
        0x7375_7245,
        0x00c3_6400,
    ];
    if options.allow_network {
        return Ok(());
    }
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let found = rustix::fs::statfs(directory)
        .map_err(|error| file_error(directory, std::io::Error::from(error)))?;
    if REMOTE.contains(&(found.f_type as u64 & 0xffff_ffff)) {
        return Err(StoreError::Refused(format!(
            "{} lies on a network or user-space file system (type {:#x}); locks and syncs may not \
             hold there",
            path.display(),
            found.f_type
        )));
    }
    Ok(())
}

/// The files that belong to a ledger beside its database: WAL, shared memory, anchor.
impl Ledger {
    /// The path of the anchor of a database.
    #[must_use]
    pub fn anchor_path(database: &Path) -> PathBuf {
        anchor::path_of(database)
    }
}
