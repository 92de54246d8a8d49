//! Exact Gaussian noise: `floor(2^k Z)` for a standard normal `Z`.
//!
//! Rejection sampling from boxes of equal area that cover `c f(x)`, `f(x) = exp(-x^2/2)`. The interval `[0, 4)`
//! is divided into 256 bins. Bin j holds `B_j = ceil(c f(left))` boxes of height 1, of which the lowest
//! `A_j = floor(c f(right))` lie entirely under the curve. With four more boxes for the tail there are
//! exactly 2^14 boxes, so 14 random bits choose one. A box under the curve is accepted at once; for the
//! others a random height is compared with `c f(x)`.
//!
//! # Guarantee
//! Given ideal random words the result has exactly the distribution of `floor(2^k Z)`, modulo 2^64, with
//! its infinite support. A comparison that is within the proven error of f64 is decided in big integers, with
//! fresh bits of `x` and the height. The sample is never redrawn instead, which would bias it.
//!
//! # Example
//! ```
//! use veilgrad_events::IntegerGrid;
//! use veilgrad_random::{RoundKey, gaussian};
//!
//! let grid = IntegerGrid::new(1 << 20, 27)?; // noise of standard deviation 2^27
//! let mut noise = Vec::new();
//! gaussian::fill(&RoundKey::from_os()?, 0, grid, &mut noise, 1000, 1)?;
//! assert_eq!(noise.len(), 1000);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod boxes;
mod decide;
#[cfg(test)]
mod generate;
#[rustfmt::skip]
mod tables;
mod word;

use veilgrad_events::IntegerGrid;
use zeroize::Zeroize;

use crate::vectorised::vectorised;
use crate::{KeyStream, Purpose, RandomError, RoundKey, Streams};
use boxes::{BIN_OF_BOX, CROSSING_BEFORE, UNDER_CURVE};
use decide::Height;
use tables::A;
use word::*;

/// Coordinates per block; each block has its own stream.
pub const BLOCK: usize = 4096;
/// Coordinates that are processed at once, so that their scratch memory stays in the L1 cache.
const CHUNK: usize = 512;

/// Adds Gaussian noise to `sums`, modulo 2^64: `floor(2^k Z_j)` to element j.
///
/// The noise is a function of the key, the group and the index of the element: it does not depend on the
/// number of threads.
///
/// # Guarantee
/// As for the module. The same key and group give the same noise again, so use a key for one round only.
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
        for_each_chunk(streams, group, grid.k(), first, sums.len(), |noise| {
            for (sum, noise) in sums.iter_mut().zip(noise) {
                *sum = sum.wrapping_add(*noise);
            }
            sums = std::mem::take(&mut sums).get_mut(noise.len()..).unwrap_or_default();
        });
    });
}

/// Replaces the contents of `values` by the Gaussian noise of `count` coordinates: the noise that [`add`] would add.
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
        // Faster than adding to zeros.
        values.reserve_exact(count);
        for_each_chunk(streams, group, grid.k(), 0, count, |noise| values.extend_from_slice(noise));
    } else {
        values.resize(count, 0);
        add_from(streams, group, grid, values, threads);
    }
    Ok(())
}

/// Draws the noise of `count` coordinates from the start of `first_block` on, and passes it to `consume` in chunks.
fn for_each_chunk(
    streams: Streams<'_>,
    group: u16,
    k: u8,
    first_block: usize,
    count: usize,
    mut consume: impl FnMut(&[i64]),
) {
    let (mut scratch, mut noise) = (Scratch::new(), [0; CHUNK]);
    for (block, first) in (first_block..).zip((0..count).step_by(BLOCK)) {
        let mut stream = streams.stream(Purpose::Noise, group, block as u64);
        for first in (first..count.min(first + BLOCK)).step_by(CHUNK) {
            draw_chunk(&mut stream, k, &mut scratch, &mut noise);
            consume(noise.get(..count - first).unwrap_or(&noise));
        }
    }
    noise.zeroize();
}

/// How many threads are worth starting: at least 8 blocks for each.
fn threads_for(count: usize, threads: usize) -> usize {
    threads.min(count.div_ceil(BLOCK) / 8).max(1)
}

/// Splits `values` over threads in whole blocks; `work` gets the number of its first block and its values.
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

/// Scratch memory for one chunk: its random bytes, the bins of its boxes, and the positions whose box crosses the curve.
struct Scratch {
    bytes: [u8; CHUNK * 8],
    bins: [u8; CHUNK],
    crossing: [u16; CHUNK],
}

impl Scratch {
    const fn new() -> Self {
        Self { bytes: [0; CHUNK * 8], bins: [0; CHUNK], crossing: [0; CHUNK] }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        self.bytes.zeroize();
        self.bins.zeroize();
        self.crossing.zeroize();
    }
}

