//! An envelope: limits for rounds that are chosen from earlier outputs.

use veilgrad_events::{Adjacency, NoiseMultiplier, Rounds, SampleRate, Sampling};

use crate::{Composition, Unsupported};

/// Limits, declared before the first round, within which later rounds may be chosen from earlier
/// outputs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Envelope {
    /// No round samples at a higher rate.
    pub rate: SampleRate,
    /// No round has less noise.
    pub noise_multiplier: NoiseMultiplier,
    /// There are not more rounds.
    pub rounds: u64,
}

impl Envelope {
    /// The most that can happen: all rounds, each at both limits.
    ///
    /// # Guarantee
    /// Dominates every adaptive choice within the envelope: a lower rate and more noise are
    /// post-processing of a higher rate and less noise.
    ///
    /// # Errors
    /// When a round is outside of it, or no Poisson sample.
    pub fn composition(
        &self,
        rounds: &[Rounds],
        adjacency: Adjacency,
    ) -> Result<Composition, Unsupported> {
        // Folding rounds noise down, so that a round at the limit may fall a little below it: what is priced is that.
        let least = NoiseMultiplier::new(self.noise_multiplier.get() * (1.0 - 1e-12));
        let least = least.map_err(|error| Unsupported::new(error.to_string()))?;
        let mut count: u64 = 0;
        for entry in rounds.iter().filter(|entry| entry.count > 0) {
            count = count.saturating_add(entry.count);
            let Sampling::Poisson { rate } = entry.round.sampling() else {
                return Err(Unsupported::new("an envelope covers Poisson samples only"));
            };
            let z = entry.round.noise_multiplier();
            let z = z.map_err(|error| Unsupported::new(error.to_string()))?.get();
            if rate.get() > self.rate.get() || z < least.get() || count > self.rounds {
                return Err(Unsupported::new(format!(
                    "rate {}, noise multiplier {z}, {count} rounds: outside the declared envelope \
                     of rate {}, noise multiplier {}, {} rounds",
                    rate.get(),
                    self.rate.get(),
                    self.noise_multiplier.get(),
                    self.rounds
                )));
            }
        }
        Composition::poisson(self.rate, least, self.rounds, adjacency)
    }
}
