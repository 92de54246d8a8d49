//! Scratch files for readers that need one, on an in-memory file system if there is one.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// A directory that is removed when its thread ends.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let memory = Path::new("/dev/shm");
        let base = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = base.join(format!("veilgrad-fuzz-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a directory for scratch files");
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

thread_local! {
    static HERE: RefCell<Option<Scratch>> = const { RefCell::new(None) };
}

/// This thread's path for a file of this name.
pub(crate) fn path(name: &str) -> PathBuf {
    HERE.with_borrow_mut(|here| here.get_or_insert_with(Scratch::new).0.join(name))
}

/// Writes a scratch file of this thread.
pub(crate) fn file(name: &str, bytes: &[u8]) -> PathBuf {
    let path = path(name);
    std::fs::write(&path, bytes).expect("a scratch file");
    path
}
