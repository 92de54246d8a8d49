//! Random samples of records: Poisson, without replacement, and shuffled, with exact probabilities.
//!
//! Poisson samples are drawn in blocks of [`BLOCK`] records, each from its own stream, so that
//! the sample does not depend on the number of workers.

use std::collections::HashSet;
use std::num::NonZeroU64;
use std::ops::Range;

use veilgrad_events::{FixedBatch, SampleRate};

use crate::bernoulli::{Bernoulli, Probability};
use crate::{KeyStream, Purpose, RandomError, RoundKey};

/// Records per block of a Poisson draw.
pub const BLOCK: u64 = 1 << BLOCK_BITS;
const BLOCK_BITS: u32 = 16;

/// Up to this rate the gaps between selected records are drawn; above it, bits for every record.
const MAX_RATE_FOR_GAPS: f64 = 1.0 / 32.0;

// The stream groups of a draw: one for its blocks, and one for each other use.
const BLOCKS: u16 = 0;
const TRUNCATION: u16 = 1;
const BATCH: u16 = 2;
const SHUFFLE: u16 = 3;
const PARTITION: u16 = 4;

/// Poisson sampling: every record is taken independently, with probability exactly `rate`.
///
/// # Example
/// ```
/// use veilgrad_events::SampleRate;
/// use veilgrad_random::{RoundKey, subset::Poisson};
///
/// let poisson = Poisson::new(SampleRate::new(0.01)?);
/// let ids = poisson.draw(&RoundKey::from_os()?, 60_000)?; // about 600 records
/// assert!(ids.is_sorted());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Poisson {
    method: Method,
}

enum Method {
    All,
    /// A geometric gap is at least a whole block with the first probability; otherwise its binary digits
    /// are independent, digit s being 1 with probability `digits[s]`.
    Gaps {
        whole_block: Bernoulli,
        digits: Vec<Bernoulli>,
    },
    /// The binary expansion of the rate, most significant bit first.
    Bits(Vec<bool>),
}

impl Poisson {
    /// Precomputes the thresholds for one rate.
    #[must_use]
    pub fn new(rate: SampleRate) -> Self {
        let rate = rate.get();
        let method = if rate >= 1.0 {
            Method::All
        } else if rate <= MAX_RATE_FOR_GAPS {
            let digit = |s| Bernoulli::new(Probability::Digit { rate, s });
            let digits = (0..BLOCK_BITS).map(digit).collect();
            let none = Probability::NoneOf { rate, log2_records: BLOCK_BITS };
            let whole_block = Bernoulli::new(none);
            Method::Gaps { whole_block, digits }
        } else {
            Method::Bits(binary_expansion(rate))
        };
        Self { method }
    }

    /// Draws a sample of the records `0..records`, in ascending order.
    ///
    /// # Errors
    /// When another process drew the key.
    pub fn draw(&self, key: &RoundKey, records: u64) -> Result<Vec<u64>, RandomError> {
        self.draw_blocks(key, records, 0..records.div_ceil(BLOCK))
    }

    /// Draws the sample of some blocks only: one worker's part of [`Poisson::draw`].
    ///
    /// # Errors
    /// When another process drew the key.
    pub fn draw_blocks(
        &self,
        key: &RoundKey,
        records: u64,
        blocks: Range<u64>,
    ) -> Result<Vec<u64>, RandomError> {
        let streams = key.streams()?;
        let mut selected = Vec::new();
        for block in blocks {
            let start = block.saturating_mul(BLOCK).min(records);
            let end = start.saturating_add(BLOCK).min(records);
            let mut stream = streams.stream(Purpose::Sample, BLOCKS, block);
            match &self.method {
                Method::All => selected.extend(start..end),
                Method::Gaps { whole_block, digits } => {
                    let mut next = start;
                    while let Some(gap) = draw_gap(&mut stream, whole_block, digits) {
                        let Some(id) = next.checked_add(gap).filter(|id| *id < end) else { break };
                        selected.push(id);
                        next = id + 1;
                    }
                }
                Method::Bits(bits) => {
                    for first in (start..end).step_by(64) {
                        let mut taken = draw_64(&mut stream, bits);
                        while taken != 0 {
                            let id = first.checked_add(u64::from(taken.trailing_zeros()));
                            selected.extend(id.filter(|id| *id < end));
                            taken &= taken - 1;
                        }
                    }
                }
            }
        }
        Ok(selected)
    }

