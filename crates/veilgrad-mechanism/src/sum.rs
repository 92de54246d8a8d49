//! The sum of one round: clipped records in, a noisy release out.

use std::sync::Arc;

use veilgrad_events::{ClipNorm, ProcessIdentity, RoundPermit};

use crate::accumulator::Accumulator;
use crate::clip::{Certificate, certified, factor, relative_weight, round_down};
use crate::kernel::{self, Direction, Part};
use crate::plan::{Member, Plan, PlanError, PlannedContent, PlannedGroup};
use crate::{Estimates, Noise, Released, Sample};

/// The running sum of one round over all groups of a plan.
///
/// # Guarantee
/// With the sample fixed, one record changes each group's integer sum by a vector of norm at most
/// `S_int`, whatever its values: the norm is checked in exact integer arithmetic before the record
/// counts. A record with a value that is not finite contributes zero to every group. Sums are taken
/// modulo 2^64, so records and partial sums may be added in any order and partition with the same
/// bits as a result.
///
/// The sum itself cannot be read; [`ClippedSum::release`] is the only way out.
pub struct ClippedSum {
    plan: Arc<Plan>,
    /// The permit of the round that the sum belongs to.
    permit: u64,
    groups: Vec<Accumulator>,
    /// How many coordinates a record brings for each vector: none where the sum is formed outside.
    lengths: Vec<usize>,
    /// What each group needs to know of the record being added (a squared norm, or the value that a
    /// quantile follows), kept here to spare an allocation per record.
    measures: Vec<f64>,
    /// The noise that is in the sum already.
    cover: Option<Cover>,
}

/// Which noise a sum began from.
struct Cover {
    /// The process that drew it; `None` for noise of tests, which protects nothing.
    process: Option<ProcessIdentity>,
}

/// Something does not fit a sum. Values of records never matter.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SumError {
    /// A record has too many or too few vectors.
    #[error("a record of {found} vectors does not fit a structure of {expected}")]
    Count {
        /// Vectors in the structure.
        expected: usize,
        /// Vectors in the record.
        found: usize,
    },
    /// A vector has the wrong length.
    #[error("'{name}' has {found} coordinates, not {expected}")]
    Dimension {
        /// The vector or group.
        name: String,
        /// Coordinates in the structure; none for a vector whose group is summed outside.
        expected: usize,
        /// Coordinates handed in.
        found: usize,
    },
    /// A quantile follows the norm of a group that is summed outside, and nobody told it.
    #[error("a quantile needs the record's norm in group '{0}', which is summed outside")]
    UnknownNorm(String),
    /// A group that is not summed outside.
    #[error("there is no group '{0}' that is summed outside")]
    NotOutside(String),
    /// A certificate is for another group or plan.
    #[error("a certificate is not for group '{0}' of this plan")]
    ForeignCertificate(String),
    /// A sum is larger than its certificates allow.
    #[error("the sum of group '{0}' is larger than its certificates allow")]
    Uncertified(String),
    /// Two sums of different plans or rounds.
    #[error("the two sums belong to different plans or rounds")]
    Foreign,
    /// Of two sums, only the one that the other is added to may have its noise already.
    #[error("a sum that has its noise is released, not added to another")]
    Covered,
}

/// A sum was not released.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ReleaseError {
    /// The permit was charged for other groups than those of the sum.
    #[error("the ledger did not charge this round's group '{0}' as it is")]
    NotCharged(String),
    /// The sum belongs to another round.
    #[error("the sum does not belong to this sample")]
    ForeignSample,
    /// The permit or the noise belongs to another process, of which this one is a copy.
    #[error("the permit or the noise belongs to another process")]
    OtherProcess,
    /// The noise was drawn for other groups.
    #[error("the noise was drawn for another plan")]
    ForeignNoise,
    /// The sum has its noise already.
    #[error("the sum has its noise already")]
    Covered,
    /// The sum has no noise yet.
    #[error("the sum has no noise yet")]
    Uncovered,
    /// The event of the round cannot be written.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A source for tests was used in a run that is not stamped.
    #[error("this noise protects nothing, and the run is not stamped INSECURE")]
    InsecureNoise,
}

impl ClippedSum {
    pub(crate) fn new(plan: &Arc<Plan>, permit: u64) -> Self {
        let groups = plan.groups.iter().map(|group| Accumulator::new(group.dimension)).collect();
        let measures = vec![0.0; plan.groups.len()];
        let lengths =
            plan.structure.vectors().enumerate().map(|(vector, (_, dimension))| {
                if plan.is_outside(vector) { 0 } else { dimension }
            });
        let lengths = lengths.collect();
        Self { plan: Arc::clone(plan), permit, groups, lengths, measures, cover: None }
    }

