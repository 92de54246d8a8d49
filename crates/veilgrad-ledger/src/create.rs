//! Creating a ledger atomically.
//!
//! The database is built under a temporary name and renamed after its anchor is on disk. A process that dies
//! in between leaves the temporary file behind; the next creation starts over.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use rusqlite::{Connection, OpenFlags, TransactionBehavior};

use crate::anchor::{self, Anchor};
use crate::chain::{Chained, Hash, Head};
use crate::database::insert;
use crate::entry::Entry;
use crate::error::{StoreError, file_error};
use crate::files::{
    anchor_path, beside, check_file_system, new_path, open_left_over, sync_directory,
};
use crate::id::random_id;
use crate::ledger::Ledger;
use crate::location::Location;
use crate::options::Options;
use crate::postgresql::Postgres;
use crate::schema::{APPLICATION, BACKUP, STEPS, migrate};
use crate::state::State;
use crate::store::Rows;

impl Ledger {
    /// Creates an empty ledger: its files, or its first row in a database whose tables are there (see
    /// [`MIGRATION`](crate::MIGRATION)).
    ///
    /// # Errors
    /// When there is one, or it cannot be written. The next creation cleans up after an interrupted one.
    pub fn create(location: impl Into<Location>, options: Options) -> Result<Self, StoreError> {
        let entry = Entry::Create { id: random_id()? };
        let first = entry.to_bytes().map_err(StoreError::Refused)?;
        Self::create_with(location.into(), options, &[first])
    }

    /// Opens a ledger to charge it, or creates an empty one if there is none. Other processes may do the same at the
    /// same time.
    ///
    /// # Errors
    /// As for [`open`](Self::open) and [`create`](Self::create).
    pub fn open_or_create(
        location: impl Into<Location>,
        options: Options,
    ) -> Result<Self, StoreError> {
        let (location, start) = (location.into(), Instant::now());
        loop {
            if Self::exists(&location, &options)? {
                return Self::open(location, options);
            }
            match Self::create(&location, options.clone()) {
                Err(StoreError::Busy(_)) if start.elapsed() < options.patience => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                // Another process was faster.
                Err(StoreError::File { cause, .. })
                    if cause.kind() == ErrorKind::AlreadyExists
                        && Self::exists(&location, &options)? => {}
                result => return result,
            }
        }
    }

    /// Creates a ledger of these rows.
    pub(crate) fn create_with(
        location: Location,
        options: Options,
        rows: &[Vec<u8>],
    ) -> Result<Self, StoreError> {
        match &location {
            Location::File(path) => drop(create_files(path, &options, rows, APPLICATION)?),
            Location::Postgres(address) => {
                let (rows, head) = chain(rows)?;
                Postgres::create(address, &options, &head, rows)?;
            }
        }
        Self::open(location, options)
    }
}

/// Creates the files of a ledger or a backup with these rows.
pub(crate) fn create_files(
    path: &Path,
    options: &Options,
    rows: &[Vec<u8>],
    application: i32,
) -> Result<Head, StoreError> {
    let path = new_path(path)?;
    let path = path.as_path();
    check_file_system(path, options.allow_network)?;
    let (rows, head) = chain(rows)?;
    let building = beside(path, ".creating");
    // Dropped after SQLite has closed the file: closing any handle on it would release SQLite's locks.
    let _lock = start_building(path, &building)?;
    build(&building, &rows, application)?;
    let mut anchor = Anchor::create(path)?;
    anchor.write(&head, &[])?;
    anchor.sync(true)?;
    sync_directory(path)?;
    rename_new(&building, path)?;
    sync_directory(path)?;
    Ok(head)
}

/// The rows with their numbers and hashes; checks that each is valid.
fn chain(rows: &[Vec<u8>]) -> Result<(Rows, Head), StoreError> {
    let (mut state, mut hash) = (State::default(), Hash::default());
    let mut chained = Vec::with_capacity(rows.len());
    for (sequence, bytes) in (1..).zip(rows) {
        hash = hash.after(bytes);
        let refused = |why: String| StoreError::Refused(format!("row {sequence}: {why}"));
        state.apply_bytes(sequence, bytes).map_err(refused)?;
        chained.push((sequence, bytes.clone(), hash));
    }
    Ok((chained, Head { id: state.id, sequence: rows.len() as u64, hash }))
}