    /// Draws a sample and cuts it to a uniformly random subset of `maximum` records if it is larger.
    ///
    /// # Errors
    /// When another process drew the key.
    pub fn draw_truncated(
        &self,
        key: &RoundKey,
        records: u64,
        maximum: u64,
    ) -> Result<Vec<u64>, RandomError> {
        let selected = self.draw(key, records)?;
        if selected.len() as u64 <= maximum {
            return Ok(selected);
        }
        let mut stream = key.streams()?.stream(Purpose::Sample, TRUNCATION, 0);
        let kept: HashSet<u64> = floyd(&mut stream, selected.len() as u64, maximum);
        let keep = |(index, id): (usize, u64)| kept.contains(&(index as u64)).then_some(id);
        Ok(selected.into_iter().enumerate().filter_map(keep).collect())
    }
}

/// Draws the number of records before the next selected one; `None` if that is a whole block or more.
fn draw_gap(stream: &mut KeyStream, whole_block: &Bernoulli, digits: &[Bernoulli]) -> Option<u64> {
    if whole_block.draw(stream) {
        return None;
    }
    let mut gap = 0;
    for (s, digit) in digits.iter().enumerate() {
        gap |= u64::from(digit.draw(stream)) << s;
    }
    Some(gap)
}

/// Draws which of 64 records are selected, as a bit mask: compares random bits of each record with the binary
/// expansion of the rate until all comparisons are decided.
fn draw_64(stream: &mut KeyStream, expansion: &[bool]) -> u64 {
    let (mut undecided, mut taken) = (u64::MAX, 0);
    for bit in expansion {
        let random = stream.word();
        if *bit {
            taken |= undecided & !random;
            undecided &= random;
        } else {
            undecided &= !random;
        }
        if undecided == 0 {
            break;
        }
    }
    // A number that is still undecided starts with all bits of the rate, so it is not below the rate.
    taken
}

/// The binary digits of a rate in (2^-6, 1), after the point.
fn binary_expansion(rate: f64) -> Vec<bool> {
    let mut rest = rate;
    let mut bits = Vec::new();
    while rest > 0.0 {
        // Doubling and subtracting 1 are exact.
        rest *= 2.0;
        bits.push(rest >= 1.0);
        if rest >= 1.0 {
            rest -= 1.0;
        }
    }
    bits
}

/// Draws a fixed-size batch without replacement, every subset equally likely, in ascending order.
///
/// # Errors
/// When another process drew the key.
///
/// # Example
/// ```
/// use veilgrad_events::FixedBatch;
/// use veilgrad_random::{RoundKey, subset};
///
/// let batch = subset::without_replacement(&RoundKey::from_os()?, FixedBatch::new(1000, 32)?)?;
/// assert_eq!(batch.len(), 32);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn without_replacement(key: &RoundKey, batch: FixedBatch) -> Result<Vec<u64>, RandomError> {
    let mut stream = key.streams()?.stream(Purpose::Sample, BATCH, 0);
    let mut selected: Vec<u64> =
        floyd(&mut stream, batch.records(), batch.batch()).into_iter().collect();
    selected.sort_unstable();
    Ok(selected)
}

/// Draws `size` distinct numbers below `records`, every set equally likely (Floyd's algorithm).
fn floyd(stream: &mut KeyStream, records: u64, size: u64) -> HashSet<u64> {
    let mut chosen = HashSet::new();
    for last in records - size..records {
        let candidate = stream.below(last + 1);
        if !chosen.insert(candidate) {
            chosen.insert(last);
        }
    }
    chosen
}