    /// Clips one record and adds it, with weight 1. `vectors` stand in the order of the structure;
    /// no vectors at all are a record with nothing to say, which contributes zero.
    ///
    /// # Errors
    /// When the shape of the record is not that of the structure; nothing was added then. Values
    /// never raise.
    pub fn add(&mut self, vectors: &[&[f32]]) -> Result<(), SumError> {
        self.add_weighted(vectors, 1.0)
    }

    /// Clips one record and adds it with a weight, which is clamped into the bounds of the groups
    /// that use it; NaN counts as 0.
    ///
    /// # Errors
    /// As for [`ClippedSum::add`].
    pub fn add_weighted(&mut self, vectors: &[&[f32]], weight: f64) -> Result<(), SumError> {
        self.add_beside(vectors, weight, |_| None)
    }

    /// Adds what a record brings beside the groups that are summed outside. The vectors of those
    /// groups are left empty; `outside_norm` tells the record's norm for a group by name, where a
    /// quantile follows it.
    ///
    /// # Errors
    /// As for [`ClippedSum::add`], and when a quantile follows a norm that `outside_norm` does not
    /// tell.
    pub fn add_beside(
        &mut self,
        vectors: &[&[f32]],
        weight: f64,
        outside_norm: impl Fn(&str) -> Option<f64>,
    ) -> Result<(), SumError> {
        if vectors.is_empty() {
            return Ok(());
        }
        self.check(vectors, &outside_norm)?;
        let plan = Arc::clone(&self.plan);
        for (group, measure) in plan.groups.iter().zip(&mut self.measures) {
            *measure = match &group.content {
                PlannedContent::Vectors { outside: true, .. } => {
                    outside_norm(&group.name).map_or(0.0, |norm| norm * norm)
                }
                PlannedContent::Vectors { members, .. } => {
                    members.iter().map(|member| member.squared_norm(vectors)).sum()
                }
                PlannedContent::QuantileOfValue(_, vector, _) => f64::from(first(vectors, *vector)),
                PlannedContent::Weight(_) | PlannedContent::QuantileOfNorm(..) => 0.0,
            };
        }
        if self.measures.iter().all(|measure| measure.is_finite()) {
            self.contribute(&plan, vectors, weight);
        }
        Ok(())
    }

    /// Adds integer sums of one group that were formed outside, together with a certificate for
    /// each record in them. `values` stand in the order of the structure, over the vectors of the
    /// group.
    ///
    /// # Guarantee
    /// The caller vouches that `values` is the sum, modulo 2^64, of one integer vector per
    /// certificate, each with the squared norm that was certified, each of another record of the
    /// sample, and each a function of its own record and public state alone. This is what keeps the guarantee of [`ClippedSum`] when a
    /// training engine forms the sum without ever holding a record's vector.
    ///
    /// # Errors
    /// When the group is not one that is summed outside, the length is wrong, a certificate is for
    /// another group, or the sum is larger than its certificates allow. Nothing was added then.
    pub fn add_exact(
        &mut self,
        group: &str,
        values: &[i64],
        certificates: Vec<Certificate>,
    ) -> Result<(), SumError> {
        self.add_exact_parts(group, &[Part::Wide(values)], certificates)
    }