/// Draws the next chunk of noise from a stream: some bytes for each coordinate, then words as needed.
fn draw_chunk(stream: &mut KeyStream, k: u8, scratch: &mut Scratch, noise: &mut [i64; CHUNK]) {
    match high_bytes(k) {
        0 => {
            // An output unit is wider than a bin: no fast path.
            for noise in noise {
                let word = stream.word();
                *noise = draw_one(stream, word, FRACTION_BITS - u32::from(k));
            }
        }
        1 => draw_chunk_from::<1>(stream, k, scratch, noise),
        2 => draw_chunk_from::<2>(stream, k, scratch, noise),
        _ => draw_chunk_from::<4>(stream, k, scratch, noise),
    }
}

/// How many random bytes beyond four each coordinate starts with: the fewest that hold all bits of the output. 0
/// where an output unit is wider than a bin, which has no fast path.
const fn high_bytes(k: u8) -> usize {
    match k {
        0..6 => 0,
        6..=31 => 1,
        32..=39 => 2,
        _ => 4,
    }
}

/// The number of bits of a word that `4 + high` bytes do not fill.
const fn missing_bits(high: usize) -> u32 {
    u64::BITS - 8 * (4 + high as u32)
}

// The missing bits are below the lowest bit of the output, for every exponent.
const _: () = {
    let mut k = BIN_BITS as u8;
    while k <= MAX_EXPONENT {
        assert!(high_bytes(k) > 0 && missing_bits(high_bytes(k)) <= FRACTION_BITS - k as u32);
        k += 1;
    }
};

/// Draws a chunk that starts each coordinate with `4 + HIGH` random bytes.
fn draw_chunk_from<const HIGH: usize>(
    stream: &mut KeyStream,
    k: u8,
    scratch: &mut Scratch,
    noise: &mut [i64; CHUNK],
) {
    const { assert!(HIGH <= 4) };
    let shift = FRACTION_BITS - u32::from(k);
    let Scratch { bytes, bins, crossing } = scratch;
    let (bytes, _) = bytes.split_at_mut(CHUNK * (4 + HIGH));
    stream.fill(bytes);
    let (low, high) = bytes.split_at(CHUNK * 4);
    let (low, high) = (low.as_chunks().0, high.as_chunks::<HIGH>().0);
    let count = choose_bins(low, bins, crossing);
    vectorised(
        #[inline(always)]
        || {
            let words = low.iter().zip(high).map(|(low, high)| start_word(*low, *high));
            for ((noise, bin), word) in noise.iter_mut().zip(bins.iter()).zip(words) {
                // x >> shift, shifting bin and position separately: a double-width shift is slow.
                let position = (word >> (INDEX_BITS + SIGN_BITS)) >> shift;
                let magnitude = (u64::from(*bin) << (POSITION_BITS - shift)) + position;
                *noise = with_sign(magnitude as i64, word);
            }
        },
    );
    for position in crossing.iter().take(count).map(|position| usize::from(*position)) {
        if let (Some(low), Some(high), Some(noise)) =
            (low.get(position), high.get(position), noise.get_mut(position))
        {
            let word = complete_word::<HIGH>(stream, start_word(*low, *high));
            *noise = draw_one(stream, word, shift);
        }
    }
}

/// A word from `4 + HIGH` random bytes: the box index, the sign, and the leading bits of the position. The missing
/// bits are zero; [`complete_word`] draws them if they are needed.
#[inline(always)]
fn start_word<const HIGH: usize>(low: [u8; 4], high: [u8; HIGH]) -> u64 {
    let head = INDEX_BITS + SIGN_BITS;
    let low = u64::from(u32::from_le_bytes(low));
    let high = high.iter().rev().fold(0, |word, byte| (word << 8) | u64::from(*byte));
    let position = (low >> head) | (high << (u32::BITS - head));
    (low % (1 << head)) | (position << (head + missing_bits(HIGH)))
}

/// Draws the missing bits of the position.
fn complete_word<const HIGH: usize>(stream: &mut KeyStream, word: u64) -> u64 {
    match missing_bits(HIGH) {
        0 => word,
        missing => word | ((stream.word() & ((1 << missing) - 1)) << (INDEX_BITS + SIGN_BITS)),
    }
}

