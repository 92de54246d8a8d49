//! The sample of a round, drawn once with a permit.

use std::sync::atomic::{AtomicBool, Ordering};

use veilgrad_events::{
    Adjacency, ClipNorm, MemoryLedger, NoiseStd, RecordUnit, Round, RoundPermit, Run, RunHeader,
    Sampling, SumQuery,
};
use veilgrad_random::unique_number;

use crate::Private;
use crate::sample_tag::SampleId;
use crate::selection::{Kind, SampleError, Sampler, Selection};

/// The sample of one charged round, and the permit to release its sums.
///
/// # Guarantee
/// There is one sample per permit. Its sums [`begin`](Sample::begin) with it and belong to no other round, and
/// [`ClippedSum::release`](crate::ClippedSum::release) consumes it. So all groups of a round share one sample, and no
/// sample is released twice. It has no length, because the size of a sample is private.
///
/// The caller must add exactly the sampled records to its sums. [`ClippedSum`](crate::ClippedSum) has an example.
pub struct Sample {
    selection: Private<Selection>,
    permit: RoundPermit,
    /// Whether correlated noise was drawn for it.
    has_noise: AtomicBool,
    /// A number that no other draw has, in this process or another.
    number: u128,
}

impl Sample {
    /// Draws the sample of the permit's round from the records `0..records`.
    ///
    /// # Errors
    /// When the sampler's policy is not the one that was charged, the number of records is not the
    /// charged one, or the sampler fails or breaks its contract.
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
        let (selection, has_noise) = (Private::new(selection), AtomicBool::new(false));
        Ok(Self { selection, permit, has_noise, number: unique_number()? })
    }

    /// The ids of the sampled records. They are private: use them only to fetch records.
    pub fn ids(&self) -> impl Iterator<Item = u64> + '_ {
        let (all, ids) = match &self.selection.expose().0 {
            Kind::All(records) => (0..*records, [].iter()),
            Kind::Ids(ids) => (0..0, ids.iter()),
        };
        all.chain(ids.copied())
    }

    /// The sampled records padded with `None` to the public batch size, so that the shape of a batch does not depend
    /// on the sample; `None` for policies without a public size.
    pub fn slots(&self) -> Option<impl Iterator<Item = Option<u64>> + '_> {
        let size = match self.permit.round().sampling() {
            Sampling::Fixed(batch) | Sampling::Shuffle(batch) => batch.batch(),
            Sampling::TruncatedPoisson(truncated) => truncated.maximum(),
            _ => return None,
        };
        let padded = self.ids().map(Some).chain(std::iter::repeat(None));
        Some(padded.take(usize::try_from(size).unwrap_or(usize::MAX)))
    }

    /// The number of sampled records, which is private.
    pub(crate) fn size(&self) -> u64 {
        match &self.selection.expose().0 {
            Kind::All(records) => *records,
            Kind::Ids(ids) => ids.len() as u64,
        }
    }

    /// Marks that correlated noise is drawn for this sample; false if it was before.
    pub(crate) fn claim_noise(&self) -> bool {
        !self.has_noise.swap(true, Ordering::Relaxed)
    }

    pub(crate) const fn id(&self) -> SampleId {
        SampleId { permit: self.permit.id(), draw: self.number }
    }

    pub(crate) const fn permit(&self) -> &RoundPermit {
        &self.permit
    }
}

/// Checks the contract of a sampler over rounds `0..32`: ids ascend and are in range, samples have the size that the
/// policy requires, and the policy does not change. It does not test the distribution.
///
/// # Errors
/// Says which part of the contract does not hold.
pub fn check_sampler(sampler: &mut impl Sampler, records: u64) -> Result<(), String> {
    let policy = sampler.policy();
    let text = |error: &dyn std::fmt::Display| error.to_string();
    // Permits of a separate run, under an adjacency that admits every policy.
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
