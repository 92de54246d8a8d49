//! A quick test whether adding a record costs no more than removing one, so that only removal needs a transform.

use crate::pair::Direction;
use crate::{Composition, Sampled, Step, rdp};

/// Upper bounds of what adding a record costs: from its largest privacy loss, and from its Rényi divergence at a few
/// orders, which are computed once.
#[derive(Default)]
pub(crate) struct Addition {
    orders: Option<rdp::Orders>,
}

impl Addition {
    /// Whether adding a record provably has at most `delta` at `epsilon`. If not, it may still have.
    pub(crate) fn costs_at_most(
        &mut self,
        composition: &Composition,
        epsilon: f64,
        delta: f64,
    ) -> bool {
        let largest = |(step, count): &(Step, u64)| match step.sampled {
            Sampled::Poisson(q) => -libm::log1p(-q) * *count as f64 * (1.0 + 1e-14),
            _ => f64::INFINITY,
        };
        let steps = composition.steps();
        if composition.is_symmetric()
            || steps.iter().map(largest).sum::<f64>() * (1.0 + 1e-12) <= epsilon
        {
            return true;
        }
        let orders = || rdp::Orders::new(composition, Direction::Add);
        self.orders.get_or_insert_with(orders).show(epsilon, delta)
    }
}
