//! Noise that is correlated between rounds: which strategy a configuration gets.

use veilgrad_accounting::{
    Composition, NoiseChoice, PrivacyTarget, Tightest, Unsupported, Workload, cyclic,
};
use veilgrad_events::{BandedStrategy, Delta, Epsilon, Folded, SampleRate, Sampling};

use super::config::{Bands, Config, Correlated, Optimizer};
use crate::error::Error;
use crate::plan::correlated::TRIED;

/// Strategies for more rounds than this hardly differ.
const MOST_ROUNDS: u64 = 100_000;

/// How samples are drawn and noise is correlated.
#[derive(Clone)]
pub(crate) struct Chosen {
    pub(crate) sampling: Sampling,
    pub(crate) strategy: BandedStrategy,
    /// The error in the parameters over that of plain noise, at the same epsilon; `None` without a target epsilon.
    pub(crate) error_ratio: Option<f64>,
}

/// The correlated noise of a configuration; `None` if it has none, or if plain noise is the best.
pub(crate) fn choose(config: &Config, delta: Delta) -> Result<Option<Chosen>, Error> {
    let Some(Correlated { bands }) = config.privacy.correlated else { return Ok(None) };
    let rounds = usize::try_from(config.rounds().min(MOST_ROUNDS)).map_err(Error::usage)?;
    let workload = Workload::prefix_sums(rounds).with_momentum(match config.train.optimizer {
        Optimizer::Sgd { momentum, .. } => momentum.into(),
        _ => 0.0,
    });
    let rate = config.privacy.expected_batch / config.data.records as f64;
    let rate = SampleRate::new(rate).map_err(Error::usage)?;
    let (number, tried) = match bands {
        Bands::Number(1) => return Ok(None),
        Bands::Number(number) => (Some(number), vec![number]),
        Bands::Named(_) => (None, TRIED.to_vec()),
    };
    let Some(epsilon) = config.privacy.epsilon else {
        // The noise is given, so there is nothing to compare.
        let bands = number.unwrap_or(1);
        let strategy = workload.strategy(bands).map_err(Error::usage)?;
        let sampling = cyclic(rate, bands, 0).ok_or_else(|| too_many(bands))?;
        return Ok(Some(Chosen { sampling, strategy, error_ratio: None }));
    };
    let epsilon = Epsilon::new(epsilon).map_err(Error::usage)?;
    let target = PrivacyTarget { epsilon, delta, accountant: &Tightest };
    let (count, adjacency) = (config.rounds(), config.privacy.adjacency);
    let choices = workload.choices(&target, rate, tried, |sampling, noise_multiplier| {
        Composition::of([Folded { count, sampling, noise_multiplier }], adjacency)
    });
    let choices = choices.map_err(|error: Unsupported| Error::NoAnswer(error.to_string()))?;
    let found = match number {
        Some(number) => choices.iter().find(|choice| choice.bands() == number),
        None => NoiseChoice::best(&choices),
    };
    let found = found.ok_or_else(|| too_many(number.unwrap_or(1)))?;
    Ok(found.strategy.clone().map(|strategy| Chosen {
        sampling: found.sampling,
        strategy,
        error_ratio: Some(found.error_ratio),
    }))
}

fn too_many(bands: usize) -> Error {
    Error::Usage(format!("[privacy.correlated] bands {bands} is too large for the data"))
}
