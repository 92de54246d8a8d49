//! Sampling policies: how the sample of a round is drawn.

use std::num::NonZeroU64;

use serde::{Deserialize, Serialize};

use super::record::Adjacency;
use super::unit::SampleRate;

/// The policy by which one sample is drawn from the records (paper, "Sampling policies").
///
/// A policy says what really ran; the accountant decides which amplification applies. New policies will be
/// new variants. A reader must refuse a policy that it does not know.
///
/// Some policies need the number of records and store it. Under add/remove adjacency that number is private, so a
/// run refuses those policies; use [`Sampling::Poisson`].
///
/// # Example
/// ```
/// use veilgrad_events::{FixedBatch, SampleRate, Sampling};
///
/// let poisson = Sampling::Poisson { rate: SampleRate::new(256.0 / 60000.0)? };
/// assert_eq!(poisson.records(), None); // the number of records stays private
/// let fixed = Sampling::Fixed(FixedBatch::new(60000, 256)?);
/// assert_eq!(fixed.records(), Some(60000)); // here it is public
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "policy", rename_all = "kebab-case", deny_unknown_fields)]
#[non_exhaustive]
pub enum Sampling {
    /// Each record is taken independently with probability `rate`.
    Poisson {
        /// The exact probability: the sampler compares this f64 with random bits.
        rate: SampleRate,
    },
    /// A uniformly random subset of a fixed size, without replacement, fresh every round.
    Fixed(FixedBatch),
    /// The records are permuted once per epoch and split into disjoint batches; one round is one batch.
    /// Accountants give it no amplification.
    Shuffle(FixedBatch),
    /// Poisson sampling with a maximum batch size: each record is taken independently with probability `rate`; a
    /// sample larger than `maximum` is cut to a uniformly random subset of that size.
    TruncatedPoisson(TruncatedPoisson),
    /// Random allocation: each record is put into one round of every epoch, uniformly and independently of all other
    /// records and epochs. Epochs begin at multiples of `rounds_per_epoch`, counted from the first round of the run. The
    /// number of records stays private.
    Allocation {
        /// The public number of rounds of an epoch.
        rounds_per_epoch: NonZeroU64,
    },
    /// Every record is put into one of `groups` groups, uniformly and independently, before the first of these rounds. Round
    /// t of a run takes each record of group `(t - first_round) mod groups` independently with probability `rate`. A record
    /// thus takes part at most once in any `groups` consecutive rounds, as correlated noise needs.
    CyclicPoisson {
        /// The exact probability of each record of the group.
        rate: SampleRate,
        /// The number of groups.
        groups: NonZeroU64,
        /// The number of the round, within its run, before which the groups were drawn: the first of its *segment*.
        first_round: u64,
    },
    /// Every record takes part.
    All {},
}

impl Sampling {
    /// The number of consecutive rounds in which a record takes part at most once; 1 if it may take part in every round.
    #[must_use]
    pub const fn separation(self) -> u64 {
        match self {
            Self::CyclicPoisson { groups, .. } => groups.get(),
            _ => 1,
        }
    }

    /// The number of records, if the policy makes it public.
    #[must_use]
    pub const fn records(self) -> Option<u64> {
        match self {
            Self::Poisson { .. }
            | Self::Allocation { .. }
            | Self::CyclicPoisson { .. }
            | Self::All {} => None,
            Self::Fixed(batch) | Self::Shuffle(batch) => Some(batch.records),
            Self::TruncatedPoisson(truncated) => Some(truncated.batch.records),
        }
    }

    /// Whether the policy would make the number of records public where it is private: under add-remove adjacency. Runs and
    /// ledgers refuse such rounds.
    #[must_use]
    pub fn reveals_record_count(self, adjacency: Adjacency) -> bool {
        adjacency == Adjacency::AddRemove && self.records().is_some()
    }
}

/// The parameters of truncated Poisson sampling: rate, number of records and maximum sample size.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "RawTruncated", into = "RawTruncated")]
pub struct TruncatedPoisson {
    rate: SampleRate,
    batch: FixedBatch,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawTruncated {
    rate: SampleRate,
    records: u64,
    maximum: u64,
}

impl TruncatedPoisson {
    /// Checks that `1 <= maximum <= records`.
    ///
    /// # Errors
    /// When they do not; the message names both numbers.
    pub fn new(rate: SampleRate, records: u64, maximum: u64) -> Result<Self, BatchError> {
        Ok(Self { rate, batch: FixedBatch::new(records, maximum)? })
    }

    /// The probability of each record before truncation.
    #[must_use]
    pub const fn rate(self) -> SampleRate {
        self.rate
    }

    /// The public number of records.
    #[must_use]
    pub const fn records(self) -> u64 {
        self.batch.records
    }

