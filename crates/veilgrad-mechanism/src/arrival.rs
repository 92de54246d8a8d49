//! Partial sums that arrive from other processes: checked against their certificates, then added.

use veilgrad_random::vectorised::vectorised;
use zeroize::{Zeroize, Zeroizing};

use crate::departure::{Certificate, checksum};
use crate::partial::{PartialSum, coordinate_bound};
use crate::plan::RoundPlan;
use crate::sum::ClippedSum;
use crate::sum_error::SumError;

/// A sum that integers are added to block by block, as they arrive from other processes.
///
/// # Guarantee
/// [`accept`](Self::accept) is the only way back to a [`ClippedSum`]: unless all integers arrived as they were sent, for
/// this sample and plan, each from a different partial sum, and no larger than their certified records allow, the sum is
/// dropped and nothing is released.
pub struct IncomingSum {
    sum: ClippedSum,
    seen: Seen,
}

/// What certificates are compared with: properties of the integers that arrived so far.
struct Seen {
    coordinates: usize,
    checksum: u64,
    /// The largest absolute value in each group.
    largest: Zeroizing<Vec<u64>>,
}

impl Drop for Seen {
    fn drop(&mut self) {
        self.checksum.zeroize();
    }
}

impl ClippedSum {
    /// Prepares the sum for integers that other processes send; see [`OutgoingSum`](crate::OutgoingSum).
    #[must_use]
    pub fn receive(self) -> IncomingSum {
        let seen = Seen::nothing(&self.records);
        IncomingSum { sum: self, seen }
    }

    /// Adds a partial sum of this round that another process sent as bytes.
    ///
    /// # Errors
    /// When the bytes are not a partial sum of this version, were altered, belong to another sample or plan, were already
    /// added, or are larger than their certified records allow. Nothing is added then.
    pub fn absorb_bytes(&mut self, bytes: &[u8]) -> Result<(), SumError> {
        self.records.absorb_bytes(bytes)
    }
}

impl PartialSum {
    /// As [`ClippedSum::absorb_bytes`], for a process between the others and the one that releases.
    ///
    /// # Errors
    /// As for [`ClippedSum::absorb_bytes`], and when this sum keeps outer products itself.
    pub fn absorb_bytes(&mut self, bytes: &[u8]) -> Result<(), SumError> {
        self.check_storage()?;
        let (certificate, rest) = Certificate::read(bytes)?;
        let (chunks, odd) = rest.as_chunks();
        let all: usize = self.plan.groups.iter().map(|group| group.dimension).sum();
        if !odd.is_empty() || chunks.len() != all {
            return Err(SumError::Unreadable("they have another number of integers"));
        }
        let values = chunks.iter().map(|value| u64::from_le_bytes(*value));
        let values: Zeroizing<Vec<u64>> = Zeroizing::new(values.collect());
        let mut seen = Seen::nothing(self);
        seen.look(self, &values)?;
        let certificates = [certificate];
        seen.check(self, &certificates)?;
        self.add_block(0, &values);
        self.count(&certificates);
        Ok(())
    }

    /// Adds integers, of which the first has this index over all groups.
    fn add_block(&mut self, first: usize, values: &[u64]) {
        let groups = self.plan.groups.iter().map(|group| group.dimension);
        for ((places, values), group) in split(groups, first, values).zip(&mut self.groups) {
            group.sums.add_unsigned(places, values);
        }
    }

    /// Adds the numbers of records and parts of certificates that were checked.
    fn count(&mut self, certificates: &[Certificate]) {
        for certificate in certificates {
            for (group, certified) in self.groups.iter_mut().zip(&certificate.certified) {
                group.certified = group.certified.saturating_add(*certified);
            }
            self.arrived.extend(&certificate.parts);
        }
    }
}

impl IncomingSum {
    /// The lengths of all blocks of [`OutgoingSum::blocks`](crate::OutgoingSum::blocks), in their order.
    pub fn block_lengths(&self, longest: usize) -> Vec<usize> {
        let longest = longest.max(1);
        let groups = self.sum.records.plan.groups.iter();
        let lengths = groups.flat_map(|group| {
            let starts = (0..group.dimension).step_by(longest);
            starts.map(move |start| longest.min(group.dimension - start))
        });
        lengths.collect()
    }

    /// Adds the next integers: those after all that were added before.
    ///
    /// # Errors
    /// When there are more than the plan has coordinates.
    pub fn add_block(&mut self, values: &[u64]) -> Result<(), SumError> {
        let first = self.seen.coordinates;
        self.seen.look(&self.sum.records, values)?;
        self.sum.records.add_block(first, values);
        Ok(())
    }