    /// As [`add_exact`](Self::add_exact), of values that come in parts, one behind the other.
    ///
    /// # Errors
    /// As for [`add_exact`](Self::add_exact).
    pub fn add_exact_parts(
        &mut self,
        group: &str,
        parts: &[Part<'_>],
        certificates: Vec<Certificate>,
    ) -> Result<(), SumError> {
        let name = || group.to_owned();
        let (index, planned) =
            self.plan.group(group).ok_or_else(|| SumError::NotOutside(name()))?;
        if !matches!(planned.content, PlannedContent::Vectors { outside: true, .. }) {
            return Err(SumError::NotOutside(name()));
        }
        let (expected, found) = (planned.dimension, parts.iter().map(Part::len).sum());
        if found != expected {
            return Err(SumError::Dimension { name: name(), expected, found });
        }
        if certificates.iter().any(|c| c.group != index || c.grid != planned.grid) {
            return Err(SumError::ForeignCertificate(name()));
        }
        // No coordinate of a certified vector exceeds the sensitivity. (Beyond 2^63 sums wrap.)
        let bound = (certificates.len() as u64).checked_mul(u64::from(planned.grid.s_int()));
        let bound = bound.filter(|bound| *bound < 1 << 63).unwrap_or(u64::MAX);
        if !parts.iter().all(|part| part.is_within(bound)) {
            return Err(SumError::Uncertified(name()));
        }
        if let Some(sums) = self.groups.get_mut(index) {
            sums.add_parts(parts);
        }
        Ok(())
    }

    /// Adds the records of another sum of the same round.
    ///
    /// # Errors
    /// When the other sum was begun with another sample, or with a plan that differs in structure,
    /// groups, noise or clip norms.
    pub fn merge(&mut self, other: Self) -> Result<(), SumError> {
        let same_plan = Arc::ptr_eq(&self.plan, &other.plan) || self.plan.same_sums(&other.plan);
        if !same_plan || self.permit != other.permit {
            return Err(SumError::Foreign);
        }
        // One round has one noise.
        if other.cover.is_some() {
            return Err(SumError::Covered);
        }
        for (mine, theirs) in self.groups.iter_mut().zip(other.groups) {
            mine.merge(theirs);
        }
        Ok(())
    }

    /// Adds noise and releases the estimates of all groups. Consumes the noise, the sample and with
    /// it the permit: a round is released once.
    ///
    /// # Guarantee
    /// `Y = A + floor(2^k Z)` modulo 2^64 per coordinate, with the grid of each group as the ledger
    /// charged it.
    ///
    /// # Errors
    /// When the sum belongs to another sample, the permit does not cover these groups, the noise was
    /// drawn for other groups, or it is for tests and the run is not stamped. Nothing is released
    /// then, and the round stays charged.
    pub fn release(
        self,
        sample: Sample,
        noise: Noise,
    ) -> Result<Released<Estimates>, ReleaseError> {
        let mut sum = self;
        sum.cover(noise)?;
        sum.release_covered(sample)
    }

    /// Adds the noise now, and records later: sums modulo 2^64 are the same in any order. What is added
    /// afterwards is never in memory without noise, and takes no memory of its own.
    ///
    /// # Errors
    /// When the noise was drawn for other groups, or the sum has its noise already.
    pub fn cover(&mut self, noise: Noise) -> Result<(), ReleaseError> {
        if self.cover.is_some() {
            return Err(ReleaseError::Covered);
        }
        let groups = self.plan.groups.iter();
        let drawn = noise.groups.iter().map(|noise| (noise.k, noise.values.len()));
        if !drawn.eq(groups.map(|group| (group.grid.k(), group.dimension))) {
            return Err(ReleaseError::ForeignNoise);
        }
        self.cover = Some(Cover { process: noise.process });
        for (mut noise, sums) in noise.groups.into_iter().zip(&mut self.groups) {
            sums.add_owned(std::mem::take(&mut *noise.values));
        }
        Ok(())
    }

    /// As [`release`](Self::release), of a sum that has its noise.
    ///
    /// # Errors
    /// As for [`release`](Self::release), and when the sum has no noise.
    pub fn release_covered(self, sample: Sample) -> Result<Released<Estimates>, ReleaseError> {
        let Some(cover) = &self.cover else { return Err(ReleaseError::Uncovered) };
        let permit = sample.permit();
        if permit.id() != self.permit {
            return Err(ReleaseError::ForeignSample);
        }
        // Insecure noise was drawn by nobody.
        let same_process = cover.process.is_none_or(|process| process == permit.process());
        if !permit.is_of_this_process() || !same_process {
            return Err(ReleaseError::OtherProcess);
        }
        self.check_charged(permit)?;
        if cover.process.is_none() && !permit.is_insecure() {
            return Err(ReleaseError::InsecureNoise);
        }
        let released = self.groups.into_iter().map(Accumulator::into_sums).collect();
        let estimates = Estimates::new(self.plan, released, permit.is_insecure());
        Ok(Released::new(estimates))
    }

    fn check(
        &self,
        vectors: &[&[f32]],
        outside_norm: &impl Fn(&str) -> Option<f64>,
    ) -> Result<(), SumError> {
        let (expected, found) = (self.lengths.len(), vectors.len());
        if found != expected {
            return Err(SumError::Count { expected, found });
        }
        let wrong = vectors.iter().zip(&self.lengths).position(|(v, length)| v.len() != *length);
        if let Some(index) = wrong {
            let name = self.plan.structure.vectors().nth(index).map_or("", |(name, _)| name);
            return Err(SumError::Dimension {
                name: name.to_owned(),
                expected: self.lengths.get(index).copied().unwrap_or(0),
                found: vectors.get(index).map_or(0, |vector| vector.len()),
            });
        }
        for group in &self.plan.groups {
            if let PlannedContent::QuantileOfNorm(_, target, _) = &group.content
                && let Some(followed) = self.plan.groups.get(*target)
                && matches!(followed.content, PlannedContent::Vectors { outside: true, .. })
                && outside_norm(&followed.name).is_none()
            {
                return Err(SumError::UnknownNorm(followed.name.clone()));
            }
        }
        Ok(())
    }

    /// Adds one record whose measures are known and finite.
    fn contribute(&mut self, plan: &Plan, vectors: &[&[f32]], weight: f64) {
        for ((group, sums), measure) in plan.groups.iter().zip(&mut self.groups).zip(&self.measures)
        {
            let s_int = i64::from(group.grid.s_int());
            match &group.content {
                PlannedContent::Vectors { outside: true, .. } => {}
                PlannedContent::Vectors { members, clip, rule, weight: bound, .. } => {
                    let relative = bound.map_or(1.0, |bound| relative_weight(weight, bound));
                    let factor =
                        factor(*rule, *clip, group.grid, *measure, group.dimension, 0.0) * relative;
                    add_certified(group, members, vectors, factor, sums);
                }
                PlannedContent::Weight(bound) => {
                    let units = relative_weight(weight, *bound) * s_int as f64;
                    sums.add_wide(&[(units as i64).min(s_int)]);
                }
                PlannedContent::QuantileOfNorm(_, target, _) => {
                    let norm = self.measures.get(*target).map_or(0.0, |n| n.sqrt());
                    let below = plan.clip(*target).is_some_and(|clip| norm <= ClipNorm::get(clip));
                    sums.add_wide(&[if below { s_int } else { -s_int }]);
                }
                PlannedContent::QuantileOfValue(_, _, estimate) => {
                    let below = *measure <= *estimate;
                    sums.add_wide(&[if below { s_int } else { -s_int }]);
                }
            }
        }
    }

    fn check_charged(&self, permit: &RoundPermit) -> Result<(), ReleaseError> {
        let queries = self.plan.queries()?;
        let charged = permit.round().queries();
        for (index, query) in queries.iter().enumerate() {
            let covered = charged.get(index).is_some_and(|charged| {
                charged.group() == query.group()
                    && charged.dimension() == query.dimension()
                    && charged.grid() == query.grid()
            });
            if !covered {
                return Err(ReleaseError::NotCharged(query.group().to_owned()));
            }
        }
        match charged.get(queries.len()) {
            Some(extra) => Err(ReleaseError::NotCharged(extra.group().to_owned())),
            None => Ok(()),
        }
    }
}

impl Plan {
    /// Whether a vector's group is summed outside.
    fn is_outside(&self, vector: usize) -> bool {
        self.groups.iter().any(|group| match &group.content {
            PlannedContent::Vectors { members, outside: true, .. } => {
                members.iter().any(|member| member.vector == vector)
            }
            _ => false,
        })
    }
}

impl Member {
    fn squared_norm(&self, vectors: &[&[f32]]) -> f64 {
        let squared = kernel::squared_norm(self.of(vectors));
        squared / (self.alpha.get() * self.alpha.get())
    }

