//! Exact sums of outer products of small integers.
//!
//! A linear layer's gradient for one record is the outer product of its input and its output gradient.
//! The two factors are rounded to integers of 13 and 14 bits, and the sum over records is computed
//! without ever writing out one record's matrix.

use veilgrad_mechanism::exact::{self, Part};
use zeroize::Zeroize;

use crate::gemm::{LINE, unaligned};
use veilgrad_mechanism::exact::vectorised;

/// Rows and columns of a block.
const BLOCK: usize = 16;

/// The largest absolute values of the factors. Sixteen records fit 32 bits: `16 * 8191 * 16383 < 2^31`.
pub(crate) const LEFT_MAX: f32 = 8191.0;
pub(crate) const RIGHT_MAX: f32 = 16383.0;

/// How many records are collected before their factors are multiplied: as many as have COLLECTED left coordinates, which
/// fit the L2 cache, within these limits. The sum does not depend on it.
const DEPTHS: std::ops::RangeInclusive<usize> = 32..=256;
const COLLECTED: usize = 256 << 10;
/// Pairs of records whose summed products always fit 32 bits.
const SAFE_PAIRS: usize = 8;

/// One coordinate of the factors of two records, side by side for `madd`.
type Pair = [i16; 2];

/// The sum over records of outer products: in a 32-bit accumulator, emptied into a 64-bit one before it can overflow.
///
/// # Guarantee
/// `narrow` never wraps: `bound` is an upper bound on the absolute values in it, and it is emptied
/// before the bound could exceed 2^31 - 1. The result is exactly the sum of the products pushed.
pub(crate) struct OuterSum {
    inputs: usize,
    outputs: usize,
    /// How many pairs of records there is room for.
    pairs: usize,
    /// Left and right factors in blocks of sixteen coordinates, each with all pairs; they begin at a cache line boundary.
    left: Vec<Pair>,
    right: Vec<Pair>,
    /// The factors of a record that has no partner yet.
    single: [Vec<i16>; 2],
    /// How many records are collected.
    waiting: usize,
    /// The pairs that hold factors, also of records that were multiplied since the last restart.
    used: usize,
    /// An upper bound on the absolute sum of their products: the sum of `max|left| max|right|`.
    products: u64,
    narrow: Vec<i32>,
    bound: u64,
    /// The 64-bit accumulator; its contents are arbitrary unless `wide_in_use`.
    wide: Vec<i64>,
    wide_in_use: bool,
}

const LARGEST: u64 = i32::MAX as u64;

impl OuterSum {
    pub(crate) fn new(inputs: usize, outputs: usize) -> Self {
        let pairs = (COLLECTED / inputs.max(1)).clamp(*DEPTHS.start(), *DEPTHS.end()) / 2;
        Self {
            inputs,
            outputs,
            pairs,
            left: vec![[0; 2]; inputs.next_multiple_of(BLOCK) * pairs + LINE],
            right: vec![[0; 2]; outputs.next_multiple_of(BLOCK) * pairs + LINE],
            single: [vec![0; inputs], vec![0; outputs]],
            waiting: 0,
            used: 0,
            products: 0,
            narrow: vec![0; inputs * outputs],
            bound: 0,
            wide: Vec::new(),
            wide_in_use: false,
        }
    }

    /// Adds the outer product of two integer vectors, with `|left_i| <= 8191` and `|right_j| <= 16383`.
    /// [`sum`](Self::sum) has it after [`finish`](Self::finish).
    pub(crate) fn push(&mut self, left: &[i16], right: &[i16]) {
        if self.waiting == 2 * self.pairs {
            self.multiply();
        }
        self.products += u64::from(largest(left)) * u64::from(largest(right));
        if self.waiting.is_multiple_of(2) {
            let [single_left, single_right] = &mut self.single;
            single_left.copy_from_slice(left);
            single_right.copy_from_slice(right);
        } else {
            self.pair(left, right);
        }
        self.waiting += 1;
    }

