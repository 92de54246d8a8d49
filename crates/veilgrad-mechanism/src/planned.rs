//! A resolved plan: groups with indices instead of names, and their grids.

use veilgrad_events::{BandedStrategy, ClipNorm, IntegerGrid, JointScale, SumQuery, WeightBound};

use crate::clip::ClipRule;
use crate::group::Estimator;
use crate::plan_error::PlanError;
use crate::quantile::Quantile;
use crate::structure::Structure;

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Plan {
    pub(crate) structure: Structure,
    pub(crate) groups: Vec<PlannedGroup>,
    /// The number of rounds that it was adapted to.
    pub(crate) round: u64,
    /// How the noise of all groups is correlated between rounds; `None` for independent noise.
    pub(crate) strategy: Option<BandedStrategy>,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PlannedGroup {
    pub(crate) name: String,
    pub(crate) dimension: usize,
    pub(crate) grid: IntegerGrid,
    pub(crate) content: PlannedContent,
    pub(crate) estimator: Estimator<usize>,
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
    /// With the index of the group and the floor of its clip norm.
    QuantileOfNorm(Quantile, usize, ClipNorm),
    /// With the index of the vector and the current estimate.
    QuantileOfValue(Quantile, usize, f64),
}

/// One vector of a group, and its coordinates in the group's sum.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Member {
    pub(crate) vector: usize,
    pub(crate) alpha: JointScale,
    pub(crate) range: std::ops::Range<usize>,
}

/// The sensitivity of a quantile bit, which is +1/2 or -1/2.
pub(crate) const BIT_SENSITIVITY: f64 = 0.5;

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

    pub(crate) fn clip_mut(&mut self, group: usize) -> Option<&mut ClipNorm> {
        match &mut self.groups.get_mut(group)?.content {
            PlannedContent::Vectors { clip, .. } => Some(clip),
            _ => None,
        }
    }

    pub(crate) fn group(&self, name: &str) -> Option<(usize, &PlannedGroup)> {
        self.groups.iter().enumerate().find(|(_, group)| group.name == name)
    }

    /// The canary lanes: index, group and vector of each.
    pub(crate) fn lanes(&self) -> impl Iterator<Item = (usize, &PlannedGroup, &Member)> {
        self.groups.iter().enumerate().filter_map(|(index, group)| {
            let vector = self.structure.position(&lane_name(&group.name))?;
            let mut members = group.members().iter();
            Some((index, group, members.find(|member| member.vector == vector)?))
        })
    }

    pub(crate) fn queries(&self) -> Result<Vec<SumQuery>, PlanError> {
        self.groups
            .iter()
            .map(|group| {
                let (clip, dimension) = (group.sensitivity()?, group.dimension as u64);
                let (name, grid) = (group.name.as_str(), group.grid);
                Ok(match &self.strategy {
                    None => SumQuery::exact(name, clip, dimension, grid)?,
                    Some(strategy) => {
                        SumQuery::correlated(name, clip, dimension, grid, strategy.clone())?
                    }
                })
            })
            .collect()
    }

    /// Whether sums of the two plans may be added: same structure, groups, grids and clip norms.
    pub(crate) fn same_sums(&self, other: &Self) -> bool {
        self.structure == other.structure && self.groups == other.groups
    }
}

/// The name of a group's canary lane.
pub(crate) fn lane_name(group: &str) -> String {
    format!("canaries of {group}")
}

impl PlannedGroup {
    /// The vectors of the group; empty for weights and quantiles.
    pub(crate) fn members(&self) -> &[Member] {
        match &self.content {
            PlannedContent::Vectors { members, .. } => members,
            _ => &[],
        }
    }

    /// The bound on the norm of one record's contribution, in the unit of the estimate (before `alpha`).
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
