//! Fewer steps for thousands of distinct ones, from above and from below, by joining those that are nearly alike.
//!
//! Less sampling and more noise are post-processing of more sampling and less noise: a group of steps costs at most
//! what as many cost with its highest rate and its least noise, and at least what as many cost with its lowest rate
//! and its most noise. So nothing is lost but tightness, and the gap between both says how much.

use std::collections::HashMap;

use crate::Step;

/// The finest groups that are tried, as logs of rates.
const FINEST: f64 = 2e-5;
/// Groups are at most this wide, about a factor of 2, as long as bands (which span a factor of 2) are kept apart.
const WIDEST: f64 = 0.7;
/// A band's share of the cost is its share of second moments, which decide usual epsilons, or this times its share of
/// first absolute moments, which decide epsilons near 0, whichever is larger.
const SMALL_LOSSES: f64 = 0.1;

/// Groups in place of steps: `above` costs at least as much as the steps, `below` at most as much.
pub(crate) struct Grouped {
    pub(crate) above: Vec<(Step, u64)>,
    pub(crate) below: Vec<(Step, u64)>,
}

/// Joins steps to at most so many groups; `None` if they would then be wider than `loosest` on average, in units of
/// epsilon, about.
///
/// Groups are narrow where a large share of the cost lies, and wide elsewhere. That is a matter of tightness only.
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

/// The rows whose cost counts: all but those that have together at most this share of it, about. No step costs less
/// than nothing, so what is left bounds from below; and lattices have no lower bound where some losses are far below
/// their grid.
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
    let left_out = |number: u32| order.contains(&(number as usize));
    let rows = rows.into_iter().zip(&bands.of_step);
    rows.filter(|(_, number)| !left_out(**number)).map(|(row, _)| row).collect()
}

/// Steps of one kind whose rates lie within a factor of two, and so do their noises.
struct Band {
    /// The part of the cost that these steps have, about.
    share: f64,
    /// How much more a relative change of noise counts than one of the rate.
    steepness: f64,
}

struct Bands {
    bands: Vec<Band>,
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

    /// How wide groups of a band are: the cube root makes the most of their number where rates and noises scatter.
    fn width(band: &Band, grain: f64) -> f64 {
        let width = grain / libm::cbrt(band.share);
        if width < WIDEST { width } else { WIDEST }
    }

    /// How much wider than one step groups are on average, weighed by their cost.
    fn looseness(&self, grain: f64) -> f64 {
        self.bands.iter().map(|band| band.share * Self::width(band, grain)).sum()
    }

    /// `None` if there are more groups than that.
    fn join(&self, steps: &[(Step, u64)], grain: f64, most: usize) -> Option<Grouped> {
        let mut places = HashMap::new();
        let mut above: Vec<(Step, u64)> = Vec::new();
        let mut below: Vec<(Step, u64)> = Vec::new();
        for ((step, count), number) in steps.iter().zip(&self.of_step) {
            let band = self.bands.get(*number as usize)?;
            let (kind, q) = step.kind_and_rate();
            // Wider than bands, groups know only kinds, so that there are few of them in the end.
            let (first, width, steepness) = match grain < WIDEST {
                true => (*number, Self::width(band, grain), band.steepness),
                false => (u32::from(kind), grain, 1.0),
            };
            let cell = |x: f64, width: f64| libm::floor(libm::log(x) / width) as i64;
            let key = (first, cell(q, width), cell(step.z, width / steepness));
            let place = places.entry(key).or_insert(above.len());
            match above.get_mut(*place).zip(below.get_mut(*place)) {
                // Another row where the numbers would not fit one.
                Some((high, low)) if high.1.checked_add(*count).is_some() => {
                    high.0 = step.with(q.max(high.0.kind_and_rate().1), step.z.min(high.0.z));
                    low.0 = step.with(q.min(low.0.kind_and_rate().1), step.z.max(low.0.z));
                    (high.1, low.1) = (high.1 + count, low.1 + count);
                }
                _ => {
                    *place = above.len();
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

/// The cell of a grid of this width in logs of rate and noise that a step lies in, and the step at its corner, which
/// costs at least as much.
pub(crate) fn corner(step: Step, width: f64) -> ((u8, i64, i64), Step) {
    let (kind, q) = step.kind_and_rate();
    let (rate, noise) = (libm::ceil(libm::log(q) / width), libm::floor(libm::log(step.z) / width));
    // Never below the rate itself nor above the noise, whatever rounding makes of them.
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
    fn every_step_is_between_the_rows_that_stand_for_it() {
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
            // Any row that encloses a step may stand for it; some row must.
            for (step, _) in &steps {
                let (kind, q) = step.kind_and_rate();
                let stands = |((high, _), (low, _)): (&(Step, u64), &(Step, u64))| {
                    let ((one, high_q), (_, low_q)) = (high.kind_and_rate(), low.kind_and_rate());
                    let rate = low_q <= q && q <= high_q;
                    one == kind && rate && high.z <= step.z && step.z <= low.z
                };
                assert!(above.iter().zip(&below).any(stands), "{step:?}");
            }
        }
        assert!(join(&steps, 500, 1e-4).is_none());
        for most in [500, 9] {
            assert!(join(&steps, most, f64::INFINITY).unwrap().above.len() <= most);
        }
    }

    #[test]
    fn numbers_that_do_not_fit_one_row_have_two() {
        let step = |z: f64| (Step { sampled: Sampled::Poisson(0.5), z }, u64::MAX / 2 + 1);
        let joined = join(&[step(1.0), step(1.0 + 1e-9)], 9, 1.0).unwrap();
        assert_eq!((joined.above.len(), joined.below.len()), (2, 2));
    }
}
