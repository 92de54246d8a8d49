//! A training job, planned from a configuration alone: model, noise, rounds, and their epsilon.

use serde_json::Value;
use veilgrad_accounting::audit::{Confidence, RunAudit, RunVerdict};
use veilgrad_accounting::{
    Accountant, Composition, Guarantee, PrivacyTarget, Tightest, Tuned, Tuning, Unsupported,
};
use veilgrad_events::{
    BandedStrategy, Budget, Delta, Epsilon, Folded, Mode, NoiseMultiplier, PublicCount, Rounds,
    RunHeader, Sampling,
};
use veilgrad_ledger::StoreError;
use veilgrad_mechanism::Sampler;
use veilgrad_nn::{Model, Performance, PreconditionPlan, Preconditioning, Trainer, Whitening};

use super::build::{self, AnyOptimizer};
use super::config::Config;
use super::correlated::{self, Chosen};
use super::vary::Setting;
use super::{calibrate, inputs, start};
use crate::error::Error;
use crate::hash::sha256;
use crate::report::Start;

/// A planned training run. Planning does not read the data.
pub(crate) struct Job {
    pub(crate) config: Config,
    /// The day in UTC, before the data is opened: how long a run takes depends on private sample sizes.
    pub(crate) date: String,
    /// The model that the run starts from, if it is not a new one.
    pub(crate) start: Option<Start>,
    pub(crate) threads: usize,
    pub(crate) delta: Delta,
    /// The noise multiplier that the trainer was built with.
    pub(crate) noise: NoiseMultiplier,
    pub(crate) trainer: Trainer<AnyOptimizer>,
    pub(crate) sampler: Box<dyn Sampler>,
    /// The rounds on all records before training, if there are any.
    pub(crate) precondition: Option<Preconditioning>,
    /// All of these rounds.
    pub(crate) before: Vec<Rounds>,
    /// The rounds of training, folded as the ledger charges them.
    pub(crate) rounds: Rounds,
    pub(crate) guarantee: Guarantee,
    /// How noise is correlated between rounds, if it is.
    pub(crate) correlated: Option<Chosen>,
    /// The model before the first round.
    initial: Model,
    /// The choice that a tuning makes, if the run is one of its runs.
    pub(crate) tune: Option<Tune>,
}

/// The choice of a tuning: of which the rounds, noise and guarantee of a job are those of one run and of all of it.
#[derive(Clone)]
pub(crate) struct Tune {
    pub(crate) tuning: Tuning,
    /// The configuration with all values that vary, without paths, as the ledger has its hash.
    pub(crate) configuration: Value,
    /// The values that this run has; null before they are drawn.
    pub(crate) setting: Value,
}

impl Job {
    /// Plans the run of a configuration. Fills in the name of its dataset if it has none.
    pub(crate) fn new(config: Config, threads: Option<usize>) -> Result<Self, Error> {
        Self::plan(config, threads, None)
    }

    /// Plans one run of a configuration; with `tuning`, so that the guarantee is that of the best of a random number of them.
    pub(crate) fn plan(
        mut config: Config,
        threads: Option<usize>,
        tuning: Option<Tuning>,
    ) -> Result<Self, Error> {
        let tuned = tuning.map(|tuning| Tuned { inner: &Tightest, tuning });
        let accountant: &dyn Accountant =
            tuned.as_ref().map_or(&Tightest, |tuned| tuned as &dyn Accountant);
        let date = chrono::Utc::now().date_naive().to_string();
        config.data.dataset = Some(config.dataset());
        let delta = Delta::new(config.privacy.delta).map_err(Error::usage)?;
        let declaration = config.declaration();
        let threads = build::threads(threads);
        let correlated = correlated::choose(&config, delta)?;
        let sampling = match &correlated {
            Some(chosen) => chosen.sampling,
            None => build::sampling(&config)?,
        };
        let sampler = build::sampler(sampling)?;
        let precondition = precondition(&config, delta, threads, accountant)?;
        let before = precondition.as_ref().map_or(Ok(Vec::new()), Preconditioning::events);
        let before = before.map_err(Error::usage)?;
        let mut noise = noise(&config, sampling, delta, &before, accountant)?;
        let mut model = build::model(&declaration)?;
        let start = start::apply(&mut config.model, &mut model)?;
        let kept = calibrate::last_layer(&model).find(|name| model.is_frozen(name));
        if let (Some(name), Some(_)) = (kept, &config.data.calibration) {
            return Err(Error::Usage(format!(
                "[data] calibration scales the last layer, and [model] frozen keeps {name:?} as it is"
            )));
        }
        // Each group is rounded to its own grid, which can raise epsilon slightly, and so can a closer look at the answer of the
        // search; slightly more noise compensates. Every further try adds more, so that there are few.
        let mut addition = 1e-7;
        let (trainer, rounds, guarantee) = loop {
            let strategy = correlated.as_ref().map(|chosen| &chosen.strategy);
            let trainer = averaging_trainer(&config, model.clone(), noise, strategy, threads)?;
            let round = trainer.event(&sampler).map_err(Error::usage)?;
            let rounds = Rounds { count: config.rounds(), round };
            let all = [before.as_slice(), std::slice::from_ref(&rounds)].concat();
            let guarantee = cost(&config, &all, delta, accountant)?;
            match config.privacy.epsilon {
                Some(target) if guarantee.epsilon > target => {
                    if addition > 0.1 {
                        return Err(Error::NoAnswer(format!(
                            "no noise multiplier near {} keeps epsilon {target}: the rounds cost {}",
                            noise.get(),
                            guarantee.epsilon
                        )));
                    }
                    let more = noise.get() * (1.0 + addition);
                    noise = NoiseMultiplier::new(more).map_err(Error::usage)?;
                    addition *= 8.0;
                }
                _ => break (trainer, rounds, guarantee),
            }
        };
        Ok(Self {
            config,
            date,
            start,
            threads,
            delta,
            noise,
            trainer,
            sampler,
            precondition,
            before,
            rounds,
            guarantee,
            correlated,
            initial: model,
            tune: None,
        })
    }

