//! `veilgrad finish`: model, report and statement from a checkpoint. It is post-processing of what was
//! released: it charges nothing, writes nothing to the ledger, and opens no private data.

use std::path::{Path, PathBuf};

use serde_json::Value;
use veilgrad_ledger::Ledger;
use veilgrad_nn::{FileError, UnverifiedCheckpoint};

use super::calibrate;
use super::config::Config;
use super::data::{self, Public};
use super::fingerprint::difference;
use super::hooks::{ACCOUNT, Account, CONFIGURATION, PRECONDITION};
use super::job::Job;
use super::model_file;
use super::place::Place;
use crate::argument::{Common, Finish};
use crate::error::Error;
use crate::hash::sha256;
use crate::output::{say, write_file};
use crate::report;

pub(crate) fn run(arguments: &Finish, common: &Common) -> Result<(), Error> {
    let place = Place(arguments.run.clone());
    let here = place.0.display().to_string();
    if !place.checkpoint().exists() {
        if place.is_finished() {
            say(&format!("{here} is finished\n"));
            return Ok(());
        }
        return Err(Error::Usage(format!("{here} has no checkpoint: no round was charged for it")));
    }
    let _alone = place.lock()?;
    let kept = place.read_run()?;
    let mut job = Job::new(kept.config.clone(), None)?;
    let ledger = arguments.ledger.clone().unwrap_or_else(|| place.location(&kept));
    let ledger = Ledger::read(ledger, common.options())?;
    let account = restore(&mut job, &place.checkpoint(), &ledger)?;
    let dataset = ledger.state().datasets().get(&job.config.dataset());
    let mut runs = dataset.into_iter().flat_map(|dataset| dataset.runs.values());
    if !runs.any(|run| account.runs.contains(&run.id) && run.charged() > 0) {
        return Err(Error::Usage(format!(
            "no round was charged for {here}, so there is no model yet; go on with --resume"
        )));
    }
    if !job.rounds_before()?.is_empty() {
        return Err(Error::Usage(format!(
            "the preconditioning of {here} is not done, so there is no model yet; go on with --resume"
        )));
    }
    let (done, all) = (job.trainer.rounds(), job.rounds.count);
    if done == 0 {
        return Err(Error::Usage(format!(
            "{here} has a checkpoint from before its first round, so there is no model yet; go on with --resume"
        )));
    }
    if !common.quiet {
        say(&format!("finishing {here} after {done} of {all} rounds\n"));
    }
    let public = public_examples(&kept.config)?;
    complete(&job, &place, &ledger, public, account, common)
}

/// Restores a job from a checkpoint of the same configuration, if the ledger contains the charges of its rounds.
pub(crate) fn restore(job: &mut Job, path: &Path, ledger: &Ledger) -> Result<Account, Error> {
    let name = path.display().to_string();
    let checkpoint_error = |error: FileError| match error {
        FileError::Ledger(error) => Error::Ledger(error.into()),
        FileError::Io(cause) => Error::File { path: name.clone(), cause },
        other => Error::Failure(format!("{name}: {other}")),
    };
    let json = |bytes: &[u8]| serde_json::from_slice::<Value>(bytes).ok();
    let checkpoint = UnverifiedCheckpoint::read(path).map_err(&checkpoint_error)?;
    let was = checkpoint.bytes(CONFIGURATION).ok().and_then(json).ok_or_else(|| {
        Error::Failure(format!("{name}: does not say which configuration it belongs to"))
    })?;
    let is = job.config.fingerprint().map_err(Error::Failure)?;
    if let Some(difference) = difference(&was, &is) {
        return Err(Error::Usage(format!(
            "the run was begun with another configuration: {difference}; its guarantee is for that one"
        )));
    }
    let account =
        checkpoint.bytes(ACCOUNT).ok().and_then(|bytes| serde_json::from_slice(bytes).ok());
    let checkpoint = checkpoint.verify(Some(ledger)).map_err(&checkpoint_error)?;
    if let Some(phase) = &mut job.precondition {
        let released = checkpoint.bytes(PRECONDITION).map_err(&checkpoint_error)?;
        phase.restore(released).map_err(&checkpoint_error)?;
    }
    job.trainer.restore(&checkpoint).map_err(&checkpoint_error)?;
    Ok(account.unwrap_or_default())
}

