//! Rounds over the ranks of a communicator: ids are scattered, sums reduced, weights broadcast.

use mpi::collective::SystemOperation;
use mpi::datatype::{Partition, PartitionMut};
use mpi::request;
use mpi::traits::{Communicator, Equivalence, Root};
use veilgrad_mechanism::{
    ClippedSum, IncomingSum, OutgoingSum, PartialSum, RoundPlan, Sample, SampleTag, SumError,
};
use veilgrad_nn::round::share_of;
use zeroize::Zeroizing;

/// The integers of one reduction: 512 KiB. Shorter ones wait more often, and longer ones overlap less.
const BLOCK: usize = 1 << 16;
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
    ) -> Result<(PartialSum, Vec<u64>), RanksError> {
        if sample.is_some() != self.is_root() {
            return Err(RanksError::NotRoot);
        }
        let mut tag = sample.map_or([0; SampleTag::BYTES], |sample| sample.tag(plan).to_bytes());
        self.broadcast(&mut tag);
        let part = PartialSum::begin(plan, &SampleTag::from_bytes(&tag)?, |_| None)?;
        let ids = sample.map(|sample| Zeroizing::new(sample.ids().collect::<Vec<u64>>()));
        Ok((part, self.scatter(ids.as_ref().map(|ids| ids.as_slice()), records)?))
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
        let mine = part.leave()?;
        match total {
            Some(total) => {
                let mut incoming = total.receive();
                self.add_blocks(&mine, &mut incoming)?;
                let certificates = self.gather(mine.certificate().expose());
                let certificates: Vec<&[u8]> =
                    certificates.iter().map(|one| one.as_slice()).collect();
                Ok(Some(incoming.accept(&certificates)?))
            }
            None => {
                self.send_blocks(&mine);
                self.gather(mine.certificate().expose());
                Ok(None)
            }
        }
    }

    /// Gives all ranks the values of rank 0, such as released weights.
    pub fn broadcast<T: Equivalence>(&self, values: &mut [T]) {
        let root = self.communicator.process_at_rank(0);
        for part in values.chunks_mut(LONGEST / size_of::<T>().max(1)) {
            root.broadcast_into(part);
        }
    }

    /// Gives every rank the ids of its records: those of rank 0, of which ids from `records` on stay there.
    ///
    /// # Errors
    /// When there are too many.
    pub(crate) fn scatter(
        &self,
        ids: Option<&[u64]>,
        records: u64,
    ) -> Result<Vec<u64>, RanksError> {
        let root = self.communicator.process_at_rank(0);
        let count = |ids: &[u64]| i32::try_from(ids.len()).map_err(|_| RanksError::TooMany);
        let Some(ids) = ids else {
            let mut length = 0i32;
            root.scatter_into(&mut length);
            let mut mine = vec![0; usize::try_from(length).unwrap_or(0)];
            root.scatter_varcount_into(&mut mine[..]);
            return Ok(mine);
        };
        let (real, canaries) = ids.split_at(ids.partition_point(|id| *id < records));
        let (mut counts, mut places, mut start) = (Vec::new(), Vec::new(), 0);
        for rank in 0..self.size() {
            let end = share_of(records, rank, self.size()).end;
            let next = real.partition_point(|id| *id < end);
            counts.push(count(&real[start..next])?);
            places.push(count(&real[..start])?);
            start = next;
        }
        let mut length = 0i32;
        root.scatter_into_root(&counts[..], &mut length);
        let mut mine = vec![0; usize::try_from(length).unwrap_or(0)];
        root.scatter_varcount_into_root(
            &Partition::new(real, &counts[..], &places[..]),
            &mut mine[..],
        );
        mine.extend_from_slice(canaries);
        Ok(mine)
    }

    /// Takes part in the reduction of every block.
    fn send_blocks(&self, mine: &OutgoingSum) {
        let root = self.communicator.process_at_rank(0);
        request::scope(|scope| {
            let mut under_way = Vec::new();
            for block in mine.expose().chunks(BLOCK) {
                let sum = SystemOperation::sum();
                under_way.push(root.immediate_reduce_into(scope, block, sum));
            }
            under_way.into_iter().for_each(|request| request.wait_without_status());
        });
    }

    /// Reduces one block after the other; while a block is under way, the one before is checked and added.
    fn add_blocks(&self, mine: &OutgoingSum, total: &mut IncomingSum) -> Result<(), SumError> {
        let root = self.communicator.process_at_rank(0);
        let mut now = Zeroizing::new(vec![0u64; BLOCK]);
        let mut before = Zeroizing::new(vec![0u64; BLOCK]);
        let mut arrived = 0;
        for block in mine.expose().chunks(BLOCK) {
            request::scope(|scope| {
                let (to, sum) = (&mut now[..block.len()], SystemOperation::sum());
                let mut under_way = Some(root.immediate_reduce_into_root(scope, block, to, sum));
                let mut added = Ok(());
                for turn in before[..arrived].chunks(TURN) {
                    added = added.and_then(|()| total.add_block(turn));
                    under_way = under_way.and_then(|request| request.test().err());
                }
                if let Some(request) = under_way {
                    request.wait_without_status();
                }
                added
            })?;
            arrived = block.len();
            std::mem::swap(&mut now, &mut before);
        }
        total.add_block(&before[..arrived])
    }

    /// The bytes of all ranks on rank 0; none elsewhere.
    fn gather(&self, bytes: &[u8]) -> Vec<Zeroizing<Vec<u8>>> {
        let root = self.communicator.process_at_rank(0);
        let length = i32::try_from(bytes.len()).unwrap_or(0);
        if !self.is_root() {
            root.gather_into(&length);
            root.gather_varcount_into(bytes);
            return Vec::new();
        }
        let mut counts = vec![0i32; usize::try_from(self.size()).unwrap_or(1)];
        root.gather_into_root(&length, &mut counts[..]);
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
        root.gather_varcount_into_root(
            bytes,
            &mut PartitionMut::new(&mut gathered[..], &counts[..], &places[..]),
        );
        let mut rest = &gathered[..];
        let mut each = |count: &i32| {
            let (one, others) = rest.split_at(usize::try_from(*count).unwrap_or(0));
            rest = others;
            Zeroizing::new(one.to_vec())
        };
        counts.iter().map(&mut each).collect()
    }
}
