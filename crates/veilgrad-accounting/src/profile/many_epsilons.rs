//! The profile at many epsilons.

use std::borrow::Cow;

use veilgrad_events::Delta;

use super::addition::Addition;
use super::certified::{DeltaBounds, Method};
use super::closed_form::ClosedForm;
use super::lattice::SKETCHED;
use super::limit::{beyond_transforms, ever_sampled, without_tiny_noise};
use super::one_direction::{Transform, coarse_delta, delta_towards, is_above_most_epsilon};
use crate::pair::Direction;
use crate::work::{self, Allowance};
use crate::{Composition, Interval};

/// How close points of whole profiles have to be, and how close where there are thousands of distinct steps.
const SKETCH_CLOSE: f64 = 5e-4;
const MANY_CLOSE: f64 = 3e-2;

/// Upper bounds of delta at many epsilons; neighbouring ones share a transform.
pub(crate) struct Deltas<'a> {
    /// Without rounds of tiny noise, whose chance to sample a record adds to delta.
    composition: Cow<'a, Composition>,
    sampled: f64,
    /// At least every delta.
    ever_sampled: f64,
    remove: Known,
    add: Known,
    addition: Addition,
    /// Whether transforms are not worth a try, so that `ever_sampled` is the only bound.
    no_transforms: bool,
    /// How much work transforms may still take.
    work: u64,
}

/// The transforms of one direction that were computed so far, reused at neighbouring epsilons.
struct Known {
    transforms: Vec<Transform>,
    lattices: usize,
    most_lattices: usize,
}

impl<'a> Deltas<'a> {
    /// With at most so many lattices in either direction, and so much work.
    pub(crate) fn new(composition: &'a Composition, most_lattices: usize, work: u64) -> Self {
        let composition = composition.above();
        let ever_sampled = ever_sampled(composition);
        let (composition, sampled) = match without_tiny_noise(composition) {
            Some((rest, sampled)) => (Cow::Owned(rest), sampled),
            None => (Cow::Borrowed(composition), 0.0),
        };
        let no_transforms = ClosedForm::new(&composition, Direction::Remove).is_none()
            && (beyond_transforms(&composition).is_err()
                || Delta::new(0.5).is_ok_and(|delta| is_above_most_epsilon(&composition, delta)));
        let nothing_known = || Known { transforms: Vec::new(), lattices: 0, most_lattices };
        let work = work::for_steps(work, composition.steps().len());
        let (remove, add, addition) = (nothing_known(), nothing_known(), Addition::default());
        Self { composition, sampled, ever_sampled, remove, add, addition, no_transforms, work }
    }

    pub(crate) fn at(&mut self, epsilon: f64) -> f64 {
        if self.no_transforms {
            return self.ever_sampled;
        }
        let before = work::spent();
        let _allowance = Allowance::open(self.work);
        let composition = &*self.composition;
        let remove = self.remove.at(composition, Direction::Remove, epsilon);
        // At epsilon 0 both directions have the total variation distance.
        let remove_is_larger =
            epsilon == 0.0 || self.addition.costs_at_most(composition, epsilon, remove.lower);
        let add = match remove_is_larger {
            true => remove,
            false => self.add.at(composition, Direction::Add, epsilon),
        };
        self.work = self.work.saturating_sub(work::spent() - before);
        (remove.upper.max(add.upper) + self.sampled).min(self.ever_sampled)
    }
}

impl Known {
    /// From the transforms that there are if one of them is close, or if there are enough; else from one
    /// more.
    fn at(&mut self, composition: &Composition, direction: Direction, epsilon: f64) -> Interval {
        let mut best = Interval::UNKNOWN;
        let mut close: f64 = 0.0;
        for transform in &self.transforms {
            let delta = transform.delta(epsilon);
            best = best.intersection(delta);
            close = close.max(transform.close());
        }
        // Of thousands of distinct steps a further transform takes long.
        close = close.max(if composition.sample().is_some() { MANY_CLOSE } else { 0.0 });
        // An infinite bound is close to nothing.
        let known = best.upper - best.lower <= close * best.upper;
        let enough = known || self.lattices >= self.most_lattices;
        if (best.upper.is_finite() && enough) || work::left() == 0 {
            return best;
        }
        let sketch = (SKETCH_CLOSE, SKETCHED);
        // Where the steps themselves had no transform, they have none at another epsilon.
        let given_up = self.transforms.iter().any(|known| matches!(known, Transform::UpperOnly(_)));
        let (certified, found) = match given_up {
            true => coarse_delta(composition, direction, epsilon, sketch),
            false => delta_towards(composition, direction, epsilon, sketch),
        };
        let from_above = matches!(found, Some(Transform::UpperOnly(_)));
        self.lattices += usize::from(certified.method == Method::Lattice || from_above);
        self.transforms.extend(found);
        best.intersection(certified.bounds)
    }
}