/// The public examples that a run was started with, if they still exist. Only these were compared with its private ones.
pub(crate) fn public_examples(kept: &Config) -> Result<Public, Error> {
    let data = &kept.data;
    let exist = |files: [&Option<PathBuf>; 2], what: &str| {
        let missing = files.into_iter().flatten().find(|path| !path.exists());
        if let Some(missing) = missing {
            say(&format!("{} does not exist: {what}\n", missing.display()));
        }
        missing.is_none()
    };
    let mut public = Public::default();
    if exist([&data.test, &data.test_labels], "the model is not evaluated") {
        public.test = data::test(kept)?;
    }
    let files = [&data.calibration, &data.calibration_labels];
    if exist(files, "probabilities are not calibrated") {
        public.calibration = data::calibration(kept)?;
    }
    Ok(public)
}

/// Writes model, report and statement, and prints the outcome. It can run again after an interruption, because the
/// checkpoint is removed last.
pub(crate) fn complete(
    job: &Job,
    place: &Place,
    ledger: &Ledger,
    public: Public,
    account: Account,
    common: &Common,
) -> Result<(), Error> {
    let Public { test, calibration } = public;
    let (mut model, whitening) = (job.model(), job.whitening());
    let declaration = job.config.declaration();
    let mut temperature = None;
    if let Some(examples) = calibration {
        let outputs = examples.outputs(&declaration, &model, whitening.as_ref(), job.threads)?;
        temperature = calibrate::temperature(&outputs, examples.labels(), declaration.outputs());
        match temperature {
            Some(temperature) => calibrate::divide_outputs(&mut model, temperature),
            None => {
                say("[data] calibration has no usable example: probabilities are not calibrated\n")
            }
        }
    }
    let (mut test_accuracy, mut test_mean_absolute_error) = (None, None);
    if let Some(test) = test {
        let (whitening, threads) = (whitening.as_ref(), job.threads);
        if declaration.label_bounds.is_some() {
            test_mean_absolute_error =
                test.mean_absolute_error(&declaration, &model, whitening, threads)?;
        } else {
            test_accuracy = test.accuracy(&declaration, &model, whitening, threads)?;
        }
    }
    let mut report = report::of_run(&report::Facts {
        ledger,
        dataset: &job.config.dataset(),
        runs: &account.runs,
        done: Some(job.done()),
        records: Some(job.config.data.records),
        directory: Some(&place.0),
        newer: None,
        test_accuracy,
        test_mean_absolute_error,
        temperature,
        start: job.start.clone(),
        metrics: account.metrics,
        model: None,
        date: Some(job.date.clone()),
        configuration: Some(job.configuration()?),
        setting: job.tune.as_ref().map(|tune| tune.setting.clone()),
        audit: job.audit()?,
    })?;
    let write = |name: &str, bytes: &[u8]| write_file(&place.0.join(name), bytes);
    let bytes = model_file::write(&model, whitening.as_ref(), declaration, &report)?;
    report.model = Some(report::Model {
        file: "model.safetensors".to_owned(),
        parameters: job.trainer.model().size(),
        sha256: Some(sha256(&bytes)),
    });
    write("model.safetensors", &bytes)?;
    write("report.json", format!("{}\n", report.json()?).as_bytes())?;
    write("report.html", report::page::page(&report).as_bytes())?;
    write("statement.txt", report.statement.as_bytes())?;
    place.remove_checkpoint();
    report::finish(&report, &place.0, common)?;
    report::audited(&report)
}