/// Draws a uniformly random permutation of the records `0..records` (Fisher-Yates).
///
/// # Errors
/// When another process drew the key.
pub fn permutation(key: &RoundKey, records: u64) -> Result<Vec<u64>, RandomError> {
    let mut stream = key.streams()?.stream(Purpose::Sample, SHUFFLE, 0);
    let mut order: Vec<u64> = (0..records).collect();
    for last in (1..order.len()).rev() {
        let other = stream.below(last as u64 + 1) as usize;
        order.swap(last, other);
    }
    Ok(order)
}

/// A random partition of the records: every record is in one of the groups, uniformly and independently of the others.
///
/// # Guarantee
/// All assignments of the records to the groups are equally likely.
///
/// # Example
/// ```
/// use std::num::NonZeroU64;
/// use veilgrad_random::{RoundKey, subset::Partition};
///
/// let groups = NonZeroU64::new(10).ok_or("zero")?;
/// let partition = Partition::draw(&RoundKey::from_os()?, 1000, groups)?;
/// assert_eq!((0..10).map(|group| partition.group(group).len()).sum::<usize>(), 1000);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Partition {
    /// The records, ordered by group and id.
    records: Vec<u64>,
    /// Where the records of each group begin, and the end of the last group that has some.
    starts: Vec<usize>,
}

impl Partition {
    /// Draws a partition of the records `0..records`.
    ///
    /// # Errors
    /// When another process drew the key.
    pub fn draw(key: &RoundKey, records: u64, groups: NonZeroU64) -> Result<Self, RandomError> {
        let streams = key.streams()?;
        let mut members = Vec::new();
        for block in 0..records.div_ceil(BLOCK) {
            let mut stream = streams.stream(Purpose::Sample, PARTITION, block);
            let start = block.saturating_mul(BLOCK).min(records);
            let end = start.saturating_add(BLOCK).min(records);
            members.extend((start..end).map(|record| (stream.below(groups.get()), record)));
        }
        members.sort_unstable();
        let first_of = |group: u64| members.partition_point(|(of, _)| *of < group);
        let groups_with_records = members.last().map_or(0, |(group, _)| group.saturating_add(1));
        let starts = (0..=groups_with_records).map(first_of).collect();
        Ok(Self { records: members.into_iter().map(|(_, record)| record).collect(), starts })
    }

