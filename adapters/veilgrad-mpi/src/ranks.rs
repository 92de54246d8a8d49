//! Rounds over the ranks of a communicator: ids are scattered, sums reduced, weights broadcast.

use std::collections::VecDeque;
use std::ops::Range;

use mpi::collective::SystemOperation;
use mpi::datatype::{Partition, PartitionMut};
use mpi::request::{self, Request};
use mpi::traits::{Communicator, Equivalence, Root};
use veilgrad_mechanism::{
    ClippedSum, IncomingSum, OutgoingSum, PartialSum, RoundPlan, Sample, SampleTag, SumError,
};
use veilgrad_nn::round::deal;
use zeroize::Zeroizing;

use crate::clock::within_mpi;

/// The integers of one reduction: 512 KiB. Shorter ones wait more often, and longer ones overlap less.
const BLOCK: usize = 1 << 16;
/// The reductions that a rank has under way: MPI may allocate the memory of a block for each, or of two. With one alone, a
/// rank would wait for the slowest after every block.
const UNDER_WAY: usize = 4;
/// The integers that rank 0 adds before it looks after the reduction under way.
const TURN: usize = 1 << 13;
/// The most bytes of one broadcast: MPI counts with 31 bits.
const LONGEST: usize = 1 << 30;

/// A round could not be shared.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RanksError {
    /// A partial sum was refused, or this rank has another plan than rank 0.
    #[error(transparent)]
    Sum(#[from] SumError),
    /// Rank 0 needs a sample and a total, and no other rank may have one.
    #[error("rank 0, and no other, gives the sample and the sum of a round")]
    NotRoot,
    /// More records than MPI can count.
    #[error("a rank can get at most 2^31 - 1 ids in a round")]
    TooMany,
}

/// The ranks of a communicator, of which 0 charges and releases. All functions are collective: every rank must call them in
/// the same order. After an error, end the process, because the other ranks may be waiting for it.
///
/// The documentation of the crate has an example.
pub struct Ranks<C> {
    communicator: C,
}

impl<C: Communicator> Ranks<C> {
    /// The ranks of a communicator.
    pub const fn new(communicator: C) -> Self {
        Self { communicator }
    }

    /// The number of this rank.
    pub fn rank(&self) -> u64 {
        u64::try_from(self.communicator.rank()).unwrap_or(0)
    }

    /// The number of ranks.
    pub fn size(&self) -> u64 {
        u64::try_from(self.communicator.size()).unwrap_or(1)
    }

    fn is_root(&self) -> bool {
        self.rank() == 0
    }

    /// Begins a round: an empty partial sum for this rank, and the ids of its records, which are private. Rank r of N gets the
    /// sampled records of the r-th N-th of all records, so that it needs no others. `sample` is that of rank 0.
    ///
    /// # Errors
    /// When the plan is not that of rank 0.
    pub fn begin(
        &self,
        sample: Option<&Sample>,
        plan: &RoundPlan,
        records: u64,
    ) -> Result<(PartialSum, Zeroizing<Vec<u64>>), RanksError> {
        if sample.is_some() != self.is_root() {
            return Err(RanksError::NotRoot);
        }
        let mut tag = sample.map_or([0; SampleTag::BYTES], |sample| sample.tag(plan).to_bytes());
        self.broadcast(&mut tag);
        let part = PartialSum::begin(plan, &SampleTag::from_bytes(&tag)?, |_| None)?;
        let Some(sample) = sample else { return Ok((part, self.receive_ids())) };
        let mut ids = Zeroizing::new(sample.ids().collect::<Vec<u64>>());
        // Canaries stay here.
        let real = ids.partition_point(|id| *id < records);
        let canaries = Zeroizing::new(ids.split_off(real));
        let mine = self.scatter(&ids, &deal(false, &ids, records, self.size()))?;
        Ok((part, Zeroizing::new([&mine[..], &canaries[..]].concat())))
    }

    /// Ends a round: adds the partial sums of all ranks to the total, which rank 0 gives and gets back. Ready for its noise,
    /// or with it.
    ///
    /// # Errors
    /// When a partial sum is refused: [`SumError`] says why.
    pub fn reduce(
        &self,
        part: PartialSum,
        total: Option<ClippedSum>,
    ) -> Result<Option<ClippedSum>, RanksError> {
        if total.is_some() != self.is_root() {
            return Err(RanksError::NotRoot);
        }
        match total {
            Some(mut total) => {
                total.absorb(part)?;
                Ok(Some(self.collect(total)?))
            }
            None => self.send(part).map(|()| None),
        }
    }

    /// On rank 0: adds what all other ranks [`send`](Self::send).
    pub(crate) fn collect(&self, total: ClippedSum) -> Result<ClippedSum, RanksError> {
        if self.size() == 1 {
            return Ok(total);
        }
        let mut incoming = total.receive();
        self.add_blocks(&mut incoming)?;
        let certificates = self.gather(&[]);
        // Rank 0 sends none.
        let certificates: Vec<&[u8]> =
            certificates.iter().skip(1).map(|one| one.as_slice()).collect();
        Ok(incoming.accept(&certificates)?)
    }

    /// On all other ranks: sends a partial sum to rank 0.
    pub(crate) fn send(&self, part: PartialSum) -> Result<(), RanksError> {
        let mine = part.leave()?;
        self.send_blocks(&mine);
        self.gather(mine.certificate().expose());
        Ok(())
    }

