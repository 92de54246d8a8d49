//! The running integer sum of one group.

use veilgrad_events::IntegerGrid;
use zeroize::{Zeroize, Zeroizing};

use crate::kernel::Part;
use crate::{Private, kernel};

/// An integer sum modulo 2^64, with the records since the last flush in 32 bits.
///
/// # Guarantee
/// The sum is exact modulo 2^64 whatever the order of additions and merges. The 32-bit part cannot wrap: it is flushed
/// before a record of 2^27 in a coordinate, added to the largest coordinates of those that it holds, could exceed 2^31 - 1.
pub(crate) struct Accumulator {
    dimension: usize,
    sums: Private<Sums>,
    /// At least every absolute value in the 32-bit part.
    unflushed: u32,
}

/// Both vectors are empty until they are needed, and the wide one may be shorter than the dimension: what is missing is
/// zero. They are wiped on drop: they may hold a sum without noise, or noise that was not released.
struct Sums {
    narrow: Vec<i32>,
    wide: Vec<i64>,
}

impl Drop for Sums {
    fn drop(&mut self) {
        self.narrow.zeroize();
        self.wide.zeroize();
    }
}

/// Where one more record may not fit 32 bits.
const UNFLUSHED_MAX: u32 = i32::MAX as u32 - IntegerGrid::MAX_SENSITIVITY;

impl Accumulator {
    pub(crate) fn new(dimension: usize) -> Self {
        let sums = Private::new(Sums { narrow: Vec::new(), wide: Vec::new() });
        Self { dimension, sums, unflushed: 0 }
    }

    /// Calls `contribute` to add one record to the 32-bit sums. It returns at least the largest absolute value of what it
    /// added, which is at most 2^27.
    pub(crate) fn add_record(&mut self, contribute: impl FnOnce(&mut [i32]) -> u32) {
        if self.unflushed > UNFLUSHED_MAX {
            self.flush();
        }
        let narrow = &mut self.sums.expose_mut().narrow;
        narrow.resize(self.dimension, 0);
        self.unflushed += contribute(narrow).min(IntegerGrid::MAX_SENSITIVITY);
    }

    /// Adds an integer vector modulo 2^64.
    pub(crate) fn add_wide(&mut self, values: &[i64]) {
        self.add_at(0..self.dimension, Part::Wide(values));
    }

    /// Adds integers modulo 2^64 to some coordinates.
    pub(crate) fn add_at(&mut self, range: std::ops::Range<usize>, values: Part<'_>) {
        let wide = &mut self.sums.expose_mut().wide;
        // Coordinates that were zero until now are written instead of added: one pass over memory instead of two.
        if wide.len() == range.start && values.len() == range.len() && range.end <= self.dimension {
            // The whole length at once: a vector that grows leaves copies behind.
            wide.reserve_exact(self.dimension - wide.len());
            values.append_to(wide);
            return;
        }
        wide.resize(self.dimension, 0);
        values.add_to(wide.get_mut(range).unwrap_or_default());
    }

    /// Adds unsigned integers modulo 2^64 to some coordinates.
    pub(crate) fn add_unsigned(&mut self, range: std::ops::Range<usize>, values: &[u64]) {
        let wide = &mut self.sums.expose_mut().wide;
        wide.resize(self.dimension, 0);
        let sums = wide.get_mut(range).unwrap_or_default();
        for (sum, value) in sums.iter_mut().zip(values) {
            *sum = sum.wrapping_add(value.cast_signed());
        }
    }

