//! The sum of one round: clipped records in, a noisy release out.

use std::sync::Arc;

use veilgrad_events::{ProcessIdentity, RoundPermit, SumQuery};

use crate::outer::{OuterMemory, OuterProducts};
use crate::partial::PartialSum;
use crate::plan_error::PlanError;
use crate::planned::Plan;
use crate::sample_tag::{SampleId, SampleTag};
use crate::sum_error::SumError;
use crate::{Estimates, Noise, Released, RoundPlan, Sample};

/// The sum of one round over all groups of a plan: a [`PartialSum`] that can be released.
///
/// [`ClippedSum::release`] adds the noise and consumes the sum. The sum without noise cannot be read.
///
/// # Example
/// ```
/// use veilgrad_events::{
///     Adjacency, ClipNorm, MemoryLedger, NoiseMultiplier, RecordUnit, Run, RunHeader,
/// };
/// use veilgrad_mechanism::{AllRecords, Allocation, Group, Noise, RoundPlan, Sample, Structure};
///
/// let structure = Structure::new([("x", 2)])?;
/// let group = Group::new("x", ["x"], ClipNorm::new(1.0)?);
/// let noise = Allocation::Proportional(NoiseMultiplier::new(1.0)?);
/// let plan = RoundPlan::new(structure, vec![group], noise)?;
///
/// let header = RunHeader::new(RecordUnit::Example, Adjacency::AddRemove);
/// let mut run = Run::open(MemoryLedger::new(), header)?;
/// let permit = run.reserve(&plan.round(&AllRecords)?, 1)?.next().ok_or("no permit")?;
/// let sample = Sample::draw(permit, &mut AllRecords, 100)?;
/// let mut sum = sample.begin(&plan);
/// for _record in sample.ids() {
///     sum.add(&[&[30.0, 40.0]])?; // norm 50, clipped to (0.6, 0.8)
/// }
/// let released = sum.release(sample, Noise::draw(&plan)?)?;
/// let x = released.vector("x").ok_or("no such vector")?.to_vec();
/// // 100 records, plus noise of standard deviation 1.
/// assert!((x[0] - 60.0).abs() < 10.0 && (x[1] - 80.0).abs() < 10.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct ClippedSum {
    pub(crate) records: PartialSum,
    /// Set once the noise is in the sum.
    noise: Option<NoiseOrigin>,
}

/// Where the noise in a sum comes from.
struct NoiseOrigin {
    /// The process that drew it; `None` for test noise, which protects nothing.
    process: Option<ProcessIdentity>,
    /// The id of the permit that it was drawn for, if it was drawn for one.
    permit: Option<u64>,
}

/// A sum was not released.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ReleaseError {
    /// The ledger charged the round for other groups than those of the sum.
    #[error(
        "the ledger charged this round without group '{0}', or with another dimension or noise for it"
    )]
    NotCharged(String),
    /// The sum belongs to another round.
    #[error("the sum does not belong to this sample")]
    ForeignSample,
    /// The permit or the noise belongs to another process, from which this one was forked.
    #[error("the permit or the noise belongs to another process")]
    OtherProcess,
    /// The noise was drawn for other groups than those of the sum, or for another round.
    #[error("the noise was drawn for another plan or round")]
    ForeignNoise,
    /// More records were added than were sampled: some of them twice, or others.
    #[error("more records were added to the sum than were sampled")]
    TooManyRecords,
    /// The sum already has noise.
    #[error("the sum already has noise")]
    HasNoise,
    /// The sum has no noise yet.
    #[error("the sum has no noise yet")]
    NoNoise,
    /// The plan has no valid ledger round.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// Test noise was used in a run that is not marked INSECURE.
    #[error("this noise protects nothing, and the run is not stamped INSECURE")]
    InsecureNoise,
}

impl Sample {
    /// An empty sum for this round. Any number of sums may be begun and merged.
    #[must_use]
    pub fn begin(&self, plan: &RoundPlan) -> ClippedSum {
        ClippedSum::new(&plan.inner, self.id())
    }

    /// An empty partial sum of this round, for one thread. `outer` returns storage for each vector that records give
    /// as an outer product, and `None` for vectors that they give as coordinates.
    #[must_use]
    pub fn begin_part(
        &self,
        plan: &RoundPlan,
        outer: impl FnMut(&str) -> Option<Box<dyn OuterProducts>>,
    ) -> PartialSum {
        PartialSum::new(&plan.inner, self.id(), outer)
    }

    /// The public tag of this sample, with which other processes begin partial sums for this round.
    #[must_use]
    pub fn tag(&self, plan: &RoundPlan) -> SampleTag {
        SampleTag::new(self.id(), plan.fingerprint())
    }
}

impl ClippedSum {
    pub(crate) fn new(plan: &Arc<Plan>, sample: SampleId) -> Self {
        Self { records: PartialSum::new(plan, sample, |_| None), noise: None }
    }

    /// Clips one record and adds it, with weight 1. `vectors` are in the order of the structure. An empty slice is an
    /// empty record, which contributes zero.
    ///
    /// # Errors
    /// When the record does not have the shape of the structure; nothing is added then. Errors never depend on values.
    pub fn add(&mut self, vectors: &[&[f32]]) -> Result<(), SumError> {
        self.add_weighted(vectors, 1.0)
    }

