//! What a composition is worth beyond one epsilon: its profile, trade-off curve, advantage, and
//! epsilon after every round.

use veilgrad_events::{Adjacency, Delta, Epsilon, Rounds};

use crate::account::Accountant;
use crate::pld::Deltas;
use crate::{Composition, Unsupported, gaussian};

/// Points of the privacy profile, both directions together; without points it promises nothing.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Profile {
    /// Epsilons, ascending from 0, with an upper bound of delta at each.
    points: Vec<(f64, f64)>,
    /// The mu of a composition that is a Gaussian.
    gaussian: Option<f64>,
    /// The mu of the same rounds without sampling, which dominates everywhere.
    ceiling: f64,
}

impl Profile {
    /// The profile at `points` epsilons from 0 to `last`.
    #[must_use]
    pub fn new(composition: &Composition, last: Epsilon, points: usize) -> Self {
        let steps = points.max(2) - 1;
        let mut deltas = Deltas::new(composition);
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
        Self {
            points,
            gaussian: composition.gaussian_only(),
            ceiling: composition.mu_without_sampling(),
        }
    }

    /// The points: epsilon, and never less than delta there.
    #[must_use]
    pub fn points(&self) -> &[(f64, f64)] {
        &self.points
    }

    /// How much better than guessing anybody can tell whether a record was there: true less false
    /// positive rate, at most.
    #[must_use]
    pub fn advantage(&self) -> f64 {
        self.points.first().map_or(1.0, |(_, delta)| *delta)
    }

    /// The largest true positive rate that any test with this false positive rate can have; NaN for
    /// what is no rate.
    #[must_use]
    pub fn true_positive_rate(&self, false_positive_rate: f64) -> f64 {
        if !(0.0..=1.0).contains(&false_positive_rate) {
            return f64::NAN;
        }
        let bound = |(epsilon, delta): &(f64, f64)| {
            // From the test for the record, and from the test against it.
            let one = delta + epsilon.exp() * false_positive_rate;
            let other = 1.0 - (-epsilon).exp() * (1.0 - delta - false_positive_rate);
            one.min(other)
        };
        self.points.iter().map(bound).fold(1.0, f64::min)
    }

    /// The mu of the closest Gaussian trade-off curve that lies below this one up to the last point:
    /// its profile is at least as high everywhere from 0 to there, so it holds together with the delta
    /// of that point.
    ///
    /// (Beyond any last point the tails of a sampled Gaussian are those of one that is always sampled,
    /// so that a mu for all epsilons would say nothing about sampling.)
    #[must_use]
    pub fn mu(&self) -> f64 {
        const PARTS: u32 = 16;
        match (self.gaussian, self.points.as_slice()) {
            (Some(mu), _) => return mu,
            (None, []) => return f64::INFINITY,
            (None, _) => {}
        }
        let mut largest: f64 = 0.0;
        for pair in self.points.windows(2) {
            let [(from, high), (to, low)] = pair else { continue };
            if to == from {
                largest = largest.max(gaussian::mu(*from, *high));
                continue;
            }
            // Between points delta is convex in e^epsilon: below the chord. On parts of the interval
            // the chord's left end has to be below the Gaussian's right end.
            let growth = libm::expm1(to - from);
            let at = |part: u32| {
                let epsilon = from + (to - from) * f64::from(part) / f64::from(PARTS);
                let share = libm::expm1(epsilon - from) / growth;
                (epsilon, high + (low - high) * share)
            };
            for part in 0..PARTS {
                let ((_, delta), (epsilon, _)) = (at(part), at(part + 1));
                // Only what exceeds the largest so far needs an inversion.
                if !(gaussian::delta(largest, epsilon).lower >= delta) {
                    largest = largest.max(gaussian::mu(epsilon, delta));
                }
            }
        }
        // What is no number is no bound.
        if largest <= self.ceiling { largest } else { self.ceiling }
    }
}

/// Epsilon after rounds 1 to the last, at not more than `points` of them, the last included.
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
    let too_many = || Unsupported::new("more than 2^64 rounds");
    let mut total: u64 = 0;
    for entry in rounds {
        total = total.checked_add(entry.count).ok_or_else(too_many)?;
    }
    let stride = total.div_ceil(points.max(1)).max(1);
    let mut marks: Vec<u64> = (1..=total / stride).map(|i| i * stride).collect();
    if marks.last() != Some(&total) && total > 0 {
        marks.push(total);
    }
    let at = |mark: u64| {
        let mut left = mark;
        let mut prefix = Vec::new();
        for entry in rounds {
            let count = entry.count.min(left);
            prefix.push(Rounds { count, round: entry.round.clone() });
            left -= count;
            if left == 0 {
                break;
            }
        }
        let composition = Composition::fold(&prefix, adjacency)?;
        Ok((mark, accountant.epsilon(&composition, delta)?.epsilon))
    };
    marks.into_iter().map(at).collect()
}