    /// The records of a group, in ascending order.
    #[must_use]
    pub fn group(&self, group: u64) -> &[u64] {
        let start = |group: u64| self.starts.get(usize::try_from(group).ok()?).copied();
        let range = start(group).zip(group.checked_add(1).and_then(start));
        range.and_then(|(from, to)| self.records.get(from..to)).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(q: f64) -> SampleRate {
        SampleRate::new(q).unwrap()
    }

    fn key() -> RoundKey {
        RoundKey::from_os().unwrap()
    }

    #[test]
    fn the_expansion_is_the_number() {
        for q in [0.5, 0.75, 1.0 / 3.0, 0.1, 0.031_25_f64.next_up(), 1.0f64.next_down()] {
            let bits = binary_expansion(q);
            let value: f64 =
                bits.iter().rev().fold(0.0, |sum, bit| (sum + f64::from(u8::from(*bit))) / 2.0);
            assert_eq!(value, q);
            assert!(bits.len() <= 58);
        }
    }

    /// Counts of n = 2^20 records: within 7 standard deviations, false alarm below 3e-12 each.
    #[test]
    fn sample_sizes_are_those_of_the_rate() {
        let n = 1u64 << 20;
        for q in [1e-5, 1e-3, 0.01, 1.0 / 32.0, 0.032, 0.1, 0.5, 0.9, 1.0 - 1e-6] {
            let ids = Poisson::new(rate(q)).draw(&key(), n).unwrap();
            assert!(ids.is_sorted_by(|a, b| a < b) && ids.iter().all(|id| *id < n));
            let (mean, sd) = (q * n as f64, (q * (1.0 - q) * n as f64).sqrt());
            let size = ids.len() as f64;
            // 8 more, because the tail is heavier than a normal one if the mean is small.
            assert!((size - mean).abs() <= 7.0 * sd + 8.0, "{q}: {size} is not {mean}");
        }
    }

    #[test]
    fn a_partition_has_every_record_in_exactly_one_group() {
        for (records, groups) in [(0, 3), (1, 1), (1, 9), (1000, 7), (200_000, 13), (5, 1_000_000)]
        {
            let partition =
                Partition::draw(&key(), records, NonZeroU64::new(groups).unwrap()).unwrap();
            let mut all = Vec::new();
            for group in 0..groups {
                assert!(partition.group(group).is_sorted_by(|a, b| a < b));
                all.extend_from_slice(partition.group(group));
            }
            all.sort_unstable();
            assert!(all.into_iter().eq(0..records));
            assert!(partition.group(groups).is_empty() && partition.group(u64::MAX).is_empty());
        }
    }

    /// Sizes of the groups of n = 2^18 records, and of the pairs of neighbours in the same group: each within 7 standard
    /// deviations, false alarm below 3e-12.
    #[test]
    fn groups_of_a_partition_are_equally_likely_and_independent() {
        let (n, groups) = (1u64 << 18, 10u64);
        let partition = Partition::draw(&key(), n, NonZeroU64::new(groups).unwrap()).unwrap();
        let within = |count: usize, of: f64, q: f64| {
            (count as f64 - of * q).abs() < 7.0 * (of * q * (1.0 - q)).sqrt()
        };
        let mut neighbours = 0;
        for group in 0..groups {
            let members = partition.group(group);
            assert!(within(members.len(), n as f64, 0.1), "{group}: {}", members.len());
            neighbours += members.windows(2).filter(|pair| pair[0] + 1 == pair[1]).count();
        }
        assert!(within(neighbours, n as f64 - 1.0, 0.1), "{neighbours}");
    }

    #[test]
    fn extreme_rates_and_empty_data_work() {
        assert_eq!(Poisson::new(rate(1.0)).draw(&key(), 70_000).unwrap().len(), 70_000);
        // The probability of a nonempty sample is 1e-4, 5e-319 and so on.
        assert_eq!(Poisson::new(rate(1e-9)).draw(&key(), 100_000).unwrap().len(), 0);
        assert_eq!(Poisson::new(rate(5e-324)).draw(&key(), 100_000).unwrap().len(), 0);
        assert_eq!(Poisson::new(rate(1e-300)).draw(&key(), 1 << 24).unwrap().len(), 0);
        for q in [5e-324, 1e-9, 0.5, 1.0] {
            assert!(Poisson::new(rate(q)).draw(&key(), 0).unwrap().is_empty());
            assert!(Poisson::new(rate(q)).draw(&key(), 1).unwrap().len() <= 1);
        }
    }

    #[test]
    fn the_last_block_of_64_bit_ids_works() {
        let last = u64::MAX.div_ceil(BLOCK) - 1;
        for q in [1e-3, 0.5, 1.0] {
            let ids = Poisson::new(rate(q)).draw_blocks(&key(), u64::MAX, last..last + 1).unwrap();
            assert!(ids.iter().all(|id| *id >= last * BLOCK) && ids.len() as u64 <= BLOCK);
            assert!(!ids.is_empty());
        }
    }

    #[test]
    fn any_number_of_workers_draws_the_same_sample() {
        let n = 10 * BLOCK + 17;
        for q in [1e-3, 0.3, 1.0] {
            let (poisson, key) = (Poisson::new(rate(q)), key());
            let whole = poisson.draw(&key, n).unwrap();
            for workers in [1, 2, 3, 11] {
                let blocks = n.div_ceil(BLOCK);
                let share = blocks.div_ceil(workers);
                let parts = (0..workers).map(|w| {
                    let part = (w * share).min(blocks)..((w + 1) * share).min(blocks);
                    poisson.draw_blocks(&key, n, part).unwrap()
                });
                assert_eq!(parts.collect::<Vec<_>>().concat(), whole);
            }
        }
    }

    /// The mean of 200,000 gaps, of which none reaches a block: 6 standard errors, false alarm below
    /// 1e-8 each.
    #[test]
    fn gaps_are_geometric() {
        let key = key();
        let mut stream = key.streams().unwrap().stream(Purpose::Sample, 9, 0);
        for q in [1e-3, 0.01, 1.0 / 32.0] {
            let Method::Gaps { whole_block, digits } = Poisson::new(rate(q)).method else {
                unreachable!()
            };
            let gaps: Vec<f64> = (0..200_000)
                .filter_map(|_| draw_gap(&mut stream, &whole_block, &digits))
                .map(|gap| gap as f64)
                .collect();
            let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
            let expected = (1.0 - q) / q;
            let error = expected / (gaps.len() as f64).sqrt();
            assert!((mean - expected).abs() < 6.0 * error, "{q}: {mean} {expected}");
        }
    }

    #[test]
    fn fixed_batches_are_subsets_of_their_size() {
        for (records, batch) in [(1, 1), (10, 3), (10, 10), (60_000, 256), (u64::MAX, 5)] {
            let batch = FixedBatch::new(records, batch).unwrap();
            let ids = without_replacement(&key(), batch).unwrap();
            assert_eq!(ids.len() as u64, batch.batch());
            assert!(ids.is_sorted_by(|a, b| a < b) && ids.iter().all(|id| *id < records));
        }
    }

    /// All 20 subsets of 3 out of 6, 40,000 draws: chi-square with 19 degrees of freedom exceeds 80
    /// with probability below 2e-9.
    #[test]
    fn every_subset_is_equally_likely() {
        let mut counts = std::collections::HashMap::new();
        let batch = FixedBatch::new(6, 3).unwrap();
        for _ in 0..40_000 {
            *counts.entry(without_replacement(&key(), batch).unwrap()).or_insert(0f64) += 1.0;
        }
        assert_eq!(counts.len(), 20);
        let chi2: f64 = counts.values().map(|count| (count - 2000.0).powi(2) / 2000.0).sum();
        assert!(chi2 < 80.0, "{chi2}");
    }

    /// All 24 permutations of 4, 48,000 draws: chi-square with 23 degrees of freedom exceeds 90 with
    /// probability below 1e-9.
    #[test]
    fn every_permutation_is_equally_likely() {
        let mut counts = std::collections::HashMap::new();
        for _ in 0..48_000 {
            *counts.entry(permutation(&key(), 4).unwrap()).or_insert(0f64) += 1.0;
        }
        assert_eq!(counts.len(), 24);
        let chi2: f64 = counts.values().map(|count| (count - 2000.0).powi(2) / 2000.0).sum();
        assert!(chi2 < 90.0, "{chi2}");
        assert!(permutation(&key(), 0).unwrap().is_empty());
    }

    /// With 3 of 10 certain records kept, each is kept with probability 0.3: 20,000 draws, standard
    /// deviation 65 per count, 7 of those.
    #[test]
    fn truncation_keeps_a_uniform_part() {
        let poisson = Poisson::new(rate(1.0));
        let mut counts = [0i32; 10];
        for _ in 0..20_000 {
            let ids = poisson.draw_truncated(&key(), 10, 3).unwrap();
            assert!(ids.len() == 3 && ids.is_sorted_by(|a, b| a < b));
            ids.iter().for_each(|id| counts[*id as usize] += 1);
        }
        assert!(counts.iter().all(|count| (count - 6000).abs() < 455), "{counts:?}");
        assert_eq!(poisson.draw_truncated(&key(), 10, 30).unwrap().len(), 10);
    }
}
