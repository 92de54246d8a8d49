//! `[model]`: layers, features and initial weights.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::pair::pair;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Model {
    pub(crate) kind: Kind,
    /// The layers of a model of kind "layers". A linear layer to the outputs follows them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) layers: Vec<Layer>,
    /// A model file whose parameters the run starts from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) init: Option<PathBuf>,
    /// SHA-256 of that file. Filled in if it is not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) init_sha256: Option<String>,
    /// Parameters that are not taken from that file, by name or glob.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) fresh: Vec<String>,
    /// Parameters that are not trained, by name or glob.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) frozen: Vec<String>,
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
    /// The layers that are listed.
    Layers,
}

/// A layer of a model of kind "layers". Images are [rows, columns, channels].
// Layer norm is the name of a layer.
#[allow(clippy::enum_variant_names)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) enum Layer {
    Linear {
        outputs: usize,
    },
    Conv {
        filters: usize,
        /// The side of a square filter.
        kernel: usize,
        #[serde(default = "one")]
        stride: usize,
        #[serde(default)]
        padding: Padding,
    },
    MaxPool {
        size: usize,
        /// As the size, by default.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        stride: Option<usize>,
    },
    AveragePool {
        size: usize,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        stride: Option<usize>,
    },
    GlobalAverage {},
    Relu {},
    Tanh {},
    Gelu {},
    GroupNorm {
        groups: usize,
    },
    LayerNorm {},
    BatchNorm {},
    Flatten {},
}

impl Layer {
    /// Its kind, as it is written.
    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Self::Linear { .. } => "linear",
            Self::Conv { .. } => "conv",
            Self::MaxPool { .. } => "max-pool",
            Self::AveragePool { .. } => "average-pool",
            Self::GlobalAverage {} => "global-average",
            Self::Relu {} => "relu",
            Self::Tanh {} => "tanh",
            Self::Gelu {} => "gelu",
            Self::GroupNorm { .. } => "group-norm",
            Self::LayerNorm {} => "layer-norm",
            Self::BatchNorm {} => "batch-norm",
            Self::Flatten {} => "flatten",
        }
    }
}

/// The zeros around an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Padding {
    #[default]
    Valid,
    Same,
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
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) mirror: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Colours {
    /// Brightness and two differences, instead of red, green and blue.
    Opponent,
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
