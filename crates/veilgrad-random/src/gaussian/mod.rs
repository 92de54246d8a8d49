//! Exact Gaussian noise: `floor(2^k Z)` for a standard normal `Z`.
//!
//! Rejection from boxes of equal area under `c f(x)`, `f(x) = exp(-x^2/2)`. The half line `[0, 4)` is
//! cut into 256 bins; bin j holds `B_j = ceil(c f(left))` boxes of height 1, of which the lowest
//! `A_j = floor(c f(right))` lie under the curve entirely. With four more boxes for the tail there are
//! exactly 2^14 boxes, so 14 random bits choose one. A box under the curve is accepted as it is; the
//! others compare a random height with `c f(x)`.
//!
//! # Guarantee
//! Given ideal random words the result has exactly the distribution of `floor(2^k Z)`, modulo 2^64, with
//! its infinite support. A comparison that f64 cannot decide within its proven error is decided by
//! extending `x` and the height with fresh bits in big integers; it is never drawn again, which would
//! bias the result.

mod boxes;
mod decide;
#[cfg(test)]
mod generate;
#[rustfmt::skip]
mod tables;
mod word;

use veilgrad_events::IntegerGrid;
use zeroize::Zeroize;

use crate::{KeyStream, Purpose, RandomError, RoundKey, Streams};
use boxes::{BIN, SURE, UNSURE_BEFORE};
use decide::Height;
use tables::A;
use word::*;

/// Coordinates per block; each block has its own stream.
pub const BLOCK: usize = 4096;
/// Coordinates that are worked on at once, so that all they need stays in the nearest cache.
const CHUNK: usize = 512;
/// Adds noise to `sums`, modulo 2^64: `floor(2^k Z_j)` to element j.
///
/// The noise is a function of the key, the group and the element's number: it is the same for any
/// number of threads.
///
/// # Guarantee
/// As for the module. The same key and group give the same noise again: a key serves one round.
///
/// # Errors
/// When another process drew the key.
pub fn add(
    key: &RoundKey,
    group: u16,
    grid: IntegerGrid,
    sums: &mut [i64],
    threads: usize,
) -> Result<(), RandomError> {
    add_from(key.streams()?, group, grid, sums, threads);
    Ok(())
}

fn add_from(streams: Streams<'_>, group: u16, grid: IntegerGrid, sums: &mut [i64], threads: usize) {
    on_threads(sums, threads, |first, mut sums| {
        each_chunk(streams, group, grid.k(), first, sums.len(), |noise| {
            for (sum, noise) in sums.iter_mut().zip(noise) {
                *sum = sum.wrapping_add(*noise);
            }
            sums = std::mem::take(&mut sums).get_mut(noise.len()..).unwrap_or_default();
        });
    });
}

/// Makes `values` the noise of `count` coordinates: the same that [`add`] would add.
///
/// # Errors
/// When another process drew the key.
pub fn fill(
    key: &RoundKey,
    group: u16,
    grid: IntegerGrid,
    values: &mut Vec<i64>,
    count: usize,
    threads: usize,
) -> Result<(), RandomError> {
    let streams = key.streams()?;
    values.clear();
    if threads_for(count, threads) == 1 {
        // Without zeros first.
        values.reserve_exact(count);
        each_chunk(streams, group, grid.k(), 0, count, |noise| values.extend_from_slice(noise));
    } else {
        values.resize(count, 0);
        add_from(streams, group, grid, values, threads);
    }
    Ok(())
}

/// Draws chunk after chunk, from the first of a block on.
fn each_chunk(
    streams: Streams<'_>,
    group: u16,
    k: u8,
    first_block: usize,
    count: usize,
    mut put: impl FnMut(&[i64]),
) {
    let (mut scratch, mut noise) = (Scratch::new(), [0; CHUNK]);
    for (block, first) in (first_block..).zip((0..count).step_by(BLOCK)) {
        let mut stream = streams.stream(Purpose::Noise, group, block as u64);
        for first in (first..count.min(first + BLOCK)).step_by(CHUNK) {
            chunk(&mut stream, k, &mut scratch, &mut noise);
            put(noise.get(..count - first).unwrap_or(&noise));
        }
    }
    noise.zeroize();
}

