//! Plans that move: clip norms and quantile estimates follow what rounds released.

use std::collections::BTreeMap;
use std::sync::Arc;

use veilgrad_events::ClipNorm;

use crate::plan_error::PlanError;
use crate::planned::{Plan, PlannedContent};
use crate::{Estimates, Released, RoundPlan};

/// Where the adaptive part of a plan stands: all that rounds have changed in it. Released or public.
#[derive(Debug, Clone, PartialEq)]
pub struct Adapted {
    /// How many rounds the plan was adapted to; step sizes that decay depend on it.
    pub rounds: u64,
    /// The estimate of every quantile group by name. That of a norm is the clip norm it sets.
    pub estimates: BTreeMap<String, f64>,
}

impl RoundPlan {
    /// Where the plan stands, for a checkpoint.
    #[must_use]
    pub fn adapted(&self) -> Adapted {
        let estimate = |name: &str| Some((name.to_owned(), self.quantile(name)?));
        let estimates = self.group_names().filter_map(estimate).collect();
        Adapted { rounds: self.inner.round, estimates }
    }

    /// Goes on from where a plan stood: clip norms not below the floors of their quantiles. Noise
    /// follows clip norms at the same ratio: privacy does not depend on it.
    ///
    /// # Errors
    /// When the quantile groups are not those of this plan, a clip norm is below its floor, or an
    /// estimate is not finite. Nothing was changed then.
    pub fn restore(&mut self, adapted: &Adapted) -> Result<(), PlanError> {
        let unknown = |name: &str| {
            let (group, target) = (name.to_owned(), name.to_owned());
            PlanError::Reference { group, target, kind: "a quantile" }
        };
        let mut names = adapted.estimates.keys();
        if let Some(name) = names.find(|name| self.quantile(name).is_none()) {
            return Err(unknown(name));
        }
        let mut plan = Plan::clone(&self.inner);
        let mut clips = Vec::new();
        for group in &mut plan.groups {
            let name = &group.name;
            let estimate = || adapted.estimates.get(name).copied().ok_or_else(|| unknown(name));
            let unit = |error| PlanError::Unit(name.clone(), error);
            match &mut group.content {
                PlannedContent::QuantileOfNorm(_, target, floor) => {
                    let (floor, clip) = (*floor, ClipNorm::new(estimate()?).map_err(unit)?);
                    if clip < floor {
                        return Err(PlanError::BelowFloor { group: name.clone(), clip, floor });
                    }
                    clips.push((*target, clip));
                }
                PlannedContent::QuantileOfValue(_, _, old) => {
                    let estimate = Some(estimate()?).filter(|estimate| estimate.is_finite());
                    *old = estimate.ok_or_else(|| PlanError::Estimate(name.clone()))?;
                }
                PlannedContent::Vectors { .. } | PlannedContent::Weight(_) => {}
            }
        }
        for (target, new) in clips {
            if let Some(clip) = plan.clip_mut(target) {
                *clip = new;
            }
        }
        plan.round = adapted.rounds;
        self.inner = Arc::new(plan);
        Ok(())
    }

    /// Moves clip norms and quantile estimates by what a round released. Post-processing: no charge.
    ///
    /// # Errors
    /// When the estimates belong to another plan.
    pub fn adapt(&mut self, estimates: &Released<Estimates>) -> Result<(), PlanError> {
        if !estimates.belongs_to(&self.inner) {
            return Err(PlanError::ForeignEstimates);
        }
        let plan = Arc::make_mut(&mut self.inner);
        let mut clips = Vec::new();
        for (index, group) in plan.groups.iter_mut().enumerate() {
            let noisy = || estimates.group_scalar(index);
            match &mut group.content {
                PlannedContent::QuantileOfNorm(quantile, target, floor) => {
                    clips.push((quantile.clone(), *target, *floor, noisy()));
                }
                PlannedContent::QuantileOfValue(quantile, _, estimate) => {
                    *estimate = quantile.next(*estimate, noisy(), plan.round);
                }
                PlannedContent::Vectors { .. } | PlannedContent::Weight(_) => {}
            }
        }
        for (quantile, target, floor, noisy) in clips {
            let round = plan.round;
            if let Some(clip) = plan.clip_mut(target) {
                let next = quantile.next(clip.get(), noisy, round).max(floor.get());
                *clip = ClipNorm::new(next).unwrap_or(*clip);
            }
        }
        plan.round = plan.round.saturating_add(1);
        Ok(())
    }
}