    /// The public maximum sample size.
    #[must_use]
    pub const fn maximum(self) -> u64 {
        self.batch.batch
    }
}

impl TryFrom<RawTruncated> for TruncatedPoisson {
    type Error = BatchError;
    fn try_from(raw: RawTruncated) -> Result<Self, BatchError> {
        Self::new(raw.rate, raw.records, raw.maximum)
    }
}

impl From<TruncatedPoisson> for RawTruncated {
    fn from(truncated: TruncatedPoisson) -> Self {
        let (records, maximum) = (truncated.records(), truncated.maximum());
        Self { rate: truncated.rate, records, maximum }
    }
}

/// The parameters of a fixed-size batch: `batch` records out of `records`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "RawBatch")]
pub struct FixedBatch {
    records: u64,
    batch: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawBatch {
    records: u64,
    batch: u64,
}

/// The batch size is 0 or larger than the number of records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("batch {batch} is not between 1 and the number of records {records}")]
pub struct BatchError {
    records: u64,
    batch: u64,
}

impl FixedBatch {
    /// Checks that `1 <= batch <= records`.
    ///
    /// # Errors
    /// When they do not; the message names both numbers.
    pub fn new(records: u64, batch: u64) -> Result<Self, BatchError> {
        if batch == 0 || batch > records {
            return Err(BatchError { records, batch });
        }
        Ok(Self { records, batch })
    }

    /// The number of records that the batch is drawn from; not public under add/remove adjacency.
    #[must_use]
    pub const fn records(self) -> u64 {
        self.records
    }

    /// The public size of the sample.
    #[must_use]
    pub const fn batch(self) -> u64 {
        self.batch
    }
}

impl TryFrom<RawBatch> for FixedBatch {
    type Error = BatchError;
    fn try_from(raw: RawBatch) -> Result<Self, BatchError> {
        Self::new(raw.records, raw.batch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<Sampling, String> {
        serde_json::from_str(json).map_err(|e| e.to_string())
    }

    #[test]
    fn every_policy_round_trips_through_json() {
        for sampling in [
            Sampling::Poisson { rate: SampleRate::new(256.0 / 60000.0).unwrap() },
            Sampling::Fixed(FixedBatch::new(u64::MAX, u64::MAX - 1).unwrap()),
            Sampling::Shuffle(FixedBatch::new(60000, 256).unwrap()),
            Sampling::TruncatedPoisson(
                TruncatedPoisson::new(SampleRate::new(0.1).unwrap(), 100, 30).unwrap(),
            ),
            Sampling::Allocation { rounds_per_epoch: NonZeroU64::new(234).unwrap() },
            Sampling::CyclicPoisson {
                rate: SampleRate::new(0.3).unwrap(),
                groups: NonZeroU64::new(16).unwrap(),
                first_round: 7,
            },
            Sampling::All {},
        ] {
            let json = serde_json::to_string(&sampling).unwrap();
            assert_eq!(read(&json).unwrap(), sampling, "{json}");
        }
        assert_eq!(serde_json::to_string(&Sampling::All {}).unwrap(), r#"{"policy":"all"}"#);
        let allocation = r#"{"policy":"allocation","rounds_per_epoch":100}"#;
        let read = read(allocation).unwrap();
        assert_eq!(serde_json::to_string(&read).unwrap(), allocation);
        assert_eq!(read.records(), None);
    }

    #[test]
    fn unknown_policies_fields_and_impossible_batches_are_refused() {
        for (json, expected) in [
            (r#"{"policy":"random-allocation","rate":0.1}"#, "unknown variant"),
            (r#"{"policy":"truncated-poisson","rate":0.1,"maximum":9}"#, "missing field"),
            (
                r#"{"policy":"truncated-poisson","rate":0.1,"records":5,"maximum":9}"#,
                "batch 9 is not between 1 and",
            ),
            (r#"{"policy":"poisson","rate":0.1,"records":9}"#, "unknown field"),
            (r#"{"policy":"all","records":9}"#, "unknown field"),
            (r#"{"policy":"fixed","records":9,"batch":2,"replace":true}"#, "unknown field"),
            (r#"{"policy":"fixed","records":9,"batch":10}"#, "batch 10 is not between 1 and"),
            (r#"{"policy":"shuffle","records":9,"batch":0}"#, "batch 0 is not between 1 and"),
            (r#"{"policy":"allocation","rounds_per_epoch":0}"#, "nonzero"),
            (r#"{"policy":"allocation","rounds_per_epoch":9,"records":99}"#, "unknown field"),
            (r#"{"policy":"cyclic-poisson","rate":0.5,"groups":0,"first_round":0}"#, "nonzero"),
            (r#"{"policy":"cyclic-poisson","rate":0.5,"groups":2}"#, "missing field"),
            (r#"{"policy":"poisson","rate":1.5}"#, "sample rate 1.5 is not in (0, 1]"),
            (r#"{"rate":0.5}"#, "missing field `policy`"),
        ] {
            let message = read(json).unwrap_err();
            assert!(message.contains(expected), "{json}: {message}");
        }
    }
}
