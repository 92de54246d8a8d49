//! Which bin a box belongs to. All of it is computed when the crate is compiled, where an index out of
//! bounds is a compile error.
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

/// Boxes under the curve; they come first.
pub(super) const SURE: usize = total(&A);

/// The bin of every box: first those under the curve, then those that need a comparison, bin by bin.
pub(super) static BIN: [u8; BOXES] = bins();

/// For each bin, the number of boxes that need a comparison in the bins before it.
pub(super) static UNSURE_BEFORE: [u16; BINS] = unsure_before();

const fn bins() -> [u8; BOXES] {
    let mut table = [0; BOXES];
    let (mut sure, mut unsure, mut bin) = (0, SURE, 0);
    while bin < BINS {
        let mut level = 0;
        while level < B[bin] {
            if level < A[bin] {
                table[sure] = bin as u8;
                sure += 1;
            } else {
                table[unsure] = bin as u8;
                unsure += 1;
            }
            level += 1;
        }
        bin += 1;
    }
    table
}

const fn unsure_before() -> [u16; BINS] {
    let mut table = [0; BINS];
    let (mut before, mut bin) = (0, 0);
    while bin < BINS {
        table[bin] = before;
        before += (B[bin] - A[bin]) as u16;
        bin += 1;
    }
    table
}
