//! Curves of a composition: privacy profile, trade-off curve, membership advantage, and epsilon after every round.

use veilgrad_events::{Adjacency, Delta, Epsilon, Folded, Rounds};

use super::accountant::Accountant;
use super::attack::{bound_against_the_record, bound_for_the_record};
use crate::profile::Deltas;
use crate::{Composition, Unsupported, work};

/// The privacy profile: upper bounds on delta at a list of epsilons, for both directions together. The default has no
/// points and bounds nothing.
///
/// # Example
/// ```
/// use veilgrad_accounting::{Composition, Profile};
/// use veilgrad_events::{Adjacency, Epsilon, NoiseMultiplier, SampleRate};
///
/// let (rate, noise) = (SampleRate::new(0.01)?, NoiseMultiplier::new(1.0)?);
/// let rounds = Composition::poisson(rate, noise, 1000, Adjacency::AddRemove)?;
/// let profile = Profile::new(&rounds, Epsilon::new(2.0)?, 9);
/// let (epsilon, delta) = profile.points()[8];
/// assert!(epsilon == 2.0 && delta < 1e-5);
/// assert!(profile.true_positive_rate(0.01) < 0.05);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Profile {
    /// Epsilons, ascending from 0, with an upper bound on delta at each.
    points: Vec<(f64, f64)>,
}

impl Profile {
    /// The profile at `points` epsilons from 0 to `last`.
    pub fn new(composition: &Composition, last: Epsilon, points: usize) -> Self {
        let steps = points.max(2) - 1;
        let mut deltas = Deltas::new(composition, MOST_LATTICES, work::PROFILE);
        let epsilon = |index: usize| last.get() * index as f64 / steps as f64;
        let mut points: Vec<(f64, f64)> = (0..=steps).map(|index| (epsilon(index), 1.0)).collect();
        // From coarse to fine, so that the limited number of transforms is spread over the whole range.
        let mut stride = steps.next_power_of_two();
        while stride > 0 {
            for index in (0..=steps).rev().filter(|index| index % stride == 0) {
                if let Some(point) = points.get_mut(index)
                    && (index % (2 * stride) != 0 || stride >= steps)
                {
                    point.1 = deltas.at(point.0);
                }
            }
            stride /= 2;
        }
        // A profile is decreasing, so each bound is at most the one before it.
        let mut least = 1.0;
        for (_, delta) in &mut points {
            least = f64::min(least, *delta);
            *delta = least;
        }
        Self { points }
    }

    /// The points: epsilon, and an upper bound on delta there.
    pub fn points(&self) -> &[(f64, f64)] {
        &self.points
    }

    /// An upper bound on the membership advantage of any attack: true positive rate minus false positive rate.
    pub fn advantage(&self) -> f64 {
        self.points.first().map_or(1.0, |(_, delta)| *delta)
    }

    /// An upper bound on the true positive rate of any attack with this false positive rate; NaN for a rate outside [0, 1].
    pub fn true_positive_rate(&self, false_positive_rate: f64) -> f64 {
        if !(0.0..=1.0).contains(&false_positive_rate) {
            return f64::NAN;
        }
        let bound = |(epsilon, delta): &(f64, f64)| {
            bound_for_the_record(*epsilon, *delta, false_positive_rate)
                .min(bound_against_the_record(*epsilon, *delta, false_positive_rate))
        };
        self.points.iter().map(bound).fold(1.0, f64::min)
    }
}

const MOST_LATTICES: usize = 8;
/// With more entries than this, epsilon is computed at no more than `FEW_POINTS` rounds.
const MANY_ENTRIES: usize = 2048;
const FEW_POINTS: u64 = 12;

/// The epsilon spent after a round, for up to `points` equally spaced rounds and the last one; for fewer where there are
/// thousands of distinct rounds.
///
/// # Errors
/// When the accountant does not support the rounds.
pub fn spent(
    rounds: &[Rounds],
    adjacency: Adjacency,
    delta: Delta,
    accountant: &dyn Accountant,
    points: u64,
) -> Result<Vec<(u64, f64)>, Unsupported> {
    let total = rounds.iter().try_fold(0u64, |sum, entry| sum.checked_add(entry.count));
    let total = total.ok_or_else(|| Unsupported::new("more than 2^64 rounds"))?;
    let points = if rounds.len() > MANY_ENTRIES { points.min(FEW_POINTS) } else { points };
    let stride = total.div_ceil(points.max(1)).max(1);
    let mut marks: Vec<u64> = (1..=total / stride).map(|i| i * stride).collect();
    if marks.last() != Some(&total) && total > 0 {
        marks.push(total);
    }
    let folded = rounds.iter().map(Folded::try_from).collect::<Result<Vec<_>, _>>()?;
    let spent_after = |mark: u64| {
        let mut left = mark;
        let prefix = folded.iter().map_while(|entry| {
            let count = entry.count.min(left);
            let before = left;
            left -= count;
            (before > 0).then_some(Folded { count, ..*entry })
        });
        let composition = Composition::of(prefix, adjacency)?;
        // Group thousands of distinct rounds into few that cost at least as much, except at the last point, which is quoted.
        let shown = if mark == total { composition.above() } else { composition.coarse() };
        Ok((mark, accountant.epsilon(shown, delta)?.epsilon))
    };
    marks.into_iter().map(spent_after).collect()
}
