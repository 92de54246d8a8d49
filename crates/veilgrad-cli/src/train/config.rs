//! The configuration of a training run. All of it is public, and nothing is inferred from private data.

use std::path::{Path, PathBuf};

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use veilgrad_events::Adjacency;

use crate::output::say;

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

/// The files with examples, and the public declarations about them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Data {
    /// Private examples: .csv, .parquet (with the feature), .npy, .npz, or IDX (.gz or not).
    pub(crate) train: PathBuf,
    /// Their labels, if they are in a separate file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) labels: Option<PathBuf>,
    /// Public examples: the accuracy on them is printed without charge.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) test: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) test_labels: Option<PathBuf>,
    /// The name of the dataset in budgets; by default the name of the file `train`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) dataset: Option<String>,
    /// A public number of records, for the sampling rate. Under add-remove adjacency the true number is
    /// private: declare one that you would print.
    pub(crate) records: u64,
    /// The number of classes, or their names.
    pub(crate) classes: Classes,
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

impl Classes {
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
    expecting = "record is \"example\", { user = \"column\", max_examples = N } or { microbatch = N }"
)]
pub(crate) enum Record {
    Named(Named),
    User(User),
    Microbatch(Microbatch),
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
    /// The replacement of cells that are not as declared, instead of [data] missing: "zero" or
    /// "mean-of-bounds" for a number, "zero" (none of the categories) or one of the categories for a word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) missing: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Model {
    pub(crate) kind: Kind,
    /// Per-record features: they cost no budget.
    #[serde(default)]
    pub(crate) features: Features,
    /// Scales and orientations of scattering features, and groups of their normalisation.
    #[serde(default)]
    pub(crate) scattering: Scattering,
    /// Scales every example's inputs to this L2 norm.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) input_norm: Option<f64>,
    /// Shifted and mirrored copies of images, in training and in use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) augment: Option<Augment>,
    /// The widths of hidden layers of an mlp, or of a cnn behind its convolutions (by default 32).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) hidden: Vec<usize>,
    /// The filters of a cnn's two convolutions, 8 x 8 and 4 x 4; by default 16 and 32.
    #[serde(default, deserialize_with = "pair", skip_serializing_if = "Option::is_none")]
    pub(crate) filters: Option<[usize; 2]>,
    /// Batch norm by private statistics after every hidden layer; needs a group "statistics".
    #[serde(default)]
    pub(crate) batch_norm: bool,
    /// The public seed of the initial weights.
    #[serde(default)]
    pub(crate) seed: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Kind {
    /// Softmax regression: logistic regression, for two classes.
    #[serde(alias = "logistic")]
    Linear,
    Mlp,
    Cnn,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Features {
    #[default]
    None,
    Scattering,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Scattering {
    pub(crate) scales: u32,
    pub(crate) orientations: usize,
    /// Groups of the normalisation: as many as there are channels for one each.
    pub(crate) norm_groups: usize,
    /// Averages channels around this many points along each side, instead of one for every 2^J pixels.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) grid: Option<usize>,
    /// The standard deviation of these averages, in pixels.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) pool_sigma: Option<f64>,
    /// The colours whose features are computed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) colours: Option<Colours>,
    /// Averages features with those of the mirror image.
    #[serde(skip_serializing_if = "is_false")]
    pub(crate) mirror: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Colours {
    /// Brightness and two differences, instead of red, green and blue.
    Opponent,
}

const fn is_false(value: &bool) -> bool {
    !*value
}

impl Default for Scattering {
    fn default() -> Self {
        Self {
            scales: 2,
            orientations: 8,
            norm_groups: 27,
            grid: None,
            pool_sigma: None,
            colours: None,
            mirror: false,
        }
    }
}

/// Copies of images. They cost no budget: a record is still one image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Augment {
    /// Copies of each image, itself included, whose gradients are averaged before clipping.
    #[serde(default = "one")]
    pub(crate) copies: usize,
    /// Copies of each image, itself included, whose outputs are averaged in predictions; by default as in training.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) predict_copies: Option<usize>,
    /// The largest shift of a copy, in pixels.
    #[serde(default)]
    pub(crate) shift: u8,
    /// Whether every copy is followed by its mirror image.
    #[serde(default)]
    pub(crate) flip: bool,
}

impl Augment {
    pub(crate) fn predict_copies(&self) -> usize {
        self.predict_copies.unwrap_or(self.copies)
    }
}

const fn one() -> usize {
    1
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Privacy {
    /// The target epsilon; the noise is calibrated for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) epsilon: Option<f64>,
    /// The noise multiplier; epsilon is computed from it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) noise_multiplier: Option<f64>,
    pub(crate) delta: f64,
    #[serde(default)]
    pub(crate) sampling: Sampling,
    /// The expected batch size, which is also the public denominator of averages.
    pub(crate) expected_batch: f64,
    #[serde(default = "default_adjacency")]
    pub(crate) adjacency: Adjacency,
    /// The clip norm of all parameters together, if no groups are declared.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) clip: Option<f64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) groups: Vec<Group>,
    /// Rounds before training that release the mean and the principal directions of the inputs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) precondition: Option<Precondition>,
}

/// Private preconditioning. Shares are fractions of the squared mu of the target: that of one Gaussian release with the
/// target's epsilon and delta.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Precondition {
    /// The share of the mean.
    pub(crate) mean_share: f64,
    /// The share of all rounds of directions together.
    pub(crate) directions_share: f64,
    /// How many principal directions are released.
    pub(crate) directions: usize,
    /// The rounds of subspace iteration.
    pub(crate) rounds: usize,
    /// Directions with more variance than this, of 1 in all, are scaled down to it.
    pub(crate) floor: f64,
}

impl Default for Precondition {
    fn default() -> Self {
        Self { mean_share: 0.02, directions_share: 0.1, directions: 20, rounds: 3, floor: 0.004 }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Sampling {
    #[default]
    Poisson,
    Fixed,
    Shuffle,
}

/// Parameters by name, or one of `accuracy`, `loss`, `classes`, `statistics`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Group {
    pub(crate) vectors: Vec<String>,
    pub(crate) clip: f64,
    /// The group's fraction of the privacy budget of a round.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) share: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Train {
    pub(crate) rounds: u64,
    pub(crate) optimizer: Optimizer,
    /// Decay of the exponential moving average of the weights, which becomes the model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ema: Option<f32>,
    /// The learning rate falls to zero along half a cosine.
    #[serde(default)]
    pub(crate) cosine: bool,
    /// The course of the learning rate; constant by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) schedule: Option<Schedule>,
    /// The number of rounds that are charged at once; at most as many are lost in a crash.
    #[serde(default = "default_block")]
    pub(crate) block: u64,
    /// Rounds between checkpoints; by default so many that checkpoints take about 2 % of the time, and at most 64 blocks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) checkpoint_rounds: Option<std::num::NonZeroU64>,
}

/// The course of the learning rate: constant, or falling to zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Schedule {
    Constant,
    Linear,
    Cosine,
}

const fn default_block() -> u64 {
    32
}

const fn default_adjacency() -> Adjacency {
    Adjacency::AddRemove
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) enum Optimizer {
    Sgd {
        lr: f64,
        #[serde(default)]
        momentum: f32,
        #[serde(default)]
        nesterov: bool,
    },
    Adam {
        lr: f64,
    },
    Adamw {
        lr: f64,
        #[serde(default)]
        weight_decay: f32,
    },
    Adagrad {
        lr: f64,
    },
    Rmsprop {
        lr: f64,
    },
}

impl Optimizer {
    pub(crate) const fn learning_rate(self) -> f64 {
        match self {
            Self::Sgd { lr, .. }
            | Self::Adam { lr }
            | Self::Adamw { lr, .. }
            | Self::Adagrad { lr }
            | Self::Rmsprop { lr } => lr,
        }
    }
}

/// The public declarations about data and model that are stored in the model file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Declaration {
    pub(crate) classes: Classes,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) shape: Option<Vec<usize>>,
    #[serde(default, deserialize_with = "pair", skip_serializing_if = "Option::is_none")]
    pub(crate) bounds: Option<[f64; 2]>,
    /// The replacement of missing numbers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) missing: Option<String>,
    /// The name of the examples in an .npz file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) inputs: Option<String>,
    /// The columns of a table.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) columns: Vec<Column>,
    pub(crate) model: Model,
    /// How many principal directions the whitening of inputs has, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) precondition: Option<usize>,
}

/// Reads exactly two values: the TOML reader would silently drop a third.
fn pair<'de, D, T>(deserializer: D) -> Result<Option<[T; 2]>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    let values = Vec::<T>::deserialize(deserializer)?;
    let count = values.len();
    let pair = values.try_into();
    pair.map(Some).map_err(|_| D::Error::custom(format!("expected two values, found {count}")))
}

