//! The two passes over a record's coordinates: squared norm, then quantise, certify and add.
//!
//! Each has a portable and an AVX2 version; tests compare them bit for bit. Sums of squares use
//! sixteen fixed lanes, so the result depends on the vector alone and not on the machine.

use crate::clip::round_down;
use crate::vectorised::vectorised;

/// The number of lanes of every sum, and of coordinates per step.
const LANES: usize = 16;
/// Steps after which the 64-bit lanes are added to the total: the sum of 512 squares of integers up to 2^27 is at
/// most 2^63.
const STEPS: usize = 512;

/// The squared norm `sum x_j^2` in f64; not finite exactly when a coordinate is not finite.
///
/// The square of an f32 is exact in f64 and cannot overflow, so only the additions round.
pub fn squared_norm(x: &[f32]) -> f64 {
    #[cfg(target_arch = "x86_64")]
    if let Some(v3) = pulp::x86::V3::try_new() {
        return avx2::squared_norm(v3, x);
    }
    portable::squared_norm(x)
}

/// Quantises a vector: adds `u_j = trunc(clamp(x_j * c, -b, b))` to `sums`, or subtracts it, and returns the exact
/// `sum u_j^2`. `b` is the largest f32 that is at most `s_int`, which is at most 2^27.
///
/// Whatever the product is, `|u_j| <= s_int`: the clamp is a comparison and a comparison does not
/// round (a NaN product becomes `b`). The caller must keep every sum within the
/// range of `i32`.
pub fn quantise(x: &[f32], c: f32, s_int: u32, direction: Direction, sums: &mut [i32]) -> u128 {
    let bound = round_down(f64::from(s_int));
    #[cfg(target_arch = "x86_64")]
    if let Some(v3) = pulp::x86::V3::try_new() {
        return avx2::quantise(v3, x, c, bound, direction, sums);
    }
    portable::quantise(x, c, bound, direction, sums)
}

/// Whether quantised integers are added or subtracted again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// Add.
    Add,
    /// Subtract what was added before.
    TakeBack,
}

/// Consecutive coordinates of an integer sum, in 32 or 64 bits.
#[derive(Debug, Clone, Copy)]
pub enum Part<'a> {
    /// In 32 bits.
    Narrow(&'a [i32]),
    /// In 64 bits.
    Wide(&'a [i64]),
}

impl Part<'_> {
    /// The number of coordinates.
    pub(crate) const fn len(&self) -> usize {
        match self {
            Self::Narrow(values) => values.len(),
            Self::Wide(values) => values.len(),
        }
    }

    /// Whether all absolute values are at most `bound`.
    pub(crate) fn is_within(&self, bound: u64) -> bool {
        // A quick check first: the OR of all values, without an early exit, so that the loop is vectorised.
        match self {
            Self::Narrow(values) => {
                let bits = vectorised(
                    #[inline(always)]
                    || values.iter().fold(0, |most, value| most | value.unsigned_abs()),
                );
                u64::from(bits) <= bound
                    || values.iter().all(|value| u64::from(value.unsigned_abs()) <= bound)
            }
            Self::Wide(values) => {
                let bits = vectorised(
                    #[inline(always)]
                    || values.iter().fold(0, |most, value| most | value.unsigned_abs()),
                );
                bits <= bound || values.iter().all(|value| value.unsigned_abs() <= bound)
            }
        }
    }

    /// Adds the coordinates to 64-bit sums, modulo 2^64.
    pub(crate) fn add_to(&self, sums: &mut [i64]) {
        vectorised(
            #[inline(always)]
            || match self {
                Self::Narrow(values) => {
                    for (sum, value) in sums.iter_mut().zip(*values) {
                        *sum = sum.wrapping_add(i64::from(*value));
                    }
                }
                Self::Wide(values) => {
                    for (sum, value) in sums.iter_mut().zip(*values) {
                        *sum = sum.wrapping_add(*value);
                    }
                }
            },
        );
    }
}

/// Adds the 32-bit sums to the 64-bit sums, modulo 2^64, and clears them.
pub fn flush(narrow: &mut [i32], wide: &mut [i64]) {
    vectorised(
        #[inline(always)]
        || {
            for (narrow, wide) in narrow.iter_mut().zip(wide.iter_mut()) {
                *wide = wide.wrapping_add(i64::from(*narrow));
                *narrow = 0;
            }
        },
    );
}

mod portable {
    use super::{Direction, LANES, STEPS};

