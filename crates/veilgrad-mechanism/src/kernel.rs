//! The two passes over a record's coordinates: squared norm, then quantise, certify and add.
//!
//! Each has portable and vectorised versions; tests compare them bit for bit. Sums of squares use
//! 32 fixed lanes, so the result depends on the vector alone and not on the machine.

use crate::clip::round_down;
use veilgrad_random::vectorised::vectorised;

/// The number of lanes of every sum, and of coordinates per step. Fewer would wait for each other's additions.
const LANES: usize = 32;
/// Steps after which the 64-bit lanes are added to the total: the sum of 512 squares of integers up to 2^27 is at
/// most 2^63.
const STEPS: usize = 512;

/// The squared norm `sum x_j^2` in f64; not finite exactly when a coordinate is not finite.
///
/// The square of an f32 is exact in f64 and cannot overflow, so only the additions round.
pub fn squared_norm(x: &[f32]) -> f64 {
    #[cfg(target_arch = "x86_64")]
    {
        if let Some(v4) = pulp::x86::V4::try_new() {
            return avx512::squared_norm(v4, x);
        }
        if let Some(v3) = pulp::x86::V3::try_new() {
            return avx2::squared_norm(v3, x);
        }
    }
    portable::squared_norm(x)
}

/// [`squared_norm`] of a vector of zeros and rows, bit for bit. `rows` are their first coordinates, which ascend, and
/// their values; `values` are those of all rows, `width` each.
pub(crate) fn squared_norm_of_rows<'a>(
    width: usize,
    values: &[f32],
    rows: impl Iterator<Item = (usize, &'a [f32])>,
) -> f64 {
    if width.is_multiple_of(LANES) {
        // Without the zeros every coordinate is in the same lane, and the lanes have the same order.
        return squared_norm(values);
    }
    let mut lanes = [0f64; LANES];
    for (first, row) in rows {
        for (place, &x) in (first..).zip(row) {
            if let Some(lane) = lanes.get_mut(place % LANES) {
                *lane += f64::from(x) * f64::from(x);
            }
        }
    }
    portable::total(lanes, &[])
}

/// What quantised integers u are like.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Quantised {
    /// `sum u_j^2`, exactly.
    pub squares: u128,
    /// At least every `u_j^2`. How much more depends on the machine.
    largest_square: u64,
}

impl Quantised {
    /// Of integers that are kept elsewhere.
    pub(crate) const fn elsewhere(squares: u128) -> Self {
        Self { squares, largest_square: 0 }
    }

    /// Of the sums of squares in at most 2^32 lanes.
    #[inline(always)]
    fn of_lanes(lanes: &[u64]) -> Self {
        // The sums of both halves of 64 bits fit 64 bits, which is quicker than 128.
        let (mut high, mut low, mut largest_square) = (0u64, 0u64, 0u64);
        for &lane in lanes {
            high += lane >> 32;
            low += lane & 0xffff_ffff;
            largest_square = largest_square.max(lane);
        }
        Self { squares: (u128::from(high) << 32) + u128::from(low), largest_square }
    }

    /// Of these integers and others.
    #[inline(always)]
    pub(crate) fn and(self, other: Self) -> Self {
        let squares = self.squares + other.squares;
        Self { squares, largest_square: self.largest_square.max(other.largest_square) }
    }

    /// At least every `|u_j|`.
    pub const fn largest(&self) -> u32 {
        self.largest_square.isqrt() as u32
    }
}

