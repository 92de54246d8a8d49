//! What a round of training asks of its sample, in public parameters.

use std::num::NonZeroU32;

use veilgrad_events::{BudgetShare, ClipNorm, NoiseMultiplier, PublicCount, RecordUnit, UnitError};
use veilgrad_mechanism::{Allocation, Group, Metric, PlanError, RoundPlan, Structure};

use crate::layer::Role;
use crate::{Loss, Model, TrainError};

/// How gradients are clipped.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Clipping {
    /// All parameters together, as one group named `gradient`.
    Flat(ClipNorm),
    /// Each parameter to `S/sqrt(m)`, as groups named after them.
    PerLayer(ClipNorm),
    /// Each parameter to `S sqrt(d/D)`, as groups named after them.
    DimensionAware(ClipNorm),
    /// Groups of trained parameters by name or glob, with scales if they are joint. They are averaged
    /// over the expected number of records unless they say otherwise.
    Groups(Vec<Group>),
}

/// What a record is, and what it brings.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Unit {
    /// One example; brings its gradient.
    Example,
    /// A fixed set of examples; brings their average gradient.
    Microbatch {
        /// How many examples a microbatch has at most.
        examples: NonZeroU32,
    },
    /// All examples of a user; of more than `examples`, the first count.
    User {
        /// How many examples of a user count.
        examples: NonZeroU32,
        /// What the user brings.
        contribution: Contribution,
    },
}

/// What a user brings.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Contribution {
    /// The average gradient of the user's examples.
    Average,
    /// How far training on the user's examples alone moves the weights: with plain SGD as the
    /// optimizer and rate 1, this is federated averaging.
    LocalSgd {
        /// The learning rate of the local steps.
        rate: f32,
        /// Examples per local step.
        batch: NonZeroU32,
        /// Passes over the examples.
        epochs: NonZeroU32,
    },
}

impl Unit {
    /// The unit as the ledger records it.
    #[must_use]
    pub const fn record(self) -> RecordUnit {
        match self {
            Self::Example => RecordUnit::Example,
            Self::Microbatch { examples } => RecordUnit::Microbatch { examples },
            Self::User { .. } => RecordUnit::User,
        }
    }

    /// How many examples of a record count.
    pub(crate) fn examples(self) -> usize {
        match self {
            Self::Example => 1,
            Self::Microbatch { examples } | Self::User { examples, .. } => {
                usize::try_from(examples.get()).unwrap_or(usize::MAX)
            }
        }
    }
}

/// A number about training that is estimated privately in the same rounds.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Watch {
    /// The share of right predictions, as `accuracy`.
    Accuracy,
    /// The average loss, as `loss`; losses above `most` count as that.
    Loss {
        /// A public bound.
        most: f64,
    },
    /// How many records of the sample are of each class, as `classes`.
    ClassCounts {
        /// The public number of classes.
        classes: usize,
    },
}

impl Watch {
    fn metric(self) -> Result<Metric, UnitError> {
        match self {
            Self::Accuracy => Metric::bounded("accuracy", 0.0, 1.0),
            Self::Loss { most } => Metric::bounded("loss", 0.0, most),
            Self::ClassCounts { classes } => Ok(Metric::class_counts("classes", classes)),
        }
    }
}

/// What every round of training asks of its sample, whatever computes the gradients: gradients in
/// groups, and beside them statistics, metrics and quantiles, with one noise multiplier for all.
#[derive(Debug, Clone, PartialEq)]
pub struct Queries {
    expected: PublicCount,
    clipping: Clipping,
    noise: NoiseMultiplier,
    statistics: Option<(ClipNorm, BudgetShare)>,
    metrics: Vec<(Metric, BudgetShare)>,
    also: Vec<Group>,
}

