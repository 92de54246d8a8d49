//! Truncated Poisson samples as mixtures of simpler rounds.

use veilgrad_events::{Adjacency, TruncatedPoisson};

use super::step::TruncatedSample;
use crate::Interval;
use crate::binomial::at_least;
use crate::number::UNIT;

/// The mixture that dominates a round with noise multiplier `z` whose Poisson sample is cut to a maximum size; `None` if it is never
/// cut. The proof is in docs/accounting.md.
pub(super) fn truncated_sample(
    policy: TruncatedPoisson,
    adjacency: Adjacency,
    z: f64,
) -> Option<TruncatedSample> {
    let rate = policy.rate().get();
    // Two mixtures dominate under zero-out. Both are sound; this is a guess at the smaller one, by second moments of losses. A
    // test compares both on a grid.
    let reveals_slot = adjacency == Adjacency::ZeroOut
        && rate * libm::expm1((4.0 / (z * z)).min(700.0)) > libm::expm1((1.0 / (z * z)).min(700.0));
    mixture(policy, adjacency, reveals_slot)
}

/// The mixture in which a round that is cut reveals whether the record holds a slot (only under zero-out), or the one in which it
/// does not.
fn mixture(
    policy: TruncatedPoisson,
    adjacency: Adjacency,
    reveals_slot: bool,
) -> Option<TruncatedSample> {
    let (rate, records, maximum) = (policy.rate().get(), policy.records(), policy.maximum());
    // Under add-remove adjacency there may be one record more than the policy says.
    let others = if adjacency == Adjacency::AddRemove { records } else { records - 1 };
    if others < maximum {
        return None;
    }
    let (up, down) = (|p: f64| (p * (1.0 + 4.0 * UNIT)).min(1.0), |p: f64| p * (1.0 - 4.0 * UNIT));
    // All slots are taken by other records; and, of all records, too many are drawn and the record keeps a slot.
    let full = at_least(maximum, others, rate);
    let too_many = at_least(maximum + 1, others + 1, rate);
    let share = maximum as f64 / (others + 1) as f64;
    let held = Interval { lower: down(share * too_many.lower), upper: up(share * too_many.upper) };
    let untruncated = up(1.0 - full.lower);
    let inclusion = down(rate * down(1.0 - full.upper) + held.lower);
    // Bounds are never 0: the tails are positive.
    let error = up(((full.upper - full.lower) + (held.upper - held.lower)) / full.upper);
    let (replaced, same_size) =
        (adjacency == Adjacency::ReplaceOne, adjacency != Adjacency::AddRemove);
    let (held, exchanged, absent) = match reveals_slot {
        true => (held.upper, 0.0, up(full.upper - held.lower).max(0.0)),
        false => (0.0, full.upper, 0.0),
    };
    Some(TruncatedSample {
        rate,
        replaced,
        same_size,
        untruncated,
        held,
        exchanged,
        absent,
        inclusion,
        error,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Accountant, Composition, Sampled, Step, Tightest};
    use veilgrad_events::{Delta, SampleRate};

    /// Prints its table with `--nocapture`.
    #[allow(clippy::print_stdout)]
    #[test]
    fn the_mixture_that_is_guessed_is_the_smaller_one() {
        let mut other_is_chosen = [0, 0];
        for (n, q, most) in [(1000u64, 0.01, 12u64), (50, 0.5, 25)] {
            for z in [0.5, 0.8, 1.1, 2.0] {
                let policy = TruncatedPoisson::new(SampleRate::new(q).unwrap(), n, most).unwrap();
                let epsilon = |sample: TruncatedSample| {
                    let step = Step { sampled: Sampled::Truncated(sample), z };
                    let fold = Composition::of_step(step);
                    let ten = Composition::join(&vec![fold; 10]);
                    Tightest.epsilon(&ten, Delta::new(1e-5).unwrap()).unwrap().epsilon
                };
                let guessed = truncated_sample(policy, Adjacency::ZeroOut, z).unwrap();
                let [hidden, shown] = [false, true]
                    .map(|reveals| mixture(policy, Adjacency::ZeroOut, reveals).unwrap());
                other_is_chosen[usize::from(guessed == shown)] += 1;
                let other = if guessed == shown { hidden } else { shown };
                let (found, expensive) = (epsilon(guessed), epsilon(other));
                println!(
                    "{n} {q} {most} {z}: {} {found}, the other one {expensive}",
                    guessed == shown
                );
                assert!(found < expensive, "{n} {q} {most} {z}: {found} {expensive}");
            }
        }
        assert!(other_is_chosen.iter().all(|count| *count > 1), "{other_is_chosen:?}");
    }

    /// Probabilities by enumeration of how many of the other records are drawn.
    #[test]
    fn weights_are_those_of_an_enumeration_and_never_below() {
        for (n, q, most) in
            [(2u64, 0.5, 1u64), (6, 0.3, 2), (9, 0.9, 4), (30, 0.1, 5), (12, 0.05, 11)]
        {
            let policy = TruncatedPoisson::new(SampleRate::new(q).unwrap(), n, most).unwrap();
            // With so little noise the slot is revealed.
            let found = truncated_sample(policy, Adjacency::ZeroOut, 0.1).unwrap();
            let mut chance = (1.0 - q).powi(n as i32 - 1);
            let (mut full, mut held, mut inclusion) = (0.0, 0.0, 0.0);
            for drawn in 0..n {
                if drawn >= most {
                    full += chance;
                    held += chance * q * most as f64 / (drawn + 1) as f64;
                } else {
                    inclusion += chance * q;
                }
                chance *= (n - 1 - drawn) as f64 / (drawn + 1) as f64 * q / (1.0 - q);
            }
            inclusion += held;
            let near =
                |found: f64, exact: f64| found >= exact * (1.0 - 1e-12) && found <= exact + 1e-7;
            assert!(near(found.untruncated, 1.0 - full) && near(found.held, held), "{found:?}");
            assert!(near(found.absent, full - held), "{found:?} {full} {held}");
            assert!(
                found.inclusion <= inclusion && found.inclusion > inclusion - 1e-7,
                "{found:?}"
            );
            assert!(found.inclusion <= q);
            let exchanged = truncated_sample(policy, Adjacency::ReplaceOne, 0.1).unwrap();
            assert!(near(exchanged.exchanged, full) && exchanged.held == 0.0, "{exchanged:?}");
        }
    }
}
