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

use crate::{KeyStream, Purpose, RoundKey};
use boxes::{BIN, SURE, UNSURE_BEFORE};
use decide::Height;
use tables::A;

/// Coordinates per block: each block has a stream of its own.
pub const BLOCK: usize = 4096;
/// Coordinates that are worked on at once, so that all they need stays in the nearest cache.
const CHUNK: usize = 512;
/// The largest exponent `k`.
pub const MAX_EXPONENT: u8 = 50;

/// Bits of a word that choose a box.
const INDEX_BITS: u32 = 14;
/// One bit of a word is the sign.
const SIGN_BITS: u32 = 1;
/// The other bits of a word: the position within the bin.
const POSITION_BITS: u32 = 49;
/// A bin is 2^-6 wide, so that x has 55 fractional bits.
const BIN_BITS: u32 = 6;
const FRACTION_BITS: u32 = BIN_BITS + POSITION_BITS;
const BINS: usize = 4 << BIN_BITS;
/// Boxes of the tail, beyond x = 4.
const TAIL_BOXES: usize = 4;
const BOXES: usize = 1 << INDEX_BITS;

// Overlapping fields would correlate the index with the lowest bits of x, which no statistical test
// could see.
const _: () = assert!(INDEX_BITS + SIGN_BITS + POSITION_BITS == u64::BITS);
// The output is a shift of x to the right.
const _: () = assert!((MAX_EXPONENT as u32) < FRACTION_BITS);

/// Adds noise to `sums`, modulo 2^64: `floor(2^k Z_j)` to element j.
///
/// The noise is a function of the key, the group and the element's number: it is the same for any
/// number of threads.
///
/// # Guarantee
/// As for the module. `k` above [`MAX_EXPONENT`] is taken as that.
pub fn add(key: &RoundKey, group: u16, k: u8, sums: &mut [i64], threads: usize) {
    in_blocks(key, group, k, sums, threads, |sums, noise| {
        for (sum, noise) in sums.iter_mut().zip(noise) {
            *sum = sum.wrapping_add(*noise);
        }
    });
}

/// Writes noise into `values`: the same that [`add`] would add.
pub fn fill(key: &RoundKey, group: u16, k: u8, values: &mut [i64], threads: usize) {
    in_blocks(key, group, k, values, threads, |values, noise| {
        for (value, noise) in values.iter_mut().zip(noise) {
            *value = *noise;
        }
    });
}

fn in_blocks(
    key: &RoundKey,
    group: u16,
    k: u8,
    values: &mut [i64],
    threads: usize,
    put: impl Fn(&mut [i64], &[i64]) + Sync,
) {
    let work = |first: usize, values: &mut [i64]| {
        let (mut scratch, mut noise) = (Scratch::new(), [0; CHUNK]);
        for (index, values) in values.chunks_mut(BLOCK).enumerate() {
            let mut stream = key.stream(Purpose::Noise, group, (first + index) as u64);
            for values in values.chunks_mut(CHUNK) {
                chunk(&mut stream, k, &mut scratch, &mut noise);
                put(values, &noise);
            }
        }
    };
    let blocks = values.len().div_ceil(BLOCK);
    // A thread is worth starting for some blocks.
    let threads = threads.min(blocks / 8).max(1);
    if threads == 1 {
        return work(0, values);
    }
    let share = blocks.div_ceil(threads);
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

/// The next chunk of noise from a stream: some bytes for each coordinate, then words as needed.
fn chunk(stream: &mut KeyStream, k: u8, scratch: &mut Scratch, noise: &mut [i64; CHUNK]) {
    let k = k.min(MAX_EXPONENT);
    match k {
        0..SMALLEST => {
            // Less than a bin per unit: nothing to gain from the bits of the position.
            for noise in noise {
                let word = stream.word();
                *noise = one(stream, word, FRACTION_BITS - u32::from(k));
            }
        }
        // 40, 48 or 64 random bits for each coordinate, as few as decide most of them.
        SMALLEST..=31 => chunk_of::<1>(stream, k, scratch, noise),
        32..=39 => chunk_of::<2>(stream, k, scratch, noise),
        _ => chunk_of::<4>(stream, k, scratch, noise),
    }
}

/// The smallest exponent for which a bin is not less than a unit.
const SMALLEST: u8 = BIN_BITS as u8;

/// A chunk that starts each coordinate with `4 + HIGH` random bytes.
fn chunk_of<const HIGH: usize>(
    stream: &mut KeyStream,
    k: u8,
    scratch: &mut Scratch,
    noise: &mut [i64; CHUNK],
) {
    const { assert!(HIGH <= 4) };
    let missing = u64::BITS - 8 * (4 + HIGH as u32);
    let shift = FRACTION_BITS - u32::from(k);
    debug_assert!(missing <= shift, "bits of the output would be missing");
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
            // The bits of the position that were not drawn yet.
            let rest = stream.word() & ((1 << missing) - 1);
            let word = start_word(*low, *high) | (rest << (INDEX_BITS + SIGN_BITS));
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
    let missing = u64::BITS - 8 * (4 + HIGH as u32);
    (low % (1 << head)) | (position << (head + missing))
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
    let mut piece = 0u64;
    let mut bits = stream.word();
    while bits == 0 {
        piece += u64::from(u64::BITS);
        bits = stream.word();
    }
    piece += u64::from(bits.trailing_zeros());
    let within = stream.word() >> (u64::BITS - (FRACTION_BITS - 2));
    let x = (u128::from(16 + piece) << (FRACTION_BITS - 2)) | u128::from(within);
    decide::accepts(stream, x, Height::Tail { piece }).then_some(x)
}

const fn join(bin: u64, position: u64) -> u64 {
    (bin << POSITION_BITS) | position
}

/// `floor(2^k Z)` from `floor(2^k |Z|)` and the sign in a word: `-v - 1` for a negative `Z`.
const fn with_sign(magnitude: i64, word: u64) -> i64 {
    let sign = ((word >> INDEX_BITS) & 1) as i64;
    magnitude ^ -sign
}
