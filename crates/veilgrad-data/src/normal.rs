//! Group normalisation of one record's channels.

use crate::parallel::limit;

/// Group normalisation: scales every group of a record's channels to mean 0 and variance 1 (Wu, He 2018).
///
/// # Guarantee
/// A function of one record alone: it costs no privacy budget.
///
/// # Example
/// ```
/// use veilgrad_data::GroupNorm;
///
/// let mut record = [1.0, 3.0, 10.0, 30.0];
/// GroupNorm { groups: 2 }.apply(&mut record);
/// assert!((record[0] + 1.0).abs() < 1e-3 && (record[3] - 1.0).abs() < 1e-3);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupNorm {
    /// The number of groups. A group has consecutive numbers of a record; the last may have fewer.
    pub groups: usize,
}

/// Added to the variance, so that constant groups stay finite.
const EPSILON: f64 = 1e-5;

impl GroupNorm {
    /// Normalises records of `width` numbers in place, each on its own.
    pub fn apply_all(&self, records: &mut [f32], width: usize, threads: usize) {
        let width = width.max(1);
        let share = (records.len() / width).div_ceil(limit(threads)).max(1);
        std::thread::scope(|scope| {
            for records in records.chunks_mut(share * width) {
                scope.spawn(|| {
                    records.chunks_exact_mut(width).for_each(|record| self.apply(record))
                });
            }
        });
    }

    /// Normalises one record in place.
    pub fn apply(&self, record: &mut [f32]) {
        let size = record.len().div_ceil(self.groups.max(1)).max(1);
        for group in record.chunks_mut(size) {
            let count = group.len() as f64;
            let mean = group.iter().map(|x| f64::from(*x)).sum::<f64>() / count;
            let squared_deviation = |x: &f32| (f64::from(*x) - mean).powi(2);
            let variance = group.iter().map(squared_deviation).sum::<f64>() / count;
            let scale = 1.0 / (variance + EPSILON).sqrt();
            for x in group {
                *x = ((f64::from(*x) - mean) * scale) as f32;
            }
        }
    }
}

/// Scales a record to this L2 norm, in place; a record of zeros stays as it is.
///
/// # Guarantee
/// A function of one record alone: it costs no privacy budget.
///
/// # Example
/// ```
/// let mut record = [3.0, 4.0];
/// veilgrad_data::scale_to_norm(&mut record, 10.0);
/// assert_eq!(record, [6.0, 8.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn scale_to_norm(record: &mut [f32], norm: f64) {
    let squares: f64 = record.iter().map(|x| f64::from(*x) * f64::from(*x)).sum();
    if squares > 0.0 {
        let scale = norm / squares.sqrt();
        record.iter_mut().for_each(|x| *x = (f64::from(*x) * scale) as f32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_have_mean_zero_and_variance_one_each() {
        let mut record: Vec<f32> = (0..12).map(|i| (i * i) as f32).collect();
        GroupNorm { groups: 3 }.apply(&mut record);
        for group in record.chunks(4) {
            let mean: f32 = group.iter().sum::<f32>() / 4.0;
            let variance: f32 = group.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / 4.0;
            assert!(mean.abs() < 1e-6 && (variance - 1.0).abs() < 1e-4, "{mean} {variance}");
        }
    }

    #[test]
    fn each_record_is_normalised_on_its_own_for_any_number_of_threads() {
        let records: Vec<f32> = (0..60).map(|i| (i * i % 17) as f32).collect();
        let mut alone = records.clone();
        alone.chunks_mut(12).for_each(|record| GroupNorm { groups: 3 }.apply(record));
        for threads in [0, 1, 2, 7, usize::MAX] {
            let mut all = records.clone();
            GroupNorm { groups: 3 }.apply_all(&mut all, 12, threads);
            assert_eq!(all, alone);
        }
    }

    #[test]
    fn constant_records_become_zero_and_nan_stays_in_its_record() {
        let mut record = vec![3.0; 6];
        GroupNorm { groups: 2 }.apply(&mut record);
        assert_eq!(record, vec![0.0; 6]);
        // A NaN affects its own record only, which will contribute zero.
        let mut record = vec![f32::NAN, 1.0];
        GroupNorm { groups: 0 }.apply(&mut record);
        assert!(record.iter().all(|x| x.is_nan()));
        GroupNorm { groups: 4 }.apply(&mut []);
    }
}
