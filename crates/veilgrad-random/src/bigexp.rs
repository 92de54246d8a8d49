//! Lower and upper bounds on `exp(-x^2/2)`, in big integers with directed rounding.

use dashu_int::UBig;
use dashu_int::ops::BitTest;

/// A lower and an upper bound on a real number, in units of 2^-bits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Bounds {
    pub(crate) low: UBig,
    pub(crate) high: UBig,
}

/// Bounds on `exp(-x^2/2)` for every `x` in `[x, x + width] * 2^-x_bits`, in units of 2^-bits.
///
/// # Guarantee
/// `low <= exp(-x^2/2) 2^bits <= high` for all those `x`. For `width` 0 they differ by a few units.
pub(crate) fn exp_minus_half_square(x: &UBig, width: u32, x_bits: usize, bits: usize) -> Bounds {
    let end = x + UBig::from(width);
    Bounds { low: exp_bounds(&end, x_bits, bits).low, high: exp_bounds(x, x_bits, bits).high }
}

fn exp_bounds(x: &UBig, x_bits: usize, bits: usize) -> Bounds {
    // x^2/2 = square * 2^-(2 x_bits + 1). Halve it r times until it is below 1/16, and square the
    // result r times. Each squaring at most doubles the relative error, so r guard bits are needed.
    let square = x * x;
    let square_bits = 2 * x_bits + 1;
    let halvings = (square.bit_len() + 4).saturating_sub(square_bits);
    let guarded_bits = bits + halvings + 32;
    let reduced_bits = square_bits + halvings;
    let reduced = Bounds {
        low: rescale_down(&square, reduced_bits, guarded_bits),
        high: rescale_down(&square, reduced_bits, guarded_bits) + UBig::ONE,
    };
    let mut power = exp_minus_small(&reduced, guarded_bits);
    for _ in 0..halvings {
        power = Bounds {
            low: (&power.low * &power.low) >> guarded_bits,
            high: ((&power.high * &power.high) >> guarded_bits) + UBig::ONE,
        };
    }
    let guard = guarded_bits - bits;
    Bounds { low: power.low >> guard, high: (power.high >> guard) + UBig::ONE }
}

/// `floor(value * 2^(to - from))`.
fn rescale_down(value: &UBig, from: usize, to: usize) -> UBig {
    if to >= from { value << (to - from) } else { value >> (from - to) }
}

/// Bounds on `exp(-t)` for `t` between bounds below about 1/16, by the alternating Taylor series: the remainder
/// after any term is smaller than the next term.
fn exp_minus_small(t: &Bounds, bits: usize) -> Bounds {
    let one = UBig::ONE << bits;
    let mut term = Bounds { low: one.clone(), high: one.clone() };
    let mut even = Bounds { low: one.clone(), high: one };
    let mut odd = Bounds { low: UBig::ZERO, high: UBig::ZERO };
    for index in 1u32.. {
        let divisor = UBig::from(index);
        term = Bounds {
            low: ((&term.low * &t.low) >> bits) / &divisor,
            high: (((&term.high * &t.high) >> bits) + UBig::ONE) / &divisor + UBig::ONE,
        };
        let sum = if index % 2 == 0 { &mut even } else { &mut odd };
        sum.low += &term.low;
        sum.high += &term.high;
        // Once a term is at most 4 units, so is the remainder.
        if term.high <= UBig::from(4u8) {
            break;
        }
    }
    let remainder = UBig::from(4u8);
    let subtrahend = &odd.high + &remainder;
    let low = if even.low > subtrahend { even.low - subtrahend } else { UBig::ZERO };
    Bounds { low, high: even.high + remainder - odd.low }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn to_f64(value: &UBig, bits: usize) -> f64 {
        let excess = value.bit_len().saturating_sub(64);
        let top: u64 = (value >> excess).try_into().unwrap();
        top as f64 * (excess as f64 - bits as f64).exp2()
    }

    #[test]
    fn bounds_are_tight_and_contain_the_value() {
        for x in [0u64, 1, 3, 64, 100, 255, 256, 300, 400, 511, 640, 1000] {
            let bounds = exp_minus_half_square(&UBig::from(x), 0, 6, 300);
            assert!(bounds.low <= bounds.high);
            assert!(&bounds.high - &bounds.low <= UBig::from(4u8), "{x}");
            let x = x as f64 / 64.0;
            let expected = (-x * x / 2.0).exp();
            assert!((to_f64(&bounds.low, 300) / expected - 1.0).abs() < 1e-14, "{x}");
        }
    }

    /// exp(-1/2) to 60 decimals.
    #[test]
    fn the_first_sixty_decimals_of_a_known_value_are_right() {
        let decimals = "606530659712633423603799534991180453441918135487186955682892";
        let expected: UBig = decimals.parse().unwrap();
        let bounds = exp_minus_half_square(&UBig::ONE, 0, 0, 260);
        let ten = UBig::from(10u8).pow(60);
        let digits = |value: &UBig| (value * &ten) >> 260usize;
        assert_eq!(digits(&bounds.low), expected);
        assert_eq!(digits(&bounds.high), expected);
    }

    proptest! {
        /// Checks division and shifts of the big-integer crate by multiplication: a wrong division was once
        /// reported for it.
        #[test]
        fn the_big_integer_operations_used_here_are_right(
            words in prop::collection::vec(any::<u64>(), 1..12), divisor in 1u32..200, shift in 0usize..300,
        ) {
            let value = words.iter().fold(UBig::ZERO, |value, word| (value << 64usize) + UBig::from(*word));
            let quotient = &value / UBig::from(divisor);
            let rest = &value - &quotient * UBig::from(divisor);
            prop_assert!(rest < UBig::from(divisor));
            prop_assert_eq!((&value << shift) >> shift, value.clone());
            let floor = &value >> shift;
            let unit = UBig::ONE << shift;
            prop_assert!(&floor * &unit <= value && value < (&floor + UBig::ONE) * &unit);
            let square = words.iter().fold(UBig::ZERO, |sum, word| (sum << 64usize) + &value * UBig::from(*word));
            prop_assert_eq!(square, &value * &value);
        }

        #[test]
        fn finer_bounds_lie_inside_coarser_ones(x in 0u64..(10 << 40), bits in 40usize..200) {
            let x = UBig::from(x);
            let coarse = exp_minus_half_square(&x, 0, 40, bits);
            let fine = exp_minus_half_square(&x, 0, 40, bits + 100);
            prop_assert!(coarse.low.clone() << 100usize <= fine.low);
            prop_assert!(fine.high <= coarse.high.clone() << 100usize);
            let wide = exp_minus_half_square(&x, 1, 40, bits);
            prop_assert!(wide.low <= coarse.low && wide.high == coarse.high);
        }
    }
}