impl Queries {
    /// Gradients alone, clipped as `clipping` says, averaged over the public expected number of
    /// records in a sample (`q n`), with this noise multiplier for the whole round.
    #[must_use]
    pub fn new(clipping: Clipping, noise: NoiseMultiplier, expected: PublicCount) -> Self {
        let (metrics, also) = (Vec::new(), Vec::new());
        Self { expected, clipping, noise, statistics: None, metrics, also }
    }

    /// Clips each record's batch-norm statistics together, as group `statistics`, for a share of the
    /// round's privacy loss.
    #[must_use]
    pub fn statistics(mut self, clip: ClipNorm, share: BudgetShare) -> Self {
        self.statistics = Some((clip, share));
        self
    }

    /// Estimates a metric, for a share of the round's privacy loss.
    #[must_use]
    pub fn metric(mut self, metric: Metric, share: BudgetShare) -> Self {
        self.metrics.push((metric, share));
        self
    }

    /// Adds a group: a quantile of a gradient group's norm, for adaptive clipping.
    #[must_use]
    pub fn also(mut self, group: Group) -> Self {
        self.also.push(group);
        self
    }

    /// Whether statistics are released.
    #[must_use]
    pub const fn has_statistics(&self) -> bool {
        self.statistics.is_some()
    }

    /// The metrics, in order.
    pub fn metrics(&self) -> impl Iterator<Item = &Metric> {
        self.metrics.iter().map(|(metric, _)| metric)
    }

    /// The plan for the mechanism, for trained vectors and statistics of these names and lengths, and
    /// the names of the groups of gradients. A record's vectors stand in this order: trained,
    /// statistics, metrics. `outside` says that the sums of gradients are formed outside.
    ///
    /// # Errors
    /// When the groups do not fit the vectors.
    pub fn resolve(
        &self,
        trained: &[(String, usize)],
        statistics: &[(String, usize)],
        outside: bool,
    ) -> Result<(RoundPlan, Vec<String>), TrainError> {
        let unit = |error| PlanError::Unit("metric".to_owned(), error);
        let vectors = trained.iter().chain(statistics).cloned();
        let structure = Structure::new(vectors.chain(self.metrics().map(Metric::vector)))?;
        let trained = Structure::new(trained.iter().cloned())?;
        let names = || trained.vectors().map(|(name, _)| name);
        let gradients = match &self.clipping {
            Clipping::Flat(clip) => vec![Group::new("gradient", names(), *clip)],
            Clipping::PerLayer(clip) => Group::per_layer(&trained, "*", *clip)?,
            Clipping::DimensionAware(clip) => Group::dimension_aware(&trained, "*", *clip)?,
            Clipping::Groups(groups) => groups.clone(),
        };
        let average = |group: Group| group.average(self.expected);
        // Alone first: a group may claim nothing but gradients, and no gradient may be left over.
        let alone = gradients.iter().cloned().map(average).collect();
        let alone = RoundPlan::new(trained.clone(), alone, Allocation::Proportional(self.noise))?;
        let names = alone.group_names().map(str::to_owned).collect();
        let mut groups = gradients
            .into_iter()
            .map(|group| if group.is_sum() { average(group) } else { group })
            .map(|group| if outside { group.summed_outside() } else { group })
            // By name, so that no glob claims a statistic or a metric beside them.
            .map(|group| group.named(&trained))
            .collect::<Result<Vec<Group>, _>>()?;
        if let Some((clip, share)) = self.statistics {
            let vectors = statistics.iter().map(|(name, _)| name);
            groups
                .push(Group::new("statistics", vectors, clip).average(self.expected).share(share));
        }
        for (metric, share) in &self.metrics {
            groups.push(metric.group(self.expected).map_err(unit)?.share(*share));
        }
        groups.extend(self.also.iter().cloned());
        let plan = RoundPlan::new(structure, groups, Allocation::Proportional(self.noise))?;
        Ok((plan, names))
    }
}