/// How many threads are worth starting, for some blocks each.
fn threads_for(count: usize, threads: usize) -> usize {
    threads.min(count.div_ceil(BLOCK) / 8).max(1)
}

/// Gives each thread whole blocks: the number of the first, and its values.
fn on_threads(values: &mut [i64], threads: usize, work: impl Fn(usize, &mut [i64]) + Sync) {
    let threads = threads_for(values.len(), threads);
    if threads == 1 {
        return work(0, values);
    }
    let share = values.len().div_ceil(BLOCK).div_ceil(threads);
    std::thread::scope(|scope| {
        for (part, values) in values.chunks_mut(share * BLOCK).enumerate() {
            let work = &work;
            scope.spawn(move || work(part * share, values));
        }
    });
}

/// Room for the random bytes of a chunk, used again for the next.
struct Scratch {
    bytes: [u8; CHUNK * 8],
    unsure: [u16; CHUNK],
}

impl Scratch {
    const fn new() -> Self {
        Self { bytes: [0; CHUNK * 8], unsure: [0; CHUNK] }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        self.bytes.zeroize();
        self.unsure.zeroize();
    }
}

/// The next chunk of noise from a stream: some bytes for each coordinate, then words as needed.
fn chunk(stream: &mut KeyStream, k: u8, scratch: &mut Scratch, noise: &mut [i64; CHUNK]) {
    match high_bytes(k) {
        0 => {
            // Less than a bin per unit: nothing to gain from the bits of the position.
            for noise in noise {
                let word = stream.word();
                *noise = one(stream, word, FRACTION_BITS - u32::from(k));
            }
        }
        1 => chunk_of::<1>(stream, k, scratch, noise),
        2 => chunk_of::<2>(stream, k, scratch, noise),
        _ => chunk_of::<4>(stream, k, scratch, noise),
    }
}

/// How many random bytes beyond four a coordinate starts with, as few as decide most of them; none
/// where a unit is wider than a bin and nothing is to be gained.
const fn high_bytes(k: u8) -> usize {
    match k {
        0..6 => 0,
        6..=31 => 1,
        32..=39 => 2,
        _ => 4,
    }
}

/// The bits of a word that `4 + high` bytes do not fill.
const fn missing_bits(high: usize) -> u32 {
    u64::BITS - 8 * (4 + high as u32)
}

// Every bit of the output is drawn from the start: what is missing lies below it, for every exponent.
const _: () = {
    let mut k = BIN_BITS as u8;
    while k <= MAX_EXPONENT {
        assert!(high_bytes(k) > 0 && missing_bits(high_bytes(k)) <= FRACTION_BITS - k as u32);
        k += 1;
    }
};

/// A chunk that starts each coordinate with `4 + HIGH` random bytes.
fn chunk_of<const HIGH: usize>(
    stream: &mut KeyStream,
    k: u8,
    scratch: &mut Scratch,
    noise: &mut [i64; CHUNK],
) {
    const { assert!(HIGH <= 4) };
    let shift = FRACTION_BITS - u32::from(k);
    let Scratch { bytes, unsure } = scratch;
    let (bytes, _) = bytes.split_at_mut(CHUNK * (4 + HIGH));
    stream.bytes(bytes);
    let (low, high) = bytes.split_at(CHUNK * 4);
    let (low, high) = (low.as_chunks().0, high.as_chunks::<HIGH>().0);
    let words = low.iter().zip(high).map(|(low, high)| start_word(*low, *high));
    let count = sure_pass(words, shift, noise, unsure);
    for position in unsure.iter().take(count).map(|position| usize::from(*position)) {
        if let (Some(low), Some(high), Some(noise)) =
            (low.get(position), high.get(position), noise.get_mut(position))
        {
            let word = whole_word::<HIGH>(stream, start_word(*low, *high));
            *noise = one(stream, word, shift);
        }
    }
}

