//! `[train]`: rounds, optimizer and schedule.

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Train {
    /// The number of rounds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) rounds: Option<u64>,
    /// Instead of rounds: how often each record is used on average. Rounds follow from declared numbers alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) epochs: Option<f64>,
    pub(crate) optimizer: Optimizer,
    /// Local SGD on every user, whose record is then a model update (federated averaging).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) local: Option<Local>,
    /// Simulated users who are not available or drop out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) simulate: Option<Simulate>,
    /// The public weight of each class: multiplies the loss of its examples before clipping.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) class_weights: Option<Vec<f32>>,
    /// For labels that are numbers: errors beyond this many units of the label count linearly instead of squared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) huber: Option<f64>,
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

/// Local SGD: what a user does with its own examples.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Local {
    pub(crate) lr: f32,
    /// Examples per step.
    pub(crate) batch: std::num::NonZeroU32,
    /// Passes over the examples.
    #[serde(default = "one")]
    pub(crate) epochs: std::num::NonZeroU32,
}

const fn one() -> std::num::NonZeroU32 {
    std::num::NonZeroU32::MIN
}

/// Probabilities that are independent of all data.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Simulate {
    /// The probability that a user is available in a round.
    #[serde(default = "always")]
    pub(crate) availability: f64,
    /// The probability that a user who takes part does not answer.
    #[serde(default)]
    pub(crate) dropout: f64,
}

impl Simulate {
    /// The probability that a sampled user answers.
    pub(crate) fn answering(self) -> f64 {
        self.availability * (1.0 - self.dropout)
    }
}

const fn always() -> f64 {
    1.0
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
    Yogi {
        lr: f64,
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
            | Self::Yogi { lr }
            | Self::Adagrad { lr }
            | Self::Rmsprop { lr } => lr,
        }
    }
}
