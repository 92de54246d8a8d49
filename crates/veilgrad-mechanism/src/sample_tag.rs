//! The public tag of a sample: which round a partial sum of another process belongs to.

use veilgrad_events::Hash;

use crate::sum_error::SumError;

/// Tells the samples of all processes apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SampleId {
    /// The permit, which is unique in its process.
    pub(crate) permit: u64,
    /// A random number of the draw, which no other process has.
    pub(crate) draw: u128,
}

#[cfg(any(test, feature = "insecure-testing"))]
impl SampleId {
    /// No sample at all.
    pub(crate) const NONE: Self = Self { permit: 0, draw: 0 };
}

/// The public tag of a sample: its permit and the fingerprint of its plan. Another process needs it to begin a
/// [`PartialSum`](crate::PartialSum) for the sample.
///
/// # Guarantee
/// It is public: it holds the number of the permit, a random number that only tells samples apart, and a hash of public
/// parameters. It has nothing of the sample, of the noise or of their keys, and cannot release anything.
/// [`PartialSum`](crate::PartialSum) has an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SampleTag {
    pub(crate) sample: SampleId,
    plan: Hash,
}

impl SampleTag {
    /// The length of a tag in bytes.
    pub const BYTES: usize = 56;

    pub(crate) const fn new(sample: SampleId, plan: Hash) -> Self {
        Self { sample, plan }
    }

    /// The fingerprint of the plan, as [`RoundPlan::fingerprint`](crate::RoundPlan::fingerprint) returns it.
    #[must_use]
    pub const fn plan(&self) -> Hash {
        self.plan
    }

    /// The tag as bytes: permit, number of the draw, fingerprint; integers in little-endian order.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        let (permit, draw) = (self.sample.permit.to_le_bytes(), self.sample.draw.to_le_bytes());
        let all = permit.iter().chain(&draw).chain(&self.plan.0);
        bytes.iter_mut().zip(all).for_each(|(to, from)| *to = *from);
        bytes
    }

    /// The tag with these bytes.
    ///
    /// # Errors
    /// When there are not [`BYTES`](Self::BYTES) of them.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, SumError> {
        let read = || {
            let (permit, rest) = bytes.split_first_chunk()?;
            let (draw, plan) = rest.split_first_chunk()?;
            let (permit, draw) = (u64::from_le_bytes(*permit), u128::from_le_bytes(*draw));
            Some(Self { sample: SampleId { permit, draw }, plan: Hash::from_slice(plan)? })
        };
        read().ok_or(SumError::Unreadable("a tag has 56 bytes"))
    }
}
