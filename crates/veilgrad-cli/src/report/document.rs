//! `report.json`: what a report says, for programs.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use veilgrad_accounting::Profile;
use veilgrad_accounting::audit::RunVerdict;
use veilgrad_accounting::display::{down, up};

use crate::error::Error;

/// `report.json`: public facts and released values, nothing else.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) schema: u32,
    /// What may be claimed of everything that was released; none where nothing may, with the reason.
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
    /// What all runs of the dataset have cost so far.
    pub(crate) epsilon_running: Option<f64>,
    /// Which accountant computed the claim; "budget" where it is what the ledger allows.
    pub(crate) accountant: Option<String>,
    /// Whether rounds may have been chosen from earlier outputs.
    pub(crate) mode: String,
    pub(crate) adjacency: String,
    pub(crate) unit: String,
    pub(crate) sampling: String,
    pub(crate) rate: Option<f64>,
    pub(crate) numerics: String,
    pub(crate) insecure: bool,
    /// How many rounds were done; fewer than charged, where an interrupted run left some unused.
    pub(crate) rounds: u64,
    pub(crate) charged: u64,
    /// Whether all rounds were alike; if not, the groups are those of the last.
    pub(crate) uniform: bool,
    /// The smallest of any round.
    pub(crate) noise_multiplier: f64,
    pub(crate) groups: Vec<Group>,
    pub(crate) test_accuracy: Option<f64>,
    pub(crate) metrics: Vec<Metric>,
    /// Always null, for programs that expect the key: how long a run took depends on how large its samples were.
    #[serde(default)]
    pub(crate) seconds: Option<f64>,
    pub(crate) dataset: String,
    /// How many records there are, where that was declared in public.
    pub(crate) records: Option<u64>,
    /// How many runs the ledger has on the data.
    pub(crate) runs: usize,
    /// The ids of the runs whose results these are: several, if one went on with another.
    pub(crate) run_ids: Vec<String>,
    pub(crate) ledger: LedgerPlace,
    /// What the ledger says since the results were written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) newer: Option<Newer>,
    pub(crate) model: Option<Model>,
    /// What canaries say, if the run was an audit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) audit: Option<Audit>,
    pub(crate) statement: String,
    pub(crate) curves: Curves,
}

/// What the best attack on one record achieves at most.
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
    /// None where the ledger does not say.
    pub(crate) dimension: Option<u64>,
    pub(crate) clip: f64,
    pub(crate) noise: f64,
    /// Its part of a round's squared privacy loss.
    pub(crate) share: f64,
}

/// A private estimate of the last round.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Metric {
    pub(crate) name: String,
    pub(crate) values: Vec<f64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Head {
    pub(crate) id: String,
    pub(crate) sequence: u64,
    pub(crate) head: String,
}

/// Where a ledger ended, and where it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LedgerPlace {
    #[serde(flatten)]
    pub(crate) head: Head,
    /// Its path, relative to the directory of results.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) path: Option<PathBuf>,
}

/// Rows of a ledger that came after results were written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Newer {
    pub(crate) rows: u64,
    /// What they say about the data.
    pub(crate) changes: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Model {
    pub(crate) file: String,
    pub(crate) parameters: usize,
}

/// What canaries say about the run that they were in.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Audit {
    pub(crate) canaries: u64,
    /// How many guesses about canaries were made: fixed before the run.
    pub(crate) guesses: u64,
    pub(crate) correct: u64,
    /// The largest epsilon that the guesses contradict, at `delta`.
    pub(crate) epsilon_lower: f64,
    pub(crate) confidence: f64,
    /// What is claimed for the rounds of this run.
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
            "epsilon is at least {} ({} % confidence; {} of {} guesses about {} canaries were right), claimed is {}",
            down(self.epsilon_lower),
            100.0 * self.confidence,
            self.correct,
            self.guesses,
            self.canaries,
            up(self.claimed)
        )
    }
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct Curves {
    /// Rounds, and epsilon after them.
    pub(crate) spent: Vec<(f64, f64)>,
    /// Epsilons, and delta at them.
    pub(crate) profile: Vec<(f64, f64)>,
    /// False positive rates, and the largest true positive rate of any attack.
    pub(crate) attack: Vec<(f64, f64)>,
}

impl Curves {
    /// Of a plan whose epsilon after every round and whose profile are known.
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

    /// Succeeds if something may be claimed; else the error that programs see as an exit code.
    pub(super) fn claimed(&self) -> Result<(), Error> {
        match &self.reason {
            Some(reason) => Err(Error::NoAnswer(reason.clone())),
            None => Ok(()),
        }
    }

    pub(super) fn shown_epsilon(&self) -> String {
        self.epsilon.map_or("unknown".to_owned(), up)
    }
}