impl Data {
    /// The paths of all files that are named.
    pub(crate) fn paths_mut(&mut self) -> impl Iterator<Item = &mut PathBuf> {
        let others = [&mut self.labels, &mut self.test, &mut self.test_labels];
        others.into_iter().flatten().chain([&mut self.train])
    }
}

impl Config {
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
            shape: data.shape.clone(),
            bounds: data.bounds,
            missing: data.missing.clone(),
            inputs: data.arrays.as_ref().map(|arrays| arrays.inputs.clone()),
            columns: data.columns.clone(),
            model: self.model.clone(),
            precondition: self.privacy.precondition.map(|precondition| precondition.directions),
        }
    }

    /// The name of the dataset in budgets: the declared one, or the name of the file after resolving links. The file is not
    /// read for this, so a copy of the data under another name is another dataset.
    pub(crate) fn dataset(&self) -> String {
        let named = self.data.dataset.clone();
        named.unwrap_or_else(|| {
            let real = std::fs::canonicalize(&self.data.train);
            let name = real.as_deref().unwrap_or(&self.data.train).file_name();
            name.map_or("data".to_owned(), |name| name.to_string_lossy().into_owned())
        })
    }

    /// Resolves paths relative to the configuration's directory. Files that exist only in the working directory are found
    /// too, with a note.
    pub(crate) fn find_files(&mut self, directory: &Path) {
        for path in self.data.paths_mut() {
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
