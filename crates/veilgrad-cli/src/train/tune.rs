//! `veilgrad tune`: the best of a secret number of runs with random settings, charged once and ahead.
//!
//! The number of runs is in no file, message or progress; only the model, the score and the setting of the best run leave.

use std::num::NonZeroU64;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::Value;
use veilgrad_accounting::Tuning;
use veilgrad_events::{ChargedAhead, LedgerStore, Run, TuningRun};
use veilgrad_ledger::{DatasetLedger, Ledger};
use veilgrad_mechanism::best_of;
use veilgrad_nn::{Hooks, Pace, Trainer, drive};

use super::build::AnyOptimizer;
use super::check::Source;
use super::config::Config;
use super::data::{self, Examples, Process, TrainingRecords};
use super::hooks::{self, Account, Waiting};
use super::job::{Job, Tune as Choice};
use super::place::Place;
use super::vary::{self, Setting};
use super::{Session, finish, planned_job, progress};
use crate::argument::{Common, Drawn, Tune};
use crate::error::Error;
use crate::ledger_place;
use crate::output::{create_directory, say};

pub(crate) fn run(arguments: &Tune, common: &Common) -> Result<(), Error> {
    let (path, options) = (&arguments.config, &arguments.run);
    if options.resume {
        let why = "a tuning has no --resume: its charge stands, and nothing of it is kept";
        return Err(Error::Usage(why.to_owned()));
    }
    let source = Source::read(path)?;
    let mut config = source.checked()?;
    if let Some(epsilon) = options.epsilon {
        (config.privacy.epsilon, config.privacy.noise_multiplier) = (Some(epsilon.get()), None);
    }
    check(&config, arguments.distribution)?;
    let tuning = arguments.tuning()?;
    let count = tuning.run_count().map_err(Error::usage)?;
    let mut stem = path.file_stem().unwrap_or_default().to_owned();
    // Do not overwrite the results of `train`.
    stem.push("-tuned");
    let place = Place(options.out.clone().unwrap_or_else(|| Path::new("runs").join(stem)));
    let asked = options.threads.map(std::num::NonZeroUsize::get);
    let mut job = planned_job(&source, config, asked, Some(tuning), common)?;
    let settings = vary::settings(&job.config, &arguments.vary)?;
    // All of them are tried before anything is charged, so that none can fail afterwards.
    settings.iter().try_for_each(|setting| job.again(setting).map(drop))?;
    job.tune = Some(Choice::new(&job.config, tuning, vary::describe(&arguments.vary))?);
    create_directory(&place.0)?;
    let _alone = place.lock()?;
    let ledger = ledger_place::to_write(options.ledger.as_ref())?;
    let waiting = Waiting::new(Duration::from_secs(options.wait), common);
    let mut session = Session { job, common, place, ledger, waiting };
    session.announce();
    let interrupted = match &common.watch {
        Some(watch) => watch.stop_flag(),
        None => hooks::interrupts()?,
    };
    let opened = session.ready(options)?;
    let header = session.job.header(session.job.rounds.count)?.with_tuning(count);
    let charged: TuningRun<DatasetLedger> =
        session.open(opened, |ledger| Ok(TuningRun::charge(ledger, header.clone())?))?;
    // The data is opened after the charge; from here on nothing is refunded.
    let Session { job, common, place, ledger: ledger_path, .. } = session;
    let (train, public) = data::private_and_public(&job.config, Process::ALONE)?;
    let train = train.into_records(&job.config.declaration(), job.threads)?;
    let run_id = charged.store().run().map(str::to_owned);
    if !common.quiet {
        say("tuning ... (no progress is shown, because the number of runs is secret)\n");
    }
    let base = Base { job: &job, settings: &settings, train: &train, interrupted: &interrupted };
    let (best, run) = best_of(charged, base.count()?, |setting, run| {
        base.run(setting, run, public.test.as_ref())
    })?;
    let ledger = match run.close() {
        Ok(store) => store.into_ledger(),
        // The result does not depend on whether the run is closed in the ledger.
        Err(error) => {
            say(&format!("the run stays open in the ledger: {error}\n"));
            Ledger::read(&ledger_path, common.options())?
        }
    };
    let runs = run_id.into_iter().collect();
    match best {
        Some(Outcome { job, metrics }) => {
            let account = Account { metrics, runs };
            finish::complete(&job, &place, &ledger, public, account, common)
        }
        // Only a Poisson distribution allows it. The initial model depends on no private data.
        None => {
            say("there was no run, as a Poisson number of runs allows: the model is untrained\n");
            let account = Account { metrics: Vec::new(), runs };
            finish::complete(&job, &place, &ledger, public, account, common)
        }
    }
}

/// Refuses configurations that cannot be tuned, before anything is charged.
fn check(config: &Config, distribution: Drawn) -> Result<(), Error> {
    let refused = |why: &str| Err(Error::Usage(why.to_owned()));
    if config.audit.is_some() {
        return refused("[audit] and tune do not go together: audit a run of `train`");
    }
    if config.privacy.precondition.is_some() && distribution == Drawn::Poisson {
        return refused(
            "[privacy.precondition] and --distribution poisson do not go together: there may be no run, and a model without \
             preconditioning is none of this configuration",
        );
    }
    let has_accuracy = config.privacy.groups.iter().any(|group| group.vectors == ["accuracy"]);
    if config.data.test.is_none() && (!has_accuracy || config.data.label_bounds.is_some()) {
        return refused(
            "tune needs a score: [data] test, which is public, or a group of privacy.groups with vectors = [\"accuracy\"]",
        );
    }
    // A missing file would be found after the charge.
    for (_, file) in config.data.files() {
        std::fs::metadata(file)
            .map_err(|cause| Error::File { path: file.display().to_string(), cause })?;
    }
    Ok(())
}

