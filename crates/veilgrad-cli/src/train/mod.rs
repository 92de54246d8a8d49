//! `veilgrad train`: from a data file and a budget to a model, a ledger and a report.

pub(crate) mod build;
mod check;
pub(crate) mod config;
pub(crate) mod data;
mod estimate;
mod progress;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use veilgrad_accounting::{Accountant, Best, Composition, Guarantee, Target, Unsupported};
use veilgrad_events::{
    Budget, Delta, Epsilon, Folded, LedgerError, Mode, NoiseMultiplier, Rounds, Run, RunRounds,
};
use veilgrad_ledger::{DatasetLedger, Ledger, StoreError};
use veilgrad_nn::{FileError, Loss, Model, Performance, TrainError, Trainer, public};

use crate::argument::{Common, Train};
use crate::error::Error;
use crate::output::{create_directory, say, write_file};
use crate::report::{self, Report};
use build::{AnyOptimizer, AnySampler};
use config::Config;
use progress::Progress;

/// How often a checkpoint is written, in seconds.
const CHECKPOINT: u64 = 30;

pub(crate) fn run(arguments: &Train, common: &Common) -> Result<(), Error> {
    let mut config = Config::read(&arguments.config)?;
    if let Some(epsilon) = arguments.epsilon {
        (config.privacy.epsilon, config.privacy.noise_multiplier) = (Some(epsilon.get()), None);
    }
    let job = Job::new(config, arguments, common)?;
    job.announce();
    job.run()
}

/// A training run that is ready to begin: nothing of the data was looked at.
struct Job<'a> {
    config: Config,
    common: &'a Common,
    out: PathBuf,
    ledger: PathBuf,
    resume: bool,
    threads: usize,
    delta: Delta,
    trainer: Trainer<AnyOptimizer>,
    sampler: AnySampler,
    /// All rounds of the plan, folded as the ledger charges them.
    rounds: Rounds,
    guarantee: Guarantee,
}

impl<'a> Job<'a> {
    fn new(config: Config, arguments: &Train, common: &'a Common) -> Result<Self, Error> {
        let usage = |error: &dyn std::fmt::Display| Error::Usage(error.to_string());
        let delta = Delta::new(config.privacy.delta).map_err(|error| usage(&error))?;
        let declaration = config.declaration();
        let threads = arguments.threads.map_or_else(
            || std::thread::available_parallelism().map_or(1, usize::from),
            |threads| threads.get(),
        );
        let sampler = AnySampler::new(build::sampling(&config)?)?;
        let mut noise = noise(&config, delta)?;
        // Groups are rounded to their grids one by one; a little more noise makes up for it.
        let (trainer, rounds, guarantee) = loop {
            let performance = Performance { threads, ..Performance::default() };
            let mut trainer = Trainer::new(
                build::model(&declaration)?,
                build::plan(&config, noise)?,
                AnyOptimizer::new(&config),
                build::schedule(&config),
                performance,
            )
            .map_err(|error| usage(&error))?;
            if let Some(decay) = config.train.ema {
                trainer = trainer.averaging(decay);
            }
            let round = trainer.event(&sampler).map_err(|error| usage(&error))?;
            let rounds = Rounds { count: config.train.rounds, round };
            let guarantee = cost(&config, &rounds, delta)?;
            match config.privacy.epsilon {
                Some(target) if guarantee.epsilon > target => {
                    let more = noise.get() * (1.0 + 1e-7);
                    noise = NoiseMultiplier::new(more).map_err(|error| usage(&error))?;
                }
                _ => break (trainer, rounds, guarantee),
            }
        };
        let stem = arguments.config.file_stem().unwrap_or_default();
        let out = arguments.out.clone().unwrap_or_else(|| Path::new("runs").join(stem));
        let ledger = arguments.ledger.clone().unwrap_or_else(|| out.join("ledger.db"));
        let resume = arguments.resume;
        Ok(Self {
            config,
            common,
            out,
            ledger,
            resume,
            threads,
            delta,
            trainer,
            sampler,
            rounds,
            guarantee,
        })
    }

    /// What will happen, before anything does.
    fn announce(&self) {
        if self.common.quiet {
            return;
        }
        use veilgrad_accounting::display::{claimed_noise_down, up};
        let mut rows = vec![
            ("dataset", format!("{} ({})", self.config.dataset(), self.unit())),
            ("rounds", self.rounds.count.to_string()),
            ("noise multiplier", claimed_noise_down(self.noise())),
            ("epsilon", format!("{} at delta {:e}", up(self.guarantee.epsilon), self.delta.get())),
            ("accountant", self.guarantee.accountant.to_owned()),
        ];
        if let Some(seconds) = estimate::seconds(&self.config, self.threads) {
            let time = progress::time(seconds);
            rows.push(("time", format!("about {time} on {} threads", self.threads)));
        }
        if self.common.verbose > 0 {
            rows.extend(self.rounds.round.queries().iter().map(|query| {
                let noise = claimed_noise_down(query.noise().get());
                let clip = query.clip().get();
                ("group", format!("{}: clip {clip}, noise {noise}", query.group()))
            }));
        }
        rows.push(("ledger", self.ledger.display().to_string()));
        rows.push(("results", self.out.display().to_string()));
        say(&rows.iter().map(|(name, value)| format!("{name:<18}{value}\n")).collect::<String>());
    }

