//! The sample of a round: drawn once, with a permit, by a sampler that writes its own event.

use veilgrad_events::{
    Adjacency, ClipNorm, MemoryLedger, NoiseStd, RecordUnit, Round, RoundPermit, Run, RunHeader,
    Sampling, SumQuery,
};
use veilgrad_random::RandomError;

use crate::{ClippedSum, OuterProducts, PartialSum, Private, RoundPlan};

/// Draws samples. Open for implementors; [`check_sampler`] tests the contract.
///
/// # Guarantee
/// An implementation must select records exactly as its [`policy`](Sampler::policy) says, with
/// randomness from a cryptographic generator that is fresh for every draw, and may depend on nothing
/// but the number of records and of the round.
pub trait Sampler {
    /// The policy, as the ledger records it.
    fn policy(&self) -> Sampling;

    /// Selects from the records numbered `0..records`, for the round of this permit.
    ///
    /// # Errors
    /// When randomness fails or the policy cannot serve this round.
    fn select(&mut self, permit: &RoundPermit, records: u64) -> Result<Selection, SampleError>;
}

/// The records that were selected. An empty selection is an ordinary one.
pub struct Selection(Kind);

enum Kind {
    All(u64),
    Ids(Vec<u64>),
}

impl Selection {
    /// All records numbered `0..records`.
    #[must_use]
    pub const fn all(records: u64) -> Self {
        Self(Kind::All(records))
    }

    /// The records with these numbers, in ascending order.
    #[must_use]
    pub const fn ids(ids: Vec<u64>) -> Self {
        Self(Kind::Ids(ids))
    }

    /// Whether this can be a sample of the policy from that many records.
    fn check(&self, policy: Sampling, records: u64) -> Result<(), &'static str> {
        let size = match &self.0 {
            Kind::All(all) if *all != records => return Err("the selection has other records"),
            Kind::All(all) => *all,
            Kind::Ids(ids) if !ids.is_sorted_by(|a, b| a < b) => {
                return Err("the selected ids do not ascend");
            }
            Kind::Ids(ids) if ids.last().is_some_and(|last| *last >= records) => {
                return Err("a selected id is not that of a record");
            }
            Kind::Ids(ids) => ids.len() as u64,
        };
        let fits = match policy {
            Sampling::All {} => size == records,
            Sampling::Fixed(batch) | Sampling::Shuffle(batch) => size == batch.batch(),
            Sampling::TruncatedPoisson(truncated) => size <= truncated.maximum(),
            _ => true,
        };
        if fits { Ok(()) } else { Err("the selection does not have the size of its policy") }
    }
}

/// A sample could not be drawn.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SampleError {
    /// The permit was charged for another policy than the sampler's.
    #[error("the permit is for {charged:?}, the sampler draws {drawn:?}")]
    PolicyMismatch {
        /// The policy that the ledger charged.
        charged: Sampling,
        /// The policy of the sampler.
        drawn: Sampling,
    },
    /// The permit was charged by another process, of which this one is a copy.
    #[error("the permit belongs to another process")]
    OtherProcess,
    /// The ledger has another number of records than the data.
    #[error("the policy was charged for another number of records than there are")]
    RecordCount,
    /// A shuffled epoch is drawn in order, by one sampler from its first batch on.
    #[error("a shuffled epoch must be drawn in order by one sampler, from its first round on")]
    EpochOrder,
    /// The operating system failed.
    #[error(transparent)]
    Random(#[from] RandomError),
    /// The sampler broke its contract or failed.
    #[error("the sampler failed: {0}")]
    Sampler(String),
}

/// The sample of one charged round, and the permit to release its sums.
///
/// # Guarantee
/// There is one sample per permit, its sums [`begin`](Sample::begin) with it and belong to no other
/// round, and [`ClippedSum::release`] consumes it: all groups of a round share one sample, and no
/// sample is released twice. It has no length, because the size of a sample is private.
///
/// That the records added to its sums are the sampled ones is the caller's duty.
pub struct Sample {
    selection: Private<Selection>,
    permit: RoundPermit,
}

