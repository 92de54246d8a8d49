//! The configuration of a training run. All of it is public, and nothing is inferred from private data.

mod data;
mod files;
mod model;
mod pair;
mod privacy;
mod train;

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::output::say;
#[cfg(test)]
pub(crate) use data::Arrays;
pub(crate) use data::{
    Classes, Column, Data, MadeUp, Microbatch, Named, Partition, Record, User, UserIds,
};
pub(crate) use files::Files;
pub(crate) use model::{Augment, Colours, Features, Kind, Layer, Model, Padding, Scattering};
use pair::pair;
#[cfg(test)]
pub(crate) use privacy::Group;
pub(crate) use privacy::{
    Adaptive, Bands, Correlated, Denominator, Precondition, Privacy, Sampling, Weights,
};
pub(crate) use train::{Local, Optimizer, Schedule, Simulate, Train};

/// A training run. Unknown keys are errors.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Config {
    pub(crate) data: Data,
    pub(crate) model: Model,
    pub(crate) privacy: Privacy,
    pub(crate) train: Train,
    /// Canaries to add to the records, if the run is an audit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) audit: Option<Audit>,
}

/// An audit of the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Audit {
    /// The number of canaries. Each is an additional record that is in the data with probability 1/2.
    pub(crate) canaries: std::num::NonZeroU32,
}

/// The public declarations about data and model that are stored in the model file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Declaration {
    #[serde(default, skip_serializing_if = "Classes::is_empty")]
    pub(crate) classes: Classes,
    /// Instead of classes: the bounds of a label that is a number.
    #[serde(default, deserialize_with = "pair", skip_serializing_if = "Option::is_none")]
    pub(crate) label_bounds: Option<[f64; 2]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) shape: Option<Vec<usize>>,
    #[serde(default, deserialize_with = "pair", skip_serializing_if = "Option::is_none")]
    pub(crate) bounds: Option<[f64; 2]>,
    /// The replacement of missing numbers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) missing: Option<String>,
    /// The character between the cells of a table, and the names of its columns if it has no header.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) delimiter: Option<char>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) header: Option<Vec<String>>,
    /// The name of the examples in an .npz file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) inputs: Option<String>,
    /// The name of the label: a column of a table, or an array in an .npz file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) label: Option<String>,
    /// The columns of a table.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) columns: Vec<Column>,
    pub(crate) model: Model,
    /// How many principal directions the whitening of inputs has, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) precondition: Option<usize>,
}

impl Declaration {
    /// The number of outputs of the model: one for each class, or one number.
    pub(crate) fn outputs(&self) -> usize {
        if self.label_bounds.is_some() { 1 } else { self.classes.count() }
    }
}

impl Config {
    /// The number of rounds of training, from declared numbers alone. A part of a round counts as one.
    pub(crate) fn rounds(&self) -> u64 {
        let epochs = self.train.epochs.unwrap_or(0.0);
        let rounds = match self.privacy.sampling {
            Sampling::Allocation => epochs * self.rounds_per_epoch() as f64,
            _ => epochs * self.data.records as f64 / self.privacy.expected_batch,
        };
        self.train.rounds.unwrap_or(rounds.ceil() as u64)
    }

    /// The rounds of an epoch, from declared numbers alone.
    pub(crate) fn rounds_per_epoch(&self) -> u64 {
        (self.data.records as f64 / self.privacy.expected_batch).round().max(1.0) as u64
    }

    /// The largest sample of truncated sampling.
    pub(crate) fn max_batch(&self) -> u64 {
        let batch = self.privacy.expected_batch;
        let proposed = (batch + 6.0 * batch.sqrt()).ceil() as u64;
        self.privacy.max_batch.unwrap_or(proposed.min(self.data.records))
    }

    /// The paths of all files that are named.
    pub(crate) fn paths_mut(&mut self) -> impl Iterator<Item = &mut PathBuf> {
        self.data.paths_mut().chain(&mut self.model.init)
    }

    /// How many copies of each example are averaged in training.
    pub(crate) fn copies(&self) -> usize {
        self.model.augment.map_or(1, |augment| augment.copies)
    }

    /// The number of canaries.
    pub(crate) fn canaries(&self) -> u32 {
        self.audit.map_or(0, |audit| audit.canaries.get())
    }

    /// The declaration that is stored in the model file: no paths, and nothing about the run.
    pub(crate) fn declaration(&self) -> Declaration {
        let data = &self.data;
        Declaration {
            classes: data.classes.clone(),
            label_bounds: data.label_bounds,
            shape: data.shape.clone(),
            bounds: data.bounds,
            missing: data.missing.clone(),
            delimiter: data.delimiter,
            header: data.header.clone(),
            inputs: data.arrays.as_ref().map(|arrays| arrays.inputs.clone()),
            label: data.arrays.as_ref().map(|arrays| arrays.labels.clone()).or(data.label.clone()),
            columns: data.columns.clone(),
            model: Model {
                init: None,
                init_sha256: None,
                fresh: Vec::new(),
                frozen: Vec::new(),
                ..self.model.clone()
            },
            precondition: self.privacy.precondition.map(|precondition| precondition.directions),
        }
    }

    /// The name of the dataset in budgets: the declared one, or the name of the (first) file after resolving links. The file
    /// is not read for this, so a copy of the data under another name is another dataset.
    pub(crate) fn dataset(&self) -> String {
        let named = self.data.dataset.clone();
        named.unwrap_or_else(|| {
            let first = self.data.train.first();
            let real = std::fs::canonicalize(first);
            let name = real.as_deref().unwrap_or(first).file_name();
            name.map_or("data".to_owned(), |name| name.to_string_lossy().into_owned())
        })
    }

    /// Resolves paths relative to the configuration's directory. Files that exist only in the working directory are found
    /// too, with a note.
    pub(crate) fn find_files(&mut self, directory: &Path) {
        for path in self.paths_mut() {
            let beside = directory.join(&*path);
            if beside == *path {
                continue;
            }
            if !beside.exists() && path.exists() {
                say(&format!(
                    "note: {} was found in the working directory; paths are relative to the \
                     configuration's directory\n",
                    path.display()
                ));
            } else {
                *path = beside;
            }
        }
    }
}
