//! Whether a random height is below the curve: in f64 outside its error bound, else in big integers.

use dashu_int::UBig;

use super::tables::MIDDLE;
use super::word::{BIN_BITS, FRACTION_BITS, POSITION_BITS};
use crate::KeyStream;
use crate::bigexp::exp_minus_half_square;

/// `c = 12887/64`: the only multiple of 1/64 that gives exactly 2^14 boxes.
pub(super) const SCALE: u32 = 12_887;
pub(super) const SCALE_BITS: usize = 6;

/// The range of a random height: `level + V` in a box of height 1, or `V 2^-(3+m)` in piece m of the tail, for V
/// uniform in [0, 1).
///
/// (Piece m has width 1/4 and the area of `T 2^-(m+1)` boxes of width 2^-6, so its height is
/// `4 T 2^-6 2^-(m+1) = 2^-(3+m)` with `T = 4`; that is at least `c f(4 + m/4)`, which a test checks.)
#[derive(Debug, Clone, Copy)]
pub(super) enum Height {
    Box { level: u8 },
    Tail { piece: u64 },
}

/// Draws the height and returns whether it is below `c f(x)`. `x` gives the first bits of x, in units of 2^-55;
/// further bits are drawn as needed.
pub(super) fn accepts(stream: &mut KeyStream, x: u128, height: Height) -> bool {
    let fraction = stream.word();
    decide(stream, x, height, fraction)
}

/// The decision for a height whose first 64 fractional bits are `fraction`.
fn decide(stream: &mut KeyStream, x: u128, height: Height, fraction: u64) -> bool {
    decide_f64(x, height, fraction).unwrap_or_else(|| decide_exact(stream, x, height, fraction))
}

/// The number of bins in the table `MIDDLE`: x below 8.
const MIDDLES: usize = 8 << BIN_BITS;

/// An upper bound on the relative error of `curve`, including the rounding of the height and the unknown bits of
/// `x`. The terms in the proof ([`proof`](crate::proof)) add up to less than 2^-49.
const RELATIVE_ERROR: f64 = 1.0 / (1u64 << 47) as f64;
/// An upper bound on the unknown bits of the height, which are at most 2^-64.
const UNKNOWN_BITS: f64 = 1.0 / (1u64 << 62) as f64;

/// The decision in f64; `None` if the heights are closer than the error bound.
fn decide_f64(x: u128, height: Height, fraction: u64) -> Option<bool> {
    let curve = curve(x)?;
    let fraction = fraction as f64 * power_of_two(-64);
    let (low, high) = match height {
        Height::Box { level } => {
            let height = f64::from(level) + fraction;
            (height, height + UNKNOWN_BITS)
        }
        Height::Tail { piece } => {
            let scale = power_of_two(-3 - piece as i32);
            (fraction * scale, (fraction + UNKNOWN_BITS) * scale)
        }
    };
    if high * (1.0 + RELATIVE_ERROR) <= curve * (1.0 - RELATIVE_ERROR) {
        Some(true)
    } else if low * (1.0 - RELATIVE_ERROR) >= curve * (1.0 + RELATIVE_ERROR) {
        Some(false)
    } else {
        None
    }
}

/// `c f(x)` for x below 8, from its value at the middle of the bin and a Taylor series of degree 9, with
/// additions and multiplications only.
fn curve(x: u128) -> Option<f64> {
    let bin = usize::try_from(x >> POSITION_BITS).ok().filter(|bin| *bin < MIDDLES)?;
    let at_middle = f64::from_bits(*MIDDLE.get(bin)?);
    let position = (x & ((1 << POSITION_BITS) - 1)) as i64;
    // Exact: 49 bits, scaled by a power of two.
    let t = (position - (1 << (POSITION_BITS - 1))) as f64 * power_of_two(-(FRACTION_BITS as i32));
    let middle = (bin as f64 + 0.5) / f64::from(1u32 << BIN_BITS);
    // x = middle + t, so x^2/2 = middle^2/2 + u.
    let u = t * (middle + 0.5 * t);
    // exp(-u), in pairs of terms that the processor can evaluate in parallel.
    let u2 = u * u;
    let u4 = u2 * u2;
    let pair = |low: f64, high: f64| low + high * u;
    let first = pair(1.0, -1.0) + pair(1.0 / 2.0, -1.0 / 6.0) * u2;
    let second = pair(1.0 / 24.0, -1.0 / 120.0) + pair(1.0 / 720.0, -1.0 / 5040.0) * u2;
    let third = pair(1.0 / 40320.0, -1.0 / 362_880.0);
    Some(at_middle * (first + (second + third * u4) * u4))
}

/// The decision in big integers: extends `x` and the height by fresh bits until they decide.
fn decide_exact(stream: &mut KeyStream, x: u128, height: Height, fraction: u64) -> bool {
    let (mut x, mut x_bits) = (UBig::from(x), FRACTION_BITS as usize);
    let (level, shift) = match height {
        Height::Box { level } => (UBig::from(level), 0),
        Height::Tail { piece } => (UBig::ZERO, 3 + piece as usize),
    };
    // The height is in [numerator, numerator + 1] * 2^-(bits + shift).
    let (mut numerator, mut bits) = ((level << 64usize) + UBig::from(fraction), 64);
    loop {
        // Bounds on the curve in units of 2^-(bits + shift); both sides are multiplied by 2^6, so that c is SCALE.
        let curve = exp_minus_half_square(&x, 1, x_bits, bits + shift);
        let low = &numerator << SCALE_BITS;
        let high = (&numerator + UBig::ONE) << SCALE_BITS;
        if high <= curve.low * UBig::from(SCALE) {
            return true;
        }
        if low >= curve.high * UBig::from(SCALE) {
            return false;
        }
        x = (x << 64usize) + UBig::from(stream.word());
        x_bits += 64;
        numerator = (numerator << 64usize) + UBig::from(stream.word());
        bits += 64;
    }
}

