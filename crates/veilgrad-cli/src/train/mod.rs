//! `veilgrad train`: from a data file and a budget to a model, a ledger and a report.

pub(crate) mod build;
mod calibrate;
pub(crate) mod check;
pub(crate) mod config;
mod correlated;
pub(crate) mod data;
mod estimate;
mod fingerprint;
pub(crate) mod finish;
pub(crate) mod follow;
pub(crate) mod hooks;
pub(crate) mod inputs;
pub(crate) mod job;
pub(crate) mod model_file;
pub(crate) mod network;
pub(crate) mod network_description;
pub(crate) mod place;
mod precondition;
mod progress;
pub(crate) mod reference;
mod schema;
pub(crate) mod start;
pub(crate) mod tune;
pub(crate) mod vary;

use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use veilgrad_accounting::{Tightest, Tuning};
use veilgrad_events::{BandedStrategy, Folded, LedgerError, Rounds, Run, RunRounds};
use veilgrad_ledger::{Begun, DatasetLedger, Ledger, Location, StoreError};
use veilgrad_nn::{DriveError, Pace, TrainError, UnverifiedCheckpoint, drive};

use crate::argument::{Common, RunOptions};
use crate::error::Error;
use crate::ledger_place;
use crate::output::{create_directory, print_json, say, table};
use crate::plan::SHUFFLE_ADVICE;
use crate::team::Leader;
use check::Source;
use config::Audit;
use data::{Process, Public, TrainingRecords};
use hooks::{Account, RunHooks, Waiting};
use job::Job;
use place::Place;
use progress::Progress;

/// Trains a model; with `canaries`, as an audit; with a `leader`, together with other processes.
pub(crate) fn run(
    path: &Path,
    arguments: &RunOptions,
    canaries: Option<NonZeroU32>,
    mut leader: Option<Box<dyn Leader>>,
    common: &Common,
) -> Result<(), Error> {
    let source = Source::read(path)?;
    let mut config = source.checked()?;
    if let Some(canaries) = canaries {
        config.audit.get_or_insert(Audit { canaries });
    }
    if let Some(epsilon) = arguments.epsilon {
        (config.privacy.epsilon, config.privacy.noise_multiplier) = (Some(epsilon.get()), None);
    }
    let mut stem = path.file_stem().unwrap_or_default().to_owned();
    if canaries.is_some() {
        // Do not overwrite the results of `train`.
        stem.push("-audit");
    }
    let place = Place(arguments.out.clone().unwrap_or_else(|| Path::new("runs").join(stem)));
    // Of several processes, each has one core, unless they are told otherwise.
    let asked = arguments.threads.map(std::num::NonZeroUsize::get);
    let asked = asked.or(leader.as_ref().map(|_| 1));
    let job = planned_job(&source, config, asked, None, common)?;
    if !arguments.resume {
        create_directory(&place.0)?;
    } else if !place.checkpoint().exists() {
        return Err(no_checkpoint(&place));
    }
    let _alone = place.lock()?;
    let ledger = match &arguments.ledger {
        None if arguments.resume => {
            place.location(&place.read_run().map_err(|_| no_checkpoint(&place))?)
        }
        given => ledger_place::to_write(given.as_ref())?,
    };
    let waiting = Waiting::new(Duration::from_secs(arguments.wait), common);
    let mut session = Session { job, common, place, ledger, waiting };
    session.announce();
    let interrupted = match &common.watch {
        Some(watch) => watch.stop_flag(),
        None => hooks::interrupts()?,
    };
    let (mut run, left, earlier) = match arguments.resume {
        false => session.begin(arguments)?,
        true => match session.go_on()? {
            Resumed::Run(run, left, earlier) => (run, left, earlier),
            // Only the results are left to write, which costs nothing.
            Resumed::Nothing(ledger, earlier) => {
                let Session { job, place, .. } = &session;
                let public = finish::public_examples(&place.read_run()?.config)?;
                return finish::complete(job, place, &ledger, public, earlier, common);
            }
        },
    };
    // The data is not read before the budget covers the plan.
    if let Some(leader) = &mut leader {
        leader.announce(&follow::setup(&session.job)?).map_err(Error::failure)?;
    }
    let process = match &leader {
        Some(leader) => Process { rank: 0, size: leader.size() },
        None => Process::ALONE,
    };
    let read = read(&session.job, process);
    if let Some(leader) = &mut leader {
        let failures = leader.failures().map_err(Error::failure)?;
        if let (Ok(_), Some((rank, why))) = (&read, failures.first()) {
            return Err(Error::Failure(format!("rank {rank}: {why}")));
        }
    }
    let (mut train, public) = read?;
    let Session { mut job, common, place, ledger, waiting } = session;
    place.write_run(&job.config, &ledger)?;
    let configuration = job.config.fingerprint().map_err(Error::Failure)?.to_string();
    let mut hooks = RunHooks {
        checkpoint: place.checkpoint(),
        configuration,
        head: run.store().ledger().head().clone(),
        progress: Progress::new(common, &job),
        waiting,
        interrupted,
        run: run.store().run().map(str::to_owned),
        earlier,
        precondition: None,
    };
    match precondition::run(&mut job, &mut run, &mut train, &mut hooks, leader.as_deref()) {
        Ok(true) => {}
        Ok(false) => return Err(Error::Interrupted),
        Err(error) => return Err(stopped(error, &place)),
    }
    if let Some(mut leader) = leader {
        if let Some(phase) = &job.precondition {
            let released = phase.to_bytes().map_err(Error::failure)?;
            leader.announce(&released).map_err(Error::failure)?;
        }
        job.trainer.share_with(leader.peers());
    }
    let (block, checkpoint_rounds) = (job.config.train.block, job.config.train.checkpoint_rounds);
    let pace = Pace { rounds: left, block, checkpoint_rounds };
    let (trainer, sampler) = (&mut job.trainer, &mut job.sampler);
    let outcome = drive(trainer, &mut run, sampler, &train, &pace, &mut hooks);
    hooks.progress.end();
    match outcome {
        Ok(0) => {}
        Ok(_) => return Err(Error::Interrupted),
        Err(error) => return Err(stopped(error, &place)),
    }
    let ledger = match run.close() {
        Ok(store) => store.into_ledger(),
        // All rounds are charged and done; the model does not depend on whether the run is closed in the ledger.
        Err(error) => {
            say(&format!("the run stays open in the ledger: {error}\n"));
            Ledger::read(&ledger, common.options())?
        }
    };
    finish::complete(&job, &place, &ledger, public, hooks.account(), common)
}