    pub(super) fn squared_norm(x: &[f32]) -> f64 {
        let mut lanes = [0f64; LANES];
        let (steps, rest) = x.as_chunks::<LANES>();
        for step in steps {
            for (lane, &x) in lanes.iter_mut().zip(step) {
                *lane += f64::from(x) * f64::from(x);
            }
        }
        total(lanes, rest)
    }

    /// Adds up the lanes and the coordinates after the last full step.
    pub(super) fn total(lanes: [f64; LANES], rest: &[f32]) -> f64 {
        lanes.iter().sum::<f64>() + rest.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>()
    }

    pub(super) fn quantise(
        x: &[f32],
        c: f32,
        bound: f32,
        direction: Direction,
        sums: &mut [i32],
    ) -> u128 {
        let mut total = 0u128;
        for (x, sums) in x.chunks(STEPS).zip(sums.chunks_mut(STEPS)) {
            let mut lane = 0u64;
            for (&x, sum) in x.iter().zip(sums) {
                let u = (x * c).min(bound).max(-bound) as i32;
                *sum = match direction {
                    Direction::Add => sum.wrapping_add(u),
                    Direction::TakeBack => sum.wrapping_sub(u),
                };
                lane += u64::from(u.unsigned_abs()) * u64::from(u.unsigned_abs());
            }
            total += u128::from(lane);
        }
        total
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use core::arch::x86_64::__m256i;

    use pulp::x86::V3;
    use pulp::{cast, f32x4, f32x8, i32x8, u64x4};

    use super::{Direction, LANES, STEPS, portable};
    use crate::vectorised::Inlined;

    pub(super) fn squared_norm(v3: V3, x: &[f32]) -> f64 {
        v3.vectorize(Inlined(
            #[inline(always)]
            || {
                let mut lanes = [v3.splat_f64x4(0.0); 4];
                let (steps, rest) = x.as_chunks::<LANES>();
                for step in steps {
                    let quarters: [f32x4; 4] = cast(*step);
                    for (lane, quarter) in lanes.iter_mut().zip(quarters) {
                        let x = v3.convert_f32x4_to_f64x4(quarter);
                        // The product is exact, so fusing it with the addition changes nothing.
                        *lane = v3.mul_add_f64x4(x, x, *lane);
                    }
                }
                portable::total(cast(lanes), rest)
            },
        ))
    }

    #[inline(always)]
    fn to_integers(v3: V3, x: f32x8, factor: f32x8, (low, high): (f32x8, f32x8)) -> i32x8 {
        // The minimum of a NaN and `high` is `high`, as in the portable version.
        let product = v3.avx._mm256_min_ps(cast(v3.mul_f32x8(x, factor)), cast(high));
        let clamped: f32x8 = cast(v3.avx._mm256_max_ps(product, cast(low)));
        v3.convert_f32x8_to_i32x8(clamped)
    }

    /// Squares of the even and of the odd coordinates, as 64-bit integers.
    #[inline(always)]
    fn squares(v3: V3, u: i32x8) -> [u64x4; 2] {
        let even: __m256i = cast(u);
        let odd = v3.avx2._mm256_srli_epi64::<32>(even);
        let even = v3.avx2._mm256_mul_epi32(even, even);
        let odd = v3.avx2._mm256_mul_epi32(odd, odd);
        [cast(even), cast(odd)]
    }

    pub(super) fn quantise(
        v3: V3,
        x: &[f32],
        c: f32,
        bound: f32,
        direction: Direction,
        sums: &mut [i32],
    ) -> u128 {
        v3.vectorize(Inlined(
            #[inline(always)]
            || {
                let factor = v3.splat_f32x8(c);
                let bounds = (v3.splat_f32x8(-bound), v3.splat_f32x8(bound));
                let accumulate = |sum: i32x8, u: i32x8| match direction {
                    Direction::Add => v3.wrapping_add_i32x8(sum, u),
                    Direction::TakeBack => v3.wrapping_sub_i32x8(sum, u),
                };
                let (x_steps, x_rest) = x.as_chunks::<LANES>();
                let (sum_steps, sum_rest) = sums.as_chunks_mut::<LANES>();
                let mut total = portable::quantise(x_rest, c, bound, direction, sum_rest);
                for (x_steps, sum_steps) in x_steps.chunks(STEPS).zip(sum_steps.chunks_mut(STEPS)) {
                    let mut lanes = [v3.splat_u64x4(0); 4];
                    for (x, sum) in x_steps.iter().zip(sum_steps) {
                        let [x_0, x_1]: [f32x8; 2] = cast(*x);
                        let [sum_0, sum_1]: [i32x8; 2] = cast(*sum);
                        let [u_0, u_1] = [
                            to_integers(v3, x_0, factor, bounds),
                            to_integers(v3, x_1, factor, bounds),
                        ];
                        *sum = cast([accumulate(sum_0, u_0), accumulate(sum_1, u_1)]);
                        let [square_0, square_1] = squares(v3, u_0);
                        let [square_2, square_3] = squares(v3, u_1);
                        let step = [square_0, square_1, square_2, square_3];
                        for (lane, square) in lanes.iter_mut().zip(step) {
                            *lane = v3.wrapping_add_u64x4(*lane, square);
                        }
                    }
                    let lanes: [u64; LANES] = cast(lanes);
                    total += lanes.iter().map(|&lane| u128::from(lane)).sum::<u128>();
                }
                total
            },
        ))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_finite() -> impl Strategy<Value = f32> {
        prop_oneof![any::<f32>().prop_filter("finite", |x| x.is_finite()), -1f32..1.0, Just(0.0)]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(3_000))]

        #[test]
        fn both_squared_norms_give_the_same_bits(x in prop::collection::vec(any::<f32>(), 0..200)) {
            let (a, b) = (squared_norm(&x), portable::squared_norm(&x));
            prop_assert!(a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan()), "{a} {b}");
            prop_assert_eq!(a.is_finite(), x.iter().all(|x| x.is_finite()));
        }