    fn noise(&self) -> f64 {
        self.trainer.plan().noise_multiplier().map_or(f64::NAN, NoiseMultiplier::get)
    }

    fn unit(&self) -> String {
        build::unit(&self.config).record().to_string()
    }

    fn run(mut self) -> Result<(), Error> {
        let interrupted = interrupts()?;
        create_directory(&self.out)?;
        let checkpoint = self.out.join("checkpoint.safetensors");
        if checkpoint.exists() && !self.resume {
            return Err(Error::Usage(format!(
                "{} holds a run that was begun; go on with --resume, or choose another --out",
                self.out.display()
            )));
        }
        let mut ledger = self.open_ledger()?;
        if self.resume {
            self.trainer.resume(&checkpoint, Some(&ledger)).map_err(resume_error)?;
        }
        let left = self.rounds.count.saturating_sub(self.trainer.rounds());
        let left = self.affordable(&ledger, left)?;
        ledger = self.check_names(ledger)?;
        let mut run = self.open_run(ledger, left)?;
        // The budget covers the plan: only now is the data looked at.
        let (train, test) = data::train_and_test(&self.config, self.threads)?;
        // From here on rounds are charged: whatever happens, there is something to go on with.
        self.save(&checkpoint, &run)?;
        let started = Instant::now();
        let mut progress =
            Progress::new(self.common, &self.rounds, self.delta, build::adjacency(&self.config));
        let mut saved = Instant::now();
        let mut remaining = left;
        while remaining > 0 && !interrupted.load(Ordering::Relaxed) {
            let block = remaining.min(self.config.train.block.max(1));
            let round = self.trainer.event(&self.sampler).map_err(train_error)?;
            let permits = run.reserve(&round, block).map_err(ledger_error)?;
            for permit in permits {
                let done = self.trainer.round(permit, &mut self.sampler, &train);
                let done = done.map_err(train_error)?;
                remaining -= 1;
                progress.show(&done);
                if interrupted.load(Ordering::Relaxed) {
                    break;
                }
            }
            if saved.elapsed().as_secs() >= CHECKPOINT {
                self.save(&checkpoint, &run)?;
                saved = Instant::now();
            }
        }
        let seconds = started.elapsed().as_secs_f64();
        progress.end();
        self.save(&checkpoint, &run)?;
        if remaining > 0 {
            drop(run);
            return Err(Error::Interrupted);
        }
        let ledger = run.close().map_err(ledger_error)?.into_ledger();
        let model = self.trainer.averaged_model().unwrap_or_else(|| self.trainer.model().clone());
        let loss = Loss::SoftmaxCrossEntropy;
        let accuracy = test.map(|test| public::evaluate(&model, loss, &test).accuracy);
        let report = self.report(&ledger, accuracy, progress.metrics(), seconds)?;
        self.write(&model, &report)?;
        // A finished run has nothing to go on with.
        let _ = std::fs::remove_file(&checkpoint);
        report::finish(&report, &self.out, self.common)
    }

    /// The ledger with a budget for the data, both made if they are not there.
    fn open_ledger(&self) -> Result<Ledger, Error> {
        let mut ledger = Ledger::open_or_create(&self.ledger, self.common.options())?;
        let dataset = self.config.dataset();
        if !ledger.state().datasets().contains_key(&dataset) {
            let epsilon = self.config.privacy.epsilon.unwrap_or(self.guarantee.epsilon);
            ledger.create_budget(Budget {
                dataset,
                unit: build::unit(&self.config).record(),
                adjacency: build::adjacency(&self.config),
                delta: self.delta,
                epsilon: Epsilon::new(epsilon).map_err(|error| Error::Usage(error.to_string()))?,
                mode: Mode::Planned,
                order: None,
            })?;
        }
        Ok(ledger)
    }