    /// Some coordinates, after [`flush`](Self::flush). Private until noise is added.
    pub(crate) fn part(&self, range: std::ops::Range<usize>) -> Part<'_> {
        Part::Wide(self.sums.expose().wide.get(range).unwrap_or_default())
    }

    /// Adds an integer vector modulo 2^64, reusing its memory if nothing was added yet.
    pub(crate) fn add_owned(&mut self, values: Vec<i64>) {
        let wide = &mut self.sums.expose_mut().wide;
        if wide.is_empty() && values.len() == self.dimension {
            *wide = values;
        } else {
            self.add_wide(&Zeroizing::new(values));
        }
    }

    pub(crate) fn merge(&mut self, mut other: Self) {
        other.flush();
        let mut sums = std::mem::take(&mut other.sums.expose_mut().wide);
        if !sums.is_empty() {
            sums.resize(other.dimension, 0);
            self.add_owned(sums);
        }
    }

    /// The sum modulo 2^64. Private until noise is added.
    pub(crate) fn into_sums(mut self) -> Vec<i64> {
        self.flush();
        let mut sums = std::mem::take(&mut self.sums.expose_mut().wide);
        sums.resize(self.dimension, 0);
        sums
    }

    /// Moves the records in 32 bits into the 64-bit sums.
    pub(crate) fn flush(&mut self) {
        if self.unflushed > 0 {
            let Sums { narrow, wide } = self.sums.expose_mut();
            wide.resize(self.dimension, 0);
            kernel::flush(narrow, wide);
            self.unflushed = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn many_of_the_largest_records_do_not_wrap_the_narrow_part() {
        let mut accumulator = Accumulator::new(2);
        for _ in 0..1000 {
            accumulator.add_record(|sums| {
                sums[0] += 1 << 27;
                sums[1] -= 1 << 27;
                1 << 27
            });
        }
        assert_eq!(accumulator.into_sums(), [1000 << 27, -(1000 << 27)]);
    }

    proptest! {
        #[test]
        fn a_wrapped_sum_equals_a_wide_reference_modulo_2_to_the_64(
            values in prop::collection::vec(any::<i64>(), 0..40),
            records in prop::collection::vec(-(1i32 << 27)..=(1 << 27), 0..40),
            cut in 0usize..40,
        ) {
            let mut parts = [Accumulator::new(1), Accumulator::new(1)];
            let mut reference = 0i128;
            for (i, value) in values.iter().enumerate() {
                parts[usize::from(i < cut)].add_wide(&[*value]);
                reference += i128::from(*value);
            }
            for (i, record) in records.iter().enumerate() {
                parts[usize::from(i >= cut)].add_record(|sums| {
                    sums[0] += record;
                    record.unsigned_abs()
                });
                reference += i128::from(*record);
            }
            let [mut left, right] = parts;
            left.merge(right);
            prop_assert_eq!(left.into_sums(), [reference as i64]);
        }
    }

    /// The sum with wrapping 32-bit additions, as in the kernels.
    fn sum_of(records: impl IntoIterator<Item = i32>) -> i64 {
        let mut accumulator = Accumulator::new(1);
        for record in records {
            accumulator.add_record(|sums| {
                sums[0] = sums[0].wrapping_add(record);
                record.unsigned_abs()
            });
        }
        accumulator.into_sums()[0]
    }

    #[test]
    fn as_many_of_the_largest_records_as_fit_are_kept_in_32_bits_and_not_one_more() {
        const LARGEST: i64 = IntegerGrid::MAX_SENSITIVITY as i64;
        assert_eq!(i64::from(UNFLUSHED_MAX) + LARGEST, i64::from(i32::MAX));
        // The largest records of either sign give the extreme sums.
        for count in 0..=60 {
            for sign in [1, -1] {
                let record = (sign * LARGEST) as i32;
                let records = std::iter::repeat_n(record, count as usize);
                assert_eq!(sum_of(records), sign * count * LARGEST, "{count} records of {record}");
            }
        }
        // The largest sum that stays in 32 bits, and the least that does not.
        for first in [UNFLUSHED_MAX, UNFLUSHED_MAX + 1] {
            for sign in [1, -1] {
                let records =
                    std::iter::repeat_n(LARGEST as u32, 14).chain([first - 14 * LARGEST as u32]);
                let records = records.chain([LARGEST as u32]).map(|record| sign * record as i32);
                let expected = i64::from(sign) * (i64::from(first) + LARGEST);
                assert_eq!(sum_of(records), expected);
            }
        }
    }

    #[test]
    fn every_order_of_the_largest_records_gives_their_sum() {
        const LARGEST: i32 = IntegerGrid::MAX_SENSITIVITY as i32;
        // All sign patterns of 17 records, two more than fit 32 bits.
        for signs in 0u32..1 << 17 {
            let record = |index: u32| if signs >> index & 1 == 1 { LARGEST } else { -LARGEST };
            let expected: i64 = (0..17).map(|index| i64::from(record(index))).sum();
            assert_eq!(sum_of((0..17).map(record)), expected, "{signs:b}");
        }
    }

    #[test]
    fn a_record_that_is_taken_back_leaves_nothing_wherever_it_falls() {
        const LARGEST: i32 = IntegerGrid::MAX_SENSITIVITY as i32;
        for (count, place) in (1..40).flat_map(|count| (0..count).map(move |place| (count, place)))
        {
            let mut accumulator = Accumulator::new(1);
            for number in 0..count {
                accumulator.add_record(|sums| {
                    sums[0] = sums[0].wrapping_add(LARGEST);
                    if number == place {
                        sums[0] = sums[0].wrapping_sub(LARGEST);
                        return 0;
                    }
                    LARGEST as u32
                });
            }
            assert_eq!(accumulator.into_sums(), [(count - 1) * i64::from(LARGEST)]);
        }
    }
}
