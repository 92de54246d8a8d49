//! Neighbours that several changes of one record separate, by going from one neighbour to the next.

use super::many_epsilons::StepDeltas;
use crate::Composition;
use crate::number::golden_section;

/// With more changes than this, no bound is computed: it takes longer, and is far above the truth.
const MOST_CHANGES: u64 = 64;
/// Lattices in each direction for the profile of one change.
const LATTICES: usize = 3;
/// Steps of the search for the best increase of epsilon from change to change.
const SEARCH: u32 = 12;
const RATIO: f64 = 0.618_033_988_749_895;
/// Epsilons are bracketed in steps of this factor, and then bisected.
const STRIDE: f64 = 1.3;
const HALVINGS: u32 = 18;
/// Covers the rounding errors of a few operations.
const ROUNDED: f64 = 1.0 + 1e-13;

/// Upper bounds on delta at many epsilons; neighbouring ones share a transform.
pub(crate) struct Deltas<'a> {
    of_steps: StepDeltas<'a>,
    triangle: Option<Triangle<'a>>,
}

impl<'a> Deltas<'a> {
    /// With at most `most_lattices` lattices in each direction, and this work allowance.
    pub(crate) fn new(composition: &'a Composition, most_lattices: usize, work: u64) -> Self {
        let of_steps = StepDeltas::new(composition, most_lattices, work);
        Self { of_steps, triangle: Triangle::new(composition, work) }
    }

    /// An upper bound on delta at `epsilon`.
    pub(crate) fn at(&mut self, epsilon: f64) -> f64 {
        let found = self.of_steps.at(epsilon);
        self.triangle.as_mut().map_or(found, |triangle| found.min(triangle.delta(epsilon)))
    }
}

/// The profile of neighbours that several changes of one record separate, from the profile of one change.
///
/// # Guarantee
/// For any epsilons `a_1, ..., a_k`, k changes cost at most `sum_i e^{a_1 + ... + a_{i-1}} delta(a_i)` at `a_1 + ... + a_k`, where
/// `delta` is the profile of one change, the larger of both directions (docs/accounting.md).
pub(crate) struct Triangle<'a> {
    one: StepDeltas<'a>,
    changes: f64,
    /// About the epsilon of all changes. Not a bound.
    scale: f64,
}

impl<'a> Triangle<'a> {
    /// `None` if the composition has no better analysis for one change.
    pub(crate) fn new(composition: &'a Composition, work: u64) -> Option<Self> {
        let (one, changes) = composition.one_change()?;
        if changes > MOST_CHANGES {
            return None;
        }
        let changes = changes as f64;
        let distance = changes * one.distance().clamp(1e-6, 1e3);
        // That of a Gaussian at a delta of about 1e-5.
        let scale = distance * (4.0 + 0.5 * distance);
        Some(Self { one: StepDeltas::new(one, LATTICES, work), changes, scale })
    }

    /// An upper bound on delta at `epsilon`.
    pub(crate) fn delta(&mut self, epsilon: f64) -> f64 {
        let epsilon = epsilon / ROUNDED;
        // The epsilons of the changes increase by equal steps, which is best for Gaussians; they begin at 0 or above.
        let most = 2.0 * epsilon / (self.changes * (self.changes - 1.0));
        let at = |increase: f64| self.sum(epsilon, increase);
        golden_section(at, (0.0, most), RATIO, SEARCH).1
    }

    /// The bound at `epsilon` if the epsilon of every change is larger than the one before by `increase`.
    fn sum(&mut self, epsilon: f64, increase: f64) -> f64 {
        let first = epsilon / self.changes - 0.5 * increase * (self.changes - 1.0);
        let (mut sum, mut before, mut each) = (0.0, 0.0, first.max(0.0) / ROUNDED);
        for _ in 0..self.changes as u64 {
            sum += libm::exp(before) * self.one.at(each);
            before += each;
            each += increase / ROUNDED;
        }
        // Epsilons were rounded down, so that they do not add up to more than the whole.
        let is_bound = before <= epsilon && sum.is_finite();
        if is_bound { sum * ROUNDED * (1.0 + 1e-14 * before) } else { f64::INFINITY }
    }

    /// The smallest epsilon for `delta` that a search finds; infinite if there is none below 1e6.
    pub(crate) fn epsilon(&mut self, delta: f64) -> f64 {
        if self.delta(0.0) <= delta {
            return 0.0;
        }
        let mut high = self.scale;
        while !(self.delta(high) <= delta) {
            high *= STRIDE;
            if !(high < 1e6) {
                return f64::INFINITY;
            }
        }
        let mut low = high / STRIDE;
        while low > 1e-12 && self.delta(low) <= delta {
            (low, high) = (low / STRIDE, low);
        }
        for _ in 0..HALVINGS {
            let middle = 0.5 * (low + high);
            if self.delta(middle) <= delta { high = middle } else { low = middle }
        }
        high
    }
}
