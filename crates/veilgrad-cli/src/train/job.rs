//! A training job, planned from a configuration alone: model, noise, rounds, and their epsilon.

use veilgrad_accounting::audit::{Confidence, RunAudit, RunVerdict};
use veilgrad_accounting::{
    Accountant, Composition, Guarantee, PrivacyTarget, Tightest, Unsupported,
};
use veilgrad_events::{Budget, Delta, Epsilon, Folded, Mode, NoiseMultiplier, Rounds, RunHeader};
use veilgrad_mechanism::Sampler;
use veilgrad_nn::{Loss, Model, Performance, Trainer};

use super::build::{self, AnyOptimizer};
use super::config::Config;
use crate::error::Error;

/// A planned training run. Planning does not read the data.
pub(crate) struct Job {
    pub(crate) config: Config,
    pub(crate) threads: usize,
    pub(crate) delta: Delta,
    pub(crate) trainer: Trainer<AnyOptimizer>,
    pub(crate) sampler: Box<dyn Sampler>,
    /// All rounds of the plan, folded as the ledger charges them.
    pub(crate) rounds: Rounds,
    pub(crate) guarantee: Guarantee,
}

impl Job {
    /// Plans the run of a configuration. Fills in the name of its dataset if it has none.
    pub(crate) fn new(mut config: Config, threads: Option<usize>) -> Result<Self, Error> {
        config.data.dataset = Some(config.dataset());
        let delta = Delta::new(config.privacy.delta).map_err(Error::usage)?;
        let declaration = config.declaration();
        let threads = build::threads(threads);
        let sampler = build::sampler(build::sampling(&config)?)?;
        let mut noise = noise(&config, delta)?;
        // Each group is rounded to its own grid, which can raise epsilon slightly; slightly more noise compensates.
        let (trainer, rounds, guarantee) = loop {
            let performance = Performance { threads, ..Performance::default() };
            let mut trainer = Trainer::new(
                build::model(&declaration)?,
                Loss::SoftmaxCrossEntropy,
                build::plan(&config, noise)?,
                build::optimizer(&config),
                build::schedule(&config),
                performance,
            )
            .map_err(Error::usage)?;
            if let Some(decay) = config.train.ema {
                trainer = trainer.averaging(decay);
            }
            let round = trainer.event(&sampler).map_err(Error::usage)?;
            let rounds = Rounds { count: config.train.rounds, round };
            let guarantee = cost(&config, &rounds, delta)?;
            match config.privacy.epsilon {
                Some(target) if guarantee.epsilon > target => {
                    let more = noise.get() * (1.0 + 1e-7);
                    noise = NoiseMultiplier::new(more).map_err(Error::usage)?;
                }
                _ => break (trainer, rounds, guarantee),
            }
        };
        Ok(Self { config, threads, delta, trainer, sampler, rounds, guarantee })
    }

    /// The budget that this run creates if its dataset has none: the target epsilon, or else what the run costs.
    pub(crate) fn budget(&self) -> Result<Budget, Error> {
        let epsilon = self.config.privacy.epsilon.unwrap_or(self.guarantee.epsilon);
        Ok(Budget {
            dataset: self.config.dataset(),
            unit: build::unit(&self.config).record(),
            adjacency: self.config.privacy.adjacency,
            delta: self.delta,
            epsilon: Epsilon::new(epsilon).map_err(Error::usage)?,
            mode: Mode::Planned,
            order: None,
        })
    }

    /// The header of a run with this many of the planned rounds.
    pub(crate) fn header(&self, rounds: u64) -> Result<RunHeader, Error> {
        let mut header = self.trainer.header(self.config.privacy.adjacency);
        header.plan_hash = Some(self.config.hash().map_err(Error::Failure)?);
        header.plan = Some(vec![Rounds { count: rounds, round: self.rounds.round.clone() }]);
        Ok(header)
    }

    /// The verdict of the audit, if the run has canaries. The number of guesses depends on the plan alone.
    pub(crate) fn audit(&self) -> Result<Option<RunVerdict>, Error> {
        let Some(lane) = self.trainer.canaries() else { return Ok(None) };
        let rounds = [Folded::try_from(&self.rounds).map_err(Error::failure)?];
        let adjacency = self.config.privacy.adjacency;
        let plan =
            RunAudit::plan(&rounds, adjacency, self.delta, lane.count(), Confidence::STANDARD);
        let verdict = plan.and_then(|audit| audit.judge(lane.scores(), lane.included()));
        verdict.map(Some).map_err(Error::failure)
    }

    /// The trained model: the moving average of the weights, if the configuration asks for one.
    pub(crate) fn model(&self) -> Model {
        self.trainer.averaged_model().unwrap_or_else(|| self.trainer.model().clone())
    }
}

/// The noise multiplier of the configuration, or the one that its epsilon needs.
fn noise(config: &Config, delta: Delta) -> Result<NoiseMultiplier, Error> {
    if let Some(z) = config.privacy.noise_multiplier {
        return NoiseMultiplier::new(z).map_err(Error::usage);
    }
    let epsilon = Epsilon::new(config.privacy.epsilon.unwrap_or(0.0)).map_err(Error::usage)?;
    let (sampling, adjacency) = (build::sampling(config)?, config.privacy.adjacency);
    let target = PrivacyTarget { epsilon, delta, accountant: &Tightest };
    let composition_for = |noise_multiplier| {
        let folded = Folded { count: config.train.rounds, sampling, noise_multiplier };
        Composition::of(std::iter::once(folded), adjacency)
    };
    target.noise_multiplier(composition_for).map_err(|error| Error::NoAnswer(error.to_string()))
}

fn cost(config: &Config, rounds: &Rounds, delta: Delta) -> Result<Guarantee, Error> {
    let no_answer = |error: Unsupported| Error::NoAnswer(error.to_string());
    let composition = Composition::fold(std::slice::from_ref(rounds), config.privacy.adjacency);
    Tightest.epsilon(&composition.map_err(no_answer)?, delta).map_err(no_answer)
}
