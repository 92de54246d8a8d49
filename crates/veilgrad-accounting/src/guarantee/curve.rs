//! What a composition is worth beyond one epsilon: its profile, trade-off curve, advantage, and
//! epsilon after every round.

use veilgrad_events::{Adjacency, Delta, Epsilon, Folded, Rounds};

use super::accountant::Accountant;
use super::attack::{bound_against_the_record, bound_for_the_record};
use crate::profile::Deltas;
use crate::{Composition, Unsupported, work};

/// Points of the privacy profile, both directions together; without points it promises nothing.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Profile {
    /// Epsilons, ascending from 0, with an upper bound of delta at each.
    points: Vec<(f64, f64)>,
}

impl Profile {
    /// The profile at `points` epsilons from 0 to `last`.
    pub fn new(composition: &Composition, last: Epsilon, points: usize) -> Self {
        let steps = points.max(2) - 1;
        let mut deltas = Deltas::new(composition, MOST_LATTICES, work::PROFILE);
        let epsilon = |index: usize| last.get() * index as f64 / steps as f64;
        let mut points: Vec<(f64, f64)> = (0..=steps).map(|index| (epsilon(index), 1.0)).collect();
        // From coarse to fine, so that the transforms that are made spread over all of it.
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
        // A profile falls; a point that does not is bounded by the one before it.
        let mut least = 1.0;
        for (_, delta) in &mut points {
            least = f64::min(least, *delta);
            *delta = least;
        }
        Self { points }
    }

    /// The points: epsilon, and never less than delta there.
    pub fn points(&self) -> &[(f64, f64)] {
        &self.points
    }

    /// How much better than guessing anybody can tell whether a record was there: true less false
    /// positive rate, at most.
    pub fn advantage(&self) -> f64 {
        self.points.first().map_or(1.0, |(_, delta)| *delta)
    }

    /// The largest true positive rate that any test with this false positive rate can have; NaN for
    /// what is no rate.
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
/// With more entries than this, epsilons after rounds are computed at so many points at most.
const MANY_ENTRIES: usize = 2048;
const FEW_POINTS: u64 = 12;

/// Epsilon after rounds 1 to the last, at not more than `points` of them, the last included; at fewer where there are
/// thousands of distinct rounds.
///
/// # Errors
/// When an accountant cannot speak about the rounds.
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
        // Of thousands of distinct rounds, few that cost at least as much: a curve needs no more. The last point is quoted.
        let shown = if mark == total { composition.above() } else { composition.coarse() };
        Ok((mark, accountant.epsilon(shown, delta)?.epsilon))
    };
    marks.into_iter().map(spent_after).collect()
}