/// Looks up the bin of every box, and lists the positions whose box crosses the curve, without a branch. Returns the
/// number of those positions.
fn choose_bins(low: &[[u8; 4]], bins: &mut [u8; CHUNK], crossing: &mut [u16; CHUNK]) -> usize {
    let mut count = 0;
    for (position, (low, bin)) in low.iter().zip(bins).enumerate() {
        let index = u32::from_le_bytes(*low) as usize % BOXES;
        *bin = BIN_OF_BOX.get(index).copied().unwrap_or_default();
        if let Some(slot) = crossing.get_mut(count % CHUNK) {
            *slot = position as u16;
        }
        count += usize::from(index >= UNDER_CURVE);
    }
    count
}

/// Draws one sample, starting with this word.
fn draw_one(stream: &mut KeyStream, mut word: u64, shift: u32) -> i64 {
    loop {
        if let Some(x) = propose(stream, word) {
            return with_sign((x >> shift) as i64, word);
        }
        word = stream.word();
    }
}

/// `x` in units of 2^-[`FRACTION_BITS`], from the box that the word chooses; `None` if it is rejected.
fn propose(stream: &mut KeyStream, word: u64) -> Option<u128> {
    let index = word as usize % BOXES;
    let position = word >> (INDEX_BITS + SIGN_BITS);
    let bin = usize::from(BIN_OF_BOX.get(index).copied().unwrap_or_default());
    if index < UNDER_CURVE {
        return Some(u128::from(join(bin as u64, position)));
    }
    if index < BOXES - TAIL_BOXES {
        let before = usize::from(CROSSING_BEFORE.get(bin).copied().unwrap_or_default());
        let under = usize::from(A.get(bin).copied().unwrap_or_default());
        let level = under + index - UNDER_CURVE - before;
        let x = u128::from(join(bin as u64, position));
        return decide::accepts(stream, x, Height::Box { level: level as u8 }).then_some(x);
    }
    // The tail: piece m with probability 2^-(m+1), x uniform in [4 + m/4, 4 + (m+1)/4).
    let piece = geometric(|| stream.word());
    let x = tail_position(piece, stream.word());
    decide::accepts(stream, x, Height::Tail { piece }).then_some(x)
}

/// A geometric variable: m with probability 2^-(m+1), the number of zero bits before the first one bit.
fn geometric(mut word: impl FnMut() -> u64) -> u64 {
    let mut zeros = 0;
    loop {
        match word() {
            0 => zeros += u64::from(u64::BITS),
            bits => return zeros + u64::from(bits.trailing_zeros()),
        }
    }
}

/// x in a piece of the tail, from the high bits of a word.
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

    /// The tests of laws rely on two threads for 2^16 coordinates and more.
    #[test]
    fn few_blocks_are_not_worth_a_thread() {
        assert_eq!(
            [15 << 12, (15 << 12) + 1, 1 << 16].map(|count| threads_for(count, 2)),
            [1, 2, 2]
        );
        assert_eq!([0, 1 << 16].map(|count| threads_for(count, 0)), [1, 1]);
    }

    /// The bits of `start_word` and of `complete_word` do not overlap, and together fill the word.
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
            // Over 200 draws every missing bit is set at least once.
            let key = RoundKey::from_os().unwrap();
            let mut stream = key.streams().unwrap().stream(Purpose::Noise, 0, 0);
            let rest =
                (0..200).map(|_| complete_word::<HIGH>(&mut stream, 0)).fold(0, |a, b| a | b);
            assert_eq!(filled ^ rest, u64::MAX, "{HIGH}");
        }
        check::<1>();
        check::<2>();
        check::<4>();
    }

    #[test]
    fn the_first_bits_of_a_position_are_those_of_the_output() {
        // All ones except index and sign: the largest position.
        let word = start_word([0, 0x80, 0xff, 0xff], [0xff]);
        assert_eq!(word >> 15 >> missing_bits(1), (1 << 25) - 1);
        assert_eq!(word as usize % BOXES, 0);
    }

    #[test]
    fn every_box_has_its_bin_and_level_and_the_tail_begins_at_4() {
        let key = RoundKey::from_os().unwrap();
        let mut stream = key.streams().unwrap().stream(Purpose::Noise, 0, 0);
        // Each box that crosses the curve has its own level, between A and B of its bin.
        let mut levels = std::collections::HashSet::new();
        for (index, bin) in BIN_OF_BOX.iter().enumerate().take(BOXES - TAIL_BOXES).skip(UNDER_CURVE)
        {
            let bin = usize::from(*bin);
            let before = usize::from(CROSSING_BEFORE[bin]);
            let level = usize::from(A[bin]) + index - UNDER_CURVE - before;
            assert!((A[bin]..tables::B[bin]).contains(&(level as u8)), "{index}");
            assert!(levels.insert((bin, level)));
        }
        for index in 0..UNDER_CURVE {
            assert!(propose(&mut stream, index as u64).is_some());
        }
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
