//! Rounds whose records are shared by several processes: one charges, samples, draws noise and releases; all of them add up
//! records.

use std::collections::BTreeMap;
use std::ops::Range;

use veilgrad_mechanism::{Adapted, ClippedSum, SampleTag};
use zeroize::Zeroizing;

use crate::file::{Arrays, FileError};

/// What a transport reports when it fails.
pub type PeerError = Box<dyn std::error::Error + Send + Sync>;

/// The other processes of a job, as the one that releases sees them. Open for implementors: MPI, or any other transport.
///
/// # Guarantee
/// A transport cannot change what is released: partial sums of another round or plan, altered, doubled or uncertified ones
/// are refused. It is trusted with private values, which only the processes of the job may read: ids of sampled records, and
/// partial sums without noise. Keys and noise never leave the process that releases. Ids come and go in memory that is wiped; a
/// transport wipes its own copies, or says that it does not.
pub trait Peers: Send {
    /// Begins a round: gives every process the public state of the round and its share of the sampled ids, as
    /// [`deal`] says. Returns those of this process. An id is that of one of the `records`, or [`EMPTY_SLOT`].
    ///
    /// # Errors
    /// When the other processes cannot be reached.
    fn scatter(
        &mut self,
        round: SharedRound,
        ids: Zeroizing<Vec<u64>>,
        records: u64,
    ) -> Result<Zeroizing<Vec<u64>>, PeerError>;

    /// Ends a round: adds the partial sums of all other processes to `total`, which has that of this process.
    ///
    /// # Errors
    /// When a process cannot be reached, or its partial sum is refused.
    fn reduce(&mut self, total: ClippedSum) -> Result<ClippedSum, PeerError>;
}

/// Stands for no record, in rounds that compute a public number of rows.
pub const EMPTY_SLOT: u64 = u64::MAX;

/// Which of the sampled ids, which ascend, each of `size` processes adds up.
///
/// By record: a process gets those of its share of the `records` ([`share_of`]), so that it needs no others. By place in the
/// sample, if the round has a public number of rows ([`SharedRound::by_place`]): each gets its share of the ids, empty slots
/// included, so that it computes as many rows in every round. It then needs all records.
#[must_use]
pub fn deal(by_place: bool, ids: &[u64], records: u64, size: u64) -> Vec<Range<usize>> {
    let mut start = 0;
    let shares = (0..size.max(1)).map(|rank| {
        let end = match by_place {
            // At most the number of ids.
            true => share_of(ids.len() as u64, rank, size).end as usize,
            false => {
                let end = share_of(records, rank, size).end;
                ids.partition_point(|id| *id < end)
            }
        };
        let share = start..end;
        start = end;
        share
    });
    shares.collect()
}

/// The records of which process `rank` of `size` takes care: consecutive ones, so that it need not read the others.
#[must_use]
pub fn share_of(records: u64, rank: u64, size: u64) -> Range<u64> {
    let start = |rank: u64| {
        let size = u128::from(size.max(1));
        // At most `records`, so it fits 64 bits.
        (u128::from(records) * u128::from(rank).min(size) / size) as u64
    };
    start(rank)..start(rank.saturating_add(1))
}

/// The public state of a round that other processes need: the tag of its sample, adapted clip norms, and the weights.
#[derive(Debug, Clone, PartialEq)]
pub struct SharedRound {
    /// The tag of the sample.
    pub tag: SampleTag,
    pub(crate) adapted: Adapted,
    /// Whether the round computes a public number of rows, of which every process has its share, whatever the sample.
    pub by_place: bool,
    /// The values of every parameter, running statistics of batch norm included.
    pub weights: Vec<Vec<f32>>,
}

impl SharedRound {
    /// The state of a round: its tag, adaptive clip norms, whether records go to processes by place, and the values of every
    /// parameter.
    #[must_use]
    pub const fn new(
        tag: SampleTag,
        adapted: Adapted,
        by_place: bool,
        weights: Vec<Vec<f32>>,
    ) -> Self {
        Self { tag, adapted, by_place, weights }
    }

    /// The state without the values of the weights, of which it has the numbers alone: transports send these as they are, and
    /// without a copy. All of it is public or released.
    ///
    /// # Errors
    /// When it cannot be serialised, which does not happen in practice.
    pub fn head(&self) -> Result<Vec<u8>, FileError> {
        let mut arrays = Arrays::default();
        arrays.bytes.insert(TAG.to_owned(), self.tag.to_bytes().to_vec());
        let texts = &mut arrays.texts;
        texts.insert(ROUNDS.to_owned(), self.adapted.rounds.to_string());
        texts.insert(BY_PLACE.to_owned(), self.by_place.to_string());
        for (name, estimate) in &self.adapted.estimates {
            // As bits, so that the plans of all processes are the same.
            texts.insert(format!("{ESTIMATE}{name}"), estimate.to_bits().to_string());
        }
        for (index, values) in self.weights.iter().enumerate() {
            texts.insert(format!("{WEIGHTS}{index}"), values.len().to_string());
        }
        arrays.to_bytes()
    }

    /// The state with this [`head`](Self::head), without weights, and how many values each of these has.
    ///
    /// # Errors
    /// When it is none.
    pub fn from_head(head: &[u8]) -> Result<(Self, Vec<usize>), FileError> {
        let wrong = |name: &str| FileError::Format(format!("'{name}' is missing or wrong"));
        let arrays = Arrays::from_bytes(head)?;
        let tag = arrays.bytes.get(TAG).and_then(|bytes| SampleTag::from_bytes(bytes).ok());
        let tag = tag.ok_or_else(|| wrong(TAG))?;
        let text = |name: &str| arrays.texts.get(name);
        let rounds = text(ROUNDS).and_then(|rounds| rounds.parse().ok());
        let rounds = rounds.ok_or_else(|| wrong(ROUNDS))?;
        let by_place = text(BY_PLACE).and_then(|by_place| by_place.parse().ok());
        let by_place = by_place.ok_or_else(|| wrong(BY_PLACE))?;
        let mut estimates = BTreeMap::new();
        for (name, text) in &arrays.texts {
            if let Some(name) = name.strip_prefix(ESTIMATE) {
                let bits = text.parse().map_err(|_| wrong(name))?;
                estimates.insert(name.to_owned(), f64::from_bits(bits));
            }
        }
        let mut lengths = Vec::new();
        while let Some(length) = text(&format!("{WEIGHTS}{}", lengths.len())) {
            lengths.push(length.parse().map_err(|_| wrong(WEIGHTS))?);
        }
        Ok((Self::new(tag, Adapted { rounds, estimates }, by_place, Vec::new()), lengths))
    }
}

const TAG: &str = "tag";
const ROUNDS: &str = "rounds";
const ESTIMATE: &str = "estimate/";
const WEIGHTS: &str = "weights/";
const BY_PLACE: &str = "by place";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_record_is_the_share_of_one_process() {
        for (records, size) in [(0, 1), (0, 3), (1, 4), (7, 3), (60_000, 4), (u64::MAX, 1000)] {
            let shares: Vec<_> = (0..size).map(|rank| share_of(records, rank, size)).collect();
            assert_eq!((shares[0].start, shares[shares.len() - 1].end), (0, records));
            assert!(shares.windows(2).all(|pair| pair[0].end == pair[1].start));
            let lengths = || shares.iter().map(|share| share.end - share.start);
            assert!(lengths().max().unwrap() - lengths().min().unwrap() <= 1);
        }
    }
}