/// The records of this process, and the public examples.
fn read(job: &Job, process: Process) -> Result<(TrainingRecords, Public), Error> {
    let (train, public) = data::private_and_public(&job.config, process)?;
    Ok((train.into_records(&job.config.declaration(), job.threads)?, public))
}

/// Plans a run; with `tuning`, one of its runs.
fn planned_job(
    source: &Source,
    config: config::Config,
    asked: Option<usize>,
    tuning: Option<Tuning>,
    common: &Common,
) -> Result<Job, Error> {
    let job = match Job::plan(config, asked, tuning) {
        Err(Error::NoAnswer(reason)) if common.json => {
            print_json(&json!({ "schema": 1, "valid": false, "reason": reason }))?;
            return Err(Error::NoAnswer(reason));
        }
        job => job.map_err(|error| source.locate(error))?,
    };
    if asked.is_some_and(|asked| asked > job.threads) && !common.quiet {
        say(&format!("{} threads are used: the machine has no more\n", job.threads));
    }
    if job.config.privacy.sampling == config::Sampling::Shuffle && !common.quiet {
        say(&format!("sampling = \"shuffle\": {SHUFFLE_ADVICE}\n"));
    }
    Ok(job)
}

/// A run that is about to start or resume; no data has been read yet.
struct Session<'a> {
    job: Job,
    common: &'a Common,
    place: Place,
    ledger: Location,
    waiting: Waiting,
}

/// What a resumed run has left to do.
enum Resumed {
    /// This many rounds.
    Run(Run<DatasetLedger>, u64, Account),
    /// All rounds are done, or the budget has no room for more.
    Nothing(Ledger, Account),
}

