//! Limits on the work of transforms. Work is counted, not timed, so that every answer is the same on every machine.
//!
//! A search or a query opens an `Allowance`. Transforms count their work against it. When it is used up they return no
//! certified bound, and the caller falls back on the RDP bound and closed forms, which are cheap and always run.

use std::cell::Cell;

/// Units of work of one quadrature node. A unit is about one elementary function, ten nanoseconds.
pub(crate) const NODE: u64 = 10;
/// This many products of a frequency and a node are one unit of work.
pub(crate) const PRODUCTS: u64 = 8;

/// Allowance for one query: bounds on epsilon at a delta, or on delta at an epsilon.
pub(crate) const QUESTION: u64 = 30_000_000;
/// Allowance for all queries of a search or a curve together, and for each one. Rough bounds at many points find a better
/// answer than tight bounds at a few.
pub(crate) const SEARCH: u64 = 125_000_000;
pub(crate) const SEARCH_QUESTION: u64 = 20_000_000;
/// A search first asks with this fraction, one eighth, of the work of a query.
pub(crate) const ROUGH: u64 = 8;
/// Searches divide both by this for unusual budgets (epsilon outside [0.01, 50] or delta outside [1e-20, 0.01]).
pub(crate) const UNUSUAL: u64 = 5;
/// Allowances for a whole profile, and for the few points of it that bound an attack.
pub(crate) const PROFILE: u64 = 50_000_000;
pub(crate) const ATTACK: u64 = 12_000_000;

/// Many distinct steps get at most `1 + MOST_SHARES` times the work of one, which bounds the time of any query.
const MOST_SHARES: u64 = 64;

#[derive(Clone, Copy)]
struct Meter {
    spent: u64,
    /// The largest `spent` that is allowed.
    limit: u64,
}

thread_local! {
    static METER: Cell<Meter> = const { Cell::new(Meter { spent: 0, limit: u64::MAX }) };
}

/// The work that this thread has counted so far. Subtract two readings to measure what lies between them.
pub fn spent() -> u64 {
    METER.get().spent
}

pub(crate) fn spend(units: u64) {
    let meter = METER.get();
    METER.set(Meter { spent: meter.spent.saturating_add(units), ..meter });
}

/// What is left of the smallest open allowance.
pub(crate) fn left() -> u64 {
    let Meter { spent, limit } = METER.get();
    limit.saturating_sub(spent)
}

/// The work for `distinct` steps: `units`, and as much again for every sixteen distinct steps, up to a limit.
pub(crate) fn for_steps(units: u64, distinct: usize) -> u64 {
    units.saturating_mul(1 + (distinct as u64 / 16).min(MOST_SHARES))
}

/// Limits the work of this thread until dropped. Allowances nest: an inner one never has more than is left of the outer
/// one.
#[must_use]
pub(crate) struct Allowance {
    outer: u64,
}

impl Allowance {
    pub(crate) fn open(units: u64) -> Self {
        let Meter { spent, limit } = METER.get();
        METER.set(Meter { spent, limit: limit.min(spent.saturating_add(units)) });
        Self { outer: limit }
    }

    pub(crate) fn for_steps(units: u64, distinct: usize) -> Self {
        Self::open(for_steps(units, distinct))
    }
}

impl Drop for Allowance {
    fn drop(&mut self) {
        METER.set(Meter { limit: self.outer, ..METER.get() });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inner_allowance_never_has_more_than_the_outer_one() {
        let outer = Allowance::open(100);
        {
            let _inner = Allowance::open(1000);
            assert_eq!(left(), 100);
            spend(30);
        }
        {
            let _inner = Allowance::open(20);
            spend(50);
            assert_eq!(left(), 0);
        }
        assert_eq!(left(), 20);
        drop(outer);
        assert!(left() > u64::MAX / 2);
    }
}
