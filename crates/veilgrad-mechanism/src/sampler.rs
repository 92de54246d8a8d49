//! Built-in samplers, one for each sampling policy. Every draw uses a fresh key.

use std::num::NonZeroU64;

use veilgrad_events::{FixedBatch, RoundPermit, SampleRate, Sampling, TruncatedPoisson};
use veilgrad_random::{RoundKey, subset};

use crate::{SampleError, Sampler, Selection};

/// Full-batch sampling: takes every record.
///
/// # Example
/// ```
/// use veilgrad_events::Sampling;
/// use veilgrad_mechanism::{AllRecords, Sampler, check_sampler};
///
/// assert_eq!(AllRecords.policy(), Sampling::All {});
/// check_sampler(&mut AllRecords, 100)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, Default)]
pub struct AllRecords;

impl Sampler for AllRecords {
    fn policy(&self) -> Sampling {
        Sampling::All {}
    }

    fn select(&mut self, _permit: &RoundPermit, records: u64) -> Result<Selection, SampleError> {
        Ok(Selection::all(records))
    }
}

/// Poisson sampling: takes each record independently with the same probability.
///
/// # Example
/// ```
/// use veilgrad_events::SampleRate;
/// use veilgrad_mechanism::{PoissonSampler, check_sampler};
///
/// check_sampler(&mut PoissonSampler::new(SampleRate::new(0.25)?), 100)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct PoissonSampler {
    rate: SampleRate,
    poisson: subset::Poisson,
}

impl PoissonSampler {
    /// A sampler for one rate, which the ledger records.
    #[must_use]
    pub fn new(rate: SampleRate) -> Self {
        Self { rate, poisson: subset::Poisson::new(rate) }
    }
}

impl Sampler for PoissonSampler {
    fn policy(&self) -> Sampling {
        Sampling::Poisson { rate: self.rate }
    }

    fn select(&mut self, _permit: &RoundPermit, records: u64) -> Result<Selection, SampleError> {
        Ok(Selection::ids(self.poisson.draw(&RoundKey::from_os()?, records)?))
    }
}

/// Truncated Poisson sampling: Poisson samples with a public maximum size, for batches of a fixed shape.
///
/// # Example
/// ```
/// use veilgrad_events::{SampleRate, TruncatedPoisson};
/// use veilgrad_mechanism::{TruncatedPoissonSampler, check_sampler};
///
/// // Each of 100 records with probability 1/4, but never more than 30 of them.
/// let policy = TruncatedPoisson::new(SampleRate::new(0.25)?, 100, 30)?;
/// check_sampler(&mut TruncatedPoissonSampler::new(policy), 100)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct TruncatedPoissonSampler {
    policy: TruncatedPoisson,
    poisson: subset::Poisson,
}

impl TruncatedPoissonSampler {
    /// A sampler for one policy.
    #[must_use]
    pub fn new(policy: TruncatedPoisson) -> Self {
        Self { policy, poisson: subset::Poisson::new(policy.rate()) }
    }
}

impl Sampler for TruncatedPoissonSampler {
    fn policy(&self) -> Sampling {
        Sampling::TruncatedPoisson(self.policy)
    }

    fn select(&mut self, _permit: &RoundPermit, records: u64) -> Result<Selection, SampleError> {
        let (key, maximum) = (RoundKey::from_os()?, self.policy.maximum());
        Ok(Selection::ids(self.poisson.draw_truncated(&key, records, maximum)?))
    }
}

/// Fixed-size sampling: a new uniformly random batch in every round, without replacement.
///
/// # Example
/// ```
/// use veilgrad_events::FixedBatch;
/// use veilgrad_mechanism::{FixedSampler, check_sampler};
///
/// check_sampler(&mut FixedSampler::new(FixedBatch::new(100, 25)?), 100)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub struct FixedSampler {
    batch: FixedBatch,
}

