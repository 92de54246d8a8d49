//! Round plans: the public parameters of a round, validated once.

use std::num::NonZeroU64;
use std::sync::Arc;

use veilgrad_events::{
    BandedStrategy, ClipNorm, GridError, IntegerGrid, NoiseMultiplier, Round, SampleRate, Sampling,
    UnitError,
};

use crate::plan_error::PlanError;
use crate::planned::{Plan, PlannedContent};
use crate::recursion::MAX_EXPONENT;
use crate::resolve::resolve;
use crate::{Allocation, Group, GroupSize, Sampler, Structure};

/// The public parameters of a round: structure, groups, clip norms and noise.
///
/// Everything in it is public. The ledger's events are derived from it, so that what is charged is what runs.
/// [`RoundPlan::adapt`] changes the clip norms of adaptive groups; the ratio of noise to clip norm, on which privacy
/// depends, stays fixed for the life of the plan.
///
/// # Example
/// ```
/// use veilgrad_events::{ClipNorm, NoiseMultiplier};
/// use veilgrad_mechanism::{AllRecords, Allocation, Group, RoundPlan, Structure};
///
/// let structure = Structure::new([("weight", 3), ("bias", 1)])?;
/// let groups = vec![
///     Group::new("weight", ["weight"], ClipNorm::new(1.0)?),
///     Group::new("bias", ["bias"], ClipNorm::new(0.1)?),
/// ];
/// let noise = Allocation::Proportional(NoiseMultiplier::new(1.1)?);
/// let plan = RoundPlan::new(structure, groups, noise)?;
/// assert!(plan.noise_multiplier()?.get() >= 1.1); // of both groups together
/// assert_eq!(plan.round(&AllRecords)?.queries().len(), 2); // what the ledger charges
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct RoundPlan {
    pub(crate) inner: Arc<Plan>,
}

impl RoundPlan {
    /// A plan for these groups. Checks that every vector is in one group, allocates the noise and chooses each
    /// group's integer grid.
    ///
    /// # Guarantee
    /// The groups of a round compose to one Gaussian; [`RoundPlan::noise_multiplier`] returns a lower bound on its
    /// noise multiplier, which is at least that of the allocation unless groups set their own noise.
    ///
    /// # Errors
    /// Names the invalid vector, group or number.
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
            // Rounded up, so that the grid has at least this noise.
            let z = NoiseMultiplier::new((noise.get() / size.clip.get()).next_up())
                .map_err(|error| PlanError::Unit(group.name.clone(), error))?;
            group.grid = IntegerGrid::for_multiplier(z)
                .map_err(|error| PlanError::Grid(group.name.clone(), error))?;
        }
        Ok(Self { inner: Arc::new(Plan { structure, groups: planned, round: 0, strategy: None }) })
    }

    /// The same plan with noise that is correlated between rounds; [`CorrelatedNoise`](crate::CorrelatedNoise) draws it.
    ///
    /// # Guarantee
    /// The noise multiplier does not decrease; it is now that of all rounds that measure a record once. The sampler must
    /// keep records apart for as many rounds as the strategy has bands ([`CyclicSampler`](crate::CyclicSampler)); a round with
    /// another sampler is refused.
    ///
    /// # Errors
    /// When a group's noise is too large for the integers of the strategy.
    pub fn correlated(&self, strategy: BandedStrategy) -> Result<Self, PlanError> {
        let mut plan = Plan::clone(&self.inner);
        let old_norm = plan.strategy.as_ref().map_or(1.0, BandedStrategy::norm_up);
        for group in &mut plan.groups {
            // Rounded up: the product and the quotients round at most four times.
            let z = group.grid.noise_multiplier() / old_norm * strategy.norm_up();
            let z = (0..4).fold(z, |z, _| z.next_up());
            group.grid = correlated_grid(z).map_err(|error| match error {
                GridOrUnit::Grid(error) => PlanError::Grid(group.name.clone(), error),
                GridOrUnit::Unit(error) => PlanError::Unit(group.name.clone(), error),
            })?;
        }
        plan.strategy = Some(strategy);
        Ok(Self { inner: Arc::new(plan) })
    }

    /// How the noise is correlated between rounds, if it is.
    #[must_use]
    pub fn strategy(&self) -> Option<&BandedStrategy> {
        self.inner.strategy.as_ref()
    }

    /// The structure of the records.
    #[must_use]
    pub fn structure(&self) -> &Structure {
        &self.inner.structure
    }

    /// The round that this plan runs with this sampler, as the ledger charges it.
    ///
    /// For an adaptive group, `clip` and `noise` are the current ones. Later rounds of a block may run with other clip
    /// norms at the same ratio, which the grid's integers record.
    ///
    /// # Errors
    /// When a clip norm is so extreme that the noise overflows or underflows.
    pub fn round(&self, sampler: &impl Sampler) -> Result<Round, PlanError> {
        Ok(Round::new(sampler.policy(), self.inner.queries()?)?)
    }

    /// The noise multiplier of the single Gaussian that the groups compose to, rounded down. With correlated noise: of all
    /// rounds that measure a record once.
    ///
    /// # Errors
    /// As for [`RoundPlan::round`].
    pub fn noise_multiplier(&self) -> Result<NoiseMultiplier, PlanError> {
        let all = |error| PlanError::Unit("all".to_owned(), error);
        let sampling = match self.strategy().and_then(|s| NonZeroU64::new(s.bands() as u64)) {
            None => Sampling::All {},
            Some(groups) => {
                let rate = SampleRate::new(1.0).map_err(all)?;
                Sampling::CyclicPoisson { rate, groups, first_round: 0 }
            }
        };
        let round = Round::new(sampling, self.inner.queries()?)?;
        round.noise_multiplier().map_err(all)
    }

    /// The names of the groups, in order.
    pub fn group_names(&self) -> impl Iterator<Item = &str> {
        self.inner.groups.iter().map(|group| group.name.as_str())
    }

    /// The current clip norm `S_g` of a group of vectors.
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
        let index = self.inner.structure.position(vector)?;
        let mut groups = self.inner.groups.iter();
        let owner = groups.find(|group| group.members().iter().any(|m| m.vector == index))?;
        Some(owner.grid)
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

enum GridOrUnit {
    Grid(GridError),
    Unit(UnitError),
}

/// The finest grid of at least this noise multiplier whose noise leaves room for the recursion of correlated noise.
fn correlated_grid(z: f64) -> Result<IntegerGrid, GridOrUnit> {
    let z = NoiseMultiplier::new(z).map_err(GridOrUnit::Unit)?;
    let grid = IntegerGrid::for_multiplier(z).map_err(GridOrUnit::Grid)?;
    match grid.k().checked_sub(MAX_EXPONENT) {
        None | Some(0) => Ok(grid),
        // Less sensitivity at the same noise multiplier, or at a larger one.
        Some(excess) => IntegerGrid::new(grid.s_int() >> excess, MAX_EXPONENT)
            .map_err(|_| GridOrUnit::Grid(GridError::Multiplier(z.get()))),
    }
}