    /// Pairs the record without a partner with this one.
    fn pair(&mut self, left: &[i16], right: &[i16]) {
        let pair = (self.waiting / 2, self.pairs);
        self.used = self.used.max(pair.0 + 1);
        let (first_left, first_right) = (unaligned(&self.left), unaligned(&self.right));
        let [single_left, single_right] = &self.single;
        vectorised(
            #[inline(always)]
            || {
                interleave(&mut self.left[first_left..], pair, single_left, left);
                interleave(&mut self.right[first_right..], pair, single_right, right);
            },
        );
    }

    pub(crate) fn finish(&mut self) {
        self.multiply();
        if self.wide_in_use && self.bound > 0 {
            self.flush();
        }
    }

    /// The sum since the last [`restart`](Self::restart), after [`finish`](Self::finish).
    pub(crate) fn sum(&self) -> Part<'_> {
        match self.wide_in_use {
            true => Part::Wide(&self.wide),
            false => Part::Narrow(&self.narrow),
        }
    }

    /// Begins a new sum, and wipes the old one.
    pub(crate) fn restart(&mut self) {
        if self.bound > 0 {
            self.narrow.fill(0);
        }
        self.wide.zeroize();
        (self.bound, self.wide_in_use) = (0, false);
        (self.waiting, self.products) = (0, 0);
        for pairs in [&mut self.left, &mut self.right] {
            let first = unaligned(pairs);
            for block in pairs[first..].chunks_mut(BLOCK * self.pairs) {
                let used = block.len().min(BLOCK * self.used);
                block[..used].fill([0; 2]);
            }
        }
        self.used = 0;
        self.single.iter_mut().for_each(|factor| factor.fill(0));
    }

    fn multiply(&mut self) {
        if self.waiting == 0 {
            return;
        }
        if self.waiting % 2 == 1 {
            self.pair(&vec![0; self.inputs], &vec![0; self.outputs]);
        }
        let pairs = self.waiting.div_ceil(2);
        let step = if self.products <= LARGEST { pairs } else { SAFE_PAIRS };
        for first in (0..pairs).step_by(step) {
            let products = self.products.min(LARGEST);
            if self.bound + products > LARGEST {
                self.flush();
            }
            self.bound += products;
            let products = Products {
                inputs: self.inputs,
                outputs: self.outputs,
                room: self.pairs,
                pairs: first..(first + step).min(pairs),
                left: &self.left[unaligned(&self.left)..],
                right: &self.right[unaligned(&self.right)..],
                sums: &mut self.narrow,
            };
            products.add();
        }
        (self.waiting, self.products) = (0, 0);
    }

    fn flush(&mut self) {
        if self.wide_in_use {
            exact::flush(&mut self.narrow, &mut self.wide);
        } else {
            self.wide.clear();
            self.wide.extend(self.narrow.iter().map(|narrow| i64::from(*narrow)));
            self.narrow.fill(0);
        }
        (self.bound, self.wide_in_use) = (0, true);
    }
}

/// Wipes sums without noise, and factors of records.
impl Drop for OuterSum {
    fn drop(&mut self) {
        self.left.zeroize();
        self.right.zeroize();
        self.single.iter_mut().for_each(Zeroize::zeroize);
        self.narrow.zeroize();
        self.wide.zeroize();
    }
}

/// Interleaves the factors of two records, as one pair of so many.
#[inline(always)]
fn interleave(pairs: &mut [Pair], (pair, of): (usize, usize), a: &[i16], b: &[i16]) {
    let blocks = pairs.as_chunks_mut::<BLOCK>().0.chunks_exact_mut(of);
    for ((block, a), b) in blocks.zip(a.chunks(BLOCK)).zip(b.chunks(BLOCK)) {
        let to = &mut block[pair];
        match (a.first_chunk::<BLOCK>(), b.first_chunk::<BLOCK>()) {
            (Some(a), Some(b)) => *to = std::array::from_fn(|i| [a[i], b[i]]),
            _ => to.iter_mut().zip(a.iter().zip(b)).for_each(|(to, (a, b))| *to = [*a, *b]),
        }
    }
}

