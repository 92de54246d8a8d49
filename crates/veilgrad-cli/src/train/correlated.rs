//! Noise that is correlated between rounds: which strategy a configuration gets.

use veilgrad_accounting::{
    Composition, NoiseChoice, PrivacyTarget, Tightest, Unsupported, Workload, cyclic,
};
use veilgrad_events::{BandedStrategy, Delta, Epsilon, Folded, SampleRate, Sampling};

use super::build;
use super::config::{Bands, Config, Correlated, Optimizer};
use crate::error::Error;
use crate::plan::correlated::{MOST_ROUNDS, TRIED};

/// How samples are drawn and noise is correlated.
#[derive(Clone)]
pub(crate) struct Chosen {
    pub(crate) sampling: Sampling,
    pub(crate) strategy: BandedStrategy,
    /// The error in the parameters over that of plain noise, at the same epsilon; `None` without a target epsilon, and for
    /// optimizers that do not add rounds up.
    pub(crate) error_ratio: Option<f64>,
}

/// How the rounds of a configuration add up in its model; `None` if they do not, because the optimizer divides each of them by its
/// own size.
fn workload(config: &Config, rounds: u64) -> Option<Workload> {
    let Optimizer::Sgd { momentum, nesterov, .. } = config.train.optimizer else { return None };
    let (schedule, all) = (build::schedule(config), config.rounds());
    // Of more rounds than are looked at, some that are spread evenly.
    let number = |t: u64| (u128::from(t) * u128::from(all) / u128::from(rounds.max(1))) as u64;
    let sgd = Workload::sgd((0..rounds).map(|t| schedule.rate(number(t))));
    let momentum = momentum.into();
    Some(if nesterov { sgd.with_nesterov(momentum) } else { sgd.with_momentum(momentum) })
}

/// The correlated noise of a configuration; `None` if it has none, or if plain noise is the best.
pub(crate) fn choose(config: &Config, delta: Delta) -> Result<Option<Chosen>, Error> {
    let Some(Correlated { bands }) = config.privacy.correlated else { return Ok(None) };
    let rounds = config.rounds().min(MOST_ROUNDS);
    let adds_up = workload(config, rounds);
    let rounds = usize::try_from(rounds).map_err(Error::usage)?;
    let has_ratio = adds_up.is_some();
    if !has_ratio && matches!(bands, Bands::Named(_)) {
        return Ok(None);
    }
    let workload = adds_up.unwrap_or_else(|| Workload::prefix_sums(rounds));
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
        error_ratio: has_ratio.then_some(found.error_ratio),
    }))
}

/// What was chosen and why, for the announcement of a run; `None` if the configuration does not ask for correlated noise.
pub(crate) fn describe(config: &Config, chosen: Option<&Chosen>) -> Option<String> {
    let Correlated { bands } = config.privacy.correlated?;
    let adapts = !matches!(config.train.optimizer, Optimizer::Sgd { .. });
    let Some(chosen) = chosen else {
        return Some(match bands {
            Bands::Named(_) if adapts => {
                "plain noise is used: this optimizer divides every round by its own size, so that the noise of rounds would \
                 not cancel; correlated noise is for kind = \"sgd\""
                    .to_owned()
            }
            Bands::Named(_) => "plain noise is as good here, and is used".to_owned(),
            Bands::Number(_) => "one round, which is plain noise".to_owned(),
        });
    };
    let gain = match chosen.error_ratio {
        Some(ratio) => format!(", {ratio:.2} of the error of plain noise"),
        None if adapts => ", of which little cancels with this optimizer".to_owned(),
        None => String::new(),
    };
    // The scale of rounds that depends on releases is not known when the strategy is chosen.
    let fixed = match (config.privacy.adaptive, config.privacy.denominator) {
        _ if chosen.error_ratio.is_none() => "",
        (Some(_), _) => " if clip norms stayed as they are",
        (None, Some(_)) => " if the denominator stayed as it is",
        (None, None) => "",
    };
    Some(format!("over {} rounds{gain}{fixed}", chosen.strategy.bands()))
}

fn too_many(bands: usize) -> Error {
    Error::Usage(format!("[privacy.correlated] bands {bands} is too large for the data"))
}
