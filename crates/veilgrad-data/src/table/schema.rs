//! What is declared of a table, and what is read from one.

use crate::Array;

/// What a table's columns are. Declared, because private data must not decide it.
///
/// # Example
/// ```
/// use veilgrad_data::table::{Column, Kind, Schema};
///
/// let schema = Schema {
///     columns: vec![Column {
///         name: "age".to_owned(),
///         kind: Kind::Number { low: 0.0, high: 80.0, missing: None },
///     }],
///     label: "sick".to_owned(),
///     classes: vec!["no".to_owned(), "yes".to_owned()],
///     user: None,
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
    /// The columns that become numbers, in this order; others are not looked at.
    pub columns: Vec<Column>,
    /// The column with the label.
    pub label: String,
    /// The names of all classes.
    pub classes: Vec<String>,
    /// The column that names the user of an example, if records are users.
    pub user: Option<String>,
}

/// A column that is used.
#[derive(Debug, Clone, PartialEq)]
pub struct Column {
    /// Its name in the header.
    pub name: String,
    /// What is in it.
    pub kind: Kind,
}

/// What a column holds.
#[derive(Debug, Clone, PartialEq)]
pub enum Kind {
    /// A number with public bounds: scaled to [-1, 1], clamped beyond.
    Number {
        /// What becomes -1.
        low: f64,
        /// What becomes 1.
        high: f64,
        /// Replaces a cell that is empty or is not a number. Without it, the example contributes zero.
        missing: Option<f64>,
    },
    /// One of these words, one-hot encoded.
    Category {
        /// The words.
        words: Vec<String>,
        /// The index of the word that replaces an empty cell and any other word. Without it, such a
        /// cell is none of the words: all its numbers are 0.
        missing: Option<usize>,
    },
}

/// The examples of a table. Not `Debug`: what is in it is private.
pub struct Table {
    /// One row per example; NaN where a number is missing and has no replacement.
    pub inputs: Array,
    /// The number of the class of each; NaN where the label is none of the classes.
    pub labels: Vec<f32>,
    /// The number of the user of each, if there are users; none where the row does not say whose it is.
    pub users: Option<Vec<Option<u32>>>,
}

/// A row that is not as declared: where, and which rule it breaks; never what is there. **Private**, for the owner of the
/// data alone: whether there is one depends on a record.
#[derive(Clone, PartialEq, Eq)]
pub struct Defect {
    /// Counted from 1, the header not included.
    pub row: u64,
    /// The column; none where it is the row as a whole.
    pub column: Option<String>,
    /// The rule that it breaks, and what follows.
    pub rule: String,
}

impl Schema {
    /// How many numbers an example becomes.
    pub fn width(&self) -> usize {
        let width = |column: &Column| match &column.kind {
            Kind::Number { .. } => 1,
            Kind::Category { words, .. } => words.len(),
        };
        self.columns.iter().map(width).sum()
    }

    /// Whether a column of this name is looked at.
    #[cfg(feature = "parquet")]
    pub(crate) fn uses(&self, name: &str, labelled: bool) -> bool {
        let label = labelled && (self.label == name || self.user.as_deref() == Some(name));
        label || self.columns.iter().any(|column| column.name == name)
    }
}