    /// Clips one record and adds it with a weight, which is clamped into the bounds of the groups
    /// that use it; one that is not finite counts as 0.
    ///
    /// # Errors
    /// As for [`ClippedSum::add`].
    pub fn add_weighted(&mut self, vectors: &[&[f32]], weight: f64) -> Result<(), SumError> {
        self.records.add_record(vectors, weight)
    }

    /// Adds the records of another sum of the same round.
    ///
    /// # Errors
    /// When the other sum was begun with another sample, or with a plan that differs in structure,
    /// groups, noise or clip norms.
    pub fn merge(&mut self, other: Self) -> Result<(), SumError> {
        // A round has noise only once.
        if other.noise.is_some() {
            return Err(SumError::HasNoise);
        }
        self.absorb(other.records).map(drop)
    }

    /// Adds a partial sum of the same round. Returns the memory of its outer products, reset to zero.
    ///
    /// # Errors
    /// As for [`merge`](Self::merge), and when a sum of outer products is larger than its certified records allow.
    pub fn absorb(&mut self, part: PartialSum) -> Result<OuterMemory, SumError> {
        self.records.absorb(part)
    }

    /// Adds noise and releases the estimates of all groups. Consumes the noise, the sample and with
    /// it the permit: a round is released once.
    ///
    /// # Guarantee
    /// `Y = A + floor(2^k Z)` modulo 2^64 per coordinate, with the grid of each group as the ledger
    /// charged it. With correlated noise the releases of all rounds are a function of a Gaussian mechanism
    /// ([`CorrelatedNoise`](crate::CorrelatedNoise)).
    ///
    /// # Errors
    /// When the sum belongs to another sample, more records were added than were sampled, the permit does not cover
    /// these groups, the noise was drawn for other groups, or test noise is used in a run that is not marked INSECURE.
    /// Nothing is released then, and the round stays charged.
    pub fn release(
        mut self,
        sample: Sample,
        noise: Noise,
    ) -> Result<Released<Estimates>, ReleaseError> {
        self.add_noise(noise)?;
        self.release_noisy(sample)
    }

    /// Adds the noise before the records. Sums modulo 2^64 are the same in any order, and the sum then uses the buffer
    /// of the noise instead of a second one.
    ///
    /// # Errors
    /// When the noise was drawn for other groups, or the sum already has noise.
    pub fn add_noise(&mut self, noise: Noise) -> Result<(), ReleaseError> {
        if self.noise.is_some() {
            return Err(ReleaseError::HasNoise);
        }
        let groups = self.records.plan.groups.iter();
        let drawn = noise.groups.iter().map(|noise| (noise.k, noise.values.len()));
        let same_groups = drawn.eq(groups.map(|group| (group.grid.k(), group.dimension)));
        if !same_groups || noise.strategy != self.records.plan.strategy {
            return Err(ReleaseError::ForeignNoise);
        }
        self.noise = Some(NoiseOrigin { process: noise.process, permit: noise.permit });
        for (mut noise, sums) in noise.groups.into_iter().zip(&mut self.records.groups) {
            sums.sums.add_owned(std::mem::take(&mut *noise.values));
        }
        Ok(())
    }

    /// Releases a sum that already has its noise; otherwise like [`release`](Self::release).
    ///
    /// # Errors
    /// As for [`release`](Self::release), and when the sum has no noise.
    pub fn release_noisy(self, sample: Sample) -> Result<Released<Estimates>, ReleaseError> {
        let Some(noise) = &self.noise else { return Err(ReleaseError::NoNoise) };
        let permit = sample.permit();
        if sample.id() != self.records.sample {
            return Err(ReleaseError::ForeignSample);
        }
        // An empty or refused record is not counted, so fewer may be there, but never more.
        let most = sample.size();
        if self.records.groups.iter().any(|group| group.certified > most) {
            return Err(ReleaseError::TooManyRecords);
        }
        // Correlated noise has a place in its segment.
        if noise.permit.is_some_and(|drawn_for| drawn_for != permit.id()) {
            return Err(ReleaseError::ForeignNoise);
        }
        // Test noise has no process.
        let same_process = noise.process.is_none_or(|process| process == permit.process());
        if !permit.is_of_this_process() || !same_process {
            return Err(ReleaseError::OtherProcess);
        }
        self.check_charged(permit)?;
        if noise.process.is_none() && !permit.is_insecure() {
            return Err(ReleaseError::InsecureNoise);
        }
        let plan = Arc::clone(&self.records.plan);
        Ok(Released::new(Estimates::new(plan, self.into_integers(), permit)))
    }

    /// The integer sums of each group.
    pub(crate) fn into_integers(self) -> Vec<Vec<i64>> {
        self.records.groups.into_iter().map(|group| group.sums.into_sums()).collect()
    }

    fn check_charged(&self, permit: &RoundPermit) -> Result<(), ReleaseError> {
        let (planned, charged) = (self.records.plan.queries()?, permit.round().queries());
        let same = |(a, b): &(&SumQuery, &SumQuery)| {
            let same_integers = (a.dimension(), a.grid()) == (b.dimension(), b.grid());
            a.group() == b.group() && same_integers && a.strategy() == b.strategy()
        };
        let covered = planned.iter().zip(charged).take_while(same).count();
        match planned.get(covered).or(charged.get(covered)) {
            Some(other) => Err(ReleaseError::NotCharged(other.group().to_owned())),
            None => Ok(()),
        }
    }
}