/// 2 to a power from -1022 to 1023, built from its bits, so that no library function can round it.
const fn power_of_two(power: i32) -> f64 {
    f64::from_bits(((1023 + power) as u64) << 52)
}

#[cfg(test)]
mod tests {
    use super::super::generate;
    use super::super::tables::{A, B};
    use super::super::word::{BINS, TAIL_BOXES};
    use super::*;
    use crate::{Cipher, Purpose, RoundKey};

    fn stream(block: u64) -> KeyStream {
        let key = RoundKey::from_seed(7, Cipher::ChaCha20);
        key.streams().unwrap().stream(Purpose::Noise, 0, block)
    }

    /// A random case that needs a comparison, in a bin or in the tail.
    fn random_case(stream: &mut KeyStream) -> (u128, Height) {
        if stream.below(8) == 0 {
            let piece = u64::from(stream.word().trailing_zeros());
            let x = (u128::from(16 + piece) << 53) | u128::from(stream.word() >> 11);
            return (x, Height::Tail { piece });
        }
        let bin = stream.below(BINS as u64) as usize;
        let level = u64::from(A[bin]) + stream.below(u64::from(B[bin] - A[bin]));
        let x = (u128::from(bin as u64) << 49) | u128::from(stream.word() >> 15);
        (x, Height::Box { level: level as u8 })
    }

    #[test]
    #[allow(clippy::print_stdout)]
    fn f64_decisions_are_the_big_integer_decisions() {
        let cases = 1_000_000;
        let threads = 2;
        let check = |thread: u64| {
            let (mut random, mut undecided) = (stream(thread), 0);
            for _ in 0..cases / threads {
                let (x, height) = random_case(&mut random);
                let fraction = random.word();
                match decide_f64(x, height, fraction) {
                    Some(decision) => {
                        let expected = decide_exact(&mut random, x, height, fraction);
                        assert_eq!(decision, expected, "{x} {height:?}");
                    }
                    None => undecided += 1,
                }
            }
            undecided
        };
        let undecided: usize = std::thread::scope(|scope| {
            let workers: Vec<_> =
                (0..threads as u64).map(|thread| scope.spawn(move || check(thread))).collect();
            workers.into_iter().map(|worker| worker.join().unwrap()).sum()
        });
        println!("{cases} decisions compared, {undecided} of them left to big integers");
        assert!(undecided < cases / 1000, "f64 left {undecided} of {cases} undecided");
    }

    /// Heights close to the curve, where f64 must be right or leave the decision to big integers.
    #[test]
    fn decisions_next_to_the_curve_are_right_too() {
        let mut random = stream(9);
        let mut undecided = 0;
        for _ in 0..20_000 {
            let bin = random.below(BINS as u64) as usize;
            let x = (u128::from(bin as u64) << 49) | u128::from(random.word() >> 15);
            let curve = exp_minus_half_square(&UBig::from(x), 0, 55, 64).low * UBig::from(SCALE);
            let curve = u128::try_from(curve >> SCALE_BITS).unwrap();
            let (level, fraction) = ((curve >> 64) as u8, curve as u64);
            for distance in
                [0i64, 1, 64, 4096, 1 << 20, 1 << 24, 1 << 28].into_iter().flat_map(|d| [d, -d])
            {
                let fraction = fraction.wrapping_add_signed(distance);
                let height = Height::Box { level };
                match decide_f64(x, height, fraction) {
                    Some(decision) => {
                        assert_eq!(decision, decide_exact(&mut random, x, height, fraction));
                    }
                    None => undecided += 1,
                }
            }
        }
        // Distances up to 2^20 are inside the error bound in most bins, 2^28 in none.
        assert!((20_000 * 6..20_000 * 13).contains(&undecided), "{undecided}");
    }

    /// If x and the height are on the curve to the last known bit, fresh bits decide; both answers occur.
    #[test]
    fn an_exact_tie_is_decided_by_fresh_bits_and_not_drawn_again() {
        let mut random = stream(11);
        let x = UBig::from(100u8) << 49usize;
        let curve = (exp_minus_half_square(&x, 0, 55, 64).low * UBig::from(SCALE)) >> SCALE_BITS;
        let curve = u128::try_from(curve).unwrap();
        let height = Height::Box { level: (curve >> 64) as u8 };
        let x = 100u128 << 49;
        let accepted = (0..2000).filter(|_| decide(&mut random, x, height, curve as u64)).count();
        assert!((1..2000).contains(&accepted), "{accepted}");
    }

    #[test]
    fn the_pieces_of_the_tail_cover_the_curve() {
        assert_eq!(TAIL_BOXES, 4);
        for piece in 0..200usize {
            // c f(4 + m/4) <= 2^-(3+m), at the left end where the curve is highest.
            let x = UBig::from(16 + piece);
            let curve = exp_minus_half_square(&x, 0, 2, 400).high * UBig::from(SCALE);
            assert!(curve <= UBig::ONE << (400 + SCALE_BITS - 3 - piece), "{piece}");
        }
    }

    #[test]
    fn the_checked_in_tables_are_those_that_the_generator_makes() {
        let generated = generate::tables();
        if std::env::var_os("VEILGRAD_WRITE_TABLES").is_some() {
            let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/gaussian/tables.rs");
            std::fs::write(path, &generated).unwrap();
        }
        assert!(
            include_str!("tables.rs") == generated,
            "tables.rs is not what the generator makes"
        );
    }
}