/// Creates and locks the temporary file, and removes what an interrupted creation left. No other process
/// creates this ledger while the returned file is open.
fn start_building(path: &Path, building: &Path) -> Result<File, StoreError> {
    let anchor = anchor_path(path);
    let taken = |file: &Path| {
        let cause = std::io::Error::new(ErrorKind::AlreadyExists, "exists already");
        file_error(file, cause)
    };
    // A dangling link counts as existing.
    let exists = |file: &Path| std::fs::symlink_metadata(file).is_ok();
    if exists(path) {
        return Err(taken(path));
    }
    for leftover in [beside(path, "-wal"), beside(path, "-journal"), anchor.clone()] {
        let is_unfinished =
            leftover == anchor && exists(building) && anchor::is_unfinished(&anchor);
        if exists(&leftover) && !is_unfinished {
            // Another process may have finished creating it in between.
            if exists(path) {
                return Err(taken(path));
            }
            return Err(StoreError::Damaged(format!(
                "{} is there without its database, which must have been removed; put it back",
                leftover.display()
            )));
        }
    }
    let file = open_building(building)?;
    file.try_lock()
        .map_err(|_| StoreError::Busy(format!("another process is creating {}", path.display())))?;
    // Another process may have renamed it in between.
    if exists(path) {
        let _ = std::fs::remove_file(building);
        return Err(taken(path));
    }
    let owner_only = PermissionsExt::from_mode(0o600);
    file.set_len(0)
        .and_then(|()| file.set_permissions(owner_only))
        .map_err(|cause| file_error(building, cause))?;
    match std::fs::remove_file(&anchor) {
        Err(cause) if cause.kind() != ErrorKind::NotFound => Err(file_error(&anchor, cause)),
        _ => Ok(file),
    }
}

/// Opens the temporary file: a new one, or one that an interrupted creation left. Any other file is refused and not
/// changed.
fn open_building(building: &Path) -> Result<File, StoreError> {
    let failed = |cause| file_error(building, cause);
    let mut new = OpenOptions::new();
    match new.write(true).create_new(true).mode(0o600).open(building) {
        Err(cause) if cause.kind() == ErrorKind::AlreadyExists => {}
        result => return result.map_err(failed),
    }
    let mut file = open_left_over(building, true).map_err(|cause| match cause.kind() {
        ErrorKind::NotFound => StoreError::Busy("another process has just created it".to_owned()),
        _ => failed(cause),
    })?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).map_err(failed)?;
    if !may_be_half_built(&bytes) {
        let cause = std::io::Error::new(ErrorKind::AlreadyExists, "is not what a creation leaves");
        return Err(failed(cause));
    }
    Ok(file)
}

/// Whether a file may be an unfinished database, so that it may be overwritten. SQLite writes the first page as a
/// whole, with the ledger's application id.
fn may_be_half_built(bytes: &[u8]) -> bool {
    const MAGIC: &[u8] = b"SQLite format 3\0";
    let ours = [APPLICATION, BACKUP].map(i32::to_be_bytes);
    let has_our_id = bytes.get(68..72).is_none_or(|id| ours.iter().any(|ours| id == ours));
    bytes.starts_with(MAGIC) && has_our_id || bytes.iter().all(|byte| *byte == 0)
}

/// Builds the whole database in one file and syncs it.
fn build(building: &Path, rows: &Rows, application: i32) -> Result<(), StoreError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NOFOLLOW;
    let mut connection = Connection::open_with_flags(building, flags)?;
    // An interrupted build starts over, so that no journal is needed.
    connection.pragma_update(None, "journal_mode", "MEMORY")?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    transaction.pragma_update(None, "application_id", application)?;
    migrate(&transaction, &STEPS, 0)?;
    transaction.execute("INSERT INTO head VALUES (1, 0, ?1)", [Hash::default().0.as_slice()])?;
    insert(&transaction, rows)?;
    Ok(transaction.commit()?)
}

/// Renames a file to a name that does not exist yet.
fn rename_new(from: &Path, to: &Path) -> Result<(), StoreError> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // Not every file system supports it; then the lock and the check before must suffice.
        Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS) => {
            std::fs::rename(from, to).map_err(|cause| file_error(to, cause))
        }
        result => result.map_err(|cause| file_error(to, cause.into())),
    }
}
