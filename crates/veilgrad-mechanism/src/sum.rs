//! The sum of one round: clipped records in, a noisy release out.

use std::sync::Arc;

use veilgrad_events::RoundPermit;

use crate::accumulator::Accumulator;
use crate::clip::{Certificate, certified, factor, relative_weight, round_down};
use crate::kernel;
use crate::plan::{Member, Plan, PlannedContent, PlannedGroup};
use crate::{Estimates, NoiseError, NoiseSource, Released, Sample, StructureError};

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
    groups: Vec<Accumulator>,
    /// How many coordinates a record brings for each vector: none where the sum is formed outside.
    lengths: Vec<usize>,
    /// What each group needs to know of the record being added (a squared norm, or the value that a
    /// quantile follows), kept here to spare an allocation per record.
    measures: Vec<f64>,
}

/// A sum was not released.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReleaseError {
    /// The permit was charged for other groups than those of the sum.
    #[error("the ledger did not charge this round's group '{0}' as it is")]
    NotCharged(String),
    /// The event of the round cannot be written.
    #[error("the plan has no event: {0}")]
    Plan(String),
    /// A source for tests was used in a run that is not stamped.
    #[error("this noise protects nothing, and the run is not stamped INSECURE")]
    InsecureNoise,
    /// There was no randomness.
    #[error(transparent)]
    Noise(#[from] NoiseError),
}

impl ClippedSum {
    pub(crate) fn new(plan: Arc<Plan>) -> Self {
        let groups = plan.groups.iter().map(|group| Accumulator::new(group.dimension)).collect();
        let measures = vec![0.0; plan.groups.len()];
        let lengths =
            plan.structure.vectors().enumerate().map(|(vector, (_, dimension))| {
                if plan.is_outside(vector) { 0 } else { dimension }
            });
        let lengths = lengths.collect();
        Self { plan, groups, lengths, measures }
    }

    /// Clips one record and adds it, with weight 1. `vectors` stand in the order of the structure;
    /// no vectors at all are a record with nothing to say, which contributes zero.
    ///
    /// # Errors
    /// When the shape of the record is not that of the structure; nothing was added then. Values
    /// never raise.
    pub fn add(&mut self, vectors: &[&[f32]]) -> Result<(), StructureError> {
        self.add_weighted(vectors, 1.0)
    }

    /// Clips one record and adds it with a weight, which is clamped into the bounds of the groups
    /// that use it; NaN counts as 0.
    ///
    /// # Errors
    /// As for [`ClippedSum::add`].
    pub fn add_weighted(&mut self, vectors: &[&[f32]], weight: f64) -> Result<(), StructureError> {
        self.add_beside(vectors, weight, |_| None)
    }

