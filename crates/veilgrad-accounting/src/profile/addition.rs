//! A quick test whether adding a record costs no more than removing one: if so, only removal needs a transform.

use crate::pair::Direction;
use crate::{Composition, Sampled, Step, rdp};

/// Upper bounds on delta when a record is added: from the largest privacy loss, and from the Rényi divergence at a few
/// orders, which is computed once.
#[derive(Default)]
pub(crate) struct Addition {
    orders: Option<rdp::Orders>,
}

impl Addition {
    /// Whether these bounds prove that adding a record has at most `delta` at `epsilon`. False proves nothing.
    pub(crate) fn costs_at_most(
        &mut self,
        composition: &Composition,
        epsilon: f64,
        delta: f64,
    ) -> bool {
        let largest = |(step, count): &(Step, u64)| match step.sampled {
            Sampled::Poisson(q) => -libm::log1p(-q) * *count as f64 * (1.0 + 1e-14),
            Sampled::PoissonGroup { rate, records } => {
                -libm::log1p(-rate) * records as f64 * *count as f64 * (1.0 + 1e-14)
            }
            _ => f64::INFINITY,
        };
        let steps = composition.steps();
        if composition.is_symmetric()
            || steps.iter().map(largest).sum::<f64>() * (1.0 + 1e-12) <= epsilon
        {
            return true;
        }
        let orders = || rdp::Orders::new(composition, Direction::Add);
        self.orders.get_or_insert_with(orders).prove(epsilon, delta)
    }
}
