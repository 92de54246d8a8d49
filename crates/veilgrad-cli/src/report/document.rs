//! `report.json`: the report for programs.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use veilgrad_accounting::Profile;
use veilgrad_accounting::audit::RunVerdict;
use veilgrad_accounting::display::{down, percent_down, runs, up};

use crate::error::Error;

/// `report.json`: public facts and released values, nothing else.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) schema: u32,
    /// The day, in UTC, on which the command that made the results began. It is taken before the data is opened: how long a
    /// run takes depends on private sample sizes.
    #[serde(default)]
    pub(crate) date: Option<String>,
    /// The epsilon that may be claimed; none if nothing may be claimed, with the reason below.
    pub(crate) epsilon: Option<f64>,
    pub(crate) delta: f64,
    /// Whether anything may be claimed.
    pub(crate) valid: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
    /// Why this epsilon may be claimed: the declared plan, or the budget.
    pub(crate) why: Option<String>,
    pub(crate) conditions: Vec<String>,
    pub(crate) warnings: Vec<String>,
    pub(crate) attacker: Option<Attacker>,
    /// What the same rounds promise to people with several records; empty if records are users or blocks, or the claim is a
    /// budget.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) group_epsilons: Vec<GroupEpsilon>,
    /// The epsilon that all runs of the dataset have spent so far.
    pub(crate) epsilon_running: Option<f64>,
    /// The accountant that computed the claim; "budget" if the claim is the budget.
    pub(crate) accountant: Option<String>,
    /// Whether rounds may have been chosen from earlier outputs.
    pub(crate) mode: String,
    pub(crate) adjacency: String,
    pub(crate) unit: String,
    pub(crate) sampling: String,
    pub(crate) rate: Option<f64>,
    /// The declared batch size, which averages are divided by.
    #[serde(default)]
    pub(crate) expected_batch: Option<f64>,
    pub(crate) numerics: String,
    pub(crate) insecure: bool,
    /// The number of rounds done; fewer than charged if an interrupted run left some unused.
    pub(crate) rounds: u64,
    pub(crate) charged: u64,
    /// Whether all rounds were the same; if not, the groups of the last come first, then those that only others have.
    pub(crate) uniform: bool,
    /// The smallest noise multiplier of any round.
    pub(crate) noise_multiplier: f64,
    pub(crate) groups: Vec<Group>,
    pub(crate) test_accuracy: Option<f64>,
    /// For a label that is a number, in its unit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) test_mean_absolute_error: Option<f64>,
    /// What the outputs were divided by, so that probabilities are those of public examples.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) temperature: Option<f64>,
    /// The model that the run started from, if it was not a new one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) start: Option<Start>,
    pub(crate) metrics: Vec<Metric>,
    /// Always null, for programs that expect the key: the time of a run depends on private sample sizes.
    #[serde(default)]
    pub(crate) seconds: Option<f64>,
    pub(crate) dataset: String,
    /// The declared, public number of records, if there is one.
    pub(crate) records: Option<u64>,
    /// How many runs the ledger has on the data.
    pub(crate) runs: usize,
    /// The ids of the runs that made the results: several if a run was resumed.
    pub(crate) run_ids: Vec<String>,
    pub(crate) ledger: LedgerPlace,
    /// Rows that were added to the ledger after the results were written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) newer: Option<Newer>,
    pub(crate) model: Option<Model>,
    /// The configuration without paths, and its SHA-256, which the ledger has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) configuration: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) configuration_sha256: Option<String>,
    /// The verdict, if the run was an audit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) audit: Option<Audit>,
    /// The tuning, if the results are those of one. The number of its runs is secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) tuning: Option<TunedResult>,
    pub(crate) statement: String,
    pub(crate) curves: Curves,
}

/// The epsilon of a person with several records, at the delta of the report.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct GroupEpsilon {
    pub(crate) records: u64,
    pub(crate) epsilon: f64,
}

/// Upper bounds on the best membership inference attack on one record.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Attacker {
    pub(crate) advantage: f64,
    #[serde(rename = "tpr_at_fpr_1e-2")]
    pub(crate) true_positive_rate: f64,
    pub(crate) protection: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Group {
    pub(crate) name: String,
    /// None if the ledger does not say.
    pub(crate) dimension: Option<u64>,
    pub(crate) clip: f64,
    /// The standard deviation of the noise on the sum; if noise is correlated between rounds, of the Gaussian that measures a
    /// record once, over all rounds that it affects.
    pub(crate) noise: f64,
    /// How noise is correlated between rounds, if it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) correlated: Option<Correlated>,
    /// Its fraction of the round's squared mu.
    pub(crate) share: f64,
}

/// Noise that is correlated between rounds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Correlated {
    /// Over how many rounds.
    pub(crate) bands: usize,
    /// The standard deviation of the noise on the sum of the last round.
    pub(crate) noise_on_sum: f64,
}

impl Group {
    /// The standard deviation of the noise on the sum of the last round.
    pub(crate) fn noise_on_sum(&self) -> f64 {
        self.correlated.map_or(self.noise, |correlated| correlated.noise_on_sum)
    }
}