    /// Adds what a record brings beside the groups that are summed outside. The vectors of those
    /// groups are left empty; `outside_norm` tells the record's norm for a group by name, where a
    /// quantile follows it (0 if it does not tell).
    ///
    /// # Errors
    /// As for [`ClippedSum::add`].
    pub fn add_beside(
        &mut self,
        vectors: &[&[f32]],
        weight: f64,
        outside_norm: impl Fn(&str) -> Option<f64>,
    ) -> Result<(), StructureError> {
        if vectors.is_empty() {
            return Ok(());
        }
        self.check(vectors)?;
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
    /// certificate, each with the squared norm that was certified, and each a function of its own
    /// record and public state alone. This is what keeps the guarantee of [`ClippedSum`] when a
    /// training engine forms the sum without ever holding a record's vector.
    ///
    /// # Errors
    /// When the group is not one that is summed outside, the length is wrong, or a certificate is
    /// for another group.
    pub fn add_exact(
        &mut self,
        group: &str,
        values: &[i64],
        certificates: Vec<Certificate>,
    ) -> Result<(), StructureError> {
        let unknown = || StructureError::UnknownGroup(group.to_owned());
        let (index, planned) = self.plan.group(group).ok_or_else(unknown)?;
        if !matches!(planned.content, PlannedContent::Vectors { outside: true, .. }) {
            return Err(unknown());
        }
        let (expected, found) = (planned.dimension, values.len());
        if found != expected {
            return Err(StructureError::Dimension { name: group.to_owned(), expected, found });
        }
        if certificates.iter().any(|c| c.group != index || c.grid != planned.grid) {
            return Err(StructureError::PlanMismatch);
        }
        if let Some(sums) = self.groups.get_mut(index) {
            sums.add_wide(values);
        }
        Ok(())
    }

    /// Adds the records of another sum of the same plan.
    ///
    /// # Errors
    /// When the plans differ in structure, groups, noise or clip norms.
    pub fn merge(&mut self, other: Self) -> Result<(), StructureError> {
        if !Arc::ptr_eq(&self.plan, &other.plan) && !self.plan.same_sums(&other.plan) {
            return Err(StructureError::PlanMismatch);
        }
        for (mine, theirs) in self.groups.iter_mut().zip(other.groups) {
            mine.merge(theirs);
        }
        Ok(())
    }

    /// Adds noise and releases the estimates of all groups. Consumes the sample and with it the
    /// permit: a round is released once.
    ///
    /// # Guarantee
    /// `Y = A + floor(2^k Z)` modulo 2^64 per coordinate, with the grid of each group as the ledger
    /// charged it.
    ///
    /// # Errors
    /// When the permit does not cover these groups, the noise source is for tests and the run is not
    /// stamped, or randomness fails. Nothing is released then, and the round stays charged.
    pub fn release(
        self,
        sample: Sample,
        noise: &mut impl NoiseSource,
    ) -> Result<Released<Estimates>, ReleaseError> {
        let permit = sample.permit();
        self.check_charged(permit)?;
        if noise.is_insecure() && !permit.is_insecure() {
            return Err(ReleaseError::InsecureNoise);
        }
        let mut released = Vec::with_capacity(self.groups.len());
        for (index, (group, sums)) in self.plan.groups.iter().zip(self.groups).enumerate() {
            let mut sums = sums.into_sums();
            noise.add_noise(index, group.grid.k(), &mut sums)?;
            released.push(sums);
        }
        let estimates = Estimates::new(self.plan, released);
        Ok(Released::new(estimates, permit.is_insecure()))
    }

    fn check(&self, vectors: &[&[f32]]) -> Result<(), StructureError> {
        let (expected, found) = (self.lengths.len(), vectors.len());
        if found != expected {
            return Err(StructureError::Count { expected, found });
        }
        let wrong = vectors.iter().zip(&self.lengths).position(|(v, length)| v.len() != *length);
        wrong.map_or(Ok(()), |index| {
            let name = self.plan.structure.vectors().nth(index).map_or("", |(name, _)| name);
            Err(StructureError::Dimension {
                name: name.to_owned(),
                expected: self.lengths.get(index).copied().unwrap_or(0),
                found: vectors.get(index).map_or(0, |vector| vector.len()),
            })
        })
    }

    /// Adds one record whose measures are known and finite.
    fn contribute(&mut self, plan: &Plan, vectors: &[&[f32]], weight: f64) {
        for ((group, sums), measure) in plan.groups.iter().zip(&mut self.groups).zip(&self.measures)
        {
            let s_int = group.grid.s_int() as i32;
            match &group.content {
                PlannedContent::Vectors { outside: true, .. } => {}
                PlannedContent::Vectors { members, clip, rule, weight: bound, .. } => {
                    let relative = bound.map_or(1.0, |bound| relative_weight(weight, bound));
                    let factor =
                        factor(*rule, *clip, group.grid, *measure, group.dimension) * relative;
                    add_certified(group, members, vectors, factor, sums);
                }
                PlannedContent::Weight(bound) => {
                    let units = relative_weight(weight, *bound) * f64::from(s_int);
                    sums.add_wide(&[(units as i64).min(i64::from(s_int))]);
                }
                PlannedContent::QuantileOfNorm(_, target, _) => {
                    let norm = self.measures.get(*target).map_or(0.0, |n| n.sqrt());
                    let below = plan.clip(*target).is_some_and(|clip| norm <= clip);
                    sums.add_wide(&[i64::from(if below { s_int } else { -s_int })]);
                }
                PlannedContent::QuantileOfValue(_, _, estimate) => {
                    let below = *measure <= *estimate;
                    sums.add_wide(&[i64::from(if below { s_int } else { -s_int })]);
                }
            }
        }
    }

    fn check_charged(&self, permit: &RoundPermit) -> Result<(), ReleaseError> {
        let queries = self.plan.queries().map_err(|error| ReleaseError::Plan(error.to_string()))?;
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
    /// The clip norm of a group of vectors.
    fn clip(&self, group: usize) -> Option<f64> {
        match self.groups.get(group)?.content {
            PlannedContent::Vectors { clip, .. } => Some(clip.get()),
            _ => None,
        }
    }

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
    let s_int = group.grid.s_int() as i32;
    let pass = |sums: &mut [i32], sign: f32| -> u128 {
        members
            .iter()
            .filter_map(|member| {
                let c = round_down((factor / member.alpha.get()).min(f64::from(f32::MAX)));
                let sums = sums.get_mut(member.range.clone())?;
                Some(kernel::quantise(member.of(vectors), sign * c, s_int, sums))
            })
            .sum()
    };
    sums.add_record(|sums| {
        if !certified(group.grid, pass(sums, 1.0)) {
            pass(sums, -1.0);
        }
    });
}

/// The first coordinate of a vector; NaN if there is none.
fn first(vectors: &[&[f32]], index: usize) -> f32 {
    vectors.get(index).and_then(|vector| vector.first()).copied().unwrap_or(f32::NAN)
}

#[cfg(test)]
mod tests {
    use veilgrad_events::{ClipNorm, NoiseMultiplier};

    use super::*;
    use crate::{Allocation, Group, RoundPlan, Structure};

    /// A small generator of its own: the test must reach magnitudes that strategies rarely try.
    struct Words(u64);

    impl Words {
        fn next(&mut self) -> u64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (self.0 ^ (self.0 >> 29)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 16
        }

        /// In [0, 1).
        fn unit(&mut self) -> f64 {
            self.next() as f64 / 2f64.powi(48)
        }

        fn log_uniform(&mut self, low: f64, high: f64) -> f64 {
            (low.ln() + self.unit() * (high.ln() - low.ln())).exp()
        }

        fn sign(&mut self) -> f64 {
            if self.next() & 1 == 0 { 1.0 } else { -1.0 }
        }
    }

    const LONGEST: usize = 100_000;

    /// Long vectors whose slices are the records: every magnitude that f32 has, and shapes that
    /// provoke rounding in one direction.
    fn pools(words: &mut Words) -> Vec<Vec<f32>> {
        let mut pool = |value: &mut dyn FnMut(&mut Words) -> f64| -> Vec<f32> {
            (0..2 * LONGEST).map(|_| value(words) as f32).collect()
        };
        vec![
            // Well scaled, dense.
            pool(&mut |w| w.sign() * w.unit()),
            // All magnitudes at once.
            pool(&mut |w| w.sign() * w.log_uniform(1e-45, 3e38)),
            // All coordinates equal, with an odd mantissa.
            pool(&mut |_| 1.000_000_1),
            pool(&mut |_| -0.333_333_34),
            // Subnormal.
            pool(&mut |w| w.sign() * w.log_uniform(1e-45, 1e-38)),
            // Near the largest number.
            pool(&mut |w| w.sign() * (3.4e38 * (1.0 - 1e-3 * w.unit()))),
            // Sparse.
            pool(&mut |w| if w.next() % 64 == 0 { w.sign() * w.unit() } else { 0.0 }),
            // A spike over a floor of dust.
            pool(&mut |w| if w.next() % 4096 == 0 { 1.0 } else { 1e-6 * w.unit() }),
            // Zero.
            pool(&mut |_| 0.0),
            // Finite, then suddenly not.
            pool(&mut |w| match w.next() % 100_000 {
                0 => f64::NAN,
                1 => f64::INFINITY,
                2 => f64::NEG_INFINITY,
                _ => w.sign() * w.unit(),
            }),
        ]
    }

    fn plan(dimension: usize, clip: f64, z: f64) -> RoundPlan {
        let structure = Structure::new([("x", dimension)]).unwrap();
        let group = Group::new("x", ["x"], ClipNorm::new(clip).unwrap());
        let allocation = Allocation::Proportional(NoiseMultiplier::new(z).unwrap());
        RoundPlan::new(structure, vec![group], allocation).unwrap()
    }

    fn integers(plan: &RoundPlan, x: &[f32]) -> Vec<i64> {
        let mut sum = plan.begin();
        sum.add(&[x]).unwrap();
        sum.groups.remove(0).into_sums()
    }

    fn exact_squared_norm(u: &[i64]) -> u128 {
        u.iter().map(|u| u128::from(u.unsigned_abs()) * u128::from(u.unsigned_abs())).sum()
    }

    #[test]
    fn no_integer_vector_is_longer_than_the_sensitivity_and_good_ones_keep_their_length() {
        let (threads, vectors) = (2, 1_000_000);
        let pools = pools(&mut Words(20_261_115));
        let clipped: usize = std::thread::scope(|scope| {
            let part = |seed| {
                scope.spawn({
                    let pools = &pools;
                    move || clip_many(pools, Words(seed), vectors / threads)
                })
            };
            let parts: Vec<_> = (0..threads as u64).map(part).collect();
            parts.into_iter().map(|part| part.join().unwrap()).sum()
        });
        assert!(clipped > vectors / 4, "only {clipped} vectors were clipped");
    }

    /// Checks that many vectors and returns how many were clipped.
    fn clip_many(pools: &[Vec<f32>], mut words: Words, vectors: usize) -> usize {
        let mut clipped = 0;
        for index in 0..vectors {
            let kind = index % pools.len();
            let d = (words.unit().powi(3) * (LONGEST as f64).ln()).exp().round() as usize;
            let start = words.next() as usize % LONGEST;
            let x = &pools[kind][start..start + d];
            let norm = x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt();
            // Clip norms around the record's own length, and some that have nothing to do with it.
            let clip = match words.next() % 4 {
                0 => words.log_uniform(1e-40, 1e40),
                _ => norm * words.log_uniform(0.01, 2.0),
            };
            let clip = if clip.is_finite() && clip > 0.0 { clip } else { 1.0 };
            let plan = plan(d, clip, words.log_uniform(1e-3, 1e3));
            let u = integers(&plan, x);
            let squared = exact_squared_norm(&u);
            let s_int = u128::from(plan.grid("x").unwrap().s_int());
            assert!(squared <= s_int * s_int, "pool {kind}, d {d}, clip {clip}, norm {norm}");
            if !x.iter().all(|x| x.is_finite()) {
                assert_eq!(squared, 0, "pool {kind}");
            } else if norm >= clip && (1e-30..1e38).contains(&clip) {
                clipped += 1;
                let retained = squared as f64 / (s_int * s_int) as f64;
                assert!(retained >= 0.9999, "pool {kind}, d {d}, clip {clip}: {retained}");
            }
        }
        clipped
    }

    #[test]
    fn a_record_that_fails_its_certificate_is_taken_back() {
        let plan = plan(40, 1.0, 1.0);
        let group = &plan.inner.groups[0];
        let PlannedContent::Vectors { members, .. } = &group.content else { unreachable!() };
        let mut sums = Accumulator::new(40);
        let (good, long) = ([0.01f32; 40], [1f32; 40]);
        let factor = f64::from(group.grid.s_int());
        add_certified(group, members, &[&good], factor, &mut sums);
        // The factor of a much shorter record: forty coordinates of S_int each.
        add_certified(group, members, &[&long], factor, &mut sums);
        assert_eq!(sums.into_sums(), integers(&plan, &good));
    }
}
