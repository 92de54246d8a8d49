//! Groups of similar steps in place of thousands of distinct ones, as an upper and a lower bound.
//!
//! A lower rate and more noise are post-processing of a higher rate and less noise. So a group costs at most as much as the
//! same number of steps at its highest rate and least noise, and at least as much as at its lowest rate and most noise. Both
//! bounds are sound; the gap between them shows how much tightness is lost.

use std::collections::HashMap;

use crate::Step;

/// The grain (scale of group widths, in logs of rates) of the finest groups that are tried.
const FINEST: f64 = 2e-5;
/// Groups within a band are at most this wide: about a factor of 2, as wide as a band.
const WIDEST: f64 = 0.7;
/// The share of a band in the cost is its share of the second moments of losses, which determine typical epsilons, or this
/// times its share of the mean absolute losses, which determine epsilons near 0, whichever is larger.
const SMALL_LOSSES: f64 = 0.1;

/// Transforms take at most this many distinct epochs of random allocation.
pub(crate) const MOST_EPOCHS: usize = 12;
/// The narrowest groups of epochs that are tried, in logs of noise, and how much wider the next ones are.
const NARROWEST: f64 = 1e-3;
const WIDER: f64 = 1.3;

/// Groups in place of steps: `above` costs at least as much as the steps, `below` at most as much.
pub(crate) struct Grouped {
    pub(crate) above: Vec<(Step, u64)>,
    pub(crate) below: Vec<(Step, u64)>,
}

/// Joins steps to at most `most` groups; `None` if that is estimated to widen the bounds on epsilon by more than the relative
/// `loosest`. Groups are narrow where they hold a large share of the cost, and wide elsewhere, which affects only tightness.
pub(crate) fn join(steps: &[(Step, u64)], most: usize, loosest: f64) -> Option<Grouped> {
    let bands = Bands::new(steps);
    let mut grain = FINEST;
    loop {
        if bands.looseness(grain) > loosest {
            return None;
        }
        if let Some(joined) = bands.join(steps, grain, most) {
            return Some(joined);
        }
        grain *= 1.5;
    }
}

/// The rows without the cheapest ones, whose estimated share of the cost is together at most `negligible`. Leaving out steps
/// keeps a lower bound valid, and lattices have no lower bound where some losses are far below their grid.
pub(crate) fn largest(rows: Vec<(Step, u64)>, negligible: f64) -> Vec<(Step, u64)> {
    let bands = Bands::new(&rows);
    let mut order: Vec<usize> = (0..bands.bands.len()).collect();
    let share = |number: &usize| bands.bands.get(*number).map_or(0.0, |band| band.share);
    order.sort_by(|a, b| share(a).total_cmp(&share(b)));
    let mut sum = 0.0;
    order.retain(|number| {
        sum += share(number);
        sum <= negligible
    });
    let is_negligible = |number: u32| order.contains(&(number as usize));
    let rows = rows.into_iter().zip(&bands.of_step);
    rows.filter(|(_, number)| !is_negligible(**number)).map(|(row, _)| row).collect()
}

/// Joins similar epochs of random allocation to groups, each with the least noise and the fewest rounds among its epochs, which
/// costs at least as much: who adds rounds of noise and permutes all rounds of a shorter epoch has a longer one. Groups are as
/// narrow as `fits` allows, which is asked about the rounds per epoch of all groups; epochs with other numbers of rounds are
/// joined only if noise may differ by more than a factor of two. `None` if one group does not fit, or a count overflows.
pub(crate) fn join_epochs(
    steps: &[(Step, u64)],
    fits: impl Fn(&[u64]) -> bool,
) -> Option<Vec<(Step, u64)>> {
    let (mut epochs, others): (Vec<_>, Vec<_>) =
        steps.iter().copied().partition(|(step, _)| step.epoch_rounds().is_some());
    // The first width keeps all epochs apart, the last one joins all of them.
    let mut width = 0.0;
    loop {
        let (noise, length) = (libm::exp(width), libm::exp(libm::fmax(width - WIDEST, 0.0)));
        let is_within = |a: f64, b: f64, factor: f64| a <= b * factor && b <= a * factor;
        let is_alike = |least: &Step, step: &Step| {
            let rounds = |step: &Step| step.epoch_rounds().unwrap_or(0) as f64;
            is_within(step.z, least.z, noise) && is_within(rounds(step), rounds(least), length)
        };
        // Neighbours are compared, so epochs of other lengths must follow each other if their noise is similar.
        epochs.sort_by_key(|(step, _)| {
            let band =
                if width > WIDEST { libm::floor(libm::log(step.z) / width) as i64 } else { 0 };
            (band, step.epoch_rounds(), step.z.to_bits())
        });
        let mut groups: Vec<(Step, u64)> = Vec::new();
        for (step, count) in &epochs {
            match groups.last_mut().filter(|(least, _)| is_alike(least, step)) {
                Some((least, sum)) => {
                    let is_shorter = step.epoch_rounds() < least.epoch_rounds();
                    let sampled = if is_shorter { step.sampled } else { least.sampled };
                    *least = Step { sampled, z: least.z.min(step.z) };
                    *sum = sum.checked_add(*count)?;
                }
                None => groups.push((*step, *count)),
            }
        }
        let rounds: Vec<u64> = groups.iter().filter_map(|(step, _)| step.epoch_rounds()).collect();
        if fits(&rounds) {
            groups.extend(others);
            return Some(groups);
        }
        if noise == f64::INFINITY {
            return None;
        }
        width = if width < NARROWEST { NARROWEST } else { width * WIDER };
    }
}

