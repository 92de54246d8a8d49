//! Where searches begin.

use veilgrad_events::{Adjacency, Delta, Epsilon, Folded, NoiseMultiplier, Sampling};

use crate::guarantee::{Accountant, Guarantee, Pld, Rdp};
use crate::{Composition, Sampled, Step, Unsupported};

/// Where a search begins; not a bound for groups of records. The RDP accountant takes microseconds, but its bound for groups is far
/// from the truth: their rounds are taken for one Gaussian with the same second moment of likelihood ratios.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Guess;

impl Accountant for Guess {
    fn name(&self) -> &'static str {
        "guess"
    }

    fn epsilon(&self, composition: &Composition, delta: Delta) -> Result<Guarantee, Unsupported> {
        let of_group = |(step, count): &(Step, u64)| match step.sampled {
            Sampled::PoissonGroup { rate, records } => {
                Some(group_moment(rate, records, step.z) * *count as f64)
            }
            _ => None,
        };
        let squares: f64 = composition.steps().iter().filter_map(of_group).sum();
        if squares == 0.0 {
            return Rdp.epsilon(composition, delta);
        }
        let noise_multiplier = NoiseMultiplier::new(1.0 / squares.sqrt())?;
        let gaussian = Folded { count: 1, sampling: Sampling::All {}, noise_multiplier };
        Pld.epsilon(&Composition::of([gaussian], Adjacency::AddRemove)?, delta)
    }

    fn delta(&self, composition: &Composition, epsilon: Epsilon) -> Guarantee {
        Rdp.delta(composition, epsilon)
    }
}

/// The variance of the likelihood ratio of a Poisson sample with several records of one person.
fn group_moment(rate: f64, records: u64, z: f64) -> f64 {
    let (mut weight, mut moment) = ((1.0 - rate).powf(records as f64), 0.0);
    for j in 1..=records {
        weight *= (records - j + 1) as f64 / j as f64 * rate / (1.0 - rate);
        let grown = libm::log1p(rate * libm::expm1(j as f64 / (z * z)));
        moment += weight * libm::expm1(records as f64 * grown);
    }
    moment
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
}
