//! `[data]`: the files with examples, and what is publicly known about them.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::files::Files;
use super::pair::pair;

/// The files with examples, and the public declarations about them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Data {
    /// Private examples: .csv, .tsv, .jsonl, .ndjson or IDX (.gz or not), .parquet (with the feature), .npy or .npz.
    /// The rows of several files follow each other.
    pub(crate) train: Files,
    /// Their labels, if they are in separate files, as many as there are in `train`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) labels: Option<Files>,
    /// Public examples: the accuracy on them is printed without charge.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) test: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) test_labels: Option<PathBuf>,
    /// Public examples on which the temperature of class probabilities is fitted, without charge.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) calibration: Option<PathBuf>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) calibration_labels: Option<PathBuf>,
    /// The name of the dataset in budgets; by default the name of the (first) file `train`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) dataset: Option<String>,
    /// A public number of records, for the sampling rate. Under add-remove adjacency the true number is
    /// private: declare one that you would print.
    pub(crate) records: u64,
    /// The number of classes, or their names.
    #[serde(default, skip_serializing_if = "Classes::is_empty")]
    pub(crate) classes: Classes,
    /// Instead of classes: the public bounds of a label that is a number.
    #[serde(default, deserialize_with = "pair", skip_serializing_if = "Option::is_none")]
    pub(crate) label_bounds: Option<[f64; 2]>,
    /// The shape of an example that is not a row of a table: rows and columns of an image, or one number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) shape: Option<Vec<usize>>,
    /// The bounds of all numbers, unless it is a table; numbers are scaled from these to [0, 1].
    #[serde(default, deserialize_with = "pair", skip_serializing_if = "Option::is_none")]
    pub(crate) bounds: Option<[f64; 2]>,
    /// The replacement of missing numbers: "zero" or "mean-of-bounds". Without it, an example with a
    /// missing number contributes zero.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) missing: Option<String>,
    /// What the guarantee protects.
    #[serde(default)]
    pub(crate) record: Record,
    /// The column with the label, in a table.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) label: Option<String>,
    /// The character between the cells of a table; by default a tab in .tsv files and a comma in .csv files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) delimiter: Option<char>,
    /// The names of all columns in order, if the files have no header.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) header: Option<Vec<String>>,
    /// The names of examples and labels in an .npz file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) arrays: Option<Arrays>,
    /// The columns that are used, in a table.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) columns: Vec<Column>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Arrays {
    pub(crate) inputs: String,
    pub(crate) labels: String,
    /// The ids of users, if records are users.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) users: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(
    untagged,
    expecting = "classes is their number, as in 10, or their names, as in [\"no\", \"yes\"]"
)]
pub(crate) enum Classes {
    Count(usize),
    Names(Vec<String>),
}

/// None: the label is a number.
impl Default for Classes {
    fn default() -> Self {
        Self::Count(0)
    }
}

impl Classes {
    /// Whether none are declared.
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::Count(0)
    }

    pub(crate) fn count(&self) -> usize {
        match self {
            Self::Count(count) => *count,
            Self::Names(names) => names.len(),
        }
    }

    /// The names; numbers by default.
    pub(crate) fn names(&self) -> Vec<String> {
        match self {
            Self::Count(count) => (0..*count).map(|class| class.to_string()).collect(),
            Self::Names(names) => names.clone(),
        }
    }
}

/// What a record is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(
    untagged,
    expecting = "record is \"example\", { user = \"column\", max_examples = N }, { user_ids = \"file\", \
                 max_examples = N }, { partition = \"dirichlet\", users = N, max_examples = N } or { microbatch = N }"
)]
pub(crate) enum Record {
    Named(Named),
    User(User),
    UserIds(UserIds),
    MadeUp(MadeUp),
    Microbatch(Microbatch),
}

impl Record {
    /// How many examples of a user are used, if records are users.
    pub(crate) const fn user_examples(&self) -> Option<std::num::NonZeroU32> {
        match self {
            Self::User(User { max_examples, .. })
            | Self::UserIds(UserIds { max_examples, .. })
            | Self::MadeUp(MadeUp { max_examples, .. }) => Some(*max_examples),
            Self::Named(_) | Self::Microbatch(_) => None,
        }
    }
}

impl Default for Record {
    fn default() -> Self {
        Self::Named(Named::Example)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Named {
    Example,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct User {
    /// The column that names the user.
    pub(crate) user: String,
    /// How many examples of a user are used.
    pub(crate) max_examples: std::num::NonZeroU32,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct UserIds {
    /// A file with one whole number for each example: the id of its user.
    pub(crate) user_ids: PathBuf,
    /// How many examples of a user are used.
    pub(crate) max_examples: std::num::NonZeroU32,
}

/// Made-up users of public examples, for experiments.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct MadeUp {
    /// How examples are dealt out to users.
    pub(crate) partition: Partition,
    /// How many users there are.
    pub(crate) users: std::num::NonZeroU32,
    /// How many examples of a user are used.
    pub(crate) max_examples: std::num::NonZeroU32,
    /// For "dirichlet".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) concentration: Option<f64>,
    /// For "by-class".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) classes_per_user: Option<std::num::NonZeroU32>,
    /// The public seed.
    #[serde(default)]
    pub(crate) seed: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Partition {
    Uniform,
    ByClass,
    Dirichlet,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Microbatch {
    pub(crate) microbatch: std::num::NonZeroU32,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Column {
    pub(crate) name: String,
    /// The public bounds of a number.
    #[serde(default, deserialize_with = "pair", skip_serializing_if = "Option::is_none")]
    pub(crate) bounds: Option<[f64; 2]>,
    /// The public categories of a word.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) categories: Option<Vec<String>>,
    /// The width of an embedding of the categories, instead of one number for each.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) embedding: Option<usize>,
    /// The replacement of cells that are not as declared, instead of [data] missing: "zero" or
    /// "mean-of-bounds" for a number, "zero" (none of the categories) or one of the categories for a word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) missing: Option<String>,
}

impl Data {
    /// The private files of examples, each with the file of its labels, if that is a separate one.
    pub(crate) fn examples(&self) -> impl Iterator<Item = (&Path, Option<&Path>)> {
        let labels = self.labels.iter().flat_map(Files::iter).map(Some);
        self.train.iter().zip(labels.chain(std::iter::repeat(None)))
    }

    /// The paths of all files that are named.
    pub(crate) fn paths_mut(&mut self) -> impl Iterator<Item = &mut PathBuf> {
        let ids = match &mut self.record {
            Record::UserIds(ids) => Some(&mut ids.user_ids),
            _ => None,
        };
        let others = [
            &mut self.test,
            &mut self.test_labels,
            &mut self.calibration,
            &mut self.calibration_labels,
        ];
        let private = std::iter::once(&mut self.train).chain(&mut self.labels);
        others.into_iter().flatten().chain(ids).chain(private.flat_map(Files::iter_mut))
    }
}