    /// Gives all ranks the values of rank 0, such as released weights.
    pub fn broadcast<T: Equivalence>(&self, values: &mut [T]) {
        let root = self.communicator.process_at_rank(0);
        for part in values.chunks_mut(LONGEST / size_of::<T>().max(1)) {
            within_mpi(|| root.broadcast_into(part));
        }
    }

    /// On rank 0: gives every rank its share of the ids, consecutive ranges.
    ///
    /// # Errors
    /// When there are too many.
    pub(crate) fn scatter(
        &self,
        ids: &[u64],
        shares: &[Range<usize>],
    ) -> Result<Zeroizing<Vec<u64>>, RanksError> {
        let root = self.communicator.process_at_rank(0);
        let count = |count: usize| i32::try_from(count).map_err(|_| RanksError::TooMany);
        let counts =
            shares.iter().map(|share| count(share.len())).collect::<Result<Vec<_>, _>>()?;
        let places =
            shares.iter().map(|share| count(share.start)).collect::<Result<Vec<_>, _>>()?;
        let mut length = 0i32;
        within_mpi(|| root.scatter_into_root(&counts[..], &mut length));
        let mut mine = Zeroizing::new(vec![0; usize::try_from(length).unwrap_or(0)]);
        let parts = Partition::new(ids, &counts[..], &places[..]);
        within_mpi(|| root.scatter_varcount_into_root(&parts, &mut mine[..]));
        Ok(mine)
    }

    /// On all other ranks: the ids that rank 0 [`scatter`](Self::scatter)s to this one.
    pub(crate) fn receive_ids(&self) -> Zeroizing<Vec<u64>> {
        let root = self.communicator.process_at_rank(0);
        let mut length = 0i32;
        within_mpi(|| root.scatter_into(&mut length));
        let mut mine = Zeroizing::new(vec![0; usize::try_from(length).unwrap_or(0)]);
        within_mpi(|| root.scatter_varcount_into(&mut mine[..]));
        mine
    }

    /// Takes part in the reduction of every block.
    fn send_blocks(&self, mine: &OutgoingSum) {
        let root = self.communicator.process_at_rank(0);
        within_mpi(|| {
            request::scope(|scope| {
                let mut under_way = VecDeque::new();
                for block in mine.blocks(BLOCK) {
                    if under_way.len() == UNDER_WAY {
                        // Rank 0 takes the blocks in their order.
                        under_way.pop_front().into_iter().for_each(Request::wait_without_status);
                    }
                    let sum = SystemOperation::sum();
                    under_way.push_back(root.immediate_reduce_into(scope, block, sum));
                }
                under_way.into_iter().for_each(Request::wait_without_status);
            });
        });
    }

    /// Reduces one block after the other; while a block is under way, the one before is checked and added. Rank 0 sends
    /// zeros: its own records are in the total.
    fn add_blocks(&self, total: &mut IncomingSum) -> Result<(), SumError> {
        let root = self.communicator.process_at_rank(0);
        let zeros = vec![0u64; BLOCK];
        let mut now = Zeroizing::new(vec![0u64; BLOCK]);
        let mut before = Zeroizing::new(vec![0u64; BLOCK]);
        let mut arrived = 0;
        for length in total.block_lengths(BLOCK) {
            request::scope(|scope| {
                let (from, to) = (&zeros[..length], &mut now[..length]);
                let sum = SystemOperation::sum();
                let root = &root;
                let mut under_way =
                    Some(within_mpi(move || root.immediate_reduce_into_root(scope, from, to, sum)));
                let mut added = Ok(());
                for turn in before[..arrived].chunks(TURN) {
                    added = added.and_then(|()| total.add_block(turn));
                    under_way = under_way.and_then(|request| within_mpi(|| request.test().err()));
                }
                if let Some(request) = under_way {
                    within_mpi(|| request.wait_without_status());
                }
                added
            })?;
            arrived = length;
            std::mem::swap(&mut now, &mut before);
        }
        total.add_block(&before[..arrived])
    }

    /// The bytes of all ranks on rank 0; none elsewhere.
    pub(crate) fn gather(&self, bytes: &[u8]) -> Vec<Zeroizing<Vec<u8>>> {
        let root = self.communicator.process_at_rank(0);
        // One byte more, because the address of no bytes may be the one that means MPI_IN_PLACE.
        let bytes = Zeroizing::new([bytes, &[0]].concat());
        let length = i32::try_from(bytes.len()).unwrap_or(0);
        if !self.is_root() {
            within_mpi(|| {
                root.gather_into(&length);
                root.gather_varcount_into(&bytes[..]);
            });
            return Vec::new();
        }
        let mut counts = vec![0i32; usize::try_from(self.size()).unwrap_or(1)];
        within_mpi(|| root.gather_into_root(&length, &mut counts[..]));
        let places: Vec<i32> = counts
            .iter()
            .scan(0i32, |end, count| {
                let start = *end;
                *end = end.saturating_add(*count);
                Some(start)
            })
            .collect();
        let all: usize = counts.iter().map(|count| usize::try_from(*count).unwrap_or(0)).sum();
        let mut gathered = Zeroizing::new(vec![0u8; all]);
        let mut parts = PartitionMut::new(&mut gathered[..], &counts[..], &places[..]);
        within_mpi(|| root.gather_varcount_into_root(&bytes[..], &mut parts));
        let mut rest = &gathered[..];
        let mut each = |count: &i32| {
            let (one, others) = rest.split_at(usize::try_from(*count).unwrap_or(0));
            rest = others;
            Zeroizing::new(one[..one.len().saturating_sub(1)].to_vec())
        };
        counts.iter().map(&mut each).collect()
    }
}
