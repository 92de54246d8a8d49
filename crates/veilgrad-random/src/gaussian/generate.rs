//! Generates `tables.rs` with 448-bit arithmetic. To regenerate it:
//! `VEILGRAD_WRITE_TABLES=1 cargo test -p veilgrad-random tables`.

use std::fmt::Write;

use dashu_int::UBig;
use dashu_int::ops::BitTest;

use super::decide::{SCALE, SCALE_BITS};
use super::word::{BINS, BOXES, TAIL_BOXES};
use crate::bigexp::exp_minus_half_square;

const BITS: usize = 448;

pub(super) fn tables() -> String {
    // Bounds on c f(numerator / 2^x_bits).
    let curve = |numerator: usize, x_bits: usize| {
        let bounds = exp_minus_half_square(&UBig::from(numerator), 0, x_bits, BITS);
        (bounds.low * UBig::from(SCALE), bounds.high * UBig::from(SCALE))
    };
    let unit = BITS + SCALE_BITS;
    let floor = |bin: usize| {
        let (low, high) = curve(bin, 6);
        let floor = low >> unit;
        assert_eq!(
            floor,
            high >> unit,
            "{BITS} bits do not determine the integer part in bin {bin}"
        );
        u8::try_from(floor).unwrap()
    };
    let ceil = |bin: usize| {
        let (low, high) = curve(bin, 6);
        let ceil = ((low - UBig::ONE) >> unit) + UBig::ONE;
        assert_eq!(ceil, ((high - UBig::ONE) >> unit) + UBig::ONE, "bin {bin}");
        u8::try_from(ceil).unwrap()
    };
    let below: Vec<u8> = (0..BINS).map(|bin| floor(bin + 1)).collect();
    let above: Vec<u8> = (0..BINS).map(ceil).collect();
    assert_eq!(above.iter().map(|&b| usize::from(b)).sum::<usize>() + TAIL_BOXES, BOXES);
    let middle: Vec<u64> = (0..2 * BINS)
        .map(|bin| {
            let (low, high) = curve(2 * bin + 1, 7);
            assert_eq!(nearest(&low, unit), nearest(&high, unit), "bin {bin}");
            nearest(&low, unit)
        })
        .collect();

    let mut text = String::from("//! Made by `generate.rs`; do not edit.\n");
    let mut table = |name: &str, doc: &str, kind: &str, values: Vec<String>, per_line: usize| {
        let count = values.len();
        write!(text, "\n/// {doc}\npub(super) const {name}: [{kind}; {count}] = [\n").unwrap();
        for line in values.chunks(per_line) {
            writeln!(text, "    {},", line.join(", ")).unwrap();
        }
        text.push_str("];\n");
    };
    let decimal = |values: &[u8]| values.iter().map(u8::to_string).collect();
    table(
        "A",
        "`floor(c f((j+1)/64))`: boxes of bin j that lie under the curve.",
        "u8",
        decimal(&below),
        20,
    );
    table("B", "`ceil(c f(j/64))`: all boxes of bin j.", "u8", decimal(&above), 20);
    let hexadecimal = middle.iter().map(|bits| format!("0x{bits:016x}")).collect();
    table("MIDDLE", "`c f((j+1/2)/64)`, the nearest f64, as bits.", "u64", hexadecimal, 4);
    text
}

/// The bits of the f64 nearest to `value * 2^-unit`, for normal numbers.
fn nearest(value: &UBig, unit: usize) -> u64 {
    let excess = value.bit_len() - 53;
    // Half a unit in the last place, rounded up at a tie, which does not occur.
    let mantissa = u64::try_from(((value >> (excess - 1)) + UBig::ONE) >> 1usize).unwrap();
    let exponent = excess as i64 - unit as i64;
    (mantissa as f64 * 2f64.powi(exponent as i32)).to_bits()
}
