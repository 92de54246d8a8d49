//! Samplers and selections: which records are in a round.

use veilgrad_events::{RoundPermit, Sampling};
use veilgrad_random::RandomError;

/// Draws samples of records. Implementors can test the contract with [`check_sampler`](crate::check_sampler).
///
/// # Guarantee
/// An implementation must select records exactly as its [`policy`](Sampler::policy) says, with
/// fresh cryptographic randomness for every draw. The selection may depend on nothing else but the number of records
/// and the round number.
pub trait Sampler {
    /// The sampling policy that the ledger records.
    fn policy(&self) -> Sampling;

    /// Selects from the records `0..records`, for the round of this permit.
    ///
    /// # Errors
    /// When no randomness is available or the policy cannot be followed in this round.
    fn select(&mut self, permit: &RoundPermit, records: u64) -> Result<Selection, SampleError>;
}

impl<S: Sampler + ?Sized> Sampler for Box<S> {
    fn policy(&self) -> Sampling {
        (**self).policy()
    }

    fn select(&mut self, permit: &RoundPermit, records: u64) -> Result<Selection, SampleError> {
        (**self).select(permit, records)
    }
}

/// The selected records; may be empty.
pub struct Selection(pub(crate) Kind);

pub(crate) enum Kind {
    All(u64),
    Ids(Vec<u64>),
}

impl Selection {
    /// All records `0..records`.
    #[must_use]
    pub const fn all(records: u64) -> Self {
        Self(Kind::All(records))
    }

    /// The records with these ids, which must be in ascending order.
    #[must_use]
    pub const fn ids(ids: Vec<u64>) -> Self {
        Self(Kind::Ids(ids))
    }

    /// Checks that the policy can select this from that many records.
    pub(crate) fn check(&self, policy: Sampling, records: u64) -> Result<(), &'static str> {
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
    /// The permit was charged by another process, from which this one was forked.
    #[error("the permit belongs to another process")]
    OtherProcess,
    /// The number of records in the ledger is not that of the data.
    #[error("the policy was charged for another number of records than there are")]
    RecordCount,
    /// A round of an epoch (of a shuffle or a random allocation) was drawn out of order or by another sampler than the first.
    #[error("an epoch must be drawn in order by one sampler, from its first round on")]
    EpochOrder,
    /// A round of cyclic sampling was drawn out of order or by another sampler than the first of its segment.
    #[error(
        "a segment of cyclic sampling must be drawn in order by one sampler, from its first round on"
    )]
    SegmentOrder,
    /// Random words could not be drawn.
    #[error(transparent)]
    Random(#[from] RandomError),
    /// The sampler broke its contract or failed.
    #[error("the sampler failed: {0}")]
    Sampler(String),
}
