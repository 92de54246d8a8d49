//! Bounds on membership inference attacks.

use crate::cumulant::{Cumulant, Jet};
use crate::number::golden_section;
use crate::pair::{Direction, step_delta};
use crate::profile::Deltas;
use crate::{Composition, Step, rdp, work};

/// Larger epsilons change no printed rate: `e^-40` is below the precision of f64 at 1.
const LARGEST_EPSILON: f64 = 40.0;
/// Lattices per direction: one for small epsilons and one for large ones.
const MOST_LATTICES: usize = 2;
/// Steps of the golden-section search for the best epsilon.
const SEARCH: u32 = 16;
const RATIO: f64 = 0.618_033_988_749_895;

/// An upper bound on the membership advantage of any attack: its true positive rate minus its false positive rate.
///
/// # Guarantee
/// Never below the total variation distance of the composition's dominating pair, which is delta at epsilon 0; at most 1.
///
/// # Example
/// ```
/// use veilgrad_accounting::{Composition, advantage};
/// use veilgrad_events::{Adjacency, NoiseMultiplier, SampleRate};
///
/// let (rate, noise) = (SampleRate::new(0.01)?, NoiseMultiplier::new(1.0)?);
/// let rounds = Composition::poisson(rate, noise, 1000, Adjacency::AddRemove)?;
/// assert!((0.1..0.2).contains(&advantage(&rounds)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn advantage(composition: &Composition) -> f64 {
    Attack::new(composition).delta(0.0)
}

/// An upper bound on the true positive rate of any membership inference attack with this false positive rate; NaN for a
/// false positive rate outside [0, 1].
///
/// # Guarantee
/// Never below the trade-off curve of the composition's dominating pair in either direction. At most 1.
pub fn true_positive_rate(composition: &Composition, false_positive_rate: f64) -> f64 {
    if !(0.0..=1.0).contains(&false_positive_rate) {
        return f64::NAN;
    }
    Attack::new(composition).true_positive_rate(false_positive_rate)
}

/// An upper bound on the true positive rate, from `tpr <= delta + e^eps fpr`.
pub(crate) fn bound_for_the_record(epsilon: f64, delta: f64, fpr: f64) -> f64 {
    (delta + epsilon.exp() * fpr) * (1.0 + 4.0 * f64::EPSILON)
}

/// An upper bound on the true positive rate, from the other direction: false negatives are at least
/// `e^-eps (1 - delta - fpr)`.
pub(crate) fn bound_against_the_record(epsilon: f64, delta: f64, fpr: f64) -> f64 {
    1.0 - (-epsilon).exp() * (1.0 - delta - fpr) * (1.0 - 4.0 * f64::EPSILON)
}

/// Upper bounds on delta at the few epsilons that bound an attack; they share transforms.
pub(crate) struct Attack<'a> {
    deltas: Deltas<'a>,
    /// An upper bound on the total variation distance, and so on every delta.
    variation: f64,
    /// Whether losses are so large that delta is about 1 at all relevant epsilons, so that no transform is computed.
    is_hopeless: bool,
}

impl<'a> Attack<'a> {
    pub(crate) fn new(composition: &'a Composition) -> Self {
        // Only for thousands of distinct steps, whose transforms take long. Either value is sound.
        let is_hopeless = composition.sample().is_some_and(|sample| {
            let Jet { first, second, .. } = Cumulant::new(sample, Direction::Remove).at(1e-9);
            first - 8.0 * second.sqrt() > LARGEST_EPSILON
        });
        let deltas = Deltas::new(composition, MOST_LATTICES, work::ATTACK);
        // The sum over all rounds, or the bound from Rényi divergences, which takes long: both are sound.
        let variation = match composition.has_surrogates() {
            true => total_variation(composition),
            false => 1.0,
        };
        let variation = match is_hopeless || variation < 0.2 {
            true => variation,
            false => variation.min(rdp::total_variation(composition)),
        };
        Self { deltas, variation, is_hopeless }
    }

    pub(crate) fn true_positive_rate(&mut self, fpr: f64) -> f64 {
        // Both bounds are convex, the first in e^epsilon and the second in e^-epsilon, so each has one minimum.
        let last = (-fpr.ln()).min(LARGEST_EPSILON);
        let one = smallest(last, |epsilon| bound_for_the_record(epsilon, self.delta(epsilon), fpr));
        // The trade-off curve of both directions together is symmetric, so the second bound is the smaller one only
        // beyond the point where both error rates are equal.
        if one <= 1.0 - fpr {
            return one;
        }
        let other = smallest(LARGEST_EPSILON, |epsilon| {
            bound_against_the_record(epsilon, self.delta(epsilon), fpr)
        });
        one.min(other).min(1.0)
    }

    /// The smallest upper bound on delta at `epsilon`; at most 1.
    pub(crate) fn delta(&mut self, epsilon: f64) -> f64 {
        if self.is_hopeless { self.variation } else { self.deltas.at(epsilon).min(self.variation) }
    }
}

/// An upper bound on the total variation distance: the sum of the distances of all rounds, or 1.
fn total_variation(composition: &Composition) -> f64 {
    let each =
        |(step, n): &(Step, u64)| *n as f64 * step_delta(*step, Direction::Remove, 0.0).upper;
    let sum = composition.steps().iter().map(each).sum::<f64>() * (1.0 + 1e-9);
    if sum < 1.0 { sum } else { 1.0 }
}

/// The smallest value of `f` that a golden-section search on `[0, last]` finds.
fn smallest(last: f64, mut f: impl FnMut(f64) -> f64) -> f64 {
    let (mut best, mut calls) = (f64::INFINITY, 0);
    let tried = |epsilon: f64| {
        let value = f(epsilon);
        calls += 1;
        // Read the profile at 0 early: after more calls, no lattice may be left for it.
        let at_zero = if calls == 2 { f(0.0) } else { f64::INFINITY };
        best = best.min(value).min(at_zero);
        value
    };
    golden_section(tried, (0.0, last), RATIO, SEARCH);
    best
}
