//! Where searches begin.

use veilgrad_events::{Adjacency, Delta, Epsilon, Folded, NoiseMultiplier, Sampling};

use crate::guarantee::{Accountant, Guarantee, Pld, Rdp};
use crate::{Composition, Sampled, Step, Unsupported};

/// Where a search begins; not a bound for groups of records and random allocation. The RDP accountant takes microseconds, but its
/// bound for these is far from the truth: their rounds are taken for one Gaussian with the same second moment of likelihood ratios.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Guess;

impl Accountant for Guess {
    fn name(&self) -> &'static str {
        "guess"
    }

    fn epsilon(&self, composition: &Composition, delta: Delta) -> Result<Guarantee, Unsupported> {
        let (one, changes) = composition.one_change().unwrap_or((composition, 1));
        let is_far_from_rdp = |(step, _): &(Step, u64)| {
            matches!(step.sampled, Sampled::PoissonGroup { .. } | Sampled::Allocated(_))
        };
        if !one.steps().iter().any(is_far_from_rdp) {
            return Rdp.epsilon(composition, delta);
        }
        let noise_multiplier = NoiseMultiplier::new(1.0 / (changes as f64 * one.distance()))?;
        let gaussian = Folded { count: 1, sampling: Sampling::All {}, noise_multiplier };
        Pld.epsilon(&Composition::of([gaussian], Adjacency::AddRemove)?, delta)
    }

    fn delta(&self, composition: &Composition, epsilon: Epsilon) -> Guarantee {
        Rdp.delta(composition, epsilon)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Tightest;
    use std::num::NonZeroU64;

    /// Searches for noise begin close to their end, also for groups.
    #[test]
    fn guesses_for_groups_are_near_the_certified_epsilon() {
        let delta = Delta::new(1e-5).unwrap();
        for (records, z) in [(2, 1.5), (3, 2.24), (10, 8.0)] {
            let rate = veilgrad_events::SampleRate::new(256.0 / 60000.0).unwrap();
            let noise_multiplier = NoiseMultiplier::new(z).unwrap();
            let rounds =
                Folded { count: 14040, sampling: Sampling::Poisson { rate }, noise_multiplier };
            let group = NonZeroU64::new(records).unwrap();
            let composition =
                Composition::of_group([[rounds]], Adjacency::AddRemove, group).unwrap();
            let guess = Guess.epsilon(&composition, delta).unwrap().epsilon;
            let exact = Tightest.epsilon(&composition, delta).unwrap().epsilon;
            assert!((guess / exact - 1.0).abs() < 0.2, "{records} {z}: {guess} {exact}");
        }
    }

    #[test]
    fn guesses_for_random_allocation_are_near_the_certified_epsilon() {
        let delta = Delta::new(1e-5).unwrap();
        for (t, epochs, z) in [(58, 5, 0.9), (1000, 100, 1.5), (14, 40, 2.5)] {
            for adjacency in [Adjacency::ZeroOut, Adjacency::ReplaceOne] {
                let rounds_per_epoch = NonZeroU64::new(t).unwrap();
                let sampling = Sampling::Allocation { rounds_per_epoch };
                let noise_multiplier = NoiseMultiplier::new(z).unwrap();
                let rounds = Folded { count: t * epochs, sampling, noise_multiplier };
                let composition = Composition::of([rounds], adjacency).unwrap();
                let guess = Guess.epsilon(&composition, delta).unwrap().epsilon;
                let exact = Tightest.epsilon(&composition, delta).unwrap().epsilon;
                assert!((guess / exact - 1.0).abs() < 0.3, "{t} {z} {adjacency}: {guess} {exact}");
            }
        }
    }
}
