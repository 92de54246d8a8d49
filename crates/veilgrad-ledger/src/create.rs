//! Creating a ledger: completely, or not at all.
//!
//! The database is built under another name and gets its own by one rename, after its anchor is on disk.
//! A process that dies in between leaves the other name behind; the next creation starts over.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use rusqlite::{Connection, OpenFlags, TransactionBehavior};

use crate::anchor::{self, Anchor};
use crate::chain::{Chained, Hash, Head};
use crate::database::{Rows, insert};
use crate::entry::Entry;
use crate::error::{StoreError, file_error};
use crate::ledger::{Ledger, Options, random_id};
use crate::place::{
    anchor_path, beside, check_file_system, new_path, open_left_over, sync_directory,
};
use crate::schema::{APPLICATION, BACKUP, STEPS, migrate};
use crate::state::State;

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

    /// Opens the ledger at a path to charge it, or creates an empty one if there is none, whoever else does the
    /// same at that time.
    ///
    /// # Errors
    /// As for [`open`](Self::open) and [`create`](Self::create).
    pub fn open_or_create(path: &Path, options: Options) -> Result<Self, StoreError> {
        let start = Instant::now();
        loop {
            if path.exists() {
                return Self::open(path, options.clone());
            }
            match Self::create(path, options.clone()) {
                Err(StoreError::Busy(_)) if start.elapsed() < options.patience => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                // Somebody else was faster.
                Err(StoreError::File { cause, .. })
                    if cause.kind() == ErrorKind::AlreadyExists && path.exists() => {}
                result => return result,
            }
        }
    }

    /// Creates a ledger of these rows.
    pub(crate) fn create_with(
        path: &Path,
        options: Options,
        rows: &[Vec<u8>],
    ) -> Result<Self, StoreError> {
        create_files(path, &options, rows, APPLICATION)?;
        Self::open(path, options)
    }
}

/// Makes the files of a ledger of these rows, or of a backup of one.
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
    // Closed before the database is opened: its locks would go with any handle on the file.
    let _lock = begin(path, &building)?;
    build(&building, &rows, application)?;
    let mut anchor = Anchor::create(path)?;
    anchor.write(&head, &[])?;
    anchor.sync(true)?;
    sync_directory(path)?;
    rename_new(&building, path)?;
    sync_directory(path)?;
    Ok(head)
}

/// The rows with their numbers and hashes, if each is valid after the one before.
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
/// short. No other process creates it while the returned file is open.
fn begin(path: &Path, building: &Path) -> Result<File, StoreError> {
    let anchor = anchor_path(path);
    let taken = |file: &Path| {
        let cause = std::io::Error::new(ErrorKind::AlreadyExists, "exists already");
        file_error(file, cause)
    };
    // Links that lead nowhere take a name, too.
    let exists = |file: &Path| std::fs::symlink_metadata(file).is_ok();
    if exists(path) {
        return Err(taken(path));
    }
    for left in [beside(path, "-wal"), beside(path, "-journal"), anchor.clone()] {
        let unfinished = left == anchor && exists(building) && anchor::is_unfinished(&anchor);
        if exists(&left) && !unfinished {
            // Another process may have finished creating it in between.
            if exists(path) {
                return Err(taken(path));
            }
            return Err(StoreError::Damaged(format!(
                "{} is there without its database, which must have been removed; put it back",
                left.display()
            )));
        }
    }
    let file = open_building(building)?;
    file.try_lock()
        .map_err(|_| StoreError::Busy(format!("another process is creating {}", path.display())))?;
    // It may have been renamed while we opened it.
    if exists(path) {
        let _ = std::fs::remove_file(building);
        return Err(taken(path));
    }
    let private = PermissionsExt::from_mode(0o600);
    file.set_len(0)
        .and_then(|()| file.set_permissions(private))
        .map_err(|cause| file_error(building, cause))?;
    match std::fs::remove_file(&anchor) {
        Err(cause) if cause.kind() != ErrorKind::NotFound => Err(file_error(&anchor, cause)),
        _ => Ok(file),
    }
}

/// The file in which the ledger is built: a new one, or one that an unfinished creation left. Anything else
/// under that name is refused and left as it is.
fn open_building(building: &Path) -> Result<File, StoreError> {
    let refused = |cause| file_error(building, cause);
    let mut new = OpenOptions::new();
    match new.write(true).create_new(true).mode(0o600).open(building) {
        Err(cause) if cause.kind() == ErrorKind::AlreadyExists => {}
        result => return result.map_err(refused),
    }
    let mut file = open_left_over(building, true).map_err(|cause| match cause.kind() {
        ErrorKind::NotFound => StoreError::Busy("another process has just created it".to_owned()),
        _ => refused(cause),
    })?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).map_err(refused)?;
    if !may_be_half_built(&bytes) {
        let cause = std::io::Error::new(ErrorKind::AlreadyExists, "is not what a creation leaves");
        return Err(refused(cause));
    }
    Ok(file)
}

/// Whether a file may be an unfinished database: no other file is overwritten. The first page
/// is written whole, with the number that names a ledger.
fn may_be_half_built(bytes: &[u8]) -> bool {
    const MAGIC: &[u8] = b"SQLite format 3\0";
    let ours = [APPLICATION, BACKUP].map(i32::to_be_bytes);
    let application = bytes.get(68..72).is_none_or(|id| ours.iter().any(|ours| id == ours));
    bytes.starts_with(MAGIC) && application || bytes.iter().all(|byte| *byte == 0)
}

/// The whole database in one file, durably.
fn build(building: &Path, rows: &Rows, application: i32) -> Result<(), StoreError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NOFOLLOW;
    let mut connection = Connection::open_with_flags(building, flags)?;
    // What is half built is built again from the beginning, so that no journal is needed.
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
        // Not every file system knows how; then the lock and the check before must do.
        Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS) => {
            std::fs::rename(from, to).map_err(|cause| file_error(to, cause))
        }
        result => result.map_err(|cause| file_error(to, cause.into())),
    }
}