/// The largest absolute value.
fn largest(factor: &[i16]) -> u16 {
    vectorised(
        #[inline(always)]
        || factor.iter().fold(0, |most, value| most.max(value.unsigned_abs())),
    )
}

/// A block of factors of some pairs, and the sums of the products of two such blocks.
type Factors<'a> = &'a [[Pair; BLOCK]];
type Sums = [[i32; BLOCK]; BLOCK];

/// Computes `sums[i][j] = sum of a_i b_j` over both records of all pairs.
trait Kernel: Copy {
    fn sum(self, a: Factors<'_>, b: Factors<'_>, sums: &mut Sums);
}

#[derive(Clone, Copy)]
struct Portable;

impl Kernel for Portable {
    fn sum(self, a: Factors<'_>, b: Factors<'_>, sums: &mut Sums) {
        *sums = [[0; BLOCK]; BLOCK];
        for (a, b) in a.iter().zip(b) {
            for (sums, a) in sums.iter_mut().zip(a) {
                for (sum, b) in sums.iter_mut().zip(b) {
                    let [a_0, a_1] = a.map(i32::from);
                    let [b_0, b_1] = b.map(i32::from);
                    *sum = sum.wrapping_add(a_0 * b_0 + a_1 * b_1);
                }
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
impl Kernel for pulp::x86::V3 {
    #[inline(always)]
    fn sum(self, a: Factors<'_>, b: Factors<'_>, sums: &mut Sums) {
        use core::arch::x86_64::__m256i;
        use pulp::cast;
        /// The rows that fill the registers.
        const ROWS: usize = 4;
        let a = &a[..b.len()];
        for (part, sums) in sums.as_chunks_mut::<ROWS>().0.iter_mut().enumerate() {
            let mut lanes: [[__m256i; 2]; ROWS] = [cast([0i32; BLOCK]); ROWS];
            for (a, b) in a.iter().zip(b) {
                let b: [__m256i; 2] = cast(*b);
                let a = &a.as_chunks::<ROWS>().0[part];
                for (lanes, a) in lanes.iter_mut().zip(a) {
                    let a: __m256i = cast(self.splat_i32x8(cast(*a)));
                    for (lanes, b) in lanes.iter_mut().zip(b) {
                        let products = self.avx2._mm256_madd_epi16(a, b);
                        *lanes = self.avx2._mm256_add_epi32(*lanes, products);
                    }
                }
            }
            for (sums, lanes) in sums.iter_mut().zip(lanes) {
                *sums = cast(lanes);
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
impl Kernel for pulp::x86::V4 {
    #[inline(always)]
    fn sum(self, a: Factors<'_>, b: Factors<'_>, sums: &mut Sums) {
        use core::arch::x86_64::__m512i;
        use pulp::cast;
        let mut lanes: [__m512i; BLOCK] = [cast([0i32; BLOCK]); BLOCK];
        for (a, b) in a.iter().zip(b) {
            let b: __m512i = cast(*b);
            for (lanes, a) in lanes.iter_mut().zip(a) {
                let a: __m512i = cast(self.splat_i32x16(cast(*a)));
                let products = self.avx512bw._mm512_madd_epi16(a, b);
                *lanes = self.avx512f._mm512_add_epi32(*lanes, products);
            }
        }
        for (sums, lanes) in sums.iter_mut().zip(lanes) {
            *sums = cast(lanes);
        }
    }
}

#[cfg(target_arch = "x86_64")]
pulp::simd_type! {
    /// AVX-512 with VNNI: the compiler joins the multiplication and the addition of the kernel above into one instruction
    /// (`vpdpwssd`), which wraps as they do.
    struct Vnni {
        f: "avx512f",
        bw: "avx512bw",
        dq: "avx512dq",
        vl: "avx512vl",
        vnni: "avx512vnni",
    }
}

/// The products of some pairs, and the sums that they are added to.
struct Products<'a> {
    inputs: usize,
    outputs: usize,
    /// The pairs that a block has room for.
    room: usize,
    pairs: std::ops::Range<usize>,
    left: &'a [Pair],
    right: &'a [Pair],
    sums: &'a mut [i32],
}

impl Products<'_> {
    fn add(self) {
        #[cfg(target_arch = "x86_64")]
        {
            if let Some(v4) = pulp::x86::V4::try_new() {
                if let Some(vnni) = Vnni::try_new() {
                    return vnni.vectorize(
                        #[inline(always)]
                        || self.add_with(v4),
                    );
                }
                return v4.vectorize(
                    #[inline(always)]
                    || self.add_with(v4),
                );
            }
            if let Some(v3) = pulp::x86::V3::try_new() {
                return v3.vectorize(
                    #[inline(always)]
                    || self.add_with(v3),
                );
            }
        }
        self.add_with(Portable);
    }

    #[inline(always)]
    fn add_with(self, kernel: impl Kernel) {
        let Self { inputs, outputs, room, pairs, left, right, sums } = self;
        // Row by row: the sums do not fit the L1 or L2 cache.
        let blocks = left.as_chunks::<BLOCK>().0.chunks_exact(room);
        for (a, row) in blocks.zip((0..inputs).step_by(BLOCK)) {
            let height = BLOCK.min(inputs - row);
            let panels = right.as_chunks::<BLOCK>().0.chunks_exact(room);
            for (b, column) in panels.zip((0..outputs).step_by(BLOCK)) {
                let mut block = [[0; BLOCK]; BLOCK];
                kernel.sum(&a[pairs.clone()], &b[pairs.clone()], &mut block);
                if outputs < BLOCK {
                    add_narrow(&mut sums[row * outputs..][..height * outputs], outputs, &block);
                    continue;
                }
                let width = BLOCK.min(outputs - column);
                for (block, row) in block.iter().zip(row..row + height) {
                    let to = &mut sums[row * outputs + column..][..width];
                    match to.first_chunk_mut::<BLOCK>() {
                        Some(to) => add(to, block),
                        None => add(to, block),
                    }
                }
            }
        }
    }
}

#[inline(always)]
fn add(to: &mut [i32], values: &[i32]) {
    for (to, value) in to.iter_mut().zip(values) {
        *to = to.wrapping_add(*value);
    }
}

/// Adds a block of which only the first columns are used to rows of so many columns.
#[inline(always)]
fn add_narrow(to: &mut [i32], columns: usize, block: &Sums) {
    // Rows one behind the other: each overwrites the unused columns of the row before.
    let mut joined = [0; BLOCK * BLOCK];
    for (row, block) in block.iter().enumerate() {
        joined[row * columns..][..BLOCK].copy_from_slice(block);
    }
    add(to, &joined);
}

/// Rounds `x * factor` to the nearest integers in `[-bound, bound]`, with `bound` below 2^15. Returns the
/// exact sum of their squares.
pub(crate) fn round(x: &[f32], factor: f32, bound: f32, integers: &mut [i16]) -> u64 {
    vectorised(
        #[inline(always)]
        || {
            let mut squares = 0;
            for (x, integers) in x.chunks(1024).zip(integers.chunks_mut(1024)) {
                for (x, integer) in x.iter().zip(&mut *integers) {
                    *integer = nearest(*x * factor, bound);
                }
                squares += integers
                    .iter()
                    .map(|i| i64::from(i32::from(*i) * i32::from(*i)) as u64)
                    .sum::<u64>();
            }
            squares
        },
    )
}

/// The nearest integer, ties to even, after clamping; 0 for NaN.
#[inline(always)]
fn nearest(value: f32, bound: f32) -> i16 {
    // Adding 1.5 * 2^23 leaves the rounded integer in the low bits of the mantissa.
    const SHIFT: f32 = 12_582_912.0;
    let low = if value >= -bound { value } else { -bound };
    let clamped = if low <= bound { low } else { bound };
    let clamped = if value.is_nan() { 0.0 } else { clamped };
    ((clamped + SHIFT).to_bits() as i32).wrapping_sub(SHIFT.to_bits() as i32) as i16
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::test::SplitMix64;

    fn check(inputs: usize, outputs: usize, records: usize, mut factor: impl FnMut(bool) -> i16) {
        let mut sum = OuterSum::new(inputs, outputs);
        let mut expected = vec![0; inputs * outputs];
        // An earlier sum, which must leave nothing behind.
        sum.push(&vec![7; inputs], &vec![8; outputs]);
        sum.finish();
        assert_eq!(values(&sum), vec![56; inputs * outputs]);
        sum.restart();
        for _ in 0..records {
            let left: Vec<i16> = (0..inputs).map(|_| factor(true)).collect();
            let right: Vec<i16> = (0..outputs).map(|_| factor(false)).collect();
            sum.push(&left, &right);
            for (i, a) in left.iter().enumerate() {
                for (j, b) in right.iter().enumerate() {
                    expected[i * outputs + j] += i64::from(*a) * i64::from(*b);
                }
            }
        }
        sum.finish();
        // A second call changes nothing.
        sum.finish();
        assert_eq!(values(&sum), expected);
        sum.restart();
        assert!(values(&sum).iter().all(|value| *value == 0));
    }

    fn values(sum: &OuterSum) -> Vec<i64> {
        match sum.sum() {
            Part::Narrow(values) => values.iter().map(|value| i64::from(*value)).collect(),
            Part::Wide(values) => values.to_vec(),
        }
    }

    proptest! {
        #[test]
        fn the_sum_is_exact(inputs in 1usize..40, outputs in 1usize..40, records in prop_oneof![0usize..150, 254usize..262, 510usize..520], seed: u64, bits in 1u32..14) {
            let mut random = SplitMix64(seed);
            check(inputs, outputs, records, |left| {
                let limit = (1i64 << (bits + u32::from(!left))) - 1;
                (random.next() as i64).rem_euclid(2 * limit + 1) as i16 - limit as i16
            });
        }

        #[test]
        fn all_kernels_agree(seed: u64, pairs in 1usize..20) {
            let mut random = SplitMix64(seed);
            let mut pair = || [random.next() as i16 >> 2, random.next() as i16 >> 1];
            let mut factors = || {
                (0..pairs).map(|_| [(); BLOCK].map(|()| pair())).collect::<Vec<[Pair; BLOCK]>>()
            };
            let (a, b) = (factors(), factors());
            let mut slow = [[3; BLOCK]; BLOCK];
            Portable.sum(&a, &b, &mut slow);
            #[cfg(target_arch = "x86_64")]
            {
                let mut fast = [[3; BLOCK]; BLOCK];
                if let Some(v3) = pulp::x86::V3::try_new() {
                    v3.sum(&a, &b, &mut fast);
                    prop_assert_eq!(fast, slow);
                }
                if let Some(v4) = pulp::x86::V4::try_new() {
                    fast = [[3; BLOCK]; BLOCK];
                    v4.vectorize(#[inline(always)] || v4.sum(&a, &b, &mut fast));
                    prop_assert_eq!(fast, slow);
                    if let Some(vnni) = Vnni::try_new() {
                        fast = [[3; BLOCK]; BLOCK];
                        vnni.vectorize(#[inline(always)] || v4.sum(&a, &b, &mut fast));
                        prop_assert_eq!(fast, slow);
                    }
                }
            }
        }

        #[test]
        fn integers_are_the_nearest(x: f32, factor in -10f32..10.0) {
            let mut integers = [0];
            let squares = round(&[x], factor, LEFT_MAX, &mut integers);
            let product = x * factor;
            let expected = if product.is_nan() { 0 } else { product.round_ties_even().clamp(-LEFT_MAX, LEFT_MAX) as i16 };
            prop_assert_eq!(integers[0], expected);
            prop_assert_eq!(squares, (i64::from(expected) * i64::from(expected)) as u64);
        }
    }

    #[test]
    fn a_new_sum_holds_no_factors_of_the_old_one() {
        // One pair, a full buffer, and one pair after a full buffer.
        for records in [1, 2, 256, 258] {
            let mut sum = OuterSum::new(40, 20);
            (0..records).for_each(|_| sum.push(&[3; 40], &[5; 20]));
            sum.finish();
            assert!(sum.left.contains(&[3; 2]) || records == 1);
            sum.restart();
            let pairs = sum.left.iter().chain(&sum.right).flatten();
            assert!(pairs.chain(sum.single.iter().flatten()).all(|factor| *factor == 0));
        }
    }

    #[test]
    fn the_largest_factors_do_not_wrap() {
        check(5, 17, 600, |left| if left { LEFT_MAX as i16 } else { -(RIGHT_MAX as i16) });
    }

    #[test]
    fn sixteen_of_the_largest_products_fit_32_bits_and_the_bound_is_met_exactly() {
        let largest = LEFT_MAX as u64 * RIGHT_MAX as u64;
        assert!(2 * SAFE_PAIRS as u64 * largest <= LARGEST);
        assert!((2 * SAFE_PAIRS as u64 + 1) * largest > LARGEST, "fewer flushes would do");
        let (left, right) = (LEFT_MAX as i16, RIGHT_MAX as i16);
        for (sign, count) in
            (0..=70).chain(250..=275).chain(510..=530).flat_map(|n| [(1, n), (-1, n)])
        {
            let mut sum = OuterSum::new(1, 1);
            (0..count).for_each(|_| sum.push(&[sign * left], &[right]));
            sum.finish();
            let expected = i64::from(sign) * i64::from(count) * largest as i64;
            assert_eq!(values(&sum), [expected], "{count} records");
        }
    }

    #[test]
    fn a_sum_of_exactly_the_largest_number_of_32_bits_stays_there_and_one_more_leaves_it() {
        // 16 * 8191 * 16383 + 48 * 8191 + 31 = 2^31 - 1.
        let (left, right) = (LEFT_MAX as i16, RIGHT_MAX as i16);
        let exactly = std::iter::repeat_n((left, right), 16).chain([(left, 48), (1, 31)]);
        for (more, sign) in (0..3).flat_map(|more| [(more, 1), (more, -1)]) {
            let mut sum = OuterSum::new(1, 1);
            // Multiplied one by one, so that every product is added to a sum that is not empty.
            for (a, b) in exactly.clone().chain(std::iter::repeat_n((1, 1), more)) {
                sum.push(&[sign * a], &[b]);
                sum.multiply();
                assert!(sum.bound <= LARGEST, "the bound passed 32 bits");
            }
            assert_eq!(sum.wide_in_use, more > 0, "{more} more than fit");
            sum.finish();
            let expected = i64::from(sign) * (i64::from(i32::MAX) + more as i64);
            assert_eq!(values(&sum), [expected]);
        }
    }

    #[test]
    fn every_order_of_extreme_factors_gives_their_exact_sum() {
        let (left, right) = (LEFT_MAX as i16, RIGHT_MAX as i16);
        let extremes = [(left, right), (-left, right), (0, right), (1, -1)];
        // All sequences of six blocks of eight records: up to three times what 32 bits hold.
        for code in 0..4usize.pow(6) {
            let mut sum = OuterSum::new(1, 1);
            let mut expected = 0;
            for block in 0..6 {
                let (a, b) = extremes[code / 4usize.pow(block) % 4];
                (0..8).for_each(|_| sum.push(&[a], &[b]));
                expected += 8 * i64::from(a) * i64::from(b);
            }
            sum.finish();
            assert_eq!(values(&sum), [expected], "{code}");
        }
    }
}
