//! The rows of a ledger in an SQLite file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags, OptionalExtension, TransactionBehavior};

use crate::anchor::{self, Anchor, Lock};
use crate::author::Author;
use crate::chain::{Hash, Head};
use crate::database::{insert, open_to_read, prepare};
use crate::error::{StoreError, file_error, while_reading};
use crate::files::{Identity, VersionError, beside, check_version, find, sync_directory};
use crate::hold::{FileHold, is_held};
use crate::options::Options;
use crate::schema::{MOVED, MOVED_TABLE, STEPS, migrate};
use crate::store::{Hold, Moved, Rows, Store, Verified, Visitor};

/// The SQLite option that keeps the WAL when the last handle closes.
const KEEP_WAL: DbConfig = DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE;

/// The most rows that are durable in the anchor only. Syncing the WAL with every charge would take twice as long.
const MAX_UNSYNCED_ROWS: usize = 16;
/// A WAL with more bytes than this is checkpointed into the database.
const CHECKPOINT_BYTES: u64 = 4 << 20;
/// The bytes that a transaction writes besides its rows: the rest of a page of rows, and the page of the head.
const TRANSACTION_OVERHEAD: u64 = 2 << 12;

/// An open SQLite file with its anchor.
pub(crate) struct Sqlite {
    pub(crate) path: PathBuf,
    pub(crate) connection: Connection,
    pub(crate) anchor: Anchor,
    identity: Identity,
    patience: Duration,
    lock: Option<Lock>,
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

impl Sqlite {
    /// Opens a file to charge it: verifies all of it, and completes the write of a process that died.
    pub(crate) fn open(
        path: &Path,
        options: &Options,
        verified: &mut Verified,
    ) -> Result<Self, StoreError> {
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
        match check_version(&connection) {
            Err(VersionError::Backup) => {
                return Err(StoreError::Refused(format!(
                    "{} is a backup, which lacks what was charged since; to continue from it, import it into a new \
                     ledger or into one that has those charges",
                    path.display()
                )));
            }
            Err(VersionError::Moved) => {
                return Err(StoreError::Refused(format!(
                    "{} was moved elsewhere, where it is charged now",
                    path.display()
                )));
            }
            _ => {}
        }
        let mut store = Self::new(path, connection, anchor, options.patience);
        // Reads most of it before the lock is taken, so that others wait less.
        store.catch_up(verified)?;
        let _lock = store.anchor.lock(store.patience)?;
        let connection = &store.connection;
        let mode: String =
            connection.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get(0))?;
        if mode != "wal" {
            return Err(StoreError::Refused(format!("its journal cannot be a WAL, but is {mode}")));
        }
        // This code syncs the WAL, not SQLite: rows that are not synced are durable in the anchor.
        store.connection.pragma_update(None, "synchronous", "NORMAL")?;
        store.connection.pragma_update(None, "wal_autocheckpoint", 0)?;
        if let Err(VersionError::Old(version)) = check_version(&store.connection) {
            let transaction =
                store.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            migrate(&transaction, &STEPS, version)?;
            transaction.commit()?;
        }
        // The process that created the WAL may have died before its directory entry was on disk.
        sync_directory(path)?;
        store.recover(verified)?;
        store.identity = Identity::of(path);
        // Killed processes may have left a long WAL.
        let wal = std::fs::metadata(beside(path, "-wal"));
        store.wal_bytes = wal.map_or(0, |wal| wal.len());
        store.connection.set_db_config(KEEP_WAL, false)?;
        Ok(store)
    }

    /// Opens a file read-only: verifies all of it and changes nothing.
    pub(crate) fn read(
        path: &Path,
        options: &Options,
        verified: &mut Verified,
    ) -> Result<Self, StoreError> {
        let path = find(path, options.allow_network)?;
        let path = path.as_path();
        let anchor = Anchor::open(path, false)?;
        let connection = open_to_read(path, options.patience)?;
        let mut store = Self::new(path, connection, anchor, options.patience);
        store.catch_up(verified)?;
        Ok(store)
    }

    /// Notes that a ledger that was moved is complete where it continues.
    pub(crate) fn arrive(path: &Path, options: &Options) -> Result<(), StoreError> {
        let path = find(path, options.allow_network)?;
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(&path, flags)?;
        prepare(&path, &connection, options.patience)?;
        connection.pragma_update(None, "synchronous", "FULL")?;
        connection.execute("UPDATE moved SET arrived = 1", [])?;
        Ok(())
    }