/// Steps with the same kind of sampling whose rates are within a factor of two, and their noise multipliers as well.
struct Band {
    /// The estimated share of these steps in the cost.
    share: f64,
    /// How much more the cost depends on a relative change of the noise than on one of the rate.
    steepness: f64,
}

struct Bands {
    bands: Vec<Band>,
    /// For every step, the number of its band.
    of_step: Vec<u32>,
}

impl Bands {
    fn new(steps: &[(Step, u64)]) -> Self {
        let mut numbers = HashMap::new();
        let mut sums: Vec<(f64, f64, f64)> = Vec::new();
        let mut of_step = Vec::with_capacity(steps.len());
        for (step, count) in steps {
            let (kind, q) = step.kind_and_rate();
            let octave = |x: f64| libm::floor(libm::log2(x)) as i32;
            let number = *numbers.entry((kind, octave(q), octave(step.z))).or_insert(sums.len());
            if number == sums.len() {
                sums.push((0.0, 0.0, 0.0));
            }
            of_step.push(number as u32);
            let exponent = 1.0 / (step.z * step.z);
            let count = *count as f64;
            if let Some((moments, losses, steepness)) = sums.get_mut(number) {
                *moments += count * q * q * libm::expm1(exponent.min(50.0));
                *losses += count * q * (1.0 / step.z).min(1.0);
                *steepness = steepness.max(exponent / -libm::expm1(-exponent));
            }
        }
        let (all_moments, all_losses) =
            sums.iter().fold((0.0, 0.0), |(a, b), (moments, losses, _)| (a + moments, b + losses));
        let band = |(moments, losses, steepness): (f64, f64, f64)| Band {
            share: (moments / all_moments).max(SMALL_LOSSES * losses / all_losses),
            steepness,
        };
        Self { bands: sums.into_iter().map(band).collect(), of_step }
    }

    /// The width of groups in a band. The cube root makes the best use of a number of groups where rates and noises scatter.
    fn width(band: &Band, grain: f64) -> f64 {
        let width = grain / libm::cbrt(band.share);
        if width < WIDEST { width } else { WIDEST }
    }

    /// The mean width of groups, weighted by their share of the cost.
    fn looseness(&self, grain: f64) -> f64 {
        self.bands.iter().map(|band| band.share * Self::width(band, grain)).sum()
    }

    /// Joins the steps of each cell of a grid; `None` if that makes more than `most` groups.
    fn join(&self, steps: &[(Step, u64)], grain: f64, most: usize) -> Option<Grouped> {
        let mut row_of_cell = HashMap::new();
        let mut above: Vec<(Step, u64)> = Vec::new();
        let mut below: Vec<(Step, u64)> = Vec::new();
        for ((step, count), number) in steps.iter().zip(&self.of_step) {
            let band = self.bands.get(*number as usize)?;
            let (kind, q) = step.kind_and_rate();
            // Groups wider than a band separate only kinds of sampling, so that a large grain always makes few groups.
            let (part, width, steepness) = match grain < WIDEST {
                true => (*number, Self::width(band, grain), band.steepness),
                false => (u32::from(kind), grain, 1.0),
            };
            let cell = |x: f64, width: f64| libm::floor(libm::log(x) / width) as i64;
            let key = (part, cell(q, width), cell(step.z, width / steepness));
            let row = row_of_cell.entry(key).or_insert(above.len());
            match above.get_mut(*row).zip(below.get_mut(*row)) {
                // Begins another row if the count would overflow.
                Some((high, low)) if high.1.checked_add(*count).is_some() => {
                    high.0 = step.with(q.max(high.0.kind_and_rate().1), step.z.min(high.0.z));
                    low.0 = step.with(q.min(low.0.kind_and_rate().1), step.z.max(low.0.z));
                    (high.1, low.1) = (high.1 + count, low.1 + count);
                }
                _ => {
                    *row = above.len();
                    above.push((*step, *count));
                    below.push((*step, *count));
                }
            }
            if above.len() > most {
                return None;
            }
        }
        Some(Grouped { above, below })
    }
}