    /// How many of these rounds the budget still covers. An interrupted run may have charged rounds that
    /// it did not use; whoever resumes it has as many fewer.
    fn affordable(&self, ledger: &Ledger, rounds: u64) -> Result<u64, Error> {
        let Some(dataset) = ledger.state().datasets().get(&self.config.dataset()) else {
            return Ok(rounds);
        };
        if !self.resume {
            return Ok(rounds);
        }
        let one = Folded::try_from(&Rounds { count: 1, round: self.rounds.round.clone() })
            .map_err(|error| Error::Failure(error.to_string()))?;
        let fits = |count: u64| {
            let rounds = [Folded { count, ..one }];
            dataset.covers(&Best, &[RunRounds { planned: true, rounds: &rounds }]).is_ok()
        };
        if fits(rounds) {
            return Ok(rounds);
        }
        let (mut low, mut high) = (0, rounds);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if fits(middle) { low = middle } else { high = middle }
        }
        if low == 0 && rounds > 0 {
            return Err(Error::Ledger(StoreError::BudgetExhausted(format!(
                "nothing is left of the budget of {:?}",
                self.config.dataset()
            ))));
        }
        Ok(low)
    }

    /// Refuses a dataset whose budget protects something else.
    fn check_names(&self, ledger: Ledger) -> Result<Ledger, Error> {
        let name = self.config.dataset();
        if let Some(dataset) = ledger.state().datasets().get(&name)
            && dataset.budget.delta != self.delta
        {
            return Err(Error::Usage(format!(
                "the budget of {name:?} is for delta {:e}, and [privacy] delta is {:e}",
                dataset.budget.delta.get(),
                self.delta.get()
            )));
        }
        Ok(ledger)
    }

    fn open_run(&self, ledger: Ledger, rounds: u64) -> Result<Run<DatasetLedger>, Error> {
        let store = ledger.dataset(&self.config.dataset(), Arc::new(Best))?;
        let mut header = self.trainer.header(build::adjacency(&self.config));
        header.plan_hash = Some(self.config.hash().map_err(Error::Failure)?);
        header.plan = Some(vec![Rounds { count: rounds, round: self.rounds.round.clone() }]);
        Run::open(store, header).map_err(|error| match ledger_error(error) {
            Error::Ledger(StoreError::BudgetExhausted(why)) => {
                Error::Ledger(StoreError::BudgetExhausted(format!(
                    "{why}, in {}; the data was not opened",
                    self.ledger.display()
                )))
            }
            other => other,
        })
    }

    fn save(&self, path: &Path, run: &Run<DatasetLedger>) -> Result<(), Error> {
        let head = run.store().ledger().head();
        self.trainer.save(path, Some(head)).map_err(|error| Error::Failure(error.to_string()))
    }

    fn write(&self, model: &Model, report: &Report) -> Result<(), Error> {
        let write = |name: &str, bytes: &[u8]| write_file(&self.out.join(name), bytes);
        let bytes = crate::predict::model_file(model, self.config.declaration(), report)?;
        write("model.safetensors", &bytes)?;
        write("report.json", format!("{}\n", report.json()?).as_bytes())?;
        write("report.html", report::page::page(report).as_bytes())?;
        write("statement.txt", report::statement::statement(report).as_bytes())
    }

    fn report(
        &self,
        ledger: &Ledger,
        test_accuracy: Option<f64>,
        metrics: Vec<(String, Vec<f64>)>,
        seconds: f64,
    ) -> Result<Report, Error> {
        report::of_run(&report::Facts {
            ledger,
            dataset: &self.config.dataset(),
            rounds: std::slice::from_ref(&self.rounds),
            done: self.trainer.rounds(),
            plan: Some(self.trainer.plan()),
            test_accuracy,
            metrics,
            seconds: Some(seconds),
            model: Some(self.trainer.model().size()),
        })
    }
}

/// The noise multiplier that the configuration asks for or that its epsilon needs.
fn noise(config: &Config, delta: Delta) -> Result<NoiseMultiplier, Error> {
    let usage = |error: &dyn std::fmt::Display| Error::Usage(error.to_string());
    if let Some(z) = config.privacy.noise_multiplier {
        return NoiseMultiplier::new(z).map_err(|error| usage(&error));
    }
    let epsilon =
        Epsilon::new(config.privacy.epsilon.unwrap_or(0.0)).map_err(|error| usage(&error))?;
    let (sampling, adjacency) = (build::sampling(config)?, build::adjacency(config));
    let target = Target { epsilon, delta, accountant: &Best };
    let with = |noise_multiplier| {
        let folded = Folded { count: config.train.rounds, sampling, noise_multiplier };
        Composition::of(std::iter::once(folded), adjacency)
    };
    target.noise_multiplier(with).map_err(|error| usage(&error))
}

/// What all rounds cost.
fn cost(config: &Config, rounds: &Rounds, delta: Delta) -> Result<Guarantee, Error> {
    let usage = |error: Unsupported| Error::Usage(error.to_string());
    let composition = Composition::fold(std::slice::from_ref(rounds), build::adjacency(config));
    Best.epsilon(&composition.map_err(usage)?, delta).map_err(usage)
}

/// Set when somebody wants to stop. Who insists stops at once: the ledger is in order at any time, and the
/// last checkpoint is whole.
fn interrupts() -> Result<Arc<AtomicBool>, Error> {
    use signal_hook::flag::{register, register_conditional_shutdown};
    let flag = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        register_conditional_shutdown(signal, 130, Arc::clone(&flag))
            .and_then(|_| register(signal, Arc::clone(&flag)))
            .map_err(|error| Error::Failure(error.to_string()))?;
    }
    Ok(flag)
}

fn ledger_error(error: LedgerError) -> Error {
    Error::from(error)
}

fn train_error(error: TrainError) -> Error {
    match error {
        TrainError::Ledger(error) => ledger_error(error),
        other => Error::Failure(other.to_string()),
    }
}

fn resume_error(error: FileError) -> Error {
    match error {
        FileError::Ledger(error) => Error::Ledger(error),
        other => Error::Failure(format!("the checkpoint: {other}")),
    }
}