/// A private estimate of the last round.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Metric {
    pub(crate) name: String,
    pub(crate) values: Vec<f64>,
    /// The standard deviation of each value: of the noise and, for averages, of the choice of the sample, at most.
    #[serde(default)]
    pub(crate) standard_error: Option<f64>,
    /// Whether a tuning chose its run by this metric.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) selected: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Head {
    pub(crate) id: String,
    pub(crate) sequence: u64,
    pub(crate) head: String,
}

/// The model file that a run started from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Start {
    pub(crate) sha256: String,
    /// The ledger of its private training, if the file says that there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) trained: Option<Head>,
}

/// The head of a ledger, and its path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LedgerPlace {
    #[serde(flatten)]
    pub(crate) head: Head,
    /// Its path, relative to the directory of results, or its address without a password.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) path: Option<PathBuf>,
}

/// Rows that were added to a ledger after results were written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Newer {
    pub(crate) rows: u64,
    /// What they change for the dataset.
    pub(crate) changes: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Model {
    pub(crate) file: String,
    pub(crate) parameters: usize,
    /// SHA-256 of the file.
    #[serde(default)]
    pub(crate) sha256: Option<String>,
}

/// A tuning that released the best of a secret number of runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct TunedResult {
    pub(crate) mean_runs: f64,
    pub(crate) distribution: String,
    /// The values that the best run had; null if they are not known, or there was no run.
    #[serde(default)]
    pub(crate) setting: Option<Value>,
}

impl TunedResult {
    /// What was released, in one line.
    pub(crate) fn line(&self) -> String {
        let mean = runs(self.mean_runs);
        let setting = self.setting.as_ref().filter(|setting| !setting.is_null());
        let setting = setting.map_or(String::new(), |setting| format!(": {setting}"));
        format!("the best of a secret number of runs, on average {mean}{setting}")
    }
}

/// The verdict of an audit.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Audit {
    pub(crate) canaries: u64,
    /// The number of guesses about canaries, fixed before the run.
    pub(crate) guesses: u64,
    pub(crate) correct: u64,
    /// The largest epsilon that the guesses contradict, at `delta`.
    pub(crate) epsilon_lower: f64,
    pub(crate) confidence: f64,
    /// The epsilon that is claimed for the rounds of this run.
    pub(crate) claimed: f64,
    pub(crate) delta: f64,
    pub(crate) contradicted: bool,
}

impl From<RunVerdict> for Audit {
    fn from(verdict: RunVerdict) -> Self {
        let RunVerdict { canaries, guesses, correct, epsilon_lower, confidence, .. } = verdict;
        let RunVerdict { claimed, delta, contradicted, .. } = verdict;
        Self { canaries, guesses, correct, epsilon_lower, confidence, claimed, delta, contradicted }
    }
}

impl From<Audit> for RunVerdict {
    fn from(audit: Audit) -> Self {
        let Audit { canaries, guesses, correct, epsilon_lower, confidence, .. } = audit;
        let Audit { claimed, delta, contradicted, .. } = audit;
        Self { canaries, guesses, correct, epsilon_lower, confidence, claimed, delta, contradicted }
    }
}

impl Audit {
    /// The outcome in one line.
    pub(crate) fn line(&self) -> String {
        format!(
            "epsilon is at least {} ({} confidence; {} of {} guesses about {} canaries were right), the claim is {}",
            down(self.epsilon_lower),
            percent_down(self.confidence),
            self.correct,
            self.guesses,
            self.canaries,
            up(self.claimed)
        )
    }
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct Curves {
    /// The number of rounds, and epsilon after them.
    pub(crate) spent: Vec<(f64, f64)>,
    /// Epsilons, and delta at them.
    pub(crate) profile: Vec<(f64, f64)>,
    /// False positive rates, and the largest true positive rate of any attack.
    pub(crate) attack: Vec<(f64, f64)>,
}

impl Curves {
    /// The curves of a plan, from its epsilon after every round and its profile.
    pub(crate) fn new(spent: &[(u64, f64)], profile: &Profile) -> Self {
        let rates = (0..=100).map(|i| f64::from(i) / 100.0);
        Self {
            spent: spent.iter().map(|(round, epsilon)| (*round as f64, *epsilon)).collect(),
            profile: profile.points().to_vec(),
            attack: rates.map(|rate| (rate, profile.true_positive_rate(rate))).collect(),
        }
    }
}

impl Report {
    pub(crate) fn json(&self) -> Result<String, Error> {
        serde_json::to_string(self).map_err(Error::failure)
    }

    /// An error, and so its exit code, if nothing may be claimed.
    pub(super) fn claimed(&self) -> Result<(), Error> {
        match &self.reason {
            Some(reason) => Err(Error::NoAnswer(reason.clone())),
            None => Ok(()),
        }
    }

    pub(crate) fn shown_epsilon(&self) -> String {
        self.epsilon.map_or("unknown".to_owned(), up)
    }
}
