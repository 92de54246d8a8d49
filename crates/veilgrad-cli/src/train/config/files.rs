//! One file, or several whose rows follow each other.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// Files whose rows follow each other, at least one: in the configuration a path, or a list of paths.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "OneOrSeveral", into = "OneOrSeveral")]
pub(crate) struct Files {
    first: PathBuf,
    others: Vec<PathBuf>,
}

#[derive(Serialize, Deserialize)]
#[serde(untagged, expecting = "a path, or a list of paths")]
enum OneOrSeveral {
    One(PathBuf),
    Several(Vec<PathBuf>),
}

impl Files {
    /// The first file.
    pub(crate) fn first(&self) -> &Path {
        &self.first
    }

    /// All files, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Path> {
        std::iter::once(self.first.as_path()).chain(self.others.iter().map(PathBuf::as_path))
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut PathBuf> {
        std::iter::once(&mut self.first).chain(&mut self.others)
    }

    /// How many files there are.
    pub(crate) fn count(&self) -> usize {
        1 + self.others.len()
    }
}

impl TryFrom<OneOrSeveral> for Files {
    type Error = &'static str;

    fn try_from(files: OneOrSeveral) -> Result<Self, &'static str> {
        let mut paths = match files {
            OneOrSeveral::One(path) => vec![path],
            OneOrSeveral::Several(paths) => paths,
        }
        .into_iter();
        let first = paths.next().ok_or("a list of files has at least one file")?;
        Ok(Self { first, others: paths.collect() })
    }
}

impl From<Files> for OneOrSeveral {
    fn from(Files { first, mut others }: Files) -> Self {
        if others.is_empty() {
            return Self::One(first);
        }
        others.insert(0, first);
        Self::Several(others)
    }
}

/// The paths, separated by commas.
impl fmt::Display for Files {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.first.display())?;
        self.others.iter().try_for_each(|path| write!(f, ", {}", path.display()))
    }
}