impl Session<'_> {
    /// Prints the plan.
    fn announce(&self) {
        if self.common.quiet {
            return;
        }
        use veilgrad_accounting::display::{claimed_noise_down, runs, up};
        let (job, unit) = (&self.job, build::unit(&self.job.config).record());
        let noise = job.trainer.plan().noise_multiplier().map_or(f64::NAN, |noise| noise.get());
        let mut rows = vec![
            ("dataset", format!("{} ({unit})", job.config.dataset())),
            ("rounds", job.rounds.count.to_string()),
            ("noise multiplier", claimed_noise_down(noise)),
            ("epsilon", format!("{} at delta {:e}", up(job.guarantee.epsilon), job.delta.get())),
            ("accountant", job.guarantee.accountant.to_owned()),
        ];
        if let Some(precondition) = &job.config.privacy.precondition {
            let (rounds, directions) = (precondition.rounds + 1, precondition.directions);
            let what = format!("{rounds} rounds on all records: mean and {directions} directions");
            rows.insert(1, ("preconditioning", what));
        }
        if let Some(what) = correlated::describe(&job.config, job.correlated.as_ref()) {
            rows.push(("correlated noise", what));
        }
        if let config::Record::MadeUp(made_up) = &job.config.data.record {
            let what = format!(
                "{} made up from public data, for experiments: the guarantee protects no person",
                made_up.users
            );
            rows.insert(1, ("users", what));
        }
        if let Some(audit) = job.config.audit {
            rows.push(("audit", format!("{} canaries in addition to the records", audit.canaries)));
        }
        if let Some(tune) = &job.tune {
            let mean = runs(tune.tuning.mean_runs());
            rows.push((
                "released",
                format!("the best of a secret number of runs, on average {mean}"),
            ));
        }
        if let Some(time) = estimate::text(&job.config, job.threads) {
            let one = if job.tune.is_some() { " for one run" } else { "" };
            rows.push(("time", format!("{time}{one}")));
        }
        if self.common.verbose > 0 {
            let rounds = job.before.iter().chain([&job.rounds]);
            rows.extend(rounds.flat_map(|rounds| rounds.round.queries()).map(|query| {
                let noise = claimed_noise_down(query.noise().get());
                let (group, clip) = (query.group(), query.clip().get());
                let correlated = match query.strategy().map_or(1, BandedStrategy::bands) {
                    1 => String::new(),
                    _ => {
                        let last = job.rounds.count.saturating_sub(1);
                        let on_sum = claimed_noise_down(query.noise_on_sum(last));
                        format!(" for each turn of a record, {on_sum} on the sum of a round")
                    }
                };
                ("group", format!("{group}: clip {clip}, noise {noise}{correlated}"))
            }));
        }
        rows.push(("ledger", self.ledger.to_string()));
        rows.push(("results", self.place.0.display().to_string()));
        say(&table(&rows));
    }

    /// Opens a new run, unless its directory holds another.
    fn begin(
        &mut self,
        arguments: &RunOptions,
    ) -> Result<(Run<DatasetLedger>, u64, Account), Error> {
        let ledger = self.ready(arguments)?;
        let rounds = self.job.rounds.count;
        Ok((self.open_run(ledger, rounds)?, rounds, Account::default()))
    }

    /// Opens the ledger for a new run, unless the directory holds another run.
    fn ready(&mut self, arguments: &RunOptions) -> Result<Ledger, Error> {
        let here = self.place.0.display();
        if self.place.checkpoint().exists() {
            return Err(Error::Usage(format!(
                "{here} holds an unfinished run; go on with --resume, make its model with `veilgrad finish \
                 {here}`, or choose another --out"
            )));
        }
        if !arguments.new_budget {
            self.place.check_ledger(&self.ledger, self.common.options())?;
        }
        if self.place.is_finished() && !arguments.overwrite {
            return Err(Error::Usage(format!(
                "{here} holds the results of a run; choose another --out, or pass --overwrite"
            )));
        }
        let (budget, options) = (self.job.budget()?, self.waiting.options(self.common));
        let (ledger, begun) = self
            .waiting
            .until_free(|| Ledger::open_dataset(&self.ledger, options.clone(), &budget))?;
        if begun != Begun::Nothing {
            crate::budget::announce(&budget, &self.ledger, begun);
        }
        Ok(ledger)
    }

    /// Continues the run whose checkpoint is in the directory.
    fn go_on(&mut self) -> Result<Resumed, Error> {
        let checkpoint = self.place.checkpoint();
        let options = self.waiting.options(self.common);
        self.place.check_ledger(&self.ledger, self.common.options())?;
        let ledger = self.waiting.until_free(|| Ledger::open(&self.ledger, options.clone()))?;
        let account = finish::restore(&mut self.job, &checkpoint, &ledger)?;
        let left = self.job.rounds.count.saturating_sub(self.job.trainer.rounds());
        let affordable = self.affordable(&ledger, left)?;
        if affordable < left {
            say(&format!(
                "the budget of {:?} has room for {affordable} of the {left} rounds that are left\n",
                self.job.config.dataset()
            ));
        }
        if affordable == 0 {
            if !self.job.rounds_before()?.is_empty() {
                return Err(Error::Ledger(StoreError::BudgetExhausted(format!(
                    "the budget of {:?} has no room for the rest of the preconditioning and a round of training; the \
                     data was not opened",
                    self.job.config.dataset()
                ))));
            }
            if self.job.trainer.rounds() == 0 {
                return Err(Error::Ledger(StoreError::BudgetExhausted(format!(
                    "the budget of {:?} has no room for a round, and the checkpoint is from before the first one, so there \
                     is no model; the data was not opened",
                    self.job.config.dataset()
                ))));
            }
            return Ok(Resumed::Nothing(ledger, account));
        }
        Ok(Resumed::Run(self.open_run(ledger, affordable)?, affordable, account))
    }

    /// How many of these rounds the budget still covers. An interrupted run may have charged rounds that it did not use,
    /// which are then missing for the resumed one.
    fn affordable(&self, ledger: &Ledger, rounds: u64) -> Result<u64, Error> {
        let Some(dataset) = ledger.state().datasets().get(&self.job.config.dataset()) else {
            return Ok(rounds);
        };
        let one = Folded::try_from(&Rounds { count: 1, round: self.job.rounds.round.clone() })
            .map_err(Error::failure)?;
        let before = self.job.rounds_before()?;
        let before = before.iter().map(Folded::try_from).collect::<Result<Vec<_>, _>>();
        let before = before.map_err(Error::failure)?;
        let fits = |count: u64| {
            let rounds = [before.as_slice(), &[Folded { count, ..one }]].concat();
            let plan = RunRounds { planned: true, rounds: &rounds, tuning: None };
            // What running plans hold may become free, so it makes no run shorter: opening the run says if it must wait.
            dataset.covers(&Tightest, &[plan], &BTreeSet::new()).is_ok()
        };
        if fits(rounds) {
            return Ok(rounds);
        }
        let (mut low, mut high) = (0, rounds);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if fits(middle) { low = middle } else { high = middle }
        }
        Ok(low)
    }

    /// Opens a run of this many rounds, all of which the budget must cover.
    fn open_run(&mut self, ledger: Ledger, rounds: u64) -> Result<Run<DatasetLedger>, Error> {
        let header = self.job.header(rounds)?;
        self.open(ledger, |ledger| Ok(Run::open(ledger, header.clone())?))
    }

    /// Opens a run in the ledger of the dataset; again as long as another process holds it.
    fn open<T>(
        &mut self,
        ledger: Ledger,
        open: impl Fn(DatasetLedger) -> Result<T, StoreError>,
    ) -> Result<T, Error> {
        let name = self.job.config.dataset();
        if let Some(dataset) = ledger.state().datasets().get(&name) {
            self.job.check_terms(&dataset.budget)?;
        }
        let options = self.waiting.options(self.common);
        let mut opened = Some(ledger);
        let run = self.waiting.until_free(|| {
            let ledger = match opened.take() {
                Some(ledger) => ledger,
                None => Ledger::open(&self.ledger, options.clone())?,
            };
            open(ledger.dataset(&name, Arc::new(Tightest))?)
        });
        run.map_err(|error| match error {
            StoreError::BudgetExhausted(why) => Error::Ledger(StoreError::BudgetExhausted(
                format!("{why}, in {}; the data was not opened", self.ledger),
            )),
            other => Error::Ledger(other),
        })
    }
}

fn no_checkpoint(place: &Place) -> Error {
    Error::Usage(format!(
        "{} has no run to go on with; begin one without --resume",
        place.0.display()
    ))
}

/// Turns the reason why training stopped into an error, after printing which round is saved.
fn stopped(error: DriveError, place: &Place) -> Error {
    let saved = UnverifiedCheckpoint::read(&place.checkpoint()).and_then(|found| found.round());
    if let Ok(round) = saved {
        let here = place.0.display();
        // Before its first round, a run has no model.
        let finish = match round {
            0 => String::new(),
            _ => format!(", or make its model with `veilgrad finish {here}`"),
        };
        say(&format!("round {round} is saved in {here}: go on with --resume{finish}\n"));
    }
    match error {
        // The data is open by now, so the exit code must not be that of a run refused before it started.
        DriveError::Train(TrainError::Ledger(error @ LedgerError::BudgetExhausted(_))) => {
            Error::Ledger(StoreError::Refused(error.to_string()))
        }
        DriveError::Train(TrainError::Ledger(error)) => Error::Ledger(error.into()),
        other => Error::Failure(other.to_string()),
    }
}