    fn new(path: &Path, connection: Connection, anchor: Anchor, patience: Duration) -> Self {
        Self {
            path: path.to_owned(),
            connection,
            anchor,
            identity: Identity::of(path),
            patience,
            lock: None,
            pending: Vec::new(),
            unsynced: Vec::new(),
            wal_bytes: 0,
            others_unsynced: false,
            poisoned: false,
        }
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
}

impl Store for Sqlite {
    fn catch_up(&mut self, verified: &mut Verified) -> Result<(), StoreError> {
        self.catch_up_to_anchor(verified).map(|_| ())
    }

    fn lock(&mut self, verified: &mut Verified) -> Result<(), StoreError> {
        let lock = self.anchor.lock(self.patience)?;
        if self.identity != Identity::of(&self.path) {
            self.poisoned = true;
            return Err(StoreError::Damaged(
                "its files were removed or replaced while it was open".to_owned(),
            ));
        }
        if matches!(check_version(&self.connection), Err(VersionError::Moved)) {
            self.poisoned = true;
            let why = "the ledger was moved elsewhere while it was open; charge it there";
            return Err(StoreError::Refused(why.to_owned()));
        }
        self.recover(verified)?;
        self.lock = Some(lock);
        Ok(())
    }

    fn unlock(&mut self) {
        self.lock = None;
    }

    fn append(&mut self, head: &Head, rows: Rows) -> Result<(), StoreError> {
        // The database first: if another process holds it, nothing has been written.
        execute(&self.connection, "BEGIN IMMEDIATE")
            .map_err(|error| StoreError::Busy(error.to_string()))?;
        // From here on the state on disk is unknown until all of it is written.
        self.poisoned = true;
        if let Err(error) = self.commit(head, rows) {
            // Other processes should not wait for a handle that failed.
            let _ = execute(&self.connection, "ROLLBACK");
            return Err(error);
        }
        self.poisoned = false;
        Ok(())
    }

    fn is_poisoned(&self) -> bool {
        self.poisoned
    }

    fn moved(&self) -> Result<Option<Moved>, StoreError> {
        if !matches!(check_version(&self.connection), Err(VersionError::Moved)) {
            return Ok(None);
        }
        let query = "SELECT destination, arrived FROM moved";
        let moved = self.connection.query_row(query, [], |row| {
            Ok(Moved { destination: row.get(0)?, arrived: row.get(1)? })
        });
        moved.map(Some).map_err(while_reading)
    }

    fn visit(&self, verified: &Verified, visitor: &mut Visitor<'_>) -> Result<(), StoreError> {
        let mut statement = self.connection.prepare_cached(
            "SELECT sequence, bytes, hash FROM event WHERE sequence <= ?1 ORDER BY sequence",
        )?;
        // Pending rows may be in the database by now; they are visited once.
        let stored = verified.head.sequence.saturating_sub(self.pending.len() as u64);
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

    fn hash_of(&self, sequence: u64) -> Result<Option<Hash>, StoreError> {
        let number = i64::try_from(sequence).unwrap_or(i64::MAX);
        let stored: Option<Vec<u8>> = self
            .connection
            .query_row("SELECT hash FROM event WHERE sequence = ?1", [number], |row| row.get(0))
            .optional()?;
        let pending = self.pending.iter().find(|(pending, _, _)| *pending == sequence);
        let stored = stored.as_deref().and_then(Hash::from_slice);
        Ok(stored.or(pending.map(|(_, _, hash)| *hash)))
    }

    fn authors(&self) -> Result<BTreeMap<u64, Author>, StoreError> {
        Ok(BTreeMap::new())
    }

    fn take_hold(&self, run: &str) -> Result<Hold, StoreError> {
        Ok(Box::new(FileHold::take(&self.path, run)?))
    }

    fn held(&self, runs: &[&str]) -> Vec<bool> {
        runs.iter().map(|run| is_held(&self.path, run)).collect()
    }

    fn audit(&self, verified: &Verified) -> Result<Vec<String>, StoreError> {
        self.check_schema()?;
        let spoiled = self.anchor.spoiled()?;
        Ok(spoiled.iter().map(|slot| slot.warning(verified.head.sequence)).collect())
    }

    fn retire(&mut self, destination: &str) -> Result<(), StoreError> {
        // Other handles see it before their next charge.
        self.poisoned = true;
        let transaction =
            self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        transaction.execute_batch(MOVED_TABLE)?;
        transaction.execute("INSERT INTO moved VALUES (?1, 0)", [destination])?;
        transaction.pragma_update(None, "application_id", MOVED)?;
        transaction.commit()?;
        self.sync_wal()?;
        // Into the file itself, so that a copy of it without its WAL is not charged either.
        self.connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))?;
        self.lock = None;
        Ok(())
    }
}

impl Drop for Sqlite {
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
