//! Partial sums that leave their process: integers in blocks, then a certificate; or both as bytes.

use sha2::{Digest, Sha256};
use veilgrad_random::unique_number;
use veilgrad_random::vectorised::vectorised;
use zeroize::{Zeroize, Zeroizing};

use crate::partial::PartialSum;
use crate::sample_tag::SampleTag;
use crate::sum_error::SumError;
use crate::{Private, RoundPlan};

/// The first bytes of a certificate: what it is, and the version of its format.
pub(crate) const FORMAT: &[u8; 8] = b"VGSUM\0\0\x01";

/// Bytes that are as private as the records that they were computed from. Wiped on drop.
///
/// They have no `Debug` and no serialisation: [`expose`](Self::expose) is the only way to read them, for whoever sends
/// them over a channel that only the processes of the job can read.
pub struct PrivateBytes(Private<Zeroizing<Vec<u8>>>);

impl PrivateBytes {
    /// The bytes. Everything computed from them is private as well.
    #[must_use]
    pub fn expose(&self) -> &[u8] {
        self.0.expose()
    }
}

/// A finished partial sum on its way to another process: its integers modulo 2^64, to be added up with those of other
/// processes by any reduction on unsigned integers, and its certificate.
///
/// # Guarantee
/// The certificate binds the integers to their sample and plan, to the number of certified records, and to themselves: the
/// checksum of a sum of vectors is the sum of their checksums, so that it holds for what a reduction returns. Noise and
/// keys cannot leave: a sum that has noise cannot become an `OutgoingSum`. Everything in it is private, and wiped on drop.
pub struct OutgoingSum {
    /// The integers of each group, in the memory in which they were added up.
    groups: Private<Vec<Zeroizing<Vec<u64>>>>,
    certificate: Certificate,
}

/// What is known about the integers of a partial sum.
pub(crate) struct Certificate {
    pub(crate) tag: SampleTag,
    /// The number of certified records in each group.
    pub(crate) certified: Vec<u64>,
    /// The number of integers, over all groups.
    pub(crate) coordinates: u64,
    pub(crate) checksum: u64,
    /// The unique numbers of the partial sums that it consists of.
    pub(crate) parts: Vec<u128>,
}

impl Drop for Certificate {
    fn drop(&mut self) {
        self.certified.zeroize();
        self.checksum.zeroize();
    }
}

/// The same integers modulo 2^64, in the same memory: a copy would have to be wiped.
fn unsigned(values: Vec<i64>) -> Vec<u64> {
    values.into_iter().map(i64::cast_unsigned).collect()
}

/// The checksum of integers whose first has this index: the sum of `(2 j + 1) v_j`, modulo 2^64. It is additive, and notices
/// every change of one integer, because odd numbers have an inverse modulo 2^64.
pub(crate) fn checksum(first: usize, values: &[u64]) -> u64 {
    vectorised(
        #[inline(always)]
        || {
            let mut weight = (first as u64).wrapping_mul(2).wrapping_add(1);
            let mut sum = 0u64;
            for value in values {
                sum = sum.wrapping_add(weight.wrapping_mul(*value));
                weight = weight.wrapping_add(2);
            }
            sum
        },
    )
}

impl PartialSum {
    /// Finishes the sum, to be sent to the process that releases it.
    ///
    /// # Errors
    /// When a sum of outer products is larger than its certified records allow, or the system has no randomness.
    pub fn leave(self) -> Result<OutgoingSum, SumError> {
        let plan = RoundPlan { inner: std::sync::Arc::clone(&self.plan) };
        let mut whole = Self::new(&self.plan, self.sample, |_| None);
        whole.absorb(self)?;
        let certified = whole.groups.iter().map(|group| group.certified).collect();
        let mut parts = std::mem::take(&mut whole.arrived);
        parts.push(unique_number()?);
        let (mut groups, mut coordinates, mut sum) = (Vec::new(), 0, 0u64);
        for group in whole.groups {
            let values = Zeroizing::new(unsigned(group.sums.into_sums()));
            sum = sum.wrapping_add(checksum(coordinates, &values));
            coordinates += values.len();
            groups.push(values);
        }
        let tag = SampleTag::new(whole.sample, plan.fingerprint());
        let coordinates = coordinates as u64;
        let certificate = Certificate { tag, certified, coordinates, checksum: sum, parts };
        Ok(OutgoingSum { groups: Private::new(groups), certificate })
    }

