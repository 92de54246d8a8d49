//! Hooks of the driver loop: progress, checkpoints, signals, waiting for a busy ledger.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use veilgrad_events::Run;
use veilgrad_ledger::{DatasetLedger, Head, StoreError};
use veilgrad_nn::{FileError, Hooks, Trainer};

use super::build::AnyOptimizer;
use super::progress::Progress;
use crate::argument::Common;
use crate::error::Error;
use crate::output::say;

/// The duration of one attempt to lock the ledger. After the first, a message is printed.
const ATTEMPT: Duration = Duration::from_secs(1);

/// Waits for a ledger that another process holds.
pub(crate) struct Waiting {
    patience: Duration,
    since: Option<Instant>,
    quiet: bool,
}

impl Waiting {
    pub(crate) const fn new(patience: Duration, common: &Common) -> Self {
        Self { patience, since: None, quiet: common.quiet }
    }

    /// The options to open the ledger with, for one attempt.
    pub(crate) fn options(&self, common: &Common) -> veilgrad_ledger::Options {
        veilgrad_ledger::Options { patience: ATTEMPT.min(self.patience), ..common.options() }
    }

    /// Reports a busy ledger once, and returns whether to try again.
    fn wait(&mut self) -> bool {
        if self.since.is_none() && !self.quiet {
            let seconds = self.patience.as_secs();
            say(&format!("the ledger is busy: waiting up to {seconds} s for another process\n"));
        }
        self.since.get_or_insert_with(Instant::now).elapsed() < self.patience
    }

    /// Repeats an attempt until the ledger is free or the time is over.
    pub(crate) fn until_free<T>(
        &mut self,
        mut attempt: impl FnMut() -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        loop {
            let found = attempt();
            if !matches!(found, Err(StoreError::Busy(_))) {
                self.since = None;
                return found;
            }
            if !self.wait() {
                return found;
            }
        }
    }
}

/// What a checkpoint stores in addition to the trainer's state: released metrics, and the runs that charged them. Not the
/// time that rounds took, which depends on private numbers of records.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
pub(crate) struct Account {
    /// The last private estimate of every metric.
    pub(crate) metrics: Vec<(String, Vec<f64>)>,
    /// The ids of the runs that charged its rounds, in order.
    #[serde(default)]
    pub(crate) runs: Vec<String>,
}

/// The names of the configuration's fingerprint and of the account in a checkpoint.
pub(crate) const CONFIGURATION: &str = "configuration";
pub(crate) const ACCOUNT: &str = "account";
/// The name of what preconditioning released.
pub(crate) const PRECONDITION: &str = "precondition";

pub(crate) struct RunHooks {
    pub(crate) checkpoint: PathBuf,
    /// The fingerprint of the configuration, as JSON.
    pub(crate) configuration: String,
    /// The head of the ledger after this run's last charge.
    pub(crate) head: Head,
    pub(crate) progress: Progress,
    pub(crate) waiting: Waiting,
    pub(crate) interrupted: Arc<AtomicBool>,
    pub(crate) run: Option<String>,
    /// The account of the runs that this one resumes.
    pub(crate) earlier: Account,
    /// What preconditioning released, if the run begins with it.
    pub(crate) precondition: Option<Vec<u8>>,
}

impl RunHooks {
    pub(crate) fn account(&self) -> Account {
        let mut metrics = self.progress.metrics.clone();
        if metrics.is_empty() {
            metrics.clone_from(&self.earlier.metrics);
        }
        let runs = self.earlier.runs.iter().chain(&self.run).cloned().collect();
        Account { metrics, runs }
    }
}

impl Hooks<Trainer<AnyOptimizer>, DatasetLedger> for RunHooks {
    fn charged(&mut self, run: &Run<DatasetLedger>) {
        self.head = run.store().ledger().head().clone();
        self.waiting.since = None;
    }

    fn show(&mut self, _: &Trainer<AnyOptimizer>, round: &veilgrad_nn::Progress) {
        self.progress.show(round);
    }

    fn save(&mut self, trainer: &Trainer<AnyOptimizer>) -> Result<(), FileError> {
        let mut checkpoint = trainer.checkpoint(Some(&self.head));
        let account = serde_json::to_vec(&self.account())
            .map_err(|error| FileError::Format(error.to_string()))?;
        checkpoint.insert(CONFIGURATION, self.configuration.clone().into_bytes());
        checkpoint.insert(ACCOUNT, account);
        if let Some(bytes) = &self.precondition {
            checkpoint.insert(PRECONDITION, bytes.clone());
        }
        checkpoint.write(&self.checkpoint)
    }

    fn stop(&mut self) -> bool {
        self.interrupted.load(Ordering::Relaxed)
    }

    fn wait(&mut self, _: &str) -> bool {
        self.waiting.wait()
    }
}

/// A flag that the first Ctrl-C sets; the second one ends the process. The ledger is valid at any time, and the last
/// checkpoint is complete.
pub(crate) fn interrupts() -> Result<Arc<AtomicBool>, Error> {
    use signal_hook::flag::{register, register_conditional_shutdown};
    let flag = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        register_conditional_shutdown(signal, 130, Arc::clone(&flag))
            .and_then(|_| register(signal, Arc::clone(&flag)))
            .map_err(Error::failure)?;
    }
    Ok(flag)
}
