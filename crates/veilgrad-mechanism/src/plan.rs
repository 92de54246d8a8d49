//! The public parameters of a round, checked once.

use std::sync::Arc;

use veilgrad_events::{
    ClipNorm, GridError, IntegerGrid, JointScale, NoiseMultiplier, PublicCount, QueryError, Round,
    RoundError, SumQuery, UnitError, WeightBound,
};

use crate::clip::ClipRule;
use crate::resolve::resolve;
use crate::{Allocation, AllocationError, Group, GroupSize, Quantile, Sampler, Structure};

/// The public parameters of a round: structure, groups, clip norms and noise.
///
/// Everything in it is public. It derives the ledger's events itself, so that what is charged is
/// what runs; the clip norms of adaptive groups move with [`RoundPlan::adapt`] while the ratio of
/// noise to clip norm, all that privacy depends on, stays fixed for the life of the plan.
#[derive(Debug, Clone)]
pub struct RoundPlan {
    pub(crate) inner: Arc<Plan>,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Plan {
    pub(crate) structure: Structure,
    pub(crate) groups: Vec<PlannedGroup>,
    /// How often it was adapted.
    pub(crate) round: u64,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PlannedGroup {
    pub(crate) name: String,
    pub(crate) dimension: usize,
    pub(crate) grid: IntegerGrid,
    pub(crate) content: PlannedContent,
    pub(crate) estimator: PlannedEstimator,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum PlannedContent {
    Vectors {
        members: Vec<Member>,
        clip: ClipNorm,
        rule: ClipRule,
        weight: Option<WeightBound>,
    },
    Weight(WeightBound),
    /// The index of the group or vector, and for a vector the current estimate.
    QuantileOfNorm(Quantile, usize, ClipNorm),
    QuantileOfValue(Quantile, usize, f64),
}

/// One vector of a group, and where it stands in the group's sum.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Member {
    pub(crate) vector: usize,
    pub(crate) alpha: JointScale,
    pub(crate) range: std::ops::Range<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum PlannedEstimator {
    Sum,
    Average(PublicCount),
    AverageOver { group: usize, minimum: PublicCount },
}

/// The sensitivity of a shifted quantile bit.
pub(crate) const BIT_SENSITIVITY: f64 = 0.5;

/// The groups and the structure do not make a plan.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// Two groups share a name.
    #[error("group '{0}' is named twice")]
    DuplicateGroup(String),
    /// A pattern is not a glob.
    #[error("'{0}' is not a valid pattern")]
    Pattern(String),
    /// A pattern matches no vector.
    #[error("pattern '{pattern}' of group '{group}' matches no vector")]
    NoMatch {
        /// The group.
        group: String,
        /// Its pattern.
        pattern: String,
    },
    /// A vector is in two groups, or twice in one.
    #[error("vector '{vector}' is in group '{first}' and again in group '{second}'")]
    Overlap {
        /// The vector.
        vector: String,
        /// The group that had it first.
        first: String,
        /// The group that wants it again.
        second: String,
    },
    /// A vector is in no group.
    #[error("vector '{0}' is in no group")]
    Uncovered(String),
    /// A quantile or an average names something that is not there.
    #[error("group '{group}' refers to '{target}', which is not {kind}")]
    Reference {
        /// The group that refers.
        group: String,
        /// The name it uses.
        target: String,
        /// What it would have to be.
        kind: &'static str,
    },
    /// An option was set that does not apply to the group's content.
    #[error("group '{group}' cannot be {option}")]
    Misapplied {
        /// The group.
        group: String,
        /// What was asked of it.
        option: &'static str,
    },
    /// A clip norm starts below the floor that it may not fall under.
    #[error("the clip norm of group '{group}' starts at {clip}, below its floor {floor}")]
    BelowFloor {
        /// The group.
        group: String,
        /// Its clip norm.
        clip: ClipNorm,
        /// The floor of the quantile that moves it.
        floor: ClipNorm,
    },
    /// Two quantiles want to set the same clip norm.
    #[error("the clip norm of group '{0}' is adapted twice")]
    AdaptedTwice(String),
    /// An estimate to go on from is no number.
    #[error("the estimate of group '{0}' is not finite")]
    Estimate(String),
    /// The noise cannot be divided.
    #[error(transparent)]
    Allocation(#[from] AllocationError),
    /// A group's noise has no integer grid.
    #[error("group '{0}': {1}")]
    Grid(String, GridError),
    /// A number is out of range.
    #[error("group '{0}': {1}")]
    Unit(String, UnitError),
    /// The event cannot be written.
    #[error(transparent)]
    Query(#[from] QueryError),
    /// The event cannot be written.
    #[error(transparent)]
    Round(#[from] RoundError),
    /// Estimates of another plan were handed in.
    #[error("the estimates belong to another plan")]
    ForeignEstimates,
}

impl RoundPlan {
    /// Checks that the groups partition the structure's vectors, divides the noise and fixes each
    /// group's integer grid.
    ///
    /// # Guarantee
    /// The groups of a round together are one Gaussian whose noise multiplier is at least the one
    /// of the allocation; [`RoundPlan::noise_multiplier`] tells it.
    ///
    /// # Errors
    /// Names the vector, group or number that breaks a rule.
    pub fn new(
        structure: Structure,
        groups: Vec<Group>,
        allocation: Allocation,
    ) -> Result<Self, PlanError> {
        let mut planned = resolve(&structure, &groups)?;
        let sizes: Vec<GroupSize> = planned
            .iter()
            .zip(&groups)
            .map(|(planned, group)| {
                let clip = planned.sensitivity()?;
                let (dimension, noise, share) = (planned.dimension, group.noise, group.share);
                Ok(GroupSize { clip, dimension, noise, share })
            })
            .collect::<Result<_, PlanError>>()?;
        let noise = allocation.noise(&sizes)?;
        for ((group, size), noise) in planned.iter_mut().zip(&sizes).zip(noise) {
            // Rounded up: the grid then realises at least this much.
            let z = NoiseMultiplier::new((noise.get() / size.clip.get()).next_up())
                .map_err(|error| PlanError::Unit(group.name.clone(), error))?;
            group.grid = IntegerGrid::for_multiplier(z)
                .map_err(|error| PlanError::Grid(group.name.clone(), error))?;
        }
        Ok(Self { inner: Arc::new(Plan { structure, groups: planned, round: 0 }) })
    }

    /// The structure of the records.
    #[must_use]
    pub fn structure(&self) -> &Structure {
        &self.inner.structure
    }

    /// The round that this plan runs with this sampler, as the ledger charges it.
    ///
    /// For an adaptive group, `clip` and `noise` are those in force now; later rounds of a block may
    /// run with other clip norms at the same ratio, which is what the integers record.
    ///
    /// # Errors
    /// When a clip norm has become so extreme that its event cannot be written.
    pub fn round(&self, sampler: &impl Sampler) -> Result<Round, PlanError> {
        Ok(Round::new(sampler.policy(), self.inner.queries()?)?)
    }

    /// The noise multiplier of the one Gaussian that the round's groups fold to (rounded down).
    ///
    /// # Errors
    /// As for [`RoundPlan::round`].
    pub fn noise_multiplier(&self) -> Result<NoiseMultiplier, PlanError> {
        let round = Round::new(veilgrad_events::Sampling::All {}, self.inner.queries()?)?;
        round.noise_multiplier().map_err(|error| PlanError::Unit("all".to_owned(), error))
    }

    /// The names of the groups, in order.
    pub fn group_names(&self) -> impl Iterator<Item = &str> {
        self.inner.groups.iter().map(|group| group.name.as_str())
    }

    /// The clip norm `S_g` now in force for a group of vectors.
    #[must_use]
    pub fn clip_norm(&self, group: &str) -> Option<ClipNorm> {
        self.inner.clip(self.inner.group(group)?.0)
    }

    /// The integer grid of a group.
    #[must_use]
    pub fn grid(&self, group: &str) -> Option<IntegerGrid> {
        Some(self.inner.group(group)?.1.grid)
    }

    /// The names of the vectors of a group, in order.
    pub fn vectors(&self, group: &str) -> impl Iterator<Item = &str> {
        let members = self.inner.group(group).map_or(&[][..], |(_, group)| group.members());
        members.iter().map(|member| self.inner.vector_name(member.vector))
    }

    /// The integer grid of the group that a vector is in.
    #[must_use]
    pub fn grid_of(&self, vector: &str) -> Option<IntegerGrid> {
        let vectors = self.inner.structure.vectors();
        let index = vectors.map(|(name, _)| name).position(|name| name == vector)?;
        let has = |group: &&PlannedGroup| group.members().iter().any(|m| m.vector == index);
        Some(self.inner.groups.iter().find(has)?.grid)
    }

    /// The weight bound of a weighted group of vectors.
    #[must_use]
    pub fn weight_bound(&self, group: &str) -> Option<WeightBound> {
        match self.inner.group(group)?.1.content {
            PlannedContent::Vectors { weight, .. } => weight,
            _ => None,
        }
    }

    /// The current estimate of a quantile group.
    #[must_use]
    pub fn quantile(&self, group: &str) -> Option<f64> {
        match &self.inner.group(group)?.1.content {
            PlannedContent::QuantileOfNorm(_, target, _) => {
                self.inner.clip(*target).map(ClipNorm::get)
            }
            PlannedContent::QuantileOfValue(_, _, estimate) => Some(*estimate),
            _ => None,
        }
    }
}

impl Plan {
    /// The name of a vector of the structure.
    pub(crate) fn vector_name(&self, vector: usize) -> &str {
        self.structure.vectors().nth(vector).map_or("", |(name, _)| name)
    }

    /// The clip norm of a group of vectors.
    pub(crate) fn clip(&self, group: usize) -> Option<ClipNorm> {
        match self.groups.get(group)?.content {
            PlannedContent::Vectors { clip, .. } => Some(clip),
            _ => None,
        }
    }

    pub(crate) fn group(&self, name: &str) -> Option<(usize, &PlannedGroup)> {
        self.groups.iter().enumerate().find(|(_, group)| group.name == name)
    }

    pub(crate) fn queries(&self) -> Result<Vec<SumQuery>, PlanError> {
        self.groups
            .iter()
            .map(|group| {
                let (clip, dimension) = (group.sensitivity()?, group.dimension as u64);
                Ok(SumQuery::exact(group.name.as_str(), clip, dimension, group.grid)?)
            })
            .collect()
    }

    /// Whether sums of the two plans may be added: same structure, groups, grids and clip norms.
    pub(crate) fn same_sums(&self, other: &Self) -> bool {
        self.structure == other.structure && self.groups == other.groups
    }
}

impl PlannedGroup {
    /// The vectors of the group; none if it is about something else.
    pub(crate) fn members(&self) -> &[Member] {
        match &self.content {
            PlannedContent::Vectors { members, .. } => members,
            _ => &[],
        }
    }

    /// The norm bound of one record's contribution, in the unit of the estimate (before `alpha`).
    pub(crate) fn sensitivity(&self) -> Result<ClipNorm, PlanError> {
        let value = match &self.content {
            PlannedContent::Vectors { clip, weight, .. } => {
                weight.map_or(1.0, WeightBound::get) * clip.get()
            }
            PlannedContent::Weight(bound) => bound.get(),
            PlannedContent::QuantileOfNorm(..) | PlannedContent::QuantileOfValue(..) => {
                BIT_SENSITIVITY
            }
        };
        ClipNorm::new(value).map_err(|error| PlanError::Unit(self.name.clone(), error))
    }
}
