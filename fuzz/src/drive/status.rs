//! The input number that each thread of a process is at, in a file that outlives the process.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::report::THREADS;
use crate::scratch;

/// Eight bytes for each thread.
pub(super) struct Status {
    file: File,
    path: PathBuf,
}

impl Status {
    pub(super) fn new() -> std::io::Result<Self> {
        let path = scratch::file("status", &[0; 8 * THREADS]);
        Ok(Self { file: File::open(&path)?, path })
    }

    /// Opens the file for writing, in the worker process.
    pub(super) fn open(path: &Path) -> std::io::Result<Self> {
        Ok(Self { file: File::options().write(true).open(path)?, path: path.to_owned() })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn write(&self, thread: usize, number: u64) -> std::io::Result<()> {
        self.file.write_all_at(&number.to_le_bytes(), 8 * thread as u64)
    }

    pub(super) fn read(&self) -> Vec<u64> {
        let mut bytes = [0; 8 * THREADS];
        let _ = self.file.read_exact_at(&mut bytes, 0);
        bytes.as_chunks::<8>().0.iter().map(|number| u64::from_le_bytes(*number)).collect()
    }
}
