//! Adaptive plans: clip norms and quantile estimates that are updated from releases.

use std::collections::BTreeMap;
use std::sync::Arc;

use veilgrad_events::ClipNorm;

use crate::plan_error::PlanError;
use crate::planned::{Plan, PlannedContent};
use crate::{Estimates, Released, RoundPlan};

/// The adaptive state of a plan, for checkpoints: everything that rounds changed in it. It is public.
#[derive(Debug, Clone, PartialEq)]
pub struct Adapted {
    /// The number of rounds that the plan was adapted to; decaying step sizes depend on it.
    pub rounds: u64,
    /// The estimate of every quantile group, by name. For a quantile of norms it is the clip norm.
    pub estimates: BTreeMap<String, f64>,
}

impl RoundPlan {
    /// The adaptive state of the plan, for a checkpoint.
    #[must_use]
    pub fn adapted(&self) -> Adapted {
        let estimate = |name: &str| Some((name.to_owned(), self.quantile(name)?));
        let estimates = self.group_names().filter_map(estimate).collect();
        Adapted { rounds: self.inner.round, estimates }
    }

    /// Restores an adaptive state. The ratio of noise to clip norm does not change, so privacy does not depend on it.
    ///
    /// # Errors
    /// When the quantile groups are not those of this plan, a clip norm is below its floor, or an
    /// estimate is not finite. The plan is not changed then.
    pub fn restore(&mut self, adapted: &Adapted) -> Result<(), PlanError> {
        let not_a_quantile = |name: &str| {
            let (group, target) = (name.to_owned(), name.to_owned());
            PlanError::Reference { group, target, kind: "a quantile" }
        };
        let mut names = adapted.estimates.keys();
        if let Some(name) = names.find(|name| self.quantile(name).is_none()) {
            return Err(not_a_quantile(name));
        }
        let mut plan = Plan::clone(&self.inner);
        let mut clips = Vec::new();
        for group in &mut plan.groups {
            let name = &group.name;
            let estimate = adapted.estimates.get(name).copied();
            let estimate = || estimate.ok_or_else(|| not_a_quantile(name));
            let invalid_clip = |error| PlanError::Unit(name.clone(), error);
            match &mut group.content {
                PlannedContent::QuantileOfNorm(_, target, floor) => {
                    let (floor, clip) = (*floor, ClipNorm::new(estimate()?).map_err(invalid_clip)?);
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

    /// Updates clip norms and quantile estimates from the release of a round. This is post-processing and costs nothing.
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
            let noisy_sum = || estimates.group_scalar(index);
            match &mut group.content {
                PlannedContent::QuantileOfNorm(quantile, target, floor) => {
                    clips.push((quantile.clone(), *target, *floor, noisy_sum()));
                }
                PlannedContent::QuantileOfValue(quantile, _, estimate) => {
                    *estimate = quantile.next(*estimate, noisy_sum(), plan.round);
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
