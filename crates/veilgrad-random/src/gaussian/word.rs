//! The bit fields of a random word, and the numbers of bins and boxes.

use veilgrad_events::IntegerGrid;

/// The largest exponent `k`.
pub(super) const MAX_EXPONENT: u8 = IntegerGrid::MAX_EXPONENT;

/// Bits of a word that choose a box.
pub(super) const INDEX_BITS: u32 = 14;
/// One bit of a word is the sign.
pub(super) const SIGN_BITS: u32 = 1;
/// The other bits of a word are the position within the bin.
pub(super) const POSITION_BITS: u32 = 49;
/// A bin is 2^-6 wide, so that x has 55 fractional bits.
pub(super) const BIN_BITS: u32 = 6;
pub(super) const FRACTION_BITS: u32 = BIN_BITS + POSITION_BITS;
pub(super) const BINS: usize = 4 << BIN_BITS;
/// Boxes of the tail, beyond x = 4.
pub(super) const TAIL_BOXES: usize = 4;
pub(super) const BOXES: usize = 1 << INDEX_BITS;

// Overlapping fields would correlate the index with the lowest bits of x, which no statistical test
// could detect.
const _: () = assert!(INDEX_BITS + SIGN_BITS + POSITION_BITS == u64::BITS);
// The output is a shift of x to the right.
const _: () = assert!((MAX_EXPONENT as u32) < FRACTION_BITS);
