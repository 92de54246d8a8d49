//! The saved inputs, as they are in the repository.

use std::path::{Path, PathBuf};

/// Where this crate is.
pub(crate) fn home() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Where inputs are kept that once broke a target.
#[must_use]
pub fn regressions(target: &str) -> PathBuf {
    home().join("regressions").join(target)
}

/// Where the saved inputs of a target are.
pub(crate) fn directory(target: &str) -> PathBuf {
    home().join("corpus").join(target)
}

/// The saved inputs of a target and those that once broke it, in the order of their names.
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
