//! The privacy settings of training.

use veilgrad_events::{BudgetShare, ClipNorm, NoiseMultiplier, PublicCount};
use veilgrad_mechanism::{Group, Metric};
use veilgrad_nn::{Clipping, Queries, Unit};

/// The privacy settings of training: record unit, clipping, statistics, metrics, noise.
///
/// Everything in it is public and fixed before the first round. All that a round releases are groups
/// of one sample, and the noise multiplier is that of all of them together.
#[derive(Debug, Clone, PartialEq)]
pub struct TrainingPlan {
    pub(crate) queries: Queries,
    pub(crate) unit: Unit,
    pub(crate) materialise: bool,
}

impl TrainingPlan {
    /// Examples as records, clipped as `clipping` says, averaged over the public expected number of
    /// records in a sample (`q n`), with this noise multiplier for the whole round. Vectors are named
    /// by their path in the model: `conv1.weight`, `blocks.0.norm.gamma`.
    #[must_use]
    pub fn new(clipping: Clipping, noise: NoiseMultiplier, expected: PublicCount) -> Self {
        let queries = Queries::new(clipping, noise, expected);
        Self { queries, unit: Unit::Example, materialise: false }
    }

    /// Sets what a record is.
    #[must_use]
    pub const fn unit(mut self, unit: Unit) -> Self {
        self.unit = unit;
        self
    }

    /// Estimates a metric in every round, for a share of the round's privacy loss. The model's
    /// [`Outcome`](crate::Outcome) gives its values.
    #[must_use]
    pub fn metric(mut self, metric: Metric, share: BudgetShare) -> Self {
        self.queries = self.queries.metric(metric, share);
        self
    }

    /// Needed for models with [`PrivateBatchNorm`](crate::PrivateBatchNorm): clips each record's
    /// channel means and mean squares together, as group `statistics`, for a share of the round's
    /// privacy loss.
    #[must_use]
    pub fn statistics(mut self, clip: ClipNorm, share: BudgetShare) -> Self {
        self.queries = self.queries.statistics(clip, share);
        self
    }

    /// Adds a group to every round: a quantile of a gradient group's norm, for adaptive clipping.
    #[must_use]
    pub fn also(mut self, group: Group) -> Self {
        self.queries = self.queries.also(group);
        self
    }

    /// Takes the gradient of one record after the other, as is done for microbatches and users
    /// anyway: slower, for any model that Burn can differentiate, without change.
    #[must_use]
    pub const fn materialised(mut self) -> Self {
        self.materialise = true;
        self
    }

    pub(crate) fn is_materialised(&self) -> bool {
        self.materialise || self.unit != Unit::Example
    }
}
