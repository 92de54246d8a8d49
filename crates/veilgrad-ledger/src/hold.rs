//! Holds on files: a run that declared its plan reserves budget for all of it, as long as its process lives.
//!
//! A hold is a lock on an empty file, `LEDGER.holds/RUN`, which the operating system releases when the
//! process ends in any way: no process ids or clocks are involved. It is taken under the ledger's
//! lock, before the row that opens the run is written, so that a process that sees the run sees its hold.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use veilgrad_events::ProcessIdentity;

use crate::error::{StoreError, file_error};
use crate::files::{beside, open_itself};

/// The hold of a run, until it is dropped.
pub(crate) struct FileHold {
    /// Locked as long as it is open.
    _file: File,
    path: PathBuf,
    process: ProcessIdentity,
}

fn directory_of(database: &Path) -> PathBuf {
    beside(database, ".holds")
}

impl FileHold {
    /// Takes the hold of a run that is about to be opened, and removes the files of ended processes. The caller has
    /// the ledger's lock.
    pub(crate) fn take(database: &Path, run: &str) -> Result<Self, StoreError> {
        const TRIES: u32 = 16;
        let process = ProcessIdentity::current()?;
        let directory = directory_of(database);
        remove_ended(&directory);
        let path = directory.join(run);
        let mut attempt = 0;
        let file = loop {
            match std::fs::create_dir(&directory) {
                Err(cause) if cause.kind() != ErrorKind::AlreadyExists => {
                    return Err(file_error(&directory, cause));
                }
                _ => {}
            }
            // A link could lead to the holds of another ledger.
            let metadata = std::fs::symlink_metadata(&directory);
            if metadata.is_ok_and(|metadata| !metadata.is_dir()) {
                let cause = std::io::Error::other("is not a directory");
                return Err(file_error(&directory, cause));
            }
            attempt += 1;
            match OpenOptions::new().write(true).create_new(true).open(&path) {
                Ok(file) => break file,
                // A run that ended removed the directory in between.
                Err(cause) if cause.kind() == ErrorKind::NotFound && attempt < TRIES => {}
                Err(cause) => return Err(file_error(&path, cause)),
            }
        };
        file.try_lock().map_err(|cause| match cause {
            TryLockError::Error(cause) => file_error(&path, cause),
            TryLockError::WouldBlock => StoreError::Busy(format!("{} is locked", path.display())),
        })?;
        Ok(Self { _file: file, path, process })
    }
}

impl Drop for FileHold {
    fn drop(&mut self) {
        // A forked child has a copy, but the hold belongs to its parent.
        if self.process.is_current() {
            let _ = std::fs::remove_file(&self.path);
            // Succeeds only if the directory is empty.
            let _ = self.path.parent().map(std::fs::remove_dir);
        }
    }
}

/// Whether a run's hold is in force because its process is alive. If that cannot be determined, it counts as held.
pub(crate) fn is_held(database: &Path, run: &str) -> bool {
    match open_itself(&directory_of(database).join(run), false) {
        // A shared lock, so that processes that only ask do not look like holders to each other.
        Ok(file) => file.try_lock_shared().is_err(),
        Err(cause) => cause.kind() != ErrorKind::NotFound,
    }
}

/// Whether any run of this ledger has a hold now, so that a process has it open.
pub(crate) fn is_in_use(database: &Path) -> bool {
    let files = std::fs::read_dir(directory_of(database));
    let names = files.into_iter().flatten().flatten().map(|file| file.file_name());
    names.filter_map(|name| name.into_string().ok()).any(|run| is_held(database, &run))
}

/// Removes files that no process has locked. The caller has the ledger's lock, so no hold is being taken.
fn remove_ended(directory: &Path) {
    let Ok(files) = std::fs::read_dir(directory) else { return };
    for file in files.flatten() {
        let has_ended = open_itself(&file.path(), false).is_ok_and(|file| file.try_lock().is_ok());
        if has_ended {
            let _ = std::fs::remove_file(file.path());
        }
    }
}