    /// The finished sum as bytes: its certificate, then its integers in little-endian order. For
    /// [`ClippedSum::absorb_bytes`](crate::ClippedSum::absorb_bytes) and [`absorb_bytes`](Self::absorb_bytes) in another
    /// process.
    ///
    /// # Errors
    /// As for [`leave`](Self::leave).
    pub fn into_bytes(self) -> Result<PrivateBytes, SumError> {
        let sum = self.leave()?;
        let (certificate, integers) = (sum.certificate(), || sum.blocks(usize::MAX).flatten());
        // With its whole length from the start: a vector that grows leaves copies behind.
        let mut bytes = Vec::with_capacity(certificate.expose().len() + 8 * integers().count());
        bytes.extend_from_slice(certificate.expose());
        bytes.extend(integers().flat_map(|value| value.to_le_bytes()));
        Ok(PrivateBytes(Private::new(Zeroizing::new(bytes))))
    }
}

impl OutgoingSum {
    /// All integers, group after group, in blocks of at most `longest`, each within one group: as long as those of
    /// [`IncomingSum::block_lengths`](crate::IncomingSum::block_lengths). Private: only a sum with noise may be released.
    pub fn blocks(&self, longest: usize) -> impl Iterator<Item = &[u64]> {
        self.groups.expose().iter().flat_map(move |values| values.chunks(longest.max(1)))
    }

    /// The certificate, for [`IncomingSum::accept`](crate::IncomingSum::accept). Private as well: it counts records.
    #[must_use]
    pub fn certificate(&self) -> PrivateBytes {
        PrivateBytes(Private::new(self.certificate.to_bytes()))
    }
}

impl Certificate {
    fn to_bytes(&self) -> Zeroizing<Vec<u8>> {
        let Self { tag, certified, coordinates, checksum, parts } = self;
        let length = 8 * (5 + certified.len()) + SampleTag::BYTES + 16 * parts.len() + 32;
        let mut bytes = Zeroizing::new(Vec::with_capacity(length));
        bytes.extend_from_slice(FORMAT);
        bytes.extend_from_slice(&tag.to_bytes());
        bytes.extend((certified.len() as u64).to_le_bytes());
        bytes.extend(certified.iter().flat_map(|count| count.to_le_bytes()));
        bytes.extend(coordinates.to_le_bytes());
        bytes.extend(checksum.to_le_bytes());
        bytes.extend((parts.len() as u64).to_le_bytes());
        bytes.extend(parts.iter().flat_map(|number| number.to_le_bytes()));
        let hash = Sha256::digest(&*bytes);
        bytes.extend_from_slice(&hash);
        bytes
    }

    /// The certificate at the beginning of these bytes, and the bytes after it. No memory is taken that the bytes do not
    /// account for.
    pub(crate) fn read(bytes: &[u8]) -> Result<(Self, &[u8]), SumError> {
        let mut reader = Reader(bytes);
        if reader.take(FORMAT.len())? != FORMAT {
            return Err(SumError::Unreadable("they begin with another format or version"));
        }
        let tag = SampleTag::from_bytes(reader.take(SampleTag::BYTES)?)?;
        let certified = reader.list()?.map(u64::from_le_bytes).collect();
        let (coordinates, checksum) = (reader.number()?, reader.number()?);
        let parts: Vec<u128> = reader.list()?.map(u128::from_le_bytes).collect();
        // By them it is noticed that a sum arrives twice.
        if parts.is_empty() {
            return Err(SumError::Unreadable("they do not say which sums are in them"));
        }
        let certificate = Self { tag, certified, coordinates, checksum, parts };
        let length = bytes.len() - reader.0.len();
        let hash = Sha256::digest(bytes.get(..length).unwrap_or_default());
        if reader.take(hash.len())? != hash.as_slice() {
            return Err(SumError::Altered);
        }
        Ok((certificate, reader.0))
    }
}

/// Reads fields from the front of bytes.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], SumError> {
        let (taken, rest) =
            self.0.split_at_checked(length).ok_or(SumError::Unreadable("they end too early"))?;
        self.0 = rest;
        Ok(taken)
    }

    fn number(&mut self) -> Result<u64, SumError> {
        let bytes = self.take(8)?;
        bytes
            .try_into()
            .map(u64::from_le_bytes)
            .map_err(|_| SumError::Unreadable("a number is cut short"))
    }

    /// A list of numbers of N bytes, after their count.
    fn list<const N: usize>(
        &mut self,
    ) -> Result<impl Iterator<Item = [u8; N]> + use<'a, N>, SumError> {
        let length = usize::try_from(self.number()?).ok().and_then(|count| count.checked_mul(N));
        let bytes = self.take(length.ok_or(SumError::Unreadable("they end too early"))?)?;
        Ok(bytes.as_chunks().0.iter().copied())
    }
}

#[cfg(test)]
mod tests {
    use super::unsigned;

    #[test]
    fn unsigned_integers_are_in_the_memory_of_signed_ones() {
        let signed: Vec<i64> = (-500..500).collect();
        let (place, expected) = (signed.as_ptr().addr(), signed.clone());
        let values = unsigned(signed);
        assert_eq!(values.as_ptr().addr(), place);
        assert!(values.iter().map(|value| value.cast_signed()).eq(expected));
    }
}
