//! The profile of steps at many epsilons, with transforms shared between neighbouring ones.

use std::borrow::Cow;

use veilgrad_events::Delta;

use super::addition::Addition;
use super::certified::{DeltaBounds, Method};
use super::closed_form::ClosedForm;
use super::lattice::SKETCHED;
use super::limit::{beyond_transforms, ever_sampled, without_tiny_noise};
use super::one_direction::{MOST_EPSILON, Transform, coarse_delta, delta_towards, rdp_exceeds};
use crate::pair::Direction;
use crate::work::{self, Allowance};
use crate::{Composition, Interval};

/// The relative gap to which lattices are refined for the points of a whole profile.
const SKETCH_GAP: f64 = 5e-4;
/// For thousands of distinct steps, transforms are reused up to this relative gap between bounds.
const MANY_STEPS_GAP: f64 = 3e-2;

/// Upper bounds on delta at many epsilons, from the steps of a composition; neighbouring ones share a transform.
pub(crate) struct StepDeltas<'a> {
    /// The rounds without those of tiny noise, and the probability that the latter ever sample a record, which adds to delta.
    composition: Cow<'a, Composition>,
    sampled: f64,
    /// The probability that any round samples a record: an upper bound on delta at every epsilon.
    ever_sampled: f64,
    remove: TransformCache,
    add: TransformCache,
    addition: Addition,
    /// Whether no transform is tried, so that `ever_sampled` is the only bound.
    no_transforms: bool,
    /// The remaining work allowance.
    work: u64,
}

/// The transforms of one direction that were computed so far, reused at neighbouring epsilons.
struct TransformCache {
    transforms: Vec<Transform>,
    lattices: usize,
    most_lattices: usize,
}

impl<'a> StepDeltas<'a> {
    /// With at most `most_lattices` lattices in each direction, and this work allowance.
    pub(crate) fn new(composition: &'a Composition, most_lattices: usize, work: u64) -> Self {
        let composition = composition.above();
        let ever_sampled = ever_sampled(composition);
        let (composition, sampled) = match without_tiny_noise(composition) {
            Some((rest, sampled)) => (Cow::Owned(rest), sampled),
            None => (Cow::Borrowed(composition), 0.0),
        };
        let no_transforms = ClosedForm::new(&composition, Direction::Remove).is_none()
            && (beyond_transforms(&composition).is_err()
                || Delta::new(0.5)
                    .is_ok_and(|delta| rdp_exceeds(&composition, delta, MOST_EPSILON)));
        let empty = || TransformCache { transforms: Vec::new(), lattices: 0, most_lattices };
        let work = work::for_steps(work, composition.distinct());
        let (remove, add, addition) = (empty(), empty(), Addition::default());
        Self { composition, sampled, ever_sampled, remove, add, addition, no_transforms, work }
    }

    /// An upper bound on delta at `epsilon`.
    pub(crate) fn at(&mut self, epsilon: f64) -> f64 {
        if self.no_transforms {
            return self.ever_sampled;
        }
        let before = work::spent();
        let _allowance = Allowance::open(self.work);
        let composition = &*self.composition;
        let remove = self.remove.delta(composition, Direction::Remove, epsilon);
        // At epsilon 0 both directions have the total variation distance.
        let remove_is_larger =
            epsilon == 0.0 || self.addition.costs_at_most(composition, epsilon, remove.lower);
        let add = match remove_is_larger {
            true => remove,
            false => self.add.delta(composition, Direction::Add, epsilon),
        };
        self.work = self.work.saturating_sub(work::spent() - before);
        (remove.upper.max(add.upper) + self.sampled).min(self.ever_sampled)
    }
}

impl TransformCache {
    /// Bounds on delta from the known transforms, if they are tight or no more lattices are allowed; else from a new one.
    fn delta(&mut self, composition: &Composition, direction: Direction, epsilon: f64) -> Interval {
        let mut best = Interval::UNKNOWN;
        let mut usable_gap: f64 = 0.0;
        for transform in &self.transforms {
            let delta = transform.delta(epsilon);
            best = best.intersection(delta);
            usable_gap = usable_gap.max(transform.usable_gap());
        }
        // For thousands of distinct steps another transform takes long.
        let many_steps = composition.sample().is_some();
        usable_gap = usable_gap.max(if many_steps { MANY_STEPS_GAP } else { 0.0 });
        let is_tight = best.upper - best.lower <= usable_gap * best.upper;
        let is_enough = is_tight || self.lattices >= self.most_lattices;
        if (best.upper.is_finite() && is_enough) || work::left() == 0 {
            return best;
        }
        let accuracy = (SKETCH_GAP, SKETCHED);
        // If the steps themselves had no transform at one epsilon, they have none at another.
        let only_coarse =
            self.transforms.iter().any(|known| matches!(known, Transform::UpperOnly(_)));
        let (certified, found) = match only_coarse {
            true => coarse_delta(composition, direction, epsilon, accuracy),
            false => delta_towards(composition, direction, epsilon, accuracy),
        };
        let is_coarse = matches!(found, Some(Transform::UpperOnly(_)));
        self.lattices += usize::from(certified.method == Method::Lattice || is_coarse);
        self.transforms.extend(found);
        best.intersection(certified.bounds)
    }
}
