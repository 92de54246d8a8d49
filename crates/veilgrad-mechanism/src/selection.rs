//! Which records a round has: the contract of samplers.

use veilgrad_events::{RoundPermit, Sampling};
use veilgrad_random::RandomError;

/// Draws samples. Open for implementors; [`check_sampler`](crate::check_sampler) tests the contract.
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

impl<S: Sampler + ?Sized> Sampler for Box<S> {
    fn policy(&self) -> Sampling {
        (**self).policy()
    }

    fn select(&mut self, permit: &RoundPermit, records: u64) -> Result<Selection, SampleError> {
        (**self).select(permit, records)
    }
}

/// The records that were selected. An empty selection is an ordinary one.
pub struct Selection(pub(crate) Kind);

pub(crate) enum Kind {
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
