//! The privacy profile: delta at an epsilon and epsilon for a delta, between certified bounds.
//!
//! Three methods share one interface (`DeltaBounds`): a closed form where there is one, else the contour, and the lattice
//! where the contour fails or is not tight.

mod addition;
mod certified;
mod closed_form;
mod contour;
mod lattice;
mod limit;
mod many_epsilons;
mod one_direction;
mod triangle;

pub use certified::{Certified, Method};
pub(crate) use triangle::Deltas;

use veilgrad_events::{Delta, Epsilon};

use crate::cumulant::LEAST_NOISE;
use crate::pair::{Direction, step_delta};
use crate::work::{self, Allowance};
use crate::{Composition, Interval, Unsupported};

use addition::Addition;
use closed_form::ClosedForm;
use limit::{beyond_transforms, ever_sampled, without_tiny_noise};
use one_direction::{FINE, MOST_EPSILON, delta_towards, epsilon_towards};
use triangle::Triangle;

/// Certified bounds on the smallest epsilon for `delta`.
///
/// # Guarantee
/// The smallest epsilon of the dominating pair of the composition lies between both bounds. They account for the errors of
/// discretisation, truncation, wrap-around and rounding.
///
/// # Errors
/// When no finite epsilon can be certified.
///
/// # Example
/// ```
/// use veilgrad_accounting::{Composition, profile};
/// use veilgrad_events::{Adjacency, Delta, NoiseMultiplier, SampleRate};
///
/// let (rate, noise) = (SampleRate::new(0.01)?, NoiseMultiplier::new(1.0)?);
/// let rounds = Composition::poisson(rate, noise, 1000, Adjacency::AddRemove)?;
/// let found = profile::epsilon(&rounds, Delta::new(1e-5)?)?.bounds;
/// assert!(found.lower <= 1.828_236_67 && 1.828_236_66 <= found.upper);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn epsilon(composition: &Composition, delta: Delta) -> Result<Certified, Unsupported> {
    let mut found = epsilon_of_steps(composition, delta);
    if let Some(mut triangle) = Triangle::new(composition, work::PROFILE) {
        let bound = triangle.epsilon(delta.get());
        if bound.is_finite() {
            let bound = Certified::new(0.0, bound, Method::Lattice);
            found = Ok(found.map_or(bound, |found| found.with_lower(0.0).and(bound)));
        }
    }
    match composition.without_allocation() {
        Some(gaussian) => {
            let bound = epsilon_of_steps(&gaussian, delta)?.with_lower(0.0);
            Ok(found.map_or(bound, |found| found.and(bound)))
        }
        None => found,
    }
}

fn epsilon_of_steps(composition: &Composition, delta: Delta) -> Result<Certified, Unsupported> {
    if let Some((above, below)) = composition.enclosing() {
        let lower = match composition.attained() {
            true => epsilon_of_steps(below, delta).map_or(0.0, |found| found.bounds.lower),
            false => 0.0,
        };
        return epsilon_of_steps(above, delta).map(|found| found.with_lower(lower));
    }
    let _allowance = Allowance::for_steps(question_work(composition), composition.distinct());
    // Delta at epsilon 0 is the total variation distance, which is at most the sum of the distances of all steps.
    let delta_at_zero = |direction: Direction| -> f64 {
        let steps = composition.steps().iter();
        let sum: f64 =
            steps.map(|(step, n)| *n as f64 * step_delta(*step, direction, 0.0).upper).sum();
        sum * (1.0 + 1e-12)
    };
    let at_zero = delta_at_zero(Direction::Remove).max(delta_at_zero(Direction::Add));
    if at_zero.min(ever_sampled(composition)) <= delta.get() {
        return Ok(Certified::new(0.0, 0.0, Method::ClosedForm));
    }
    if let Some((rest, sampled)) = without_tiny_noise(composition) {
        let left = Delta::new((delta.get() - sampled) * (1.0 - 1e-12)).map_err(|_| {
            Unsupported::new(format!(
                "rounds with a noise multiplier below {LEAST_NOISE} sample a record with probability \
                 {sampled}, which is not below delta"
            ))
        })?;
        return epsilon(&rest, left).map(|found| found.with_lower(0.0));
    }
    if ClosedForm::new(composition, Direction::Remove).is_none() {
        beyond_transforms(composition)?;
    }
    let mut found = {
        let _allowance = allowance_for_removal(composition);
        epsilon_towards(composition, Direction::Remove, delta.get())
    };
    // Addition is computed only where it may need a larger epsilon.
    if found.bounds.upper.is_finite()
        && !Addition::default().costs_at_most(composition, found.bounds.lower, delta.get())
    {
        found = found.larger(epsilon_towards(composition, Direction::Add, delta.get()));
    }
    if Epsilon::new(found.bounds.upper).is_err() {
        return Err(Unsupported::new("no finite epsilon can be certified for this delta"));
    }
    Ok(found)
}

/// Certified bounds on the smallest delta at `epsilon`. The upper bound is at most 1.
///
/// # Guarantee
/// As for [`epsilon`].
pub fn delta(composition: &Composition, epsilon: Epsilon) -> Certified {
    let mut found = delta_of_steps(composition, epsilon);
    if let Some(mut triangle) = Triangle::new(composition, work::PROFILE) {
        let bound = triangle.delta(epsilon.get());
        found = found.with_lower(0.0).and(Certified::new(0.0, bound, Method::Lattice));
    }
    match composition.without_allocation() {
        Some(gaussian) => found.and(delta_of_steps(&gaussian, epsilon).with_lower(0.0)),
        None => found,
    }
}

fn delta_of_steps(composition: &Composition, epsilon: Epsilon) -> Certified {
    if let Some((above, below)) = composition.enclosing() {
        let lower = delta_of_steps(below, epsilon).bounds.lower;
        return delta_of_steps(above, epsilon).with_lower(lower);
    }
    let _allowance = Allowance::for_steps(question_work(composition), composition.distinct());
    let trivial = Certified::new(0.0, ever_sampled(composition), Method::ClosedForm);
    if let Some((rest, sampled)) = without_tiny_noise(composition) {
        let Certified { bounds, method } = delta(&rest, epsilon);
        return Certified::new(bounds.lower, bounds.upper + sampled, method).and(trivial);
    }
    let epsilon = epsilon.get();
    let closed = ClosedForm::new(composition, Direction::Remove).is_some();
    if !closed && (epsilon > MOST_EPSILON || beyond_transforms(composition).is_err()) {
        return trivial;
    }
    let mut found = {
        let _allowance = allowance_for_removal(composition);
        delta_towards(composition, Direction::Remove, epsilon, FINE).0
    };
    if !Addition::default().costs_at_most(composition, epsilon, found.bounds.lower) {
        found = found.larger(delta_towards(composition, Direction::Add, epsilon, FINE).0);
    }
    // An upper bound must not underflow to 0.
    let upper = found.bounds.upper.max(trivial.bounds.upper.min(f64::MIN_POSITIVE));
    let bounds = Interval { lower: found.bounds.lower.max(0.0), upper };
    Certified { bounds, ..found }.and(trivial)
}

/// The work for one question: twice as much where both directions need a lattice.
fn question_work(composition: &Composition) -> u64 {
    if composition.needs_lattices() { 2 * work::QUESTION } else { work::QUESTION }
}

/// The allowance for removal: half of what is left where addition needs as much.
fn allowance_for_removal(composition: &Composition) -> Allowance {
    let both = composition.needs_lattices() && !composition.is_symmetric();
    Allowance::open(if both { work::left() / 2 } else { work::left() })
}
