//! Paths in the files of a run, relative to its directory.

use std::path::{Component, Path, PathBuf};

use veilgrad_ledger::Location;

/// A path relative to a directory, or absolute if they share only the root.
pub(crate) fn relative(directory: &Path, path: &Path) -> PathBuf {
    let (Ok(here), Ok(there)) = (std::fs::canonicalize(directory), std::fs::canonicalize(path))
    else {
        return std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    };
    let common = here.components().zip(there.components()).take_while(|(a, b)| a == b).count();
    if common <= 1 {
        return there;
    }
    let up = here.components().skip(common).map(|_| Component::ParentDir);
    up.chain(there.components().skip(common)).collect()
}

/// A ledger's location as the files of a run store it: a path relative to a directory, or an address without its password.
pub(crate) fn stored(directory: &Path, ledger: &Location) -> PathBuf {
    match ledger.file() {
        Some(file) => relative(directory, file),
        None => PathBuf::from(ledger.to_string()),
    }
}

/// A location that the files of a run store.
pub(crate) fn restored(directory: &Path, stored: &Path) -> Location {
    match Location::parse(stored) {
        Location::File(file) => directory.join(file).into(),
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_relative_to_the_directory() {
        let base = std::env::temp_dir().join(format!("veilgrad-place-{}", std::process::id()));
        let out = base.join("runs/one");
        std::fs::create_dir_all(&out).unwrap();
        std::fs::write(base.join("data.csv"), "").unwrap();
        std::fs::write(out.join("ledger.db"), "").unwrap();
        assert_eq!(relative(&out, &base.join("data.csv")), Path::new("../../data.csv"));
        assert_eq!(relative(&out, &base.join("runs/one/ledger.db")), Path::new("ledger.db"));
        assert_eq!(relative(&out, Path::new("/proc/version")), Path::new("/proc/version"));
        std::fs::remove_dir_all(&base).unwrap();
    }
}