/// The privacy settings of training: loss, record unit, clipping, statistics, metrics, noise.
///
/// Everything in it is public and fixed before the first round. All that a round releases are groups
/// of one sample, and the noise multiplier is that of all of them together.
#[derive(Debug, Clone, PartialEq)]
pub struct TrainingPlan {
    pub(crate) loss: Loss,
    pub(crate) unit: Unit,
    pub(crate) watches: Vec<Watch>,
    pub(crate) momentum: f32,
    pub(crate) materialise: bool,
    queries: Queries,
    shares: Vec<BudgetShare>,
}

impl TrainingPlan {
    /// Examples as records, clipped as `clipping` says, averaged over the public expected number of
    /// records in a sample (`q n`), with this noise multiplier for the whole round.
    #[must_use]
    pub fn new(
        loss: Loss,
        clipping: Clipping,
        noise: NoiseMultiplier,
        expected: PublicCount,
    ) -> Self {
        Self {
            loss,
            unit: Unit::Example,
            watches: Vec::new(),
            momentum: 0.1,
            materialise: false,
            queries: Queries::new(clipping, noise, expected),
            shares: Vec::new(),
        }
    }

    /// Sets what a record is.
    #[must_use]
    pub const fn unit(mut self, unit: Unit) -> Self {
        self.unit = unit;
        self
    }

    /// Estimates a metric in every round, for a share of the round's privacy loss.
    #[must_use]
    pub fn watch(mut self, watch: Watch, share: BudgetShare) -> Self {
        self.watches.push(watch);
        self.shares.push(share);
        self
    }

    /// Needed for models with [`Layer::BatchNorm`](crate::Layer::BatchNorm): clips each record's
    /// channel means and mean squares together, as group `statistics`, for a share of the round's
    /// privacy loss.
    #[must_use]
    pub fn statistics(mut self, clip: ClipNorm, share: BudgetShare) -> Self {
        self.queries = self.queries.statistics(clip, share);
        self
    }

    /// How far a round moves the running statistics; 0.1 by default.
    #[must_use]
    pub const fn statistics_momentum(mut self, momentum: f32) -> Self {
        self.momentum = momentum;
        self
    }

    /// Adds a group to every round: a quantile of a gradient group's norm, for adaptive clipping.
    #[must_use]
    pub fn also(mut self, group: Group) -> Self {
        self.queries = self.queries.also(group);
        self
    }

    /// Holds every record's gradient as one vector and lets the mechanism clip it, as is done for
    /// microbatches and users anyway: slower, and the reference for the other way.
    #[must_use]
    pub const fn materialised(mut self) -> Self {
        self.materialise = true;
        self
    }

    /// Whether statistics are released.
    pub(crate) const fn has_statistics(&self) -> bool {
        self.queries.has_statistics()
    }

    /// Whether records' gradients are held as vectors.
    pub(crate) fn is_materialised(&self) -> bool {
        self.materialise || self.unit != Unit::Example
    }

    /// The round of a model: the plan for the mechanism, the metrics, and the groups of gradients.
    pub(crate) fn resolve(&self, model: &Model) -> Result<Resolved, TrainError> {
        let parameters = &model.network.parameters;
        let of = |role: Role| -> Vec<(String, usize)> {
            let of_role = parameters.iter().filter(|p| p.role == role);
            of_role.map(|p| (p.name.clone(), p.length)).collect()
        };
        let unit = |error| PlanError::Unit("metric".to_owned(), error);
        let mut queries = self.queries.clone();
        for (watch, share) in self.watches.iter().zip(&self.shares) {
            queries = queries.metric(watch.metric().map_err(unit)?, *share);
        }
        let outside = !self.is_materialised();
        let (plan, gradients) =
            queries.resolve(&of(Role::Weight), &of(Role::Statistic), outside)?;
        Ok(Resolved { plan, metrics: queries.metrics().cloned().collect(), gradients })
    }
}

/// What a training plan means for a model.
pub(crate) struct Resolved {
    pub(crate) plan: RoundPlan,
    pub(crate) metrics: Vec<Metric>,
    /// The names of the groups of gradients.
    pub(crate) gradients: Vec<String>,
}