/// Quantises a vector: adds `u_j = trunc(clamp(x_j * c, -b, b))` to `sums`, or subtracts it, and returns the exact
/// `sum u_j^2`. `b` is the largest f32 that is at most `s_int`, which is at most 2^27.
///
/// Whatever the product is, `|u_j| <= s_int`: the clamp is a comparison and a comparison does not
/// round (a NaN product, which finite factors cannot have, becomes `b` or `-b`). The caller must keep every sum within the
/// range of `i32`.
pub fn quantise(
    x: &[f32],
    c: f32,
    s_int: u32,
    direction: Direction,
    sums: &mut [i32],
) -> Quantised {
    let bound = round_down(f64::from(s_int));
    #[cfg(target_arch = "x86_64")]
    {
        if let Some(v4) = pulp::x86::V4::try_new() {
            return avx512::quantise(v4, x, c, bound, direction, sums);
        }
        if let Some(v3) = pulp::x86::V3::try_new() {
            return avx2::quantise(v3, x, c, bound, direction, sums);
        }
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

    /// Appends the coordinates to 64-bit sums.
    pub(crate) fn append_to(&self, sums: &mut Vec<i64>) {
        vectorised(
            #[inline(always)]
            || match self {
                Self::Narrow(values) => sums.extend(values.iter().map(|value| i64::from(*value))),
                Self::Wide(values) => sums.extend_from_slice(values),
            },
        )
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
    use super::{Direction, LANES, Quantised, STEPS};

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

    /// Adds the coordinates after the last full step to the lanes, and adds up the lanes: halves, quarters and so on, which
    /// do not wait for each other.
    #[inline(always)]
    pub(super) fn total(mut lanes: [f64; LANES], rest: &[f32]) -> f64 {
        for (lane, &x) in lanes.iter_mut().zip(rest) {
            *lane += f64::from(x) * f64::from(x);
        }
        let mut half = LANES / 2;
        while half > 0 {
            let (left, right) = lanes.split_at_mut(half);
            for (left, right) in left.iter_mut().zip(right) {
                *left += *right;
            }
            half /= 2;
        }
        lanes[0]
    }

    pub(super) fn quantise(
        x: &[f32],
        c: f32,
        bound: f32,
        direction: Direction,
        sums: &mut [i32],
    ) -> Quantised {
        let mut found = Quantised::default();
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
            found = found.and(Quantised::of_lanes(&[lane]));
        }
        found
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use core::arch::x86_64::__m256i;

    use pulp::x86::V3;
    use pulp::{cast, f32x4, f32x8, i32x8, u64x4};

    use super::{Direction, LANES, Quantised, STEPS, portable};
    use veilgrad_random::vectorised::Inlined;

    pub(super) fn squared_norm(v3: V3, x: &[f32]) -> f64 {
        v3.vectorize(Inlined(
            #[inline(always)]
            || {
                let mut lanes = [v3.splat_f64x4(0.0); LANES / 4];
                let (steps, rest) = x.as_chunks::<LANES>();
                for step in steps {
                    let parts: [f32x4; LANES / 4] = cast(*step);
                    for (lane, part) in lanes.iter_mut().zip(parts) {
                        let x = v3.convert_f32x4_to_f64x4(part);
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
        // The minimum of a NaN and `high` is `high`.
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
    ) -> Quantised {
        v3.vectorize(Inlined(
            #[inline(always)]
            || {
                let factor = v3.splat_f32x8(c);
                let bounds = (v3.splat_f32x8(-bound), v3.splat_f32x8(bound));
                let (x_steps, x_rest) = x.as_chunks::<LANES>();
                let (sum_steps, sum_rest) = sums.as_chunks_mut::<LANES>();
                let mut found = portable::quantise(x_rest, c, bound, direction, sum_rest);
                for (x_steps, sum_steps) in x_steps.chunks(STEPS).zip(sum_steps.chunks_mut(STEPS)) {
                    let mut lanes = [[v3.splat_u64x4(0); 2]; LANES / 8];
                    for (x, sum) in x_steps.iter().zip(sum_steps) {
                        let parts: [f32x8; LANES / 8] = cast(*x);
                        let mut sums: [i32x8; LANES / 8] = cast(*sum);
                        for ((x, sum), lanes) in parts.into_iter().zip(&mut sums).zip(&mut lanes) {
                            let u = to_integers(v3, x, factor, bounds);
                            *sum = match direction {
                                Direction::Add => v3.wrapping_add_i32x8(*sum, u),
                                Direction::TakeBack => v3.wrapping_sub_i32x8(*sum, u),
                            };
                            for (lane, square) in lanes.iter_mut().zip(squares(v3, u)) {
                                *lane = v3.wrapping_add_u64x4(*lane, square);
                            }
                        }
                        *sum = cast(sums);
                    }
                    let lanes: [u64; LANES] = cast(lanes);
                    found = found.and(Quantised::of_lanes(&lanes));
                }
                found
            },
        ))
    }
}

/// As for AVX2, with vectors twice as long.
#[cfg(target_arch = "x86_64")]
mod avx512 {
    use core::arch::x86_64::__m512i;

    use pulp::x86::V4;
    use pulp::{cast, f32x8, f32x16, f64x8, i32x16, u64x8};

    use super::{Direction, LANES, Quantised, STEPS, portable};
    use veilgrad_random::vectorised::Inlined;

    pub(super) fn squared_norm(v4: V4, x: &[f32]) -> f64 {
        v4.vectorize(Inlined(
            #[inline(always)]
            || {
                let mut lanes = [v4.splat_f64x8(0.0); LANES / 8];
                let (steps, rest) = x.as_chunks::<LANES>();
                for step in steps {
                    let parts: [f32x8; LANES / 8] = cast(*step);
                    for (lane, part) in lanes.iter_mut().zip(parts) {
                        let x: f64x8 = cast(v4.avx512f._mm512_cvtps_pd(cast(part)));
                        *lane = v4.mul_add_f64x8(x, x, *lane);
                    }
                }
                portable::total(cast(lanes), rest)
            },
        ))
    }

    #[inline(always)]
    fn to_integers(v4: V4, x: f32x16, factor: f32x16, bound: f32x16) -> i32x16 {
        // The smaller absolute value, with the sign of the first.
        const CLAMP: i32 = 0b0010;
        let product = cast(v4.mul_f32x16(x, factor));
        let clamped = v4.avx512dq._mm512_range_ps::<CLAMP>(product, cast(bound));
        cast(v4.avx512f._mm512_cvttps_epi32(clamped))
    }

    #[inline(always)]
    fn squares(v4: V4, u: i32x16) -> [u64x8; 2] {
        let even: __m512i = cast(u);
        let odd = v4.avx512f._mm512_srli_epi64::<32>(even);
        let even = v4.avx512f._mm512_mul_epi32(even, even);
        let odd = v4.avx512f._mm512_mul_epi32(odd, odd);
        [cast(even), cast(odd)]
    }

    pub(super) fn quantise(
        v4: V4,
        x: &[f32],
        c: f32,
        bound: f32,
        direction: Direction,
        sums: &mut [i32],
    ) -> Quantised {
        v4.vectorize(Inlined(
            #[inline(always)]
            || {
                let factor = v4.splat_f32x16(c);
                let largest = v4.splat_f32x16(bound);
                let (x_steps, x_rest) = x.as_chunks::<LANES>();
                let (sum_steps, sum_rest) = sums.as_chunks_mut::<LANES>();
                let mut found = portable::quantise(x_rest, c, bound, direction, sum_rest);
                for (x_steps, sum_steps) in x_steps.chunks(STEPS).zip(sum_steps.chunks_mut(STEPS)) {
                    let mut lanes = [[v4.splat_u64x8(0); 2]; LANES / 16];
                    for (x, sum) in x_steps.iter().zip(sum_steps) {
                        let parts: [f32x16; LANES / 16] = cast(*x);
                        let mut sums: [i32x16; LANES / 16] = cast(*sum);
                        for ((x, sum), lanes) in parts.into_iter().zip(&mut sums).zip(&mut lanes) {
                            let u = to_integers(v4, x, factor, largest);
                            *sum = match direction {
                                Direction::Add => v4.wrapping_add_i32x16(*sum, u),
                                Direction::TakeBack => v4.wrapping_sub_i32x16(*sum, u),
                            };
                            for (lane, square) in lanes.iter_mut().zip(squares(v4, u)) {
                                *lane = v4.wrapping_add_u64x8(*lane, square);
                            }
                        }
                        *sum = cast(sums);
                    }
                    let lanes: [u64; LANES] = cast(lanes);
                    found = found.and(Quantised::of_lanes(&lanes));
                }
                found
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
        fn all_squared_norms_give_the_same_bits(x in prop::collection::vec(any::<f32>(), 0..200)) {
            let (a, b) = (squared_norm(&x), portable::squared_norm(&x));
            prop_assert!(a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan()), "{a} {b}");
            prop_assert_eq!(a.is_finite(), x.iter().all(|x| x.is_finite()));
            #[cfg(target_arch = "x86_64")]
            if let Some(v3) = pulp::x86::V3::try_new() {
                let c = avx2::squared_norm(v3, &x);
                prop_assert!(c.to_bits() == b.to_bits() || (c.is_nan() && b.is_nan()), "{c} {b}");
            }
        }

        #[test]
        fn all_quantisers_and_a_scalar_reference_agree(
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

    type Quantise = fn(&[f32], f32, f32, Direction, &mut [i32]) -> Quantised;

    /// All that this machine has.
    fn quantisers() -> Vec<Quantise> {
        let mut all: Vec<Quantise> =
            vec![portable::quantise, |x, c, b, way, sums| quantise(x, c, b as u32, way, sums)];
        #[cfg(target_arch = "x86_64")]
        {
            use pulp::x86::{V3, V4};
            if V3::try_new().is_some() {
                all.push(|x, c, b, way, sums| {
                    avx2::quantise(V3::try_new().unwrap(), x, c, b, way, sums)
                });
            }
            if V4::try_new().is_some() {
                all.push(|x, c, b, way, sums| {
                    avx512::quantise(V4::try_new().unwrap(), x, c, b, way, sums)
                });
            }
        }
        all
    }

    /// Adds with every kernel, compares the results, and subtracts again.
    fn compare_kernels(x: &[f32], c: f32, s_int: u32) -> u128 {
        let bound = round_down(f64::from(s_int));
        let has_nan = x.iter().any(|x| (x * c).is_nan());
        let mut expected = vec![7; x.len()];
        let all = portable::quantise(x, c, bound, Direction::Add, &mut expected).squares;
        for quantise in quantisers() {
            let mut sums = vec![7; x.len()];
            let found = quantise(x, c, bound, Direction::Add, &mut sums);
            let added = || sums.iter().map(|sum| u64::from((sum - 7).unsigned_abs()));
            assert!(has_nan || sums == expected);
            assert!(added().all(|u| u <= u64::from(s_int) && u <= u64::from(found.largest())));
            assert_eq!(found.squares, added().map(|u| u128::from(u * u)).sum());
            assert_eq!(found.squares, all);
            assert_eq!(quantise(x, c, bound, Direction::TakeBack, &mut sums), found);
            assert!(sums.iter().all(|&sum| sum == 7));
        }
        all
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
