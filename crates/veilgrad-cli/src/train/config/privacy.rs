//! `[privacy]`: the guarantee, and what a round releases.

use serde::{Deserialize, Serialize};
use veilgrad_events::Adjacency;

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
    /// The largest sample, for `sampling = "truncated"`; by default the expected batch plus six times its square root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) max_batch: Option<u64>,
    #[serde(default = "default_adjacency")]
    pub(crate) adjacency: Adjacency,
    /// The clip norm of all parameters together, if no groups are declared.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) clip: Option<f64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) groups: Vec<Group>,
    /// Weights of users; without them, all users count alike.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) weights: Option<Weights>,
    /// A private denominator of averages, instead of the expected one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) denominator: Option<Denominator>,
    /// Adaptive clipping: clip norms follow a quantile of the norms of records.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) adaptive: Option<Adaptive>,
    /// Rounds before training that release the mean and the principal directions of the inputs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) precondition: Option<Precondition>,
    /// Noise that is correlated between rounds, so that less of it adds up in the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) correlated: Option<Correlated>,
}

/// Correlated noise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Correlated {
    /// Over how many rounds noise is correlated, or `"auto"`.
    pub(crate) bands: Bands,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum Bands {
    Number(usize),
    Named(BestBands),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum BestBands {
    /// The number with the least error; plain noise if that is the best.
    Auto,
}

/// Weights of users: the number of their examples, up to a bound.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Weights {
    /// The largest weight; larger ones are cut to it.
    pub(crate) bound: f64,
    /// The public mean weight of a user, for the expected denominator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) expected: Option<f64>,
}

/// A private denominator: the noisy sum of weights, but at least a public floor.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Denominator {
    pub(crate) floor: f64,
    /// Its fraction of the privacy budget of a round.
    pub(crate) share: f64,
}

/// Adaptive clipping of every group of parameters.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Adaptive {
    /// The quantile of the norms that clip norms follow.
    #[serde(default = "median")]
    pub(crate) quantile: f64,
    /// The public floor of clip norms.
    pub(crate) floor: f64,
    /// The fraction of the privacy budget of a round, for all groups together.
    pub(crate) share: f64,
    /// The step size, on the logarithm of the clip norm.
    #[serde(default = "quantile_lr")]
    pub(crate) lr: f64,
}

const fn median() -> f64 {
    0.5
}

/// As Andrew et al. recommend (arXiv 1905.03871).
const fn quantile_lr() -> f64 {
    0.2
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
    /// Every record once per epoch, in a random order; no amplification. `allocation` has it.
    Shuffle,
    /// Poisson samples of at most `max_batch` records.
    Truncated,
    /// Every record in one round of each epoch, chosen independently.
    Allocation,
}

impl Sampling {
    /// Its name in a configuration.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Poisson => "poisson",
            Self::Fixed => "fixed",
            Self::Shuffle => "shuffle",
            Self::Truncated => "truncated",
            Self::Allocation => "allocation",
        }
    }

    /// Whether batches are drawn from a known number of records, which is then public: those of which the events name it.
    pub(crate) const fn needs_record_count(self) -> bool {
        match self {
            Self::Poisson | Self::Allocation => false,
            Self::Fixed | Self::Shuffle | Self::Truncated => true,
        }
    }
}

impl Privacy {
    /// Whether the exact number of records is public, and must be as declared: batches are drawn from it, under an adjacency
    /// in which all neighbours have as many records.
    pub(crate) fn has_public_record_count(&self) -> bool {
        self.sampling.needs_record_count() && self.adjacency != Adjacency::AddRemove
    }
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

/// Groups with these names are private estimates, and need a share of the budget.
const ESTIMATES: [&str; 4] = ["accuracy", "loss", "classes", "statistics"];

impl Group {
    /// Whether it is a private estimate, not a group of parameters.
    pub(crate) fn is_estimate(&self) -> bool {
        match self.vectors.as_slice() {
            [name] => ESTIMATES.contains(&name.as_str()),
            _ => false,
        }
    }
}

const fn default_adjacency() -> Adjacency {
    Adjacency::AddRemove
}