        #[test]
        fn both_quantisers_and_a_scalar_reference_agree(
            x in prop::collection::vec(any_finite(), 0..100),
            s_int in 1u32..=(1 << 27),
        ) {
            let largest = x.iter().fold(1e-30f32, |m, x| m.max(x.abs()));
            let c = (s_int as f32 / largest).min(f32::MAX);
            let squares = compare_kernels(&x, c, s_int);
            let mut expected = 0i128;
            for x in &x {
                let bound = i128::from(round_down(f64::from(s_int)) as i32);
                let u = ((x * c).trunc() as i128).clamp(-bound, bound);
                expected += u * u;
            }
            prop_assert_eq!(squares, expected as u128);
        }

        #[test]
        fn any_product_is_bounded_and_taken_back_exactly(
            x in prop::collection::vec(any::<f32>(), 0..100), c: f32, s_int in 1u32..=(1 << 27),
        ) {
            let squares = compare_kernels(&x, c, s_int);
            prop_assert!(squares <= x.len() as u128 * u128::from(s_int).pow(2));
        }
    }

    /// Adds with both kernels, compares the results, and subtracts again with both.
    fn compare_kernels(x: &[f32], c: f32, s_int: u32) -> u128 {
        let (mut fast, mut slow) = (vec![7; x.len()], vec![7; x.len()]);
        let bound = round_down(f64::from(s_int));
        let squares = quantise(x, c, s_int, Direction::Add, &mut fast);
        assert_eq!(squares, portable::quantise(x, c, bound, Direction::Add, &mut slow));
        assert_eq!(fast, slow);
        assert!(fast.iter().all(|sum| (sum - 7).unsigned_abs() <= s_int));
        assert_eq!(squares, quantise(x, c, s_int, Direction::TakeBack, &mut fast));
        portable::quantise(x, c, bound, Direction::TakeBack, &mut slow);
        assert!(fast.iter().chain(&slow).all(|&sum| sum == 7));
        squares
    }

    #[test]
    fn the_largest_integers_do_not_overflow_the_lanes() {
        let d = LANES * STEPS * 2 + 5;
        for x in [-1.0, 3e38, f32::INFINITY, f32::NAN] {
            let squares = compare_kernels(&vec![x; d], 2f32.powi(27), 1 << 27);
            assert_eq!(squares, d as u128 * (1u128 << 54));
        }
    }

    #[test]
    fn lanes_do_not_overflow_on_either_side_of_any_block_boundary() {
        let square = u128::from(veilgrad_events::IntegerGrid::MAX_SENSITIVITY).pow(2);
        assert!(STEPS as u128 * square <= u128::from(u64::MAX), "a lane could wrap");
        for steps in [1, STEPS, LANES * STEPS, 2 * LANES * STEPS] {
            for d in [steps - 1, steps, steps + 1] {
                let squares = compare_kernels(&vec![-1.0; d], 2f32.powi(27), 1 << 27);
                assert_eq!(squares, d as u128 * square);
            }
        }
    }
}