impl Sample {
    /// Draws the sample of the permit's round from the records numbered `0..records`.
    ///
    /// # Errors
    /// When the sampler's policy is not the one that was charged, the number of records is not the
    /// charged one, or the sampler fails or does not keep its contract.
    pub fn draw(
        permit: RoundPermit,
        sampler: &mut impl Sampler,
        records: u64,
    ) -> Result<Self, SampleError> {
        let (charged, drawn) = (permit.round().sampling(), sampler.policy());
        if !permit.is_of_this_process() {
            return Err(SampleError::OtherProcess);
        }
        if charged != drawn {
            return Err(SampleError::PolicyMismatch { charged, drawn });
        }
        if charged.records().is_some_and(|charged| charged != records) {
            return Err(SampleError::RecordCount);
        }
        let selection = sampler.select(&permit, records)?;
        selection
            .check(charged, records)
            .map_err(|broken| SampleError::Sampler(broken.to_owned()))?;
        Ok(Self { selection: Private::new(selection), permit })
    }

    /// An empty sum for this round. Any number of partial sums may be begun and merged.
    #[must_use]
    pub fn begin(&self, plan: &RoundPlan) -> ClippedSum {
        ClippedSum::new(&plan.inner, self.permit.id())
    }

    /// An empty part of this round, for one thread. `outer` gives a place for the sum of each vector that comes as
    /// an outer product of two factors; all others come as coordinates.
    #[must_use]
    pub fn begin_part(
        &self,
        plan: &RoundPlan,
        outer: impl FnMut(&str) -> Option<Box<dyn OuterProducts>>,
    ) -> PartialSum {
        PartialSum::new(&plan.inner, self.permit.id(), outer)
    }

    /// The numbers of the sampled records. They are private: use them to fetch records, nothing
    /// else.
    pub fn ids(&self) -> impl Iterator<Item = u64> + '_ {
        let (all, ids) = match &self.selection.expose().0 {
            Kind::All(records) => (0..*records, [].iter()),
            Kind::Ids(ids) => (0..0, ids.iter()),
        };
        all.chain(ids.copied())
    }

    /// The sampled records in a batch of the policy's public size, padded with `None`: for policies
    /// that have one, so that the shape of a batch tells nothing.
    pub fn slots(&self) -> Option<impl Iterator<Item = Option<u64>> + '_> {
        let size = match self.permit.round().sampling() {
            Sampling::Fixed(batch) | Sampling::Shuffle(batch) => batch.batch(),
            Sampling::TruncatedPoisson(truncated) => truncated.maximum(),
            _ => return None,
        };
        let padded = self.ids().map(Some).chain(std::iter::repeat(None));
        Some(padded.take(usize::try_from(size).unwrap_or(usize::MAX)))
    }

    pub(crate) const fn permit(&self) -> &RoundPermit {
        &self.permit
    }
}

/// Checks what can be checked of any sampler without statistics, over rounds `0..32`: its selections
/// ascend, are in range and have the size that the policy promises, and the policy stays the same.
///
/// # Errors
/// Says which part of the contract does not hold.
pub fn check_sampler(sampler: &mut impl Sampler, records: u64) -> Result<(), String> {
    let policy = sampler.policy();
    let text = |error: &dyn std::fmt::Display| error.to_string();
    // Permits of a run of its own, under an adjacency that admits every policy.
    let one = ClipNorm::new(1.0).map_err(|error| text(&error))?;
    let query = SumQuery::new("check", one, NoiseStd::new(1.0).map_err(|error| text(&error))?);
    let round = Round::new(policy, vec![query]).map_err(|error| text(&error))?;
    let header = RunHeader::new(RecordUnit::Example, Adjacency::ZeroOut);
    let mut run = Run::open(MemoryLedger::new(), header).map_err(|error| text(&error))?;
    for permit in run.reserve(&round, 32).map_err(|error| text(&error))? {
        let selection = sampler.select(&permit, records).map_err(|error| text(&error))?;
        selection.check(policy, records)?;
        if sampler.policy() != policy {
            return Err("the policy changed between draws".to_owned());
        }
    }
    Ok(())
}