    /// The sum with everything that arrived, after a comparison with the certificates of all partial sums in it.
    ///
    /// # Errors
    /// As for [`ClippedSum::absorb_bytes`]. The sum is dropped then.
    pub fn accept<B: AsRef<[u8]>>(mut self, certificates: &[B]) -> Result<ClippedSum, SumError> {
        let read = |bytes: &B| match Certificate::read(bytes.as_ref())? {
            (certificate, []) => Ok(certificate),
            _ => Err(SumError::Unreadable("a certificate has bytes behind it")),
        };
        let certificates = certificates.iter().map(read).collect::<Result<Vec<_>, SumError>>()?;
        self.seen.check(&self.sum.records, &certificates)?;
        self.sum.records.count(&certificates);
        Ok(self.sum)
    }
}

impl Seen {
    fn nothing(sum: &PartialSum) -> Self {
        let largest = Zeroizing::new(vec![0; sum.plan.groups.len()]);
        Self { coordinates: 0, checksum: 0, largest }
    }

    /// Looks at the next integers.
    fn look(&mut self, sum: &PartialSum, values: &[u64]) -> Result<(), SumError> {
        let dimensions = || sum.plan.groups.iter().map(|group| group.dimension);
        if dimensions().sum::<usize>().saturating_sub(self.coordinates) < values.len() {
            return Err(SumError::Unreadable("they have more integers than the plan"));
        }
        self.checksum = self.checksum.wrapping_add(checksum(self.coordinates, values));
        let groups = split(dimensions(), self.coordinates, values);
        for ((_, values), largest) in groups.zip(self.largest.iter_mut()) {
            *largest = vectorised(
                #[inline(always)]
                || {
                    let sizes = values.iter().map(|value| value.cast_signed().unsigned_abs());
                    sizes.fold(*largest, u64::max)
                },
            );
        }
        self.coordinates += values.len();
        Ok(())
    }

    /// Compares all integers with the certificates of the partial sums that they are the sum of.
    fn check(&self, sum: &PartialSum, certificates: &[Certificate]) -> Result<(), SumError> {
        let groups = &sum.plan.groups;
        let plan = RoundPlan { inner: std::sync::Arc::clone(&sum.plan) }.fingerprint();
        let mut parts = sum.arrived.clone();
        let mut expected = 0u64;
        let mut certified = Zeroizing::new(vec![0u64; groups.len()]);
        for certificate in certificates {
            if certificate.tag.sample != sum.sample || certificate.tag.plan() != plan {
                return Err(SumError::Foreign);
            }
            if certificate.coordinates != self.coordinates as u64
                || certificate.certified.len() != groups.len()
            {
                return Err(SumError::Unreadable("they have another number of integers"));
            }
            expected = expected.wrapping_add(certificate.checksum);
            for (total, count) in certified.iter_mut().zip(&certificate.certified) {
                *total = total.saturating_add(*count);
            }
            parts.extend(&certificate.parts);
        }
        let all: usize = groups.iter().map(|group| group.dimension).sum();
        if self.coordinates != all {
            return Err(SumError::Unreadable("they have another number of integers"));
        }
        if expected != self.checksum {
            return Err(SumError::Altered);
        }
        parts.sort_unstable();
        if parts.windows(2).any(|pair| matches!(pair, [a, b] if a == b)) {
            return Err(SumError::Duplicate);
        }
        for ((group, certified), largest) in
            groups.iter().zip(certified.iter()).zip(self.largest.iter())
        {
            if *largest > coordinate_bound(group.grid, *certified) {
                return Err(SumError::Uncertified(group.name.clone()));
            }
        }
        Ok(())
    }
}

/// The integers of a block in each group, and their places in it; the first integer has this index over all groups.
fn split(
    dimensions: impl Iterator<Item = usize>,
    first: usize,
    values: &[u64],
) -> impl Iterator<Item = (std::ops::Range<usize>, &[u64])> {
    let mut start = 0usize;
    let last = first.saturating_add(values.len());
    dimensions.map(move |dimension| {
        let (group, end) = (start, start.saturating_add(dimension));
        start = end;
        let (from, to) = (first.clamp(group, end), last.clamp(group, end));
        let inside = values.get(from.saturating_sub(first)..to.saturating_sub(first));
        (from - group..to - group, inside.unwrap_or_default())
    })
}