    fn of<'a>(&self, vectors: &[&'a [f32]]) -> &'a [f32] {
        vectors.get(self.vector).copied().unwrap_or(&[])
    }
}

/// Quantises one record's part in a group and adds it, if its exact norm is within the sensitivity;
/// otherwise takes it back, so that the record contributes zero.
fn add_certified(
    group: &PlannedGroup,
    members: &[Member],
    vectors: &[&[f32]],
    factor: f64,
    sums: &mut Accumulator,
) {
    let s_int = group.grid.s_int();
    let pass = |sums: &mut [i32], direction: Direction| -> u128 {
        members
            .iter()
            .filter_map(|member| {
                let c = round_down((factor / member.alpha.get()).min(f64::from(f32::MAX)));
                let sums = sums.get_mut(member.range.clone())?;
                Some(kernel::quantise(member.of(vectors), c, s_int, direction, sums))
            })
            .sum()
    };
    sums.add_record(|sums| {
        if !certified(group.grid, pass(sums, Direction::Add)) {
            pass(sums, Direction::TakeBack);
        }
    });
}

/// The first coordinate of a vector; NaN if there is none.
fn first(vectors: &[&[f32]], index: usize) -> f32 {
    vectors.get(index).and_then(|vector| vector.first()).copied().unwrap_or(f32::NAN)
}

#[cfg(test)]
mod tests;
