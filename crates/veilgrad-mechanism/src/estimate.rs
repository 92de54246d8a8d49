//! The released sums of a round, and the estimates decoded from them.

use std::sync::Arc;

use veilgrad_events::{IntegerGrid, LedgerKind, RoundPermit};

use crate::group::Estimator;
use crate::planned::{Plan, PlannedContent, PlannedGroup};
use veilgrad_random::vectorised::vectorised;

/// The released estimates of a round: noisy integer sums, decoded on demand.
///
/// # Guarantee
/// Every method is post-processing of released integers and public parameters.
#[derive(Debug, Clone)]
pub struct Estimates {
    plan: Arc<Plan>,
    pub(crate) sums: Vec<Vec<i64>>,
    insecure: bool,
    charged_to: LedgerKind,
}

impl Estimates {
    pub(crate) fn new(plan: Arc<Plan>, sums: Vec<Vec<i64>>, permit: &RoundPermit) -> Self {
        Self { plan, sums, insecure: permit.is_insecure(), charged_to: permit.charged_to() }
    }

    /// Whether the run is marked INSECURE: the estimates protect nothing.
    #[must_use]
    pub const fn is_insecure(&self) -> bool {
        self.insecure
    }

    /// The kind of ledger that the round was charged to: durable, or in memory only.
    #[must_use]
    pub const fn charged_to(&self) -> LedgerKind {
        self.charged_to
    }

    /// The estimate of one vector: a sum or an average, depending on its group.
    #[must_use]
    pub fn vector(&self, name: &str) -> Option<VectorEstimate<'_>> {
        let index = self.plan.structure.position(name)?;
        let mut groups = self.plan.groups.iter().zip(&self.sums);
        groups.find_map(|(group, sums)| {
            let PlannedContent::Vectors { members, .. } = &group.content else { return None };
            let member = members.iter().find(|member| member.vector == index)?;
            Some(VectorEstimate {
                sums: sums.get(member.range.clone())?,
                step: step(group) * member.alpha.get() / self.denominator(group),
            })
        })
    }

    /// The estimate of a group without vectors: the weight sum or average, or for a quantile the fraction of records
    /// whose value is at most the current quantile estimate.
    #[must_use]
    pub fn scalar(&self, group: &str) -> Option<f64> {
        let (index, group) = self.plan.group(group)?;
        match &group.content {
            PlannedContent::Vectors { .. } => None,
            PlannedContent::Weight(_) => Some(self.group_scalar(index) / self.denominator(group)),
            PlannedContent::QuantileOfNorm(quantile, ..)
            | PlannedContent::QuantileOfValue(quantile, ..) => {
                Some(quantile.fraction(self.group_scalar(index)))
            }
        }
    }

    /// The noisy sums of the canary lanes of this length, with their grids.
    pub(crate) fn lanes(&self, length: usize) -> Vec<(IntegerGrid, &[i64])> {
        let lanes = self.plan.lanes();
        let sums = lanes.filter_map(|(index, group, member)| {
            let sums = self.sums.get(index)?.get(member.range.clone())?;
            (sums.len() == length).then_some((group.grid, sums))
        });
        sums.collect()
    }

    /// The noisy sum of a one-dimensional group.
    pub(crate) fn group_scalar(&self, index: usize) -> f64 {
        let group = self.plan.groups.get(index);
        let sum = self.sums.get(index).and_then(|sums| sums.first());
        group.zip(sum).map_or(0.0, |(group, sum)| decode(*sum, step(group)))
    }

    pub(crate) fn belongs_to(&self, plan: &Arc<Plan>) -> bool {
        Arc::ptr_eq(&self.plan, plan) || self.plan.same_sums(plan)
    }

    fn denominator(&self, group: &PlannedGroup) -> f64 {
        match group.estimator {
            Estimator::Sum => 1.0,
            Estimator::Average(count) => count.get(),
            Estimator::AverageOver { group, minimum } => {
                self.group_scalar(group).max(minimum.get())
            }
        }
    }
}

/// The estimate of one vector.
#[derive(Debug, Clone, Copy)]
pub struct VectorEstimate<'a> {
    sums: &'a [i64],
    step: f64,
}

impl VectorEstimate<'_> {
    /// An iterator over the coordinates.
    pub fn iter(&self) -> impl Iterator<Item = f64> + '_ {
        let step = self.step;
        self.sums.iter().map(move |sum| decode(*sum, step))
    }

    /// Calls `run` with the coordinates as `f32`, in chunks of at most 1024: the index of the first coordinate, and the
    /// values. Much faster than [`iter`](Self::iter).
    pub fn for_each_run(&self, mut run: impl FnMut(usize, &[f32])) {
        const RUN: usize = 1024;
        let mut values = [0.0; RUN];
        for (sums, first) in self.sums.chunks(RUN).zip((0..).step_by(RUN)) {
            if let Some(values) = values.get_mut(..sums.len()) {
                decode_run(sums, self.step, values);
                run(first, values);
            }
        }
    }

    /// The coordinates as a vector.
    #[must_use]
    pub fn to_vec(&self) -> Vec<f64> {
        self.iter().collect()
    }
}

/// The size of one grid step in the unit of the estimate.
fn step(group: &PlannedGroup) -> f64 {
    // A sensitivity that is not finite cannot be charged, so such a sum is never released.
    let sensitivity = group.sensitivity().map_or(0.0, |clip| clip.get());
    sensitivity / f64::from(group.grid.s_int())
}

/// Decodes sums to f32. AVX2 has no conversion from 64-bit integers to f64. Sums below 2^51 are added to the bits of
/// `1.5 2^52` instead, which makes them the low bits of its mantissa.
fn decode_run(sums: &[i64], step: f64, values: &mut [f32]) {
    const SHIFT: f64 = 6_755_399_441_055_744.0;
    vectorised(
        #[inline(always)]
        || {
            let bits = sums.iter().fold(0, |bits, sum| bits | sum.unsigned_abs());
            if bits < 1 << 51 {
                for (value, sum) in values.iter_mut().zip(sums) {
                    let sum =
                        f64::from_bits((SHIFT.to_bits() as i64).wrapping_add(*sum) as u64) - SHIFT;
                    *value = ((sum + 0.5) * step) as f32;
                }
            } else {
                for (value, sum) in values.iter_mut().zip(sums) {
                    *value = decode(*sum, step) as f32;
                }
            }
        },
    );
}

/// The middle of the grid cell, because the noise is rounded down.
fn decode(sum: i64, step: f64) -> f64 {
    (sum as f64 + 0.5) * step
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_and_single_sums_are_decoded_to_the_same_bits() {
        let edges = [0, 1, -1, (1 << 51) - 1, 1 - (1 << 51), 123_456_789_012_345, -77];
        let beyond = [1 << 51, i64::MAX, i64::MIN, -(1 << 60) + 3];
        for sums in [edges.to_vec(), [edges.as_slice(), &beyond].concat(), edges.repeat(700)] {
            let estimate = VectorEstimate { sums: &sums, step: 0.37e-6 };
            let mut values = Vec::new();
            estimate.for_each_run(|first, run| {
                assert_eq!(first, values.len());
                values.extend_from_slice(run);
            });
            let one_by_one: Vec<f32> = estimate.iter().map(|value| value as f32).collect();
            assert_eq!(values, one_by_one);
        }
    }
}
