//! The declared schema of a table, and the table that is read.

use crate::Array;

/// The schema of a table. It is declared, because inferring it from private data would leak.
///
/// # Example
/// ```
/// use veilgrad_data::table::{Column, Kind, Schema, Target, TextFormat};
///
/// let schema = Schema {
///     columns: vec![Column {
///         name: "age".to_owned(),
///         kind: Kind::Number { low: 0.0, high: 80.0, missing: None },
///     }],
///     label: "sick".to_owned(),
///     target: Target::Classes(vec!["no".to_owned(), "yes".to_owned()]),
///     user: None,
///     text: TextFormat::default(),
/// };
/// let path = std::env::temp_dir().join(format!("veilgrad-{}.csv", std::process::id()));
/// std::fs::write(&path, "age,sick\n40,no\nunknown,yes\n")?;
/// let table = schema.read(&path)?;
/// assert_eq!(table.labels, [0.0, 1.0]);
/// assert_eq!(table.inputs.values[0], 0.0); // the middle of the declared bounds
/// assert!(table.inputs.values[1].is_nan()); // this example will contribute zero
/// # std::fs::remove_file(path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Schema {
    /// The input columns, in this order; other columns are ignored.
    pub columns: Vec<Column>,
    /// The column with the label; empty if there is none.
    pub label: String,
    /// What the label is.
    pub target: Target,
    /// The column that names the user of an example, if records are users.
    pub user: Option<String>,
    /// How the lines of a CSV file are split.
    pub text: TextFormat,
}

/// What the label of an example is.
#[derive(Debug, Clone, PartialEq)]
pub enum Target {
    /// One of these classes.
    Classes(Vec<String>),
    /// A number, scaled so that its public bounds become -1 and 1. Not clamped: test examples are judged by their own labels.
    Number {
        /// The lower bound, which becomes -1.
        low: f64,
        /// The upper bound, which becomes 1.
        high: f64,
    },
}

/// How the lines of a CSV file are split into columns.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TextFormat {
    /// The character between cells; by default a tab in `.tsv` files, and a comma in others.
    pub delimiter: Option<u8>,
    /// The names of all columns in order, if the file has no header: its first line is then a record.
    pub header: Option<Vec<String>>,
}

/// An input column.
#[derive(Debug, Clone, PartialEq)]
pub struct Column {
    /// Its name in the header.
    pub name: String,
    /// What it holds.
    pub kind: Kind,
}

/// What a column holds: numbers or categories.
#[derive(Debug, Clone, PartialEq)]
pub enum Kind {
    /// A number with public bounds, scaled to [-1, 1] and clamped.
    Number {
        /// The lower bound, which becomes -1.
        low: f64,
        /// The upper bound, which becomes 1.
        high: f64,
        /// Replaces a cell that is empty or is not a number. Without it, the example contributes zero.
        missing: Option<f64>,
    },
    /// One of several words, one-hot encoded.
    Category {
        /// The words.
        words: Vec<String>,
        /// The index of the word that replaces empty cells and unknown words. Without it, all numbers
        /// of such a cell are 0.
        missing: Option<usize>,
    },
    /// One of several words, as its index, for embeddings.
    Index {
        /// The words.
        words: Vec<String>,
        /// The index of the word that replaces empty cells and unknown words. Without it, the number of such a cell is -1.
        missing: Option<usize>,
    },
}

/// The examples of a table. Not `Debug`: they are private.
pub struct Table {
    /// One row per example; NaN where a number is missing and has no replacement.
    pub inputs: Array,
    /// The class index or the scaled number of each example; NaN where the label is none of the classes, or not a number.
    pub labels: Vec<f32>,
    /// The label of each example as it is in the file, if labels are numbers; NaN where it is not one. Empty for classes.
    pub numbers: Vec<f64>,
    /// The user index of each example, if the schema names users; `None` where the row names no user.
    pub users: Option<Vec<Option<u32>>>,
    /// The names of the users, by index. **Private**, if the table is.
    pub user_names: Vec<String>,
}

/// A cell or row that is not as declared: its place and the rule it breaks, never its content. **Private**: only for the
/// owner of the data, since its existence depends on a record.
#[derive(Clone, PartialEq, Eq)]
pub struct Defect {
    /// The row, counted from 1 without the header.
    pub row: u64,
    /// The column; `None` if the row as a whole is malformed.
    pub column: Option<String>,
    /// The rule that is broken, and how the example is treated.
    pub rule: String,
}

impl Schema {
    /// The number of inputs of an example.
    pub fn width(&self) -> usize {
        let width = |column: &Column| match &column.kind {
            Kind::Number { .. } | Kind::Index { .. } => 1,
            Kind::Category { words, .. } => words.len(),
        };
        self.columns.iter().map(width).sum()
    }

    /// The names of all columns that are read, each once.
    pub(crate) fn names(&self, labelled: bool) -> Vec<String> {
        let mut names: Vec<String> = Vec::new();
        let others = self.user.iter().chain([&self.label]).filter(|_| labelled);
        for name in self.columns.iter().map(|column| &column.name).chain(others) {
            if !names.contains(name) {
                names.push(name.clone());
            }
        }
        names
    }

    /// Whether a column of this name is read.
    #[cfg(feature = "parquet")]
    pub(crate) fn uses(&self, name: &str, labelled: bool) -> bool {
        let label = labelled && (self.label == name || self.user.as_deref() == Some(name));
        label || self.columns.iter().any(|column| column.name == name)
    }
}