impl FixedSampler {
    /// A sampler for one batch size.
    #[must_use]
    pub const fn new(batch: FixedBatch) -> Self {
        Self { batch }
    }
}

impl Sampler for FixedSampler {
    fn policy(&self) -> Sampling {
        Sampling::Fixed(self.batch)
    }

    fn select(&mut self, _permit: &RoundPermit, _records: u64) -> Result<Selection, SampleError> {
        Ok(Selection::ids(subset::without_replacement(&RoundKey::from_os()?, self.batch)?))
    }
}

/// Random allocation: puts each record into one round of every epoch, uniformly and independently, so that it takes part
/// exactly once per epoch. Batches have different sizes, which are private.
///
/// # Guarantee
/// Round t of a run is round `t mod E` of epoch `t div E`, where an epoch has E rounds. The allocation of an epoch is drawn
/// with a fresh key, kept in memory only, and never shown. A sampler that did not draw the first round of an epoch of this run
/// refuses the others: a run that is interrupted leaves its epoch unfinished, and the ledger charges all of it.
///
/// # Example
/// ```
/// use std::num::NonZeroU64;
/// use veilgrad_mechanism::{AllocationSampler, check_sampler};
///
/// check_sampler(&mut AllocationSampler::new(NonZeroU64::new(4).unwrap()), 100)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct AllocationSampler {
    rounds_per_epoch: NonZeroU64,
    epoch: Option<AllocatedEpoch>,
}

struct AllocatedEpoch {
    allocation: subset::Partition,
    run: u64,
    next_round: u64,
}

impl AllocatedEpoch {
    fn is_next(&self, run: u64, round: u64) -> bool {
        self.run == run && self.next_round == round
    }
}

impl AllocationSampler {
    /// A sampler for epochs of this many rounds.
    #[must_use]
    pub const fn new(rounds_per_epoch: NonZeroU64) -> Self {
        Self { rounds_per_epoch, epoch: None }
    }
}

impl Sampler for AllocationSampler {
    fn policy(&self) -> Sampling {
        Sampling::Allocation { rounds_per_epoch: self.rounds_per_epoch }
    }

    fn select(&mut self, permit: &RoundPermit, records: u64) -> Result<Selection, SampleError> {
        let (run, round) = (permit.run(), permit.number());
        let index = round % self.rounds_per_epoch;
        if index == 0 {
            let key = RoundKey::from_os()?;
            let allocation = subset::Partition::draw(&key, records, self.rounds_per_epoch)?;
            self.epoch = Some(AllocatedEpoch { allocation, run, next_round: round });
        }
        let epoch = self.epoch.as_mut().filter(|epoch| epoch.is_next(run, round));
        let epoch = epoch.ok_or(SampleError::EpochOrder)?;
        epoch.next_round += 1;
        Ok(Selection::ids(epoch.allocation.group(index).to_vec()))
    }
}

/// Shuffled epochs: permutes the records once per epoch and takes disjoint batches. An incomplete last batch is
/// dropped. Accountants give it no amplification; [`AllocationSampler`] takes every record once per epoch with amplification.
///
/// # Guarantee
/// Round t of a run gets batch `t mod E` of epoch `t div E`, where an epoch has `E = records/batch`
/// rounds, so that no record is in two rounds of one epoch. A sampler that did not draw the first batch
/// of an epoch of this run refuses the others, because it does not know which records were in them.
///
/// # Example
/// ```
/// use veilgrad_events::FixedBatch;
/// use veilgrad_mechanism::{ShuffleSampler, check_sampler};
///
/// check_sampler(&mut ShuffleSampler::new(FixedBatch::new(100, 25)?), 100)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct ShuffleSampler {
    batch: FixedBatch,
    epoch: Option<Epoch>,
}

struct Epoch {
    order: Vec<u64>,
    run: u64,
    next_round: u64,
}

impl ShuffleSampler {
    /// A sampler for one batch size.
    #[must_use]
    pub const fn new(batch: FixedBatch) -> Self {
        Self { batch, epoch: None }
    }
}

