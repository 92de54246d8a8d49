//! The privacy settings of training. All of them are public.

use std::num::NonZeroU32;

use veilgrad_events::{
    BandedStrategy, BudgetShare, ClipNorm, NoiseMultiplier, PublicCount, RecordUnit, SampleRate,
    WeightBound,
};
use veilgrad_mechanism::{Allocation, CanaryLane, Group, Metric, PlanError, RoundPlan, Structure};

use super::error::TrainError;
use super::vector::{Vector, Vectors};

/// How gradients are clipped.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Clipping {
    /// All parameters together, as one group named `gradient`.
    Flat(ClipNorm),
    /// Each of the `m` parameters to `S/sqrt(m)`, as groups named after them.
    PerLayer(ClipNorm),
    /// Each parameter to `S sqrt(d/D)`, with `d` of all `D` coordinates, as groups named after them.
    DimensionAware(ClipNorm),
    /// Custom groups of trained parameters, by name or glob, with scales if they are joint. Groups that are
    /// sums are averaged over the expected number of records.
    Groups(Vec<Group>),
}

/// The record unit: what a record is, and what it contributes.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Unit {
    /// One example; contributes its gradient.
    Example,
    /// A fixed set of examples; contributes their average gradient.
    Microbatch {
        /// The most examples in a microbatch.
        examples: NonZeroU32,
    },
    /// All examples of a user. Only the first `examples` are used.
    User {
        /// The most examples of a user that are used.
        examples: NonZeroU32,
        /// What the user contributes.
        contribution: Contribution,
    },
}

/// What a user contributes to a round.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Contribution {
    /// The average gradient of the user's examples.
    Average,
    /// The model update of local SGD on the user's examples. With plain SGD as the optimizer and rate 1,
    /// this is federated averaging.
    LocalSgd {
        /// The learning rate of the local steps.
        rate: f32,
        /// Examples per local step.
        batch: NonZeroU32,
        /// Passes over the examples.
        epochs: NonZeroU32,
    },
}

/// The denominator of averages of gradients or updates.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Denominator {
    /// A public number: the expected sum of the weights of a sample, or of its records if they have no weights.
    Expected(PublicCount),
    /// The private sum of the weights of the sample, but at least `floor` (estimator `f_c` of McMahan et al. 2018). It is
    /// one more group of the round, named `denominator`, with the largest weight as its sensitivity.
    Private {
        /// The public floor, so that noise cannot make the denominator too small.
        floor: PublicCount,
        /// Its share of the privacy loss of a round.
        share: BudgetShare,
    },
}

/// The name of the group of a private denominator.
const DENOMINATOR: &str = "denominator";

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

    /// The most examples of a record that are used.
    pub(crate) fn examples(self) -> usize {
        match self {
            Self::Example => 1,
            Self::Microbatch { examples } | Self::User { examples, .. } => {
                usize::try_from(examples.get()).unwrap_or(usize::MAX)
            }
        }
    }
}

/// The privacy settings of training: record unit, clipping, noise, batch-norm statistics, metrics.
///
/// They are public and fixed before the first round. Everything that a round releases is computed from
/// one sample, and the noise multiplier is that of all groups together.
///
/// # Example
/// ```
/// use veilgrad_events::{BudgetShare, ClipNorm, NoiseMultiplier, PublicCount};
/// use veilgrad_mechanism::Metric;
/// use veilgrad_nn::{Clipping, TrainingPlan};
///
/// let clipping = Clipping::Flat(ClipNorm::new(1.0)?);
/// let plan = TrainingPlan::new(clipping, NoiseMultiplier::new(1.1)?, PublicCount::new(256.0)?)
///     .metric(Metric::accuracy()?, BudgetShare::new(0.05)?); // for 5 % of every round's privacy loss
/// assert_eq!(plan.metrics().count(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct TrainingPlan {
    unit: Unit,
    copies: usize,
    materialise: bool,
    expected: PublicCount,
    clipping: Clipping,
    noise: NoiseMultiplier,
    pub(super) statistics: Option<(ClipNorm, BudgetShare)>,
    metrics: Vec<(Metric, BudgetShare)>,
    groups: Vec<Group>,
    pub(super) canaries: usize,
    /// How noise is correlated between rounds, and the most rounds of a segment.
    pub(super) correlated: Option<(BandedStrategy, u64)>,
    weights: Option<WeightBound>,
    denominator: Denominator,
    pub(super) answering: Option<SampleRate>,
}