/// The cell of a step in a grid of this width in logs of rate and noise, and the step at its corner that costs at least as
/// much.
pub(crate) fn corner(step: Step, width: f64) -> ((u8, i64, i64), Step) {
    let (kind, q) = step.kind_and_rate();
    let (rate, noise) = (libm::ceil(libm::log(q) / width), libm::floor(libm::log(step.z) / width));
    // Despite rounding, the rate of the corner is never lower and its noise never higher.
    let up = |q: f64| libm::exp(rate * width).max(q).min(1.0 - f64::EPSILON).max(q);
    let z = libm::exp(noise * width);
    let at_corner = step.with(up(q), if z < step.z { z } else { step.z });
    ((kind, rate as i64, noise as i64), at_corner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Sampled;

    #[test]
    fn every_step_is_between_the_rows_of_its_group() {
        let step = |i: u32| {
            let (a, b) = (f64::from(i * 37 % 4001) / 4001.0, f64::from(i) / 4001.0);
            let sampled = match i % 3 {
                0 => Sampled::Poisson(1e-4 * libm::pow(1e3, a)),
                1 => Sampled::PoissonReplaced(1e-4 * libm::pow(1e3, a)),
                _ => Sampled::FixedReplaced(1e-4 * libm::pow(1e3, a)),
            };
            (Step { sampled, z: 0.3 * libm::pow(1e6, b) }, 1 + u64::from(i % 5))
        };
        let steps: Vec<_> = (0..4001).map(step).collect();
        let bands = Bands::new(&steps);
        let count = |rows: &[(Step, u64)]| rows.iter().map(|(_, n)| n).sum::<u64>();
        for grain in [1e-4, 1e-2, 0.3] {
            let Grouped { above, below } = bands.join(&steps, grain, usize::MAX).unwrap();
            assert!(grain < 1e-3 || above.len() < 3500, "{grain}: {}", above.len());
            assert_eq!((count(&above), count(&below)), (count(&steps), count(&steps)));
            // Some row must enclose each step.
            for (step, _) in &steps {
                let (kind, q) = step.kind_and_rate();
                let encloses = |((high, _), (low, _)): (&(Step, u64), &(Step, u64))| {
                    let ((one, high_q), (_, low_q)) = (high.kind_and_rate(), low.kind_and_rate());
                    let rate = low_q <= q && q <= high_q;
                    one == kind && rate && high.z <= step.z && step.z <= low.z
                };
                assert!(above.iter().zip(&below).any(encloses), "{step:?}");
            }
        }
        assert!(join(&steps, 500, 1e-4).is_none());
        for most in [500, 9] {
            assert!(join(&steps, most, f64::INFINITY).unwrap().above.len() <= most);
        }
    }

    #[test]
    fn joined_epochs_have_no_more_rounds_and_no_more_noise() {
        let epoch = |i: u32| {
            let rounds = if i.is_multiple_of(2) { 10 } else { 20 };
            let z = 0.5 + f64::from(i * 37 % 101) / 50.0;
            (Step { sampled: Sampled::Allocated(rounds), z }, u64::from(i) + 1)
        };
        let other = (Step { sampled: Sampled::Poisson(0.1), z: 1.0 }, 7);
        let mut steps: Vec<_> = (0..101).map(epoch).collect();
        steps.push(other);
        let total = |rows: &[(Step, u64)]| rows.iter().map(|(_, n)| n).sum::<u64>();
        let mut before = usize::MAX;
        for most in [101, 50, 12, 2, 1] {
            let joined = join_epochs(&steps, |groups| groups.len() <= most).unwrap();
            assert!(joined.len() <= most + 1 && joined.len() <= before && joined.contains(&other));
            assert!(joined.len() > most / 2, "{most}: {}", joined.len());
            before = joined.len();
            assert_eq!(total(&joined), total(&steps));
            // There are at least as many epochs with at most so much noise and so many rounds as before.
            for rounds in [10, 20] {
                for level in [0.6, 1.0, 1.7, 2.4] {
                    let quieter = |rows: &[(Step, u64)]| {
                        let of = |(step, _): &&(Step, u64)| {
                            step.epoch_rounds().is_some_and(|t| t <= rounds) && step.z <= level
                        };
                        rows.iter().filter(of).map(|(_, n)| n).sum::<u64>()
                    };
                    assert!(quieter(&joined) >= quieter(&steps), "{most} {rounds} {level}");
                }
            }
        }
        // Thirteen lengths whose noise alternates keep their noise.
        let alternating = |i: u64| {
            let z = if i.is_multiple_of(2) { 1.0 } else { 5.0 };
            (Step { sampled: Sampled::Allocated(900 + i), z }, 1)
        };
        let alternating: Vec<_> = (0..13).map(alternating).collect();
        let joined = join_epochs(&alternating, |groups| groups.len() <= 12).unwrap();
        let noisy: Vec<_> = joined.iter().copied().filter(|(step, _)| step.z == 5.0).collect();
        assert_eq!((total(&joined), total(&noisy)), (13, 6));
        assert!(join_epochs(&steps, |_| false).is_none());
        assert_eq!(join_epochs(&steps, |_| true).unwrap().len(), steps.len());
    }

    #[test]
    fn counts_that_overflow_one_row_get_two() {
        let step = |z: f64| (Step { sampled: Sampled::Poisson(0.5), z }, u64::MAX / 2 + 1);
        let joined = join(&[step(1.0), step(1.0 + 1e-9)], 9, 1.0).unwrap();
        assert_eq!((joined.above.len(), joined.below.len()), (2, 2));
    }
}
