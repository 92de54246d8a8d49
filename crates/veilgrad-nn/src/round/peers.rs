//! Rounds whose records are shared by several processes: one charges, samples, draws noise and releases; all of them add up
//! records.

use std::collections::BTreeMap;
use std::ops::Range;

use veilgrad_mechanism::{Adapted, ClippedSum, PartialSum, SampleTag};

use crate::file::{Arrays, FileError};

/// What a transport reports when it fails.
pub type PeerError = Box<dyn std::error::Error + Send + Sync>;

/// The other processes of a job, as the one that releases sees them. Open for implementors: MPI, or any other transport.
///
/// # Guarantee
/// A transport cannot change what is released: partial sums of another round or plan, altered, doubled or uncertified ones
/// are refused. It is trusted with private values, which only the processes of the job may read: ids of sampled records, and
/// partial sums without noise. Keys and noise never leave the process that releases.
pub trait Peers: Send {
    /// Begins a round: gives every process the public state of the round and the ids of its records. Returns those of this
    /// process. Ids from `records` on are canaries, and stay here.
    ///
    /// # Errors
    /// When the other processes cannot be reached.
    fn scatter(
        &mut self,
        round: &SharedRound,
        ids: Vec<u64>,
        records: u64,
    ) -> Result<Vec<u64>, PeerError>;

    /// Ends a round: adds the partial sums of all processes to `total`.
    ///
    /// # Errors
    /// When a process cannot be reached, or its partial sum is refused.
    fn reduce(&mut self, mine: PartialSum, total: ClippedSum) -> Result<ClippedSum, PeerError>;
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
    /// The values of every parameter, running statistics of batch norm included.
    pub(crate) weights: Vec<Vec<f32>>,
}

impl SharedRound {
    /// The state of a round: its tag, adaptive clip norms, and the values of every parameter.
    #[must_use]
    pub const fn new(tag: SampleTag, adapted: Adapted, weights: Vec<Vec<f32>>) -> Self {
        Self { tag, adapted, weights }
    }

    /// The state as bytes. All of it is public or released.
    ///
    /// # Errors
    /// When it cannot be serialised, which does not happen in practice.
    pub fn to_bytes(&self) -> Result<Vec<u8>, FileError> {
        let mut arrays = Arrays::default();
        arrays.bytes.insert(TAG.to_owned(), self.tag.to_bytes().to_vec());
        arrays.texts.insert(ROUNDS.to_owned(), self.adapted.rounds.to_string());
        for (name, estimate) in &self.adapted.estimates {
            // As bits, so that the plans of all processes are the same.
            arrays.texts.insert(format!("{ESTIMATE}{name}"), estimate.to_bits().to_string());
        }
        for (index, values) in self.weights.iter().enumerate() {
            arrays.insert(format!("{WEIGHT}{index}"), &[values.len()], values);
        }
        arrays.to_bytes()
    }

    /// The state with these bytes.
    ///
    /// # Errors
    /// When they are none.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, FileError> {
        let wrong = |name: &str| FileError::Format(format!("'{name}' is missing or wrong"));
        let mut arrays = Arrays::from_bytes(bytes)?;
        let tag = arrays.bytes.get(TAG).and_then(|bytes| SampleTag::from_bytes(bytes).ok());
        let tag = tag.ok_or_else(|| wrong(TAG))?;
        let rounds = arrays.texts.get(ROUNDS).and_then(|rounds| rounds.parse().ok());
        let rounds = rounds.ok_or_else(|| wrong(ROUNDS))?;
        let mut estimates = BTreeMap::new();
        for (name, text) in &arrays.texts {
            if let Some(name) = name.strip_prefix(ESTIMATE) {
                let bits = text.parse().map_err(|_| wrong(name))?;
                estimates.insert(name.to_owned(), f64::from_bits(bits));
            }
        }
        let mut weights = Vec::new();
        while let Some((_, values)) = arrays.arrays.remove(&format!("{WEIGHT}{}", weights.len())) {
            weights.push(values);
        }
        Ok(Self { tag, adapted: Adapted { rounds, estimates }, weights })
    }
}

const TAG: &str = "tag";
const ROUNDS: &str = "rounds";
const ESTIMATE: &str = "estimate/";
const WEIGHT: &str = "weight/";

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
