//! Several records of one person, by going from neighbour to neighbour: for rounds without an analysis of groups.

use std::num::NonZeroU64;

use veilgrad_events::{Delta, Epsilon};

use super::accountant::{Accountant, Guarantee};
use crate::{Composition, Unsupported};

/// The accountant of a person with several records, for compositions that protect one record.
///
/// # Guarantee
/// If every record costs at most `delta(a)` at a, then k of them cost at most `delta(a) (1 + e^a + ... + e^{(k-1) a})` at `k a`:
/// each of k changes of one record multiplies probabilities by at most `e^a` and adds at most `delta(a)`. Valid for every
/// composition; where [`Composition::of_group`] has an analysis, that is far tighter.
#[derive(Clone, Copy)]
pub struct ByTriangle<'a> {
    /// The accountant of one record.
    pub inner: &'a dyn Accountant,
    /// The number of records.
    pub records: NonZeroU64,
}

/// Epsilons of one record are tried in steps of this factor.
const STRIDE: f64 = 1.3;
const HALVINGS: u32 = 12;

impl ByTriangle<'_> {
    /// `1 + e^a + ... + e^{(k-1) a}`, rounded up.
    fn hops(&self, a: f64) -> f64 {
        let k = self.records.get() as f64;
        let hops = if a == 0.0 { k } else { libm::expm1(k * a) / libm::expm1(a) };
        hops * (1.0 + 1e-12)
    }
}

impl Accountant for ByTriangle<'_> {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn epsilon(&self, composition: &Composition, delta: Delta) -> Result<Guarantee, Unsupported> {
        let k = self.records.get() as f64;
        let prepared = self.inner.prepared(composition);
        let inner = prepared.as_deref().unwrap_or(self.inner);
        let one = inner.epsilon(composition, delta)?;
        let fits = |a: f64| -> bool {
            let Ok(epsilon) = Epsilon::new(a) else { return false };
            let found = inner.delta(composition, epsilon).delta;
            found * self.hops(a) <= delta.get()
        };
        let (mut low, mut high) = (0.0, one.epsilon.max(1e-6));
        while !fits(high) {
            (low, high) = (high, STRIDE * high);
            if !(k * high < 1e6) {
                return Err(Unsupported::new(format!(
                    "no epsilon below 1e6 can be certified for {} records of one person",
                    self.records
                )));
            }
        }
        for _ in 0..HALVINGS {
            let middle = 0.5 * (low + high);
            if fits(middle) { high = middle } else { low = middle }
        }
        let epsilon = k * high * (1.0 + 1e-15);
        Ok(Guarantee { epsilon, epsilon_lower: None, delta: delta.get(), ..one })
    }

    fn delta(&self, composition: &Composition, epsilon: Epsilon) -> Guarantee {
        let a = epsilon.get() / self.records.get() as f64 * (1.0 - 1e-15);
        let one = Epsilon::new(a).map_or(1.0, |a| self.inner.delta(composition, a).delta);
        let delta = one * self.hops(a);
        let delta = if delta < 1.0 { delta } else { 1.0 };
        let (epsilon, accountant) = (epsilon.get(), self.name());
        Guarantee { epsilon, epsilon_lower: None, delta, accountant, method: None }
    }
}
