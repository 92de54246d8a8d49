//! The declarations of a configuration.

use std::path::PathBuf;

/// Columns that are not used, with the reason.
pub(super) type Unused = Vec<(String, String)>;

/// The declarations of a configuration.
pub(super) struct Declared {
    pub(super) train: PathBuf,
    pub(super) test: Option<PathBuf>,
    pub(super) public_sample: Option<PathBuf>,
    pub(super) dataset: Option<String>,
    pub(super) records: u64,
    pub(super) epsilon: f64,
    pub(super) delta: f64,
    pub(super) label: Target,
    pub(super) kind: FileKind,
}

/// What the label is, as it is written in the configuration.
pub(super) enum Target {
    Count(u64),
    Classes(Vec<String>),
    Bounds([String; 2]),
}

pub(super) enum FileKind {
    Table {
        label: String,
        user: Option<(String, u32)>,
        delimiter: Option<char>,
        /// The names of all columns, if the file has none.
        header: Option<Vec<String>>,
        columns: Vec<Column>,
        /// Columns of the sample that are not used, with the reason.
        unused: Unused,
    },
    Array {
        /// `None` if labels are in the file of the examples.
        labels: Option<PathBuf>,
        test_labels: Option<PathBuf>,
        /// The names of the arrays of an .npz file: examples, labels, and ids of users.
        arrays: Option<Vec<String>>,
        users: Option<(PathBuf, u32)>,
        shape: Vec<usize>,
        bounds: [f64; 2],
    },
}

pub(super) struct Column {
    pub(super) name: String,
    pub(super) content: Content,
}

pub(super) enum Content {
    Number { bounds: [String; 2], missing: bool },
    Words(Vec<String>),
}
