//! How many bands are worth it: correlated noise against plain noise at the same epsilon.

use std::num::NonZeroU64;

use veilgrad_events::{BandedStrategy, NoiseMultiplier, SampleRate, Sampling};

use super::Workload;
use crate::{Composition, PrivacyTarget, Unsupported};

/// More bands must lower the error by at least this factor: they take memory and time, and make restarts more expensive.
const WORTH_IT: f64 = 0.99;

/// Noise for a target epsilon: plain, or correlated between rounds.
#[derive(Debug, Clone, PartialEq)]
pub struct NoiseChoice {
    /// How samples are drawn: Poisson for plain noise, cyclic Poisson with as many groups as bands for correlated noise.
    pub sampling: Sampling,
    /// The strategy of correlated noise; `None` for plain noise.
    pub strategy: Option<BandedStrategy>,
    /// The smallest noise multiplier that keeps the target.
    pub noise: NoiseMultiplier,
    /// The root mean squared error in the parameters of the model over that of plain noise, at the same epsilon and expected
    /// batch size. Below 1 correlated noise is better.
    pub error_ratio: f64,
}

impl NoiseChoice {
    /// The number of bands; 1 for plain noise.
    #[must_use]
    pub fn bands(&self) -> usize {
        self.strategy.as_ref().map_or(1, BandedStrategy::bands)
    }

    /// The best of several choices; among those that are nearly as good, the one with the fewest bands.
    #[must_use]
    pub fn best(choices: &[Self]) -> Option<&Self> {
        let mut by_bands: Vec<&Self> = choices.iter().collect();
        by_bands.sort_by_key(|choice| choice.bands());
        by_bands.into_iter().reduce(|best, next| {
            if next.error_ratio < best.error_ratio * WORTH_IT { next } else { best }
        })
    }
}

impl Workload {
    /// What plain noise and each of these numbers of bands need to keep a target. `rate` is the expected batch size over the
    /// number of records; `with` composes rounds with this sampling and noise. Numbers of bands that leave less than an
    /// expected batch in a group of records, or exceed the number of rounds, are left out. The first choice is plain noise.
    ///
    /// # Errors
    /// When no noise keeps the target, or the accountant does not support the rounds.
    ///
    /// # Example
    /// ```
    /// use veilgrad_accounting::{Composition, NoiseChoice, PrivacyTarget, Tightest, Workload};
    /// use veilgrad_events::{Adjacency, Delta, Epsilon, Folded, SampleRate};
    ///
    /// // 5 epochs over 60,000 records in batches of 256, at epsilon 3.
    /// let (rounds, rate) = (1172, SampleRate::new(256.0 / 60_000.0)?);
    /// let target = PrivacyTarget { epsilon: Epsilon::new(3.0)?, delta: Delta::new(1e-5)?, accountant: &Tightest };
    /// let choices = Workload::prefix_sums(rounds).choices(&target, rate, [8, 16], |sampling, noise_multiplier| {
    ///     Composition::of([Folded { count: 1172, sampling, noise_multiplier }], Adjacency::AddRemove)
    /// })?;
    /// let best = NoiseChoice::best(&choices).ok_or("no choice")?;
    /// assert_eq!(best.bands(), 16); // half the error of plain noise
    /// assert!(best.error_ratio < 0.55);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn choices(
        &self,
        target: &PrivacyTarget<'_>,
        rate: SampleRate,
        bands: impl IntoIterator<Item = usize>,
        with: impl Fn(Sampling, NoiseMultiplier) -> Result<Composition, Unsupported>,
    ) -> Result<Vec<NoiseChoice>, Unsupported> {
        let plain = Sampling::Poisson { rate };
        let plain_noise = target.noise_multiplier(|noise| with(plain, noise))?;
        let mut choices = vec![NoiseChoice {
            sampling: plain,
            strategy: None,
            noise: plain_noise,
            error_ratio: 1.0,
        }];
        for bands in bands {
            let Some(sampling) =
                cyclic(rate, bands, 0).filter(|_| (2..=self.rates.len()).contains(&bands))
            else {
                continue;
            };
            let strategy =
                self.strategy(bands).map_err(|error| Unsupported::new(error.to_string()))?;
            let noise = target.noise_multiplier(|noise| with(sampling, noise))?;
            let error_ratio = noise.get() / plain_noise.get() * self.error_ratio(&strategy);
            choices.push(NoiseChoice { sampling, strategy: Some(strategy), noise, error_ratio });
        }
        Ok(choices)
    }
}

/// Cyclic sampling with the same expected batch size as Poisson sampling at this rate; `None` if a group has fewer records than that.
#[must_use]
pub fn cyclic(rate: SampleRate, groups: usize, first_round: u64) -> Option<Sampling> {
    let rate = SampleRate::new(rate.get() * groups as f64).ok()?;
    let groups = NonZeroU64::new(groups as u64)?;
    Some(Sampling::CyclicPoisson { rate, groups, first_round })
}