    /// A run from the start with another setting of a tuning, and the same rounds and noise.
    pub(crate) fn again(&self, setting: &Setting) -> Result<Self, Error> {
        let Setting { config, values } = setting;
        let sampling = match &self.correlated {
            Some(chosen) => chosen.sampling,
            None => build::sampling(config)?,
        };
        let sampler = build::sampler(sampling)?;
        let strategy = self.correlated.as_ref().map(|chosen| &chosen.strategy);
        let initial = self.initial.clone();
        let trainer = averaging_trainer(config, initial, self.noise, strategy, self.threads)?;
        let round = trainer.event(&sampler).map_err(Error::usage)?;
        let rounds = Rounds { count: config.rounds(), round };
        if rounds != self.rounds {
            return Err(Error::Usage(format!(
                "the setting {values} changes the rounds, and the charge of a tuning is for the same rounds in every run"
            )));
        }
        let tune = self.tune.clone().map(|tune| Tune { setting: values.clone(), ..tune });
        Ok(Self {
            config: config.clone(),
            date: self.date.clone(),
            start: self.start.clone(),
            threads: self.threads,
            delta: self.delta,
            trainer,
            sampler,
            // No round of it is done in the job of a tuning.
            precondition: self.precondition.clone(),
            before: self.before.clone(),
            rounds,
            guarantee: self.guarantee,
            correlated: self.correlated.clone(),
            initial: self.initial.clone(),
            noise: self.noise,
            tune,
        })
    }

    /// The configuration without paths, as the ledger has its hash.
    pub(crate) fn configuration(&self) -> Result<Value, Error> {
        match &self.tune {
            Some(tune) => Ok(tune.configuration.clone()),
            None => self.config.fingerprint().map_err(Error::Failure),
        }
    }

    /// The rounds of preconditioning that are not done yet.
    pub(crate) fn rounds_before(&self) -> Result<Vec<Rounds>, Error> {
        let left = self.precondition.as_ref().map_or(Ok(Vec::new()), Preconditioning::events);
        left.map_err(Error::failure)
    }

    /// The whitening of inputs, once preconditioning is done.
    pub(crate) fn whitening(&self) -> Option<Whitening> {
        self.precondition.as_ref()?.whitening()
    }