/// What all runs of a tuning share. Nothing in it changes, so that no run can depend on another.
struct Base<'a> {
    job: &'a Job,
    settings: &'a [Setting],
    train: &'a TrainingRecords,
    interrupted: &'a Arc<AtomicBool>,
}

/// All that is kept of a run.
struct Outcome {
    job: Job,
    metrics: Vec<(String, Vec<f64>)>,
}

impl Base<'_> {
    fn count(&self) -> Result<NonZeroU64, Error> {
        NonZeroU64::new(self.settings.len() as u64)
            .ok_or_else(|| Error::Failure("there is no setting".to_owned()))
    }

    /// Makes the preconditioning rounds of one run, if it has any, and returns a copy of the records with whitened inputs.
    fn precondition(
        &self,
        job: &mut Job,
        run: &mut Run<ChargedAhead>,
    ) -> Result<Option<TrainingRecords>, Error> {
        let Some(mut phase) = job.precondition.take() else { return Ok(None) };
        while let Some(round) = phase.event().map_err(failed)? {
            if self.interrupted.load(Ordering::Relaxed) {
                return Err(Error::TuningInterrupted);
            }
            for permit in run.reserve(&round, 1)? {
                phase.round(permit, self.train).map_err(failed)?;
            }
        }
        let whitening = phase.whitening();
        job.precondition = Some(phase);
        Ok(whitening.map(|whitening| {
            let mut records = self.train.clone();
            records.whiten(&whitening, job.threads);
            records
        }))
    }

    /// Makes one run with the setting of this number; returns its score and result.
    fn run(
        &self,
        number: u64,
        run: &mut Run<ChargedAhead>,
        test: Option<&Examples>,
    ) -> Result<(f64, Outcome), Error> {
        let setting = usize::try_from(number).ok().and_then(|number| self.settings.get(number));
        let setting =
            setting.ok_or_else(|| Error::Failure("there is no such setting".to_owned()))?;
        let mut job = self.job.again(setting)?;
        let whitened = self.precondition(&mut job, run)?;
        let rounds = job.rounds.count;
        let mut hooks = Estimates {
            interrupted: Arc::clone(self.interrupted),
            metrics: Vec::new(),
            accuracies: Vec::new(),
            // The last tenth of the rounds, and at least the last one.
            after: rounds.saturating_sub((rounds / 10).max(1)),
        };
        let pace = Pace { rounds, block: rounds, checkpoint_rounds: None };
        let records = whitened.as_ref().unwrap_or(self.train);
        let left = drive(&mut job.trainer, run, &mut job.sampler, records, &pace, &mut hooks)
            .map_err(failed)?;
        if left > 0 {
            return Err(Error::TuningInterrupted);
        }
        let score = score(&job, test, &hooks.accuracies)?;
        Ok((score, Outcome { job, metrics: hooks.metrics }))
    }
}

fn failed(error: impl std::fmt::Display) -> Error {
    Error::Failure(format!("the tuning failed: {error}"))
}

/// The score of a run: on the public test set, or from the private estimates of its last rounds.
fn score(job: &Job, test: Option<&Examples>, accuracies: &[f64]) -> Result<f64, Error> {
    let Some(test) = test else {
        return Ok(accuracies.iter().sum::<f64>() / accuracies.len() as f64);
    };
    let (declaration, model, whitening) = (job.config.declaration(), job.model(), job.whitening());
    if declaration.label_bounds.is_none() {
        let accuracy = test.accuracy(&declaration, &model, whitening.as_ref(), job.threads)?;
        // A model without a prediction, as after a division by too little, is the worst.
        return Ok(accuracy.unwrap_or(0.0));
    }
    let error = test.mean_absolute_error(&declaration, &model, whitening.as_ref(), job.threads)?;
    Ok(-error.unwrap_or(f64::INFINITY))
}

/// Keeps the private estimates of a run; shows nothing and saves nothing.
struct Estimates {
    interrupted: Arc<AtomicBool>,
    /// The last private estimate of every metric.
    metrics: Vec<(String, Vec<f64>)>,
    /// The private estimates of accuracy after round `after`.
    accuracies: Vec<f64>,
    after: u64,
}

impl<S: LedgerStore> Hooks<Trainer<AnyOptimizer>, S> for Estimates {
    fn show(&mut self, _: &Trainer<AnyOptimizer>, round: &veilgrad_nn::Progress) {
        progress::keep(&mut self.metrics, round);
        if round.round > self.after {
            self.accuracies.extend(round.metric("accuracy").into_iter().flatten());
        }
    }

    fn stop(&mut self) -> bool {
        self.interrupted.load(Ordering::Relaxed)
    }
}

impl Choice {
    /// The choice among settings of this configuration.
    fn new(config: &Config, tuning: Tuning, varied: Value) -> Result<Self, Error> {
        let mut configuration = config.fingerprint().map_err(Error::Failure)?;
        if let Some(document) = configuration.as_object_mut() {
            document.insert("vary".to_owned(), varied);
        }
        Ok(Self { tuning, configuration, setting: Value::Null })
    }
}
