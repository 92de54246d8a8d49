//! The saved inputs: made by `veilgrad-fuzz --write-corpus`, kept in the repository.

mod write;

use std::path::{Path, PathBuf};

pub use write::write;

/// Where this crate is.
fn home() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Where inputs are kept that once broke a target.
#[must_use]
pub fn regressions(target: &str) -> PathBuf {
    home().join("regressions").join(target)
}

fn directory(target: &str) -> PathBuf {
    home().join("corpus").join(target)
}

/// The saved inputs of a target and those that once broke it, in the order of their names.
#[must_use]
pub fn saved(target: &str) -> Vec<Vec<u8>> {
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