    /// How many rounds are done, those of preconditioning included.
    pub(crate) fn done(&self) -> u64 {
        let before = self.precondition.as_ref().map_or(0, Preconditioning::rounds);
        self.trainer.rounds().saturating_add(before as u64)
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

    /// Refuses the budget of a dataset that is for another delta, unit or adjacency.
    pub(crate) fn check_terms(&self, budget: &Budget) -> Result<(), Error> {
        check_terms(&self.config, self.delta, budget)
    }

    /// The header of a run with what is left of preconditioning and this many of the planned rounds of training.
    pub(crate) fn header(&self, rounds: u64) -> Result<RunHeader, Error> {
        let mut header = self.trainer.header(self.config.privacy.adjacency);
        header.plan_hash = Some(match &self.tune {
            Some(tune) => sha256(tune.configuration.to_string()),
            None => self.config.hash().map_err(Error::Failure)?,
        });
        let mut plan = self.rounds_before()?;
        plan.push(Rounds { count: rounds, round: self.rounds.round.clone() });
        header.plan = Some(plan);
        Ok(header)
    }

    /// The verdict of the audit, if the run has canaries. They are in the rounds of training alone, so that these are
    /// what is audited. The number of guesses depends on the plan alone.
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

/// Refuses the budget of a dataset that is for another delta, unit or adjacency than a run.
pub(crate) fn check_terms(config: &Config, delta: Delta, budget: &Budget) -> Result<(), Error> {
    let name = &budget.dataset;
    if budget.delta != delta {
        return Err(Error::Usage(format!(
            "the budget of {name:?} is for delta {:e}, and [privacy] delta is {:e}",
            budget.delta.get(),
            delta.get()
        )));
    }
    let (unit, adjacency) = (build::unit(config).record(), config.privacy.adjacency);
    if (budget.unit, budget.adjacency) != (unit, adjacency) {
        return Err(Error::Ledger(StoreError::Refused(format!(
            "the budget of {name:?} is for {} ({}), and the run is for {unit} ({})",
            budget.unit,
            budget.adjacency.name(),
            adjacency.name()
        ))));
    }
    Ok(())
}

/// The preconditioning of a configuration. Its shares are of the squared mu of one release to all records with the target's
/// epsilon and delta (of one run, if the accountant is that of a tuning): a Gaussian round with share s has the noise multiplier
/// of that release over `sqrt(s)`.
pub(crate) fn precondition(
    config: &Config,
    delta: Delta,
    threads: usize,
    accountant: &dyn Accountant,
) -> Result<Option<Preconditioning>, Error> {
    let Some(settings) = config.privacy.precondition else { return Ok(None) };
    let epsilon = Epsilon::new(config.privacy.epsilon.unwrap_or(0.0)).map_err(Error::usage)?;
    let target = PrivacyTarget { epsilon, delta, accountant };
    let adjacency = config.privacy.adjacency;
    let one_release = |noise_multiplier| {
        let folded = Folded { count: 1, sampling: Sampling::All {}, noise_multiplier };
        Composition::of(std::iter::once(folded), adjacency)
    };
    let whole =
        target.noise_multiplier(one_release).map_err(|error| Error::NoAnswer(error.to_string()))?;
    let noise = |share: f64| NoiseMultiplier::new(whole.get() / share.sqrt()).map_err(Error::usage);
    let mean = noise(settings.mean_share)?;
    let directions = noise(settings.directions_share / settings.rounds.max(1) as f64)?;
    precondition_with(config, threads, mean, directions)
}

/// The preconditioning of a configuration with these noise multipliers of the mean and of each round of directions.
pub(crate) fn precondition_with(
    config: &Config,
    threads: usize,
    mean: NoiseMultiplier,
    directions: NoiseMultiplier,
) -> Result<Option<Preconditioning>, Error> {
    let Some(settings) = config.privacy.precondition else { return Ok(None) };
    let plan = PreconditionPlan {
        width: inputs::shape(&config.declaration())?.iter().product(),
        records: PublicCount::new(config.data.records as f64).map_err(Error::usage)?,
        mean,
        directions,
        count: settings.directions,
        rounds: settings.rounds,
        floor: settings.floor,
    };
    let performance = Performance { threads, ..Performance::default() };
    Preconditioning::new(plan, performance)
        .map(Some)
        .map_err(|error| Error::Usage(format!("[privacy.precondition] {error}")))
}

/// The noise multiplier of the configuration, or the one that its epsilon needs after the rounds before training.
pub(crate) fn noise(
    config: &Config,
    sampling: Sampling,
    delta: Delta,
    before: &[Rounds],
    accountant: &dyn Accountant,
) -> Result<NoiseMultiplier, Error> {
    if let Some(z) = config.privacy.noise_multiplier {
        return NoiseMultiplier::new(z).map_err(Error::usage);
    }
    let epsilon = Epsilon::new(config.privacy.epsilon.unwrap_or(0.0)).map_err(Error::usage)?;
    let adjacency = config.privacy.adjacency;
    let before = before.iter().map(Folded::try_from).collect::<Result<Vec<_>, _>>();
    let before = before.map_err(Error::usage)?;
    let target = PrivacyTarget { epsilon, delta, accountant };
    let composition_for = |noise_multiplier| {
        let folded = Folded { count: config.rounds(), sampling, noise_multiplier };
        Composition::of(before.iter().copied().chain([folded]), adjacency)
    };
    target.noise_multiplier(composition_for).map_err(|error| Error::NoAnswer(error.to_string()))
}

/// A trainer that averages the weights if the configuration asks for it.
fn averaging_trainer(
    config: &Config,
    model: Model,
    noise: NoiseMultiplier,
    strategy: Option<&BandedStrategy>,
    threads: usize,
) -> Result<Trainer<AnyOptimizer>, Error> {
    let trainer = build::trainer(config, model, noise, strategy, threads)?;
    Ok(match config.train.ema {
        Some(decay) => trainer.averaging(decay),
        None => trainer,
    })
}

fn cost(
    config: &Config,
    rounds: &[Rounds],
    delta: Delta,
    accountant: &dyn Accountant,
) -> Result<Guarantee, Error> {
    let no_answer = |error: Unsupported| Error::NoAnswer(error.to_string());
    let composition = Composition::fold(rounds, config.privacy.adjacency);
    accountant.epsilon(&composition.map_err(no_answer)?, delta).map_err(no_answer)
}
