//! The directory of a run: its results, or the checkpoint of an unfinished run.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use veilgrad_ledger::{Ledger, Location, Options, StoreError};
use veilgrad_nn::UnverifiedCheckpoint;

use super::config::Config;
use crate::error::Error;
use crate::output::{file_error, write_file};
use crate::path;

/// The results of a finished run.
pub(crate) const RESULTS: [&str; 4] =
    ["model.safetensors", "report.json", "report.html", "statement.txt"];

pub(crate) struct Place(pub(crate) PathBuf);

/// `run.json`, which exists as long as the checkpoint: what `--resume` needs, apart from released values. Paths are relative
/// to the directory where possible.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RunFile {
    schema: u32,
    pub(crate) ledger: PathBuf,
    pub(crate) config: Config,
}

impl Place {
    pub(crate) fn checkpoint(&self) -> PathBuf {
        self.0.join("checkpoint.safetensors")
    }

    fn run_file(&self) -> PathBuf {
        self.0.join("run.json")
    }

    /// Keeps other processes from training or finishing a run here until the file is dropped. Two that resume one checkpoint
    /// would charge its rounds twice, and one model would be lost.
    pub(crate) fn lock(&self) -> Result<File, Error> {
        let path = self.0.display().to_string();
        let directory = File::open(&self.0).map_err(|cause| file_error(&self.0, cause))?;
        match directory.try_lock() {
            Ok(()) => Ok(directory),
            Err(TryLockError::WouldBlock) => Err(Error::Busy(format!(
                "another process trains in {path}: wait for it, or end it"
            ))),
            Err(TryLockError::Error(cause)) => Err(file_error(&self.0, cause)),
        }
    }

    pub(crate) fn is_finished(&self) -> bool {
        RESULTS.iter().any(|name| std::fs::symlink_metadata(self.0.join(name)).is_ok())
    }

    /// Stores the configuration and the path of the ledger.
    pub(crate) fn write_run(&self, config: &Config, ledger: &Location) -> Result<(), Error> {
        let mut config = config.clone();
        config.paths_mut().for_each(|path| *path = path::relative(&self.0, path));
        let file = RunFile { schema: 1, ledger: path::stored(&self.0, ledger), config };
        let text = serde_json::to_string(&file).map_err(Error::failure)?;
        write_file(&self.run_file(), format!("{text}\n").as_bytes())
    }

    /// What is stored of an unfinished run, with paths relative to the working directory.
    pub(crate) fn read_run(&self) -> Result<RunFile, Error> {
        let path = self.run_file();
        let text = std::fs::read_to_string(&path).map_err(|cause| file_error(&path, cause))?;
        let mut file: RunFile = serde_json::from_str(&text).map_err(|error| Error::Data {
            path: path.display().to_string(),
            cause: error.to_string(),
        })?;
        file.config.paths_mut().for_each(|path| *path = self.0.join(&*path));
        Ok(file)
    }

    /// Where the ledger of an unfinished run is.
    pub(crate) fn location(&self, file: &RunFile) -> Location {
        path::restored(&self.0, &file.ledger)
    }

    /// Removes the files that only an unfinished run needs.
    pub(crate) fn remove_checkpoint(&self) {
        let _ = std::fs::remove_file(self.checkpoint());
        let _ = std::fs::remove_file(self.run_file());
    }

    /// The id of the ledger that a checkpoint or a report here names, and its path, if known.
    fn named_ledger(&self) -> Option<(String, Option<Location>)> {
        let checkpoint = UnverifiedCheckpoint::read(&self.checkpoint()).ok();
        if let Some(head) = checkpoint.as_ref().and_then(UnverifiedCheckpoint::head) {
            return Some((head.id.clone(), self.read_run().ok().map(|file| self.location(&file))));
        }
        let text = std::fs::read_to_string(self.0.join("report.json")).ok()?;
        let report: Value = serde_json::from_str(&text).ok()?;
        let id = report["ledger"]["id"].as_str()?.to_owned();
        Some((
            id,
            report["ledger"]["path"].as_str().map(|path| path::restored(&self.0, Path::new(path))),
        ))
    }

    /// Refuses a ledger other than the one that results or a checkpoint here name, since what was spent there would not
    /// count.
    pub(crate) fn check_ledger(&self, ledger: &Location, options: Options) -> Result<(), Error> {
        let Some((named, place)) = self.named_ledger() else { return Ok(()) };
        let place = place.map_or(String::new(), |place| format!(", at {place}"));
        let used = match Ledger::exists(ledger, &options)? {
            true => Ledger::read(ledger, options)?.head().id.clone(),
            false => "not there".to_owned(),
        };
        if used == named {
            return Ok(());
        }
        let used = if used == "not there" { used } else { format!("ledger {used}") };
        Err(Error::Ledger(StoreError::Refused(format!(
            "{here} was charged to ledger {named}{place}, and {ledger} is {used}; restore or name that \
             ledger, choose another --out, or pass --new-budget if what was spent there may be forgotten",
            here = self.0.display()
        ))))
    }
}
