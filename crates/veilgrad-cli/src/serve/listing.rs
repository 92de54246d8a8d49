//! The ledgers and reports of a directory. Requests name them by a hash of their path, so that no path comes from outside.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};

use veilgrad_ledger::Ledger;

use crate::hash::sha256;

/// How many directories below the first are searched, and how many entries are looked at: enough for `runs/`.
const DEPTH: usize = 4;
const MOST_ENTRIES: usize = 20_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Ledger,
    Report,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) id: String,
    pub(super) kind: Kind,
    pub(super) path: PathBuf,
    /// The path from the directory.
    pub(super) name: String,
}

#[derive(Debug, Default)]
pub(super) struct Listing {
    /// In the order of their names.
    pub(super) found: Vec<Found>,
    /// Whether there may be others.
    pub(super) more: bool,
}

impl Listing {
    /// Searches a directory. Links are not followed, hidden directories are left out, and what cannot be read is skipped.
    pub(super) fn of(directory: &Path) -> Self {
        let mut listing = Self::default();
        let mut left = MOST_ENTRIES;
        let mut waiting = VecDeque::from([(directory.to_owned(), 0)]);
        while let Some((place, depth)) = waiting.pop_front() {
            for entry in std::fs::read_dir(&place).into_iter().flatten().flatten() {
                if left == 0 {
                    listing.more = true;
                    break;
                }
                left -= 1;
                let (path, name) = (entry.path(), entry.file_name());
                // Of the entry itself, not of what a link points to.
                let Ok(kind) = entry.file_type() else { continue };
                if kind.is_dir() && !name.to_string_lossy().starts_with('.') {
                    match depth < DEPTH {
                        true => waiting.push_back((path, depth + 1)),
                        false => listing.more = true,
                    }
                } else if kind.is_file() {
                    listing.found.extend(Found::new(directory, path));
                }
            }
        }
        listing.found.sort_by(|a, b| a.name.cmp(&b.name));
        listing
    }

    /// The file of this kind with this id.
    pub(super) fn find(&self, kind: Kind, id: &str) -> Option<&Found> {
        self.found.iter().find(|found| found.kind == kind && found.id == id)
    }
}

impl Found {
    /// `None` if the file is neither a report nor a ledger.
    fn new(directory: &Path, path: PathBuf) -> Option<Self> {
        let kind = if path.file_name()? == "report.json" {
            Kind::Report
        } else if std::fs::symlink_metadata(Ledger::anchor_path(&path))
            .is_ok_and(|anchor| anchor.is_file())
        {
            Kind::Ledger
        } else {
            return None;
        };
        let relative = path.strip_prefix(directory).ok()?;
        let id = sha256(relative.as_os_str().as_encoded_bytes());
        let name = relative.display().to_string();
        Some(Self { id, kind, path, name })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_and_ledgers_are_found_and_nothing_else() {
        let directory =
            std::env::temp_dir().join(format!("veilgrad-listing-{}", std::process::id()));
        let deep = directory.join("a/b/c/d");
        std::fs::create_dir_all(deep.join("e")).unwrap();
        std::fs::create_dir_all(directory.join(".hidden")).unwrap();
        let files = ["a/report.json", "x.db", "x.db.anchor", "secret.txt", ".hidden/report.json"];
        for name in files.into_iter().chain(["a/b/c/d/report.json", "a/b/c/d/e/report.json"]) {
            std::fs::write(directory.join(name), "{}").unwrap();
        }
        std::os::unix::fs::symlink("/etc", directory.join("link")).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", directory.join("a/b/report.json")).unwrap();
        let listing = Listing::of(&directory);
        let names: Vec<&str> = listing.found.iter().map(|found| found.name.as_str()).collect();
        assert_eq!(names, ["a/b/c/d/report.json", "a/report.json", "x.db"]);
        assert!(listing.more, "there is a directory below the deepest");
        let ledger = &listing.found[2];
        assert_eq!(listing.find(Kind::Ledger, &ledger.id), Some(ledger));
        assert_eq!(listing.find(Kind::Report, &ledger.id), None);
        for id in ["", "../secret.txt", "x.db", "a/report.json"] {
            assert_eq!(listing.find(Kind::Ledger, id), None, "{id}");
        }
        std::fs::remove_dir_all(directory).unwrap();
    }
}
