//! The saved inputs in the repository.

use std::path::{Path, PathBuf};

/// The directory of this crate.
pub(crate) fn home() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The directory of inputs on which a target once failed.
#[must_use]
pub fn regressions(target: &str) -> PathBuf {
    home().join("regressions").join(target)
}

/// The directory of the corpus of a target.
pub(crate) fn directory(target: &str) -> PathBuf {
    home().join("corpus").join(target)
}

/// The corpus of a target, then the inputs on which it once failed, each in the order of file names.
#[must_use]
pub fn of(target: &str) -> Vec<Vec<u8>> {
    let mut all = files(&directory(target));
    all.extend(files(&regressions(target)));
    all
}

fn files(directory: &Path) -> Vec<Vec<u8>> {
    let Ok(entries) = std::fs::read_dir(directory) else { return Vec::new() };
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    paths.iter().filter_map(|path| std::fs::read(path).ok()).collect()
}