impl TrainingPlan {
    /// A plan with examples as records. Clipped sums are averaged over the public expected number of
    /// records in a sample (`q n`); the noise multiplier is that of the whole round.
    #[must_use]
    pub fn new(clipping: Clipping, noise: NoiseMultiplier, expected: PublicCount) -> Self {
        let (unit, copies, materialise, statistics) = (Unit::Example, 1, false, None);
        let (metrics, groups, canaries) = (Vec::new(), Vec::new(), 0);
        let (weights, denominator, answering) = (None, Denominator::Expected(expected), None);
        Self {
            unit,
            copies,
            materialise,
            expected,
            clipping,
            noise,
            statistics,
            metrics,
            groups,
            canaries,
            correlated: None,
            weights,
            denominator,
            answering,
        }
    }

    /// Correlates the noise of rounds with this strategy, for segments of at most `rounds` rounds. The noise multiplier is
    /// then that of all rounds that measure a record once.
    ///
    /// A model adds up what rounds release, and much of the noise cancels in the sum. It helps optimizers that do so (SGD,
    /// with momentum or without), with few epochs and small batches; `Workload::choices` of `veilgrad-accounting` says whether. It
    /// needs a [`CyclicSampler`](veilgrad_mechanism::CyclicSampler) with at least as many groups as the strategy has bands, and
    /// `8 (b - 1) d` bytes for `b` bands and `d` parameters.
    ///
    /// # Guarantee
    /// As for [`CorrelatedNoise`](veilgrad_mechanism::CorrelatedNoise): past noise is never saved, so that a resumed run begins a
    /// new segment, and is charged for it. A trainer with a strategy that amplifies noise beyond 64 bits cannot be made.
    ///
    /// # Example
    /// ```
    /// use std::num::NonZeroU64;
    /// use veilgrad_events::{
    ///     Adjacency, BandedStrategy, ClipNorm, MemoryLedger, NoiseMultiplier, PublicCount, Run, SampleRate,
    /// };
    /// use veilgrad_mechanism::CyclicSampler;
    /// use veilgrad_nn::{
    ///     Clipping, InMemory, Layer, Loss, Model, Performance, Schedule, Sgd, Trainer, TrainingPlan,
    /// };
    ///
    /// let clipping = Clipping::Flat(ClipNorm::new(1.0)?);
    /// let strategy = BandedStrategy::new(12, vec![4096, 2048, 1536, 1280])?;
    /// let plan = TrainingPlan::new(clipping, NoiseMultiplier::new(1.0)?, PublicCount::new(10.0)?)
    ///     .correlated(strategy, 12);
    /// let (model, loss) = (Model::new(&[2], [Layer::linear(2)], 1)?, Loss::SoftmaxCrossEntropy);
    /// let (rate, performance) = (Schedule::Constant(0.5), Performance::default());
    /// let mut trainer = Trainer::new(model, loss, plan, Sgd::plain(), rate, performance)?;
    /// let mut run = Run::open(MemoryLedger::new(), trainer.header(Adjacency::AddRemove))?;
    /// // 100 records in four groups of about 25, of which 10 are in a sample.
    /// let groups = NonZeroU64::new(4).ok_or("zero")?;
    /// let mut sampler = CyclicSampler::new(SampleRate::new(0.4)?, groups, 0);
    /// let records = InMemory::new(vec![0.5; 200], 2, vec![1.0; 100], 1);
    /// trainer.train(&mut run, &mut sampler, &records, 12, 4, |_, _| ())?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn correlated(mut self, strategy: BandedStrategy, rounds: u64) -> Self {
        self.correlated = Some((strategy, rounds));
        self
    }

    /// Sets the record unit.
    #[must_use]
    pub const fn unit(mut self, unit: Unit) -> Self {
        self.unit = unit;
        self
    }

    /// Averages gradients over this many copies of each example before they are clipped (augmentation multiplicity, De et al.
    /// 2022). The dataset gives the copies as examples of a record. Ignored unless records are single examples.
    ///
    /// # Guarantee
    /// The record is still one example, with the same sensitivity: copies cost no budget, if each is a function of its
    /// example and of public values alone. In particular, not of the example's place in the dataset, which changes when
    /// another record is removed.
    ///
    /// # Example
    /// ```
    /// use veilgrad_events::{Adjacency, ClipNorm, MemoryLedger, NoiseMultiplier, PublicCount, Run};
    /// use veilgrad_mechanism::AllRecords;
    /// use veilgrad_nn::{
    ///     Clipping, Layer, Loss, Model, Performance, Records, Schedule, Sgd, Trainer, TrainingPlan,
    /// };
    ///
    /// /// Pairs of numbers, each with a copy in which they are swapped.
    /// struct Pairs(Vec<[f32; 2]>);
    ///
    /// impl Records for Pairs {
    ///     fn count(&self) -> u64 {
    ///         self.0.len() as u64
    ///     }
    ///     fn examples(&self, _: u64) -> usize {
    ///         2
    ///     }
    ///     fn read(&self, record: u64, copy: usize, input: &mut [f32], target: &mut [f32]) {
    ///         input.copy_from_slice(&self.0[record as usize]);
    ///         if copy == 1 {
    ///             input.swap(0, 1);
    ///         }
    ///         target[0] = 1.0;
    ///     }
    /// }
    ///
    /// let clipping = Clipping::Flat(ClipNorm::new(1.0)?);
    /// let plan = TrainingPlan::new(clipping, NoiseMultiplier::new(1.0)?, PublicCount::new(8.0)?)
    ///     .copies(std::num::NonZeroU32::new(2).ok_or("zero")?);
    /// let (model, loss) = (Model::new(&[2], [Layer::linear(2)], 1)?, Loss::SoftmaxCrossEntropy);
    /// let (rate, performance) = (Schedule::Constant(0.5), Performance::default());
    /// let mut trainer = Trainer::new(model, loss, plan, Sgd::plain(), rate, performance)?;
    /// let mut run = Run::open(MemoryLedger::new(), trainer.header(Adjacency::AddRemove))?;
    /// trainer.train(&mut run, &mut AllRecords, &Pairs(vec![[0.5, 1.0]; 8]), 3, 3, |_, _| ())?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn copies(mut self, copies: NonZeroU32) -> Self {
        self.copies = usize::try_from(copies.get()).unwrap_or(usize::MAX);
        self
    }

    /// The most examples of a record that are used, or copies of its one example.
    pub(super) fn examples(&self) -> usize {
        match self.unit {
            Unit::Example => self.copies,
            unit => unit.examples(),
        }
    }

    /// Multiplies the clipped gradient or update of each record by its weight
    /// ([`Records::weight`](crate::Records::weight)), clamped to `[0, bound]`; one that is not finite counts as 0. The
    /// sensitivity of gradient groups becomes `bound` times their clip norm. Set the [`denominator`](Self::denominator) too:
    /// by default it is still the expected number of records. Metrics and statistics have no weights.
    #[must_use]
    pub const fn weighted(mut self, bound: WeightBound) -> Self {
        self.weights = Some(bound);
        self
    }

    /// Sets the denominator of averages of gradients or updates. Metrics and statistics are averaged over the expected
    /// number of records in any case.
    ///
    /// # Example
    /// ```
    /// use veilgrad_events::{BudgetShare, ClipNorm, NoiseMultiplier, PublicCount, WeightBound};
    /// use veilgrad_nn::{Clipping, Denominator, TrainingPlan};
    ///
    /// // About 1000 users in a round, each weighted by the number of its examples, up to 50.
    /// let clipping = Clipping::Flat(ClipNorm::new(1.0)?);
    /// let plan = TrainingPlan::new(clipping, NoiseMultiplier::new(1.0)?, PublicCount::new(1000.0)?)
    ///     .weighted(WeightBound::new(50.0)?)
    ///     .denominator(Denominator::Private {
    ///         floor: PublicCount::new(5000.0)?,
    ///         share: BudgetShare::new(0.05)?,
    ///     });
    /// # let _ = plan;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub const fn denominator(mut self, denominator: Denominator) -> Self {
        self.denominator = denominator;
        self
    }

    /// Simulates users who are not available or drop out: each sampled record takes part with this public probability,
    /// independently of all data; see [`Dropouts`](veilgrad_mechanism::Dropouts). Charges and public denominators stay those
    /// of the whole sample.
    #[must_use]
    pub const fn answering(mut self, probability: SampleRate) -> Self {
        self.answering = Some(probability);
        self
    }

    /// Whether records have weights.
    pub(super) const fn is_weighted(&self) -> bool {
        self.weights.is_some()
    }

    /// Adds a private metric to every round, for a share of the round's privacy loss.
    #[must_use]
    pub fn metric(mut self, metric: Metric, share: BudgetShare) -> Self {
        self.metrics.push((metric, share));
        self
    }

    /// Adds private batch-norm statistics to every round, for a share of the round's privacy loss: each record's
    /// channel means and mean squares, clipped together as group `statistics`. Required for models with batch norm.
    #[must_use]
    pub fn statistics(mut self, clip: ClipNorm, share: BudgetShare) -> Self {
        self.statistics = Some((clip, share));
        self
    }

    /// Adds a group to every round, such as a quantile of a gradient group's norms for adaptive clipping.
    #[must_use]
    pub fn group(mut self, group: Group) -> Self {
        self.groups.push(group);
        self
    }

    /// Audits the run with this many canaries: a [`CanaryLane`] in every gradient group. Canaries are additional records
    /// after the real ones: a sampler that is told the number of records must include them. They do not change the
    /// weights.
    ///
    /// # Example
    /// ```
    /// use veilgrad_events::{Adjacency, ClipNorm, MemoryLedger, NoiseMultiplier, PublicCount, Run};
    /// use veilgrad_mechanism::AllRecords;
    /// use veilgrad_nn::{
    ///     Clipping, InMemory, Layer, Loss, Model, Performance, Schedule, Sgd, Trainer, TrainingPlan,
    /// };
    ///
    /// let clipping = Clipping::Flat(ClipNorm::new(1.0)?);
    /// let plan = TrainingPlan::new(clipping, NoiseMultiplier::new(1.0)?, PublicCount::new(10.0)?)
    ///     .canaries(500);
    /// let (model, loss) = (Model::new(&[2], [Layer::linear(2)], 1)?, Loss::SoftmaxCrossEntropy);
    /// let (rate, performance) = (Schedule::Constant(0.5), Performance::default());
    /// let mut trainer = Trainer::new(model, loss, plan, Sgd::plain(), rate, performance)?;
    /// let mut run = Run::open(MemoryLedger::new(), trainer.header(Adjacency::AddRemove))?;
    /// let records = InMemory::new(vec![0.5; 20], 2, vec![1.0; 10], 1);
    /// trainer.train(&mut run, &mut AllRecords, &records, 3, 3, |_, _| ())?;
    ///
    /// // Scores and coins, for `veilgrad_accounting::audit::RunAudit::judge`.
    /// let lane = trainer.canaries().ok_or("no canaries")?;
    /// assert_eq!((lane.scores().len(), lane.included().len()), (500, 500));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub const fn canaries(mut self, count: usize) -> Self {
        self.canaries = count;
        self
    }

    /// Writes out every record's gradient as one vector, as for microbatches and users. Slower; the reference that the
    /// fast path is compared with.
    #[must_use]
    pub const fn materialised(mut self) -> Self {
        self.materialise = true;
        self
    }

    /// The record unit.
    #[must_use]
    pub const fn record(&self) -> Unit {
        self.unit
    }

    /// The metrics, in order.
    pub fn metrics(&self) -> impl Iterator<Item = &Metric> {
        self.metrics.iter().map(|(metric, _)| metric)
    }

    /// Whether users contribute updates of local SGD.
    #[must_use]
    pub const fn trains_locally(&self) -> bool {
        matches!(self.unit, Unit::User { contribution: Contribution::LocalSgd { .. }, .. })
    }

    /// Whether every record's gradient is written out as one vector.
    #[must_use]
    pub fn is_materialised(&self) -> bool {
        self.materialise || self.unit != Unit::Example || self.copies > 1
    }

    /// The mechanism's plan for these vectors and canaries, and the names of the gradient groups. The order of a record's
    /// vectors is: gradients, statistics, metrics, canaries.
    ///
    /// # Errors
    /// When the groups do not fit the vectors.
    pub(super) fn resolve(
        &self,
        vectors: &Vectors,
        lane: Option<&CanaryLane>,
    ) -> Result<(RoundPlan, Vec<String>), TrainError> {
        let unit = |error| PlanError::Unit("metric".to_owned(), error);
        let named = |vector: &Vector| (vector.name.clone(), vector.length);
        let (trained, statistics) = (&vectors.trained, &vectors.statistics);
        let vectors = trained.iter().chain(statistics).map(named);
        let vectors: Vec<_> = vectors.chain(self.metrics().map(Metric::vector)).collect();
        let trained = Structure::new(trained.iter().map(named))?;
        let names = || trained.vectors().map(|(name, _)| name);
        let gradients = match &self.clipping {
            Clipping::Flat(clip) => vec![Group::new("gradient", names(), *clip)],
            Clipping::PerLayer(clip) => Group::per_layer(&trained, "*", *clip)?,
            Clipping::DimensionAware(clip) => Group::dimension_aware(&trained, "*", *clip)?,
            Clipping::Groups(groups) => groups.clone(),
        };
        let average = |group: Group| match self.denominator {
            Denominator::Expected(count) => group.average(count),
            Denominator::Private { floor, .. } => group.average_over(DENOMINATOR, floor),
        };
        let weighted = |group: Group| match self.weights {
            Some(bound) => group.weighted(bound),
            None => group,
        };
        // A plan of the gradients alone checks that their groups cover every gradient and nothing else.
        let checked = gradients.iter().cloned().map(|group| group.average(self.expected)).collect();
        let checked =
            RoundPlan::new(trained.clone(), checked, Allocation::Proportional(self.noise))?;
        let names: Vec<String> = checked.group_names().map(str::to_owned).collect();
        let lanes = names.iter().filter_map(|group| Some(lane?.vector(group)));
        let structure = Structure::new(vectors.into_iter().chain(lanes))?;
        let mut groups = gradients
            .into_iter()
            .map(|group| weighted(if group.is_sum() { average(group) } else { group }))
            // Globs are replaced by names, so that they match no statistic or metric.
            .map(|group| {
                let group = group.named(&trained)?;
                Ok(match lane.map(|lane| lane.vector(group.name()).0) {
                    Some(lane) => group.with_vector(lane),
                    None => group,
                })
            })
            .collect::<Result<Vec<Group>, PlanError>>()?;
        if let Some((clip, share)) = self.statistics {
            let vectors = statistics.iter().map(|vector| &vector.name);
            groups
                .push(Group::new("statistics", vectors, clip).average(self.expected).share(share));
        }
        for (metric, share) in &self.metrics {
            groups.push(metric.group(self.expected).map_err(unit)?.share(*share));
        }
        if let Denominator::Private { share, .. } = self.denominator {
            let largest = self.weights.map_or_else(|| WeightBound::new(1.0), Ok).map_err(unit)?;
            groups.push(Group::weight(DENOMINATOR, largest).share(share));
        }
        groups.extend(self.groups.iter().cloned());
        let mut plan = RoundPlan::new(structure, groups, Allocation::Proportional(self.noise))?;
        if let Some((strategy, _)) = &self.correlated {
            plan = plan.correlated(strategy.clone())?;
        }
        Ok((plan, names))
    }
}
