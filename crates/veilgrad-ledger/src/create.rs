//! A ledger comes into being: whole, or not at all.
//!
//! The database is built under another name and gets its own by one rename, after its anchor is on disk.
//! Whoever dies in between leaves the other name behind, which the next creation starts over.

use std::fs::{File, OpenOptions};
use std::path::Path;

use rusqlite::{Connection, OpenFlags, TransactionBehavior};

use crate::anchor::{self, Anchor};
use crate::chain::{Hash, Head};
use crate::entry::Entry;
use crate::error::{StoreError, file_error};
use crate::ledger::{Ledger, Options, Rows, insert, random_id};
use crate::place::{APPLICATION, SCHEMA, beside, check_file_system, sync_directory};
use crate::state::State;

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

impl Ledger {
    /// Creates an empty ledger; refuses a path that is taken.
    ///
    /// # Errors
    /// When there is a file already, or the files cannot be written; a creation that was cut short
    /// leaves nothing that the next one minds.
    pub fn create(path: &Path, options: Options) -> Result<Self, StoreError> {
        let entry = Entry::Create { id: random_id()? };
        Self::create_with(path, options, &[entry.to_bytes().map_err(StoreError::Refused)?])
    }

    /// Creates a ledger of these rows.
    pub(crate) fn create_with(
        path: &Path,
        options: Options,
        rows: &[Vec<u8>],
    ) -> Result<Self, StoreError> {
        check_file_system(path, options.allow_network)?;
        let (rows, head) = chain(rows)?;
        let building = beside(path, ".creating");
        let lock = begin(path, &building)?;
        build(&building, &rows)?;
        let anchor = Anchor::create(path)?;
        anchor.write(&head, &[])?;
        anchor.sync_new()?;
        sync_directory(path)?;
        rename_new(&building, path)?;
        sync_directory(path)?;
        // Closed before the database is opened: its locks would go with any handle on the file.
        drop(lock);
        Self::open(path, options)
    }
}

/// The rows with their numbers and hashes, if they make sense one after another.
fn chain(rows: &[Vec<u8>]) -> Result<(Rows, Head), StoreError> {
    let (mut state, mut hash) = (State::default(), Hash::default());
    let mut chained = Vec::with_capacity(rows.len());
    for (sequence, bytes) in (1..).zip(rows) {
        hash = hash.after(bytes);
        let wrong = |why: String| StoreError::Refused(format!("row {sequence}: {why}"));
        state.take(sequence, bytes).map_err(wrong)?;
        chained.push((sequence, bytes.clone(), hash));
    }
    Ok((chained, Head { id: state.id, sequence: rows.len() as u64, hash }))
}

/// Takes the name under which the ledger is built, and clears away what a creation left that was cut
/// short. Nobody else creates it while the returned file is open.
fn begin(path: &Path, building: &Path) -> Result<File, StoreError> {
    let anchor = anchor::path_of(path);
    let taken = |file: &Path| {
        let cause = std::io::Error::new(std::io::ErrorKind::AlreadyExists, "exists already");
        file_error(file, cause)
    };
    if path.exists() {
        return Err(taken(path));
    }
    if anchor.exists() && !building.exists() {
        return Err(StoreError::Damaged(format!(
            "{} is there without its database, which must have been removed; put it back",
            anchor.display()
        )));
    }
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false);
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let file = options.open(building).map_err(|cause| file_error(building, cause))?;
    file.try_lock().map_err(|_| {
        StoreError::Refused(format!("another process is creating {}", path.display()))
    })?;
    // It may have been renamed while we opened it.
    if path.exists() {
        let _ = std::fs::remove_file(building);
        return Err(taken(path));
    }
    file.set_len(0).map_err(|cause| file_error(building, cause))?;
    match std::fs::remove_file(&anchor) {
        Err(cause) if cause.kind() != std::io::ErrorKind::NotFound => {
            Err(file_error(&anchor, cause))
        }
        _ => Ok(file),
    }
}

/// The whole database in one file, durably.
fn build(building: &Path, rows: &Rows) -> Result<(), StoreError> {
    let mut connection = Connection::open_with_flags(building, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    // What is half built is built again from the beginning, so that no journal is needed.
    connection.pragma_update(None, "journal_mode", "MEMORY")?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.pragma_update(None, "application_id", APPLICATION)?;
    connection.pragma_update(None, "user_version", SCHEMA)?;
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    transaction.execute_batch(TABLES)?;
    transaction.execute("INSERT INTO head VALUES (1, 0, ?1)", [Hash::default().0.as_slice()])?;
    insert(&transaction, rows)?;
    Ok(transaction.commit()?)
}

/// Renames a file to a name that nobody has.
fn rename_new(from: &Path, to: &Path) -> Result<(), StoreError> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // Not every file system knows how; then the lock and the check before must do.
        Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS) => {
            std::fs::rename(from, to).map_err(|cause| file_error(to, cause))
        }
        result => result.map_err(|cause| file_error(to, cause.into())),
    }
}
