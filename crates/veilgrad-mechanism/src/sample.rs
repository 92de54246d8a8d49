//! The sample of a round: drawn once, with a permit, by a sampler that writes its own event.

use veilgrad_events::{RoundPermit, Sampling};

use crate::Private;

/// Draws samples. Open for implementors; [`check_sampler`] tests the contract.
///
/// # Guarantee
/// An implementation must select records exactly as its [`policy`](Sampler::policy) says, with
/// randomness from a cryptographic generator that is fresh for every draw, and may depend on nothing
/// but the number of records.
pub trait Sampler {
    /// The policy, as the ledger records it.
    fn policy(&self) -> Sampling;

    /// Selects from the records numbered `0..records`.
    ///
    /// # Errors
    /// When randomness fails or the policy does not fit the number of records.
    fn select(&mut self, records: u64) -> Result<Selection, SampleError>;
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
    /// The sampler failed.
    #[error("the sampler failed: {0}")]
    Sampler(String),
}

/// The sample of one charged round, and the permit to release its sums.
///
/// # Guarantee
/// There is one sample per permit, and [`ClippedSum::release`](crate::ClippedSum::release) consumes
/// it: all groups of a round share one sample, and no sample is released twice. It has no length,
/// because the size of a sample is private.
pub struct Sample {
    selection: Private<Selection>,
    permit: RoundPermit,
}

impl Sample {
    /// Draws the sample of the permit's round from the records numbered `0..records`.
    ///
    /// # Errors
    /// When the sampler's policy is not the one that was charged, or the sampler fails.
    pub fn draw(
        permit: RoundPermit,
        sampler: &mut impl Sampler,
        records: u64,
    ) -> Result<Self, SampleError> {
        let (charged, drawn) = (permit.round().sampling(), sampler.policy());
        if charged != drawn {
            return Err(SampleError::PolicyMismatch { charged, drawn });
        }
        let selection = Private::new(sampler.select(records)?);
        Ok(Self { selection, permit })
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

    pub(crate) const fn permit(&self) -> &RoundPermit {
        &self.permit
    }
}

/// The sampler that takes every record.
#[derive(Debug, Clone, Copy, Default)]
pub struct AllRecords;

impl Sampler for AllRecords {
    fn policy(&self) -> Sampling {
        Sampling::All {}
    }

    fn select(&mut self, records: u64) -> Result<Selection, SampleError> {
        Ok(Selection::all(records))
    }
}

/// Checks what can be checked of any sampler without statistics: ids ascend, are in range, and have
/// the number that a fixed policy promises.
///
/// # Errors
/// Says which part of the contract does not hold.
pub fn check_sampler(sampler: &mut impl Sampler, records: u64) -> Result<(), String> {
    let policy = sampler.policy();
    for _ in 0..32 {
        let selection = sampler.select(records).map_err(|error| error.to_string())?;
        let ids: Vec<u64> = match selection.0 {
            Kind::All(records) => (0..records).collect(),
            Kind::Ids(ids) => ids,
        };
        if !ids.is_sorted_by(|a, b| a < b) {
            return Err("ids do not ascend".to_owned());
        }
        if ids.last().is_some_and(|last| *last >= records) {
            return Err(format!("an id is not below {records}"));
        }
        let size = ids.len() as u64;
        let fits = match policy {
            Sampling::All {} => size == records,
            Sampling::Fixed(batch) | Sampling::Shuffle(batch) => size == batch.batch(),
            _ => true,
        };
        if !fits {
            return Err(format!("a sample of {policy:?} has {size} records"));
        }
        if sampler.policy() != policy {
            return Err("the policy changed between draws".to_owned());
        }
    }
    Ok(())
}
