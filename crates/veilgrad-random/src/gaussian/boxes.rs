//! Lookup tables from boxes to bins, computed at compile time, where an index out of bounds is a compile error.
#![allow(clippy::indexing_slicing)]

use super::tables::{A, B};
use super::word::{BINS, BOXES, TAIL_BOXES};

const _: () = assert!(total(&B) + TAIL_BOXES == BOXES);

const fn total(counts: &[u8; BINS]) -> usize {
    let (mut sum, mut bin) = (0, 0);
    while bin < BINS {
        sum += counts[bin] as usize;
        bin += 1;
    }
    sum
}

/// The number of boxes under the curve; they come first.
pub(super) const UNDER_CURVE: usize = total(&A);

/// The bin of every box: first the boxes under the curve, then those that cross it, each bin by bin.
pub(super) static BIN_OF_BOX: [u8; BOXES] = bin_of_box();

/// For each bin, the number of boxes that cross the curve in the bins before it.
pub(super) static CROSSING_BEFORE: [u16; BINS] = crossing_before();

const fn bin_of_box() -> [u8; BOXES] {
    let mut table = [0; BOXES];
    let (mut under, mut crossing, mut bin) = (0, UNDER_CURVE, 0);
    while bin < BINS {
        let mut level = 0;
        while level < B[bin] {
            if level < A[bin] {
                table[under] = bin as u8;
                under += 1;
            } else {
                table[crossing] = bin as u8;
                crossing += 1;
            }
            level += 1;
        }
        bin += 1;
    }
    table
}

const fn crossing_before() -> [u16; BINS] {
    let mut table = [0; BINS];
    let (mut before, mut bin) = (0, 0);
    while bin < BINS {
        table[bin] = before;
        before += (B[bin] - A[bin]) as u16;
        bin += 1;
    }
    table
}