/// A word from fewer than eight random bytes: the index and the sign in their places, the other bits
/// as the first ones of the position; those that are missing are zero until someone needs them.
#[inline(always)]
fn start_word<const HIGH: usize>(low: [u8; 4], high: [u8; HIGH]) -> u64 {
    let head = INDEX_BITS + SIGN_BITS;
    let low = u64::from(u32::from_le_bytes(low));
    let high = high.iter().rev().fold(0, |word, byte| (word << 8) | u64::from(*byte));
    let position = (low >> head) | (high << (u32::BITS - head));
    (low % (1 << head)) | (position << (head + missing_bits(HIGH)))
}

/// The word with the bits of the position that were not drawn yet.
fn whole_word<const HIGH: usize>(stream: &mut KeyStream, word: u64) -> u64 {
    match missing_bits(HIGH) {
        0 => word,
        missing => word | ((stream.word() & ((1 << missing) - 1)) << (INDEX_BITS + SIGN_BITS)),
    }
}

/// Takes every word as if its box lay under the curve, and lists the positions where it does not,
/// without a branch. Returns how many there are.
#[inline(always)]
fn sure_pass(
    words: impl Iterator<Item = u64>,
    shift: u32,
    noise: &mut [i64; CHUNK],
    unsure: &mut [u16; CHUNK],
) -> usize {
    let mut count = 0;
    for (position, (word, noise)) in words.zip(noise.iter_mut()).enumerate() {
        let index = word as usize % BOXES;
        let bin = BIN.get(index).copied().unwrap_or_default();
        // x >> shift, with the bin and the position shifted apart: a double-width shift is slow.
        let position_part = (word >> (INDEX_BITS + SIGN_BITS)) >> shift;
        let magnitude = (u64::from(bin) << (POSITION_BITS - shift)) + position_part;
        *noise = with_sign(magnitude as i64, word);
        if let Some(slot) = unsure.get_mut(count % CHUNK) {
            *slot = position as u16;
        }
        count += usize::from(index >= SURE);
    }
    count
}

/// One sample that begins with this word.
fn one(stream: &mut KeyStream, mut word: u64, shift: u32) -> i64 {
    loop {
        if let Some(x) = propose(stream, word) {
            return with_sign((x >> shift) as i64, word);
        }
        word = stream.word();
    }
}

/// The first [`FRACTION_BITS`] bits of `x` for the box that the word chooses, if it is accepted.
fn propose(stream: &mut KeyStream, word: u64) -> Option<u128> {
    let index = word as usize % BOXES;
    let position = word >> (INDEX_BITS + SIGN_BITS);
    let bin = usize::from(BIN.get(index).copied().unwrap_or_default());
    if index < SURE {
        return Some(u128::from(join(bin as u64, position)));
    }
    if index < BOXES - TAIL_BOXES {
        let before = usize::from(UNSURE_BEFORE.get(bin).copied().unwrap_or_default());
        let sure = usize::from(A.get(bin).copied().unwrap_or_default());
        let level = sure + index - SURE - before;
        let x = u128::from(join(bin as u64, position));
        return decide::accepts(stream, x, Height::Box { level: level as u8 }).then_some(x);
    }
    // The tail: piece m with probability 2^-(m+1), x uniform in [4 + m/4, 4 + (m+1)/4).
    let piece = geometric(|| stream.word());
    let x = tail_position(piece, stream.word());
    decide::accepts(stream, x, Height::Tail { piece }).then_some(x)
}

/// The number of zero bits before the first one: m with probability 2^-(m+1), without end.
fn geometric(mut word: impl FnMut() -> u64) -> u64 {
    let mut zeros = 0;
    loop {
        match word() {
            0 => zeros += u64::from(u64::BITS),
            bits => return zeros + u64::from(bits.trailing_zeros()),
        }
    }
}

