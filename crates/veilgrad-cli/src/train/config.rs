//! The configuration of a training run: everything public, everything declared.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::Error;

/// A training run. Unknown keys are errors.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Config {
    pub(crate) data: Data,
    pub(crate) model: Model,
    pub(crate) privacy: Privacy,
    pub(crate) train: Train,
}

/// Where examples are, and what is known about them without looking.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Data {
    /// Private examples: .csv, .npy, .npz, or IDX (.gz or not).
    pub(crate) train: PathBuf,
    /// Their labels, where they are in a file of their own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) labels: Option<PathBuf>,
    /// Public examples: evaluated and printed without charge.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) test: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) test_labels: Option<PathBuf>,
    /// The name under which budgets know the data; by default that of the directory of `train`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) dataset: Option<String>,
    /// A public number of records, for the sampling rate. Under add-remove adjacency the true number is
    /// private: declare one that you would print.
    pub(crate) records: u64,
    /// How many classes, or their names.
    pub(crate) classes: Classes,
    /// The shape of an example, where it is not a table: rows and columns of an image, or one number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) shape: Option<Vec<usize>>,
    /// The bounds of all numbers, where it is not a table; brought to [0, 1].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) bounds: Option<[f64; 2]>,
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
#[serde(untagged)]
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

    /// The names, which are numbers if nobody gave others.
    pub(crate) fn names(&self) -> Vec<String> {
        match self {
            Self::Count(count) => (0..*count).map(|class| class.to_string()).collect(),
            Self::Names(names) => names.clone(),
        }
    }
}

/// What a record is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
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
    /// How many examples of a user count.
    pub(crate) max_examples: std::num::NonZeroU32,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Microbatch {
    pub(crate) microbatch: std::num::NonZeroU32,
}