impl Sampler for ShuffleSampler {
    fn policy(&self) -> Sampling {
        Sampling::Shuffle(self.batch)
    }

    fn select(&mut self, permit: &RoundPermit, records: u64) -> Result<Selection, SampleError> {
        let (run, round) = (permit.run(), permit.number());
        let rounds = self.batch.records() / self.batch.batch();
        let index = round % rounds;
        if index == 0 {
            let order = subset::permutation(&RoundKey::from_os()?, records)?;
            self.epoch = Some(Epoch { order, run, next_round: round });
        }
        let epoch = self.epoch.as_mut().filter(|e| (e.run, e.next_round) == (run, round));
        let epoch = epoch.ok_or(SampleError::EpochOrder)?;
        let no_batch = || SampleError::Sampler("the epoch has no such batch".to_owned());
        let size = usize::try_from(self.batch.batch()).map_err(|_| no_batch())?;
        let batch =
            usize::try_from(index).ok().and_then(|index| epoch.order.chunks(size).nth(index));
        let mut ids = batch.ok_or_else(no_batch)?.to_vec();
        epoch.next_round += 1;
        ids.sort_unstable();
        Ok(Selection::ids(ids))
    }
}

/// Cyclic Poisson sampling: puts each record into one of `groups` groups, uniformly and independently, and takes each record
/// of the next group with the same probability in every round. A record takes part at most once in `groups` consecutive rounds.
///
/// # Guarantee
/// The groups are drawn with a fresh key before the first round of the segment, kept in memory only, and never shown. A sampler
/// that did not draw the first round of the segment in this run refuses the others: a run that is interrupted begins a new segment,
/// with new groups.
///
/// # Example
/// ```
/// use std::num::NonZeroU64;
/// use veilgrad_events::SampleRate;
/// use veilgrad_mechanism::{CyclicSampler, check_sampler};
///
/// // Of 100 records about 25 are in each group, and about 5 in each sample.
/// let groups = NonZeroU64::new(4).ok_or("zero")?;
/// check_sampler(&mut CyclicSampler::new(SampleRate::new(0.2)?, groups, 0), 100)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct CyclicSampler {
    rate: SampleRate,
    groups: NonZeroU64,
    first_round: u64,
    poisson: subset::Poisson,
    segment: Option<Segment>,
}

struct Segment {
    records: subset::Partition,
    run: u64,
    next_round: u64,
}

impl CyclicSampler {
    /// A sampler for the segment that begins with round `first_round` of its run.
    #[must_use]
    pub fn new(rate: SampleRate, groups: NonZeroU64, first_round: u64) -> Self {
        Self { rate, groups, first_round, poisson: subset::Poisson::new(rate), segment: None }
    }
}

impl Sampler for CyclicSampler {
    fn policy(&self) -> Sampling {
        let (rate, groups, first_round) = (self.rate, self.groups, self.first_round);
        Sampling::CyclicPoisson { rate, groups, first_round }
    }

    fn select(&mut self, permit: &RoundPermit, records: u64) -> Result<Selection, SampleError> {
        let (run, round) = (permit.run(), permit.number());
        if round == self.first_round {
            let records = subset::Partition::draw(&RoundKey::from_os()?, records, self.groups)?;
            self.segment = Some(Segment { records, run, next_round: round });
        }
        let segment = self.segment.as_mut().filter(|s| (s.run, s.next_round) == (run, round));
        let segment = segment.ok_or(SampleError::SegmentOrder)?;
        segment.next_round += 1;
        let index = (round - self.first_round) % self.groups;
        let members = segment.records.group(index);
        let positions = self.poisson.draw(&RoundKey::from_os()?, members.len() as u64)?;
        let id = |position: u64| members.get(usize::try_from(position).ok()?).copied();
        Ok(Selection::ids(positions.into_iter().filter_map(id).collect()))
    }
}