/// x in piece m of the tail, from the first bits of a word.
fn tail_position(piece: u64, word: u64) -> u128 {
    let within = word >> (u64::BITS - (FRACTION_BITS - 2));
    (u128::from(16 + piece) << (FRACTION_BITS - 2)) | u128::from(within)
}

const fn join(bin: u64, position: u64) -> u64 {
    (bin << POSITION_BITS) | position
}

/// `floor(2^k Z)` from `floor(2^k |Z|)` and the sign in a word: `-v - 1` for a negative `Z`.
const fn with_sign(magnitude: i64, word: u64) -> i64 {
    let sign = ((word >> INDEX_BITS) & 1) as i64;
    magnitude ^ -sign
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every random bit that a word starts from, and every bit that completes it, has a place of its
    /// own, and together they fill the word.
    #[test]
    fn the_bits_of_a_word_are_used_once_each() {
        fn check<const HIGH: usize>() {
            let mut filled = 0u64;
            for bit in 0..8 * (4 + HIGH) {
                let mut bytes = [0u8; 8];
                bytes[bit / 8] = 1 << (bit % 8);
                let low = std::array::from_fn(|i| bytes[i]);
                let high: [u8; HIGH] = std::array::from_fn(|i| bytes[4 + i]);
                let word = start_word(low, high);
                assert_eq!(word.count_ones(), 1, "bit {bit} of {HIGH}");
                assert_eq!(filled & word, 0, "bit {bit} of {HIGH}");
                filled |= word;
            }
            // The rest comes from fresh words: over many of them every missing bit occurs.
            let key = RoundKey::from_os().unwrap();
            let mut stream = key.streams().unwrap().stream(Purpose::Noise, 0, 0);
            let rest = (0..200).map(|_| whole_word::<HIGH>(&mut stream, 0)).fold(0, |a, b| a | b);
            assert_eq!(filled ^ rest, u64::MAX, "{HIGH}");
        }
        check::<1>();
        check::<2>();
        check::<4>();
    }

    #[test]
    fn the_first_bits_of_a_position_are_those_of_the_output() {
        // Bytes of ones but for index and sign: the largest position that they can start.
        let word = start_word([0, 0x80, 0xff, 0xff], [0xff]);
        assert_eq!(word >> 15 >> missing_bits(1), (1 << 25) - 1);
        assert_eq!(word as usize % BOXES, 0);
    }

    #[test]
    fn a_box_of_every_kind_is_proposed_as_it_should() {
        let key = RoundKey::from_os().unwrap();
        let mut stream = key.streams().unwrap().stream(Purpose::Noise, 0, 0);
        // Each unsure index has a level between A and B of its bin, and all of them occur.
        let mut levels = std::collections::HashSet::new();
        for (index, bin) in BIN.iter().enumerate().take(BOXES - TAIL_BOXES).skip(SURE) {
            let bin = usize::from(*bin);
            let level = usize::from(A[bin]) + index - SURE - usize::from(UNSURE_BEFORE[bin]);
            assert!((A[bin]..tables::B[bin]).contains(&(level as u8)), "{index}");
            assert!(levels.insert((bin, level)));
        }
        for index in 0..SURE {
            assert!(propose(&mut stream, index as u64).is_some());
        }
        // The tail begins at 4.
        let tails = (0..1000).filter_map(|_| propose(&mut stream, (BOXES - 1) as u64));
        assert!(tails.into_iter().all(|x| x >= 4 << FRACTION_BITS));
    }

    #[test]
    fn the_tail_has_no_end_and_all_its_bits() {
        let mut words = [0, 0, 1 << 5].into_iter();
        assert_eq!(geometric(|| words.next().unwrap()), 133);
        assert_eq!(geometric(|| 1), 0);
        assert_eq!(tail_position(0, 0), 4 << FRACTION_BITS);
        assert_eq!(tail_position(3, u64::MAX), (5 << FRACTION_BITS) - 1);
        for bit in 11..64 {
            let low = tail_position(0, 1 << bit) - tail_position(0, 0);
            assert_eq!(low, 1 << (bit - 11));
        }
    }
}