/// A column of a table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Column {
    pub(crate) name: String,
    /// The public bounds of a number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) bounds: Option<[f64; 2]>,
    /// The public categories of a word.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) categories: Option<Vec<String>>,
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
    /// The widths of hidden layers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) hidden: Vec<usize>,
    /// Batch norm by private statistics after every hidden layer; needs a group "statistics".
    #[serde(default)]
    pub(crate) batch_norm: bool,
    /// From which public number initial weights are drawn.
    #[serde(default)]
    pub(crate) seed: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Kind {
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

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Scattering {
    pub(crate) scales: u32,
    pub(crate) orientations: usize,
    pub(crate) norm_groups: usize,
}

impl Default for Scattering {
    fn default() -> Self {
        Self { scales: 2, orientations: 8, norm_groups: 27 }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Privacy {
    /// What the run may cost; the noise follows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) epsilon: Option<f64>,
    /// The noise; what the run costs follows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) noise_multiplier: Option<f64>,
    pub(crate) delta: f64,
    #[serde(default)]
    pub(crate) sampling: Sampling,
    /// The expected number of records in a round: the public denominator.
    pub(crate) expected_batch: f64,
    #[serde(default)]
    pub(crate) adjacency: Adjacency,
    /// The clip norm of all parameters together, where no groups are declared.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) clip: Option<f64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) groups: Vec<Group>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Sampling {
    #[default]
    Poisson,
    Fixed,
    Shuffle,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Adjacency {
    #[default]
    AddRemove,
    ReplaceOne,
    ZeroOut,
}

/// Parameters by name, or one of `accuracy`, `loss`, `classes`, `statistics`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Group {
    pub(crate) vectors: Vec<String>,
    pub(crate) clip: f64,
    /// Which part of a round's privacy loss the group may have.
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
    /// Decay of an average of the weights, which becomes the model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ema: Option<f32>,
    /// The learning rate falls to zero along half a cosine.
    #[serde(default)]
    pub(crate) cosine: bool,
    /// How many rounds are charged at once; as many are lost at most in a crash.
    #[serde(default = "default_block")]
    pub(crate) block: u64,
}

const fn default_block() -> u64 {
    32
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

impl Config {
    pub(crate) fn read(path: &Path) -> Result<Self, Error> {
        let name = path.display().to_string();
        let text = std::fs::read_to_string(path)
            .map_err(|cause| Error::File { path: name.clone(), cause })?;
        Self::parse(&text).map_err(|why| Error::Usage(format!("{name}: {why}")))
    }

    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let config: Self =
            toml::from_str(text).map_err(|error| with_suggestion(&error.to_string()))?;
        config.check()?;
        Ok(config)
    }

    fn check(&self) -> Result<(), String> {
        let (data, privacy) = (&self.data, &self.privacy);
        match (privacy.epsilon, privacy.noise_multiplier) {
            (None, None) => return Err("[privacy] needs epsilon, or noise_multiplier".to_owned()),
            (Some(_), Some(_)) => {
                return Err("[privacy] has both epsilon and noise_multiplier; give one".to_owned());
            }
            _ => {}
        }
        if data.classes.count() < 2 {
            return Err("[data] classes must be 2 or more".to_owned());
        }
        if data.records == 0 {
            return Err("[data] records must be 1 or more".to_owned());
        }
        let rate = privacy.expected_batch / data.records as f64;
        if !(rate > 0.0 && rate <= 1.0) {
            return Err(format!(
                "[privacy] expected_batch {} is not in (0, {}], the declared [data] records",
                privacy.expected_batch, data.records
            ));
        }
        if self.train.rounds == 0 {
            return Err("[train] rounds must be 1 or more".to_owned());
        }
        for column in &data.columns {
            match (&column.bounds, &column.categories) {
                (Some([low, high]), None) if low < high => {}
                (Some(_), None) => {
                    return Err(format!("column {:?}: bounds must ascend", column.name));
                }
                (None, Some(_)) => {}
                _ => {
                    return Err(format!(
                        "column {:?} needs bounds, or categories, declared: they are not inferred \
                         from private data",
                        column.name
                    ));
                }
            }
        }
        if let Some([low, high]) = data.bounds
            && !(low < high && low.is_finite() && high.is_finite())
        {
            return Err(format!("[data] bounds [{low}, {high}] must ascend"));
        }
        Ok(())
    }

    /// The name under which budgets know the data.
    pub(crate) fn dataset(&self) -> String {
        let named = self.data.dataset.clone();
        named.unwrap_or_else(|| {
            let directory = self.data.train.parent().and_then(Path::file_name);
            let name = directory.or_else(|| self.data.train.file_stem());
            name.map_or("data".to_owned(), |name| name.to_string_lossy().into_owned())
        })
    }

    /// SHA-256 of the effective configuration: what the ledger keeps of it.
    pub(crate) fn hash(&self) -> Result<String, String> {
        use sha2::{Digest, Sha256};
        let text = serde_json::to_string(self).map_err(|error| error.to_string())?;
        Ok(Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect())
    }
}

/// An unknown key gets the known one that is most like it.
fn with_suggestion(message: &str) -> String {
    let mut quoted = message.split('`').skip(1).step_by(2);
    if !message.contains("unknown field") && !message.contains("unknown variant") {
        return message.trim_end().to_owned();
    }
    let Some(unknown) = quoted.next() else { return message.to_owned() };
    let alike = |known: &str| {
        let common = known.chars().filter(|c| unknown.contains(*c)).count();
        2 * common + 3 * known.chars().zip(unknown.chars()).take_while(|(a, b)| a == b).count()
    };
    match quoted.max_by_key(|known| (alike(known), usize::MAX - known.len())) {
        Some(known) => format!("{}\ndid you mean `{known}`?", message.trim_end()),
        None => message.trim_end().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"
[data]
train = "data/mnist/train-images-idx3-ubyte.gz"
labels = "data/mnist/train-labels-idx1-ubyte.gz"
records = 60000
classes = 10
shape = [28, 28]
bounds = [0, 255]
[model]
kind = "linear"
features = "scattering"
[privacy]
epsilon = 3.0
delta = 1e-5
expected_batch = 8192
[train]
rounds = 700
optimizer = { kind = "sgd", lr = 0.6, momentum = 0.9 }
ema = 0.99
"#;

    #[test]
    fn a_configuration_is_read_and_means_what_it_says() {
        let config = Config::parse(GOOD).unwrap();
        assert_eq!(config.dataset(), "mnist");
        assert_eq!(config.privacy.adjacency, Adjacency::AddRemove);
        let user = GOOD.replace(
            "classes = 10",
            "classes = [\"a\", \"b\"]\nrecord = { user = \"who\", max_examples = 3 }",
        );
        let config = Config::parse(&user).unwrap();
        assert!(matches!(config.data.record, Record::User(_)));
        assert_eq!(config.data.classes.names(), ["a", "b"]);
        let micro = GOOD.replace("classes = 10", "classes = 10\nrecord = { microbatch = 4 }");
        assert!(matches!(Config::parse(&micro).unwrap().data.record, Record::Microbatch(_)));
        assert_ne!(Config::parse(&micro).unwrap().hash(), Config::parse(GOOD).unwrap().hash());
    }

    #[test]
    fn what_is_wrong_is_named_with_what_would_be_right() {
        for (from, to, what) in [
            ("epsilon = 3.0", "epsilom = 3.0", "did you mean `epsilon`"),
            ("kind = \"linear\"", "kind = \"liner\"", "did you mean `linear`"),
            ("epsilon = 3.0\n", "", "needs epsilon, or noise_multiplier"),
            ("epsilon = 3.0", "epsilon = 3.0\nnoise_multiplier = 1.0", "both"),
            ("records = 60000\n", "", "missing field `records`"),
            ("expected_batch = 8192", "expected_batch = 99999", "is not in (0, 60000]"),
            ("rounds = 700", "rounds = 0", "rounds must be"),
            ("classes = 10", "classes = 1", "classes must be"),
            ("bounds = [0, 255]", "bounds = [255, 0]", "must ascend"),
        ] {
            let error = Config::parse(&GOOD.replace(from, to)).unwrap_err();
            assert!(error.contains(what), "{what}: {error}");
        }
    }
}
