//! What a run promises and how that is known: for people, for programs, for privacy officers.

pub(crate) mod chart;
pub(crate) mod page;
pub(crate) mod statement;

use std::path::Path;

use serde::{Deserialize, Serialize};
use veilgrad_accounting::display::up;
use veilgrad_accounting::{Accountant, Best, Composition, Profile, Unsupported, spent};
use veilgrad_events::{Delta, Epsilon, Mode, Numerics, RecordUnit, Rounds, Sampling};
use veilgrad_ledger::{Ledger, RunState};
use veilgrad_mechanism::RoundPlan;

use crate::answer::adjacency_name;
use crate::argument::{Common, ReportOf, RunOf};
use crate::error::Error;
use crate::output::{print, write_file};

/// Points of each curve.
const POINTS: u64 = 64;

/// `report.json`: public facts and released values, nothing else.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) schema: u32,
    /// The guarantee: what all runs of the dataset together may cost, or what this plan costs if that is
    /// less.
    pub(crate) epsilon: f64,
    pub(crate) delta: f64,
    /// What all runs of the dataset have cost so far.
    pub(crate) epsilon_running: Option<f64>,
    /// Which accountant computed the guarantee; "budget" where it is what the ledger allows.
    pub(crate) accountant: String,
    /// Whether rounds may have been chosen from earlier outputs.
    pub(crate) mode: String,
    pub(crate) adjacency: String,
    pub(crate) unit: String,
    pub(crate) sampling: String,
    pub(crate) rate: Option<f64>,
    pub(crate) numerics: String,
    pub(crate) insecure: bool,
    pub(crate) rounds: u64,
    /// Whether all rounds were alike; if not, the groups are those of the last.
    pub(crate) uniform: bool,
    /// The smallest of any round.
    pub(crate) noise_multiplier: f64,
    pub(crate) groups: Vec<Group>,
    pub(crate) test_accuracy: Option<f64>,
    pub(crate) metrics: Vec<Metric>,
    pub(crate) seconds: Option<f64>,
    pub(crate) dataset: String,
    pub(crate) runs: usize,
    pub(crate) ledger: Head,
    pub(crate) model: Option<Model>,
    pub(crate) curves: Curves,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Group {
    pub(crate) name: String,
    /// None where only the ledger is known, which has events and no models.
    pub(crate) dimension: Option<usize>,
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

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Model {
    pub(crate) file: String,
    pub(crate) parameters: usize,
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

/// What a report is made of.
pub(crate) struct Facts<'a> {
    pub(crate) ledger: &'a Ledger,
    pub(crate) dataset: &'a str,
    /// All rounds of the plan, or all that were charged.
    pub(crate) rounds: &'a [Rounds],
    /// How many of them were done; fewer, where an interrupted run left charged ones unused.
    pub(crate) done: u64,
    pub(crate) plan: Option<&'a RoundPlan>,
    pub(crate) test_accuracy: Option<f64>,
    pub(crate) metrics: Vec<(String, Vec<f64>)>,
    pub(crate) seconds: Option<f64>,
    /// Its parameters.
    pub(crate) model: Option<usize>,
}

/// The report of what a ledger knows about a dataset, whoever trained.
fn of_ledger(path: &Path, name: Option<&str>, common: &Common) -> Result<Report, Error> {
    let ledger = Ledger::read(path, common.options())?;
    let dataset = crate::ledger::dataset(&ledger, name)?;
    let name = &dataset.budget.dataset;
    let charged = crate::ledger::charges(&ledger, Some(name))?;
    let done = charged.iter().fold(0u64, |sum, entry| sum.saturating_add(entry.count));
    // What a run declared it will do counts from its beginning.
    let mut plans = dataset.runs.values().map(|run| run.header.plan.clone());
    let plan = plans.next().flatten().filter(|_| plans.next().is_none());
    of_run(&Facts {
        ledger: &ledger,
        dataset: name,
        rounds: plan.as_deref().unwrap_or(&charged),
        done,
        plan: None,
        test_accuracy: None,
        metrics: Vec::new(),
        seconds: None,
        model: None,
    })
}

/// The report of a run that is finished.
pub(crate) fn of_run(facts: &Facts<'_>) -> Result<Report, Error> {
    let failure = |error: &dyn std::fmt::Display| Error::Failure(error.to_string());
    let unsupported = |error: Unsupported| Error::Failure(error.to_string());
    let datasets = facts.ledger.state().datasets();
    let dataset = datasets
        .get(facts.dataset)
        .ok_or_else(|| Error::Failure(format!("the ledger has no dataset {:?}", facts.dataset)))?;
    let budget = &dataset.budget;
    let round = match facts.rounds.iter().rfind(|entry| entry.count > 0) {
        Some(last) => &last.round,
        None => return Err(Error::Usage(format!("nothing is charged to {:?}", facts.dataset))),
    };
    let composition = Composition::fold(facts.rounds, budget.adjacency).map_err(unsupported)?;
    let guarantee = Best.epsilon(&composition, budget.delta).map_err(unsupported)?;
    let running = dataset.price(&Best).map_err(Error::Failure)?;
    let last = Epsilon::new(1.5 * guarantee.epsilon).map_err(|error| failure(&error))?;
    let profile = Profile::new(&composition, last, POINTS as usize);
    let unverified = dataset.runs.values().any(|run| run.header.numerics != Numerics::Exact);
    let queries = round.queries();
    let loss = |clip: f64, noise: f64| (clip / noise).powi(2);
    let total: f64 =
        queries.iter().map(|query| loss(query.clip().get(), query.noise().get())).sum();
    let groups = queries.iter().map(|query| Group {
        name: query.group().to_owned(),
        dimension: facts
            .plan
            .map(|plan| plan.members(query.group()).map(|member| member.range.len()).sum()),
        clip: query.clip().get(),
        noise: query.noise().get(),
        share: loss(query.clip().get(), query.noise().get()) / total,
    });
    let head = facts.ledger.head();
    let noise = match facts.plan {
        Some(plan) => plan.noise_multiplier().map_err(|error| failure(&error))?.get(),
        None => smallest_noise(facts.rounds).map_err(|error| failure(&error))?,
    };
    let samplings = facts.rounds.iter().map(|entry| entry.round.sampling());
    let alike = samplings.clone().all(|sampling| sampling == round.sampling());
    // One run of a plan that is known costs what the plan costs. Others keep to the budget, unless it was
    // lowered, or runs of another ledger were added, after that was spent.
    let mut runs = dataset.runs.values();
    let known = |run: &RunState| run.closed || run.header.plan.is_some() || facts.plan.is_some();
    let fixed =
        runs.next().is_some_and(known) && runs.next().is_none() && budget.mode == Mode::Planned;
    let curves = match fixed {
        true => curves(facts.rounds, budget.adjacency, budget.delta, &profile),
        false => Ok(Curves::default()),
    };
    Ok(Report {
        schema: 1,
        epsilon: if fixed { guarantee.epsilon } else { budget.epsilon.get().max(running) },
        delta: budget.delta.get(),
        epsilon_running: Some(running),
        accountant: if fixed { guarantee.accountant } else { "budget" }.to_owned(),
        mode: if budget.mode == Mode::Adaptive { "adaptive" } else { "planned" }.to_owned(),
        adjacency: adjacency_name(budget.adjacency).to_owned(),
        unit: unit_name(budget.unit),
        sampling: if alike { sampling_name(round.sampling()) } else { "mixed" }.to_owned(),
        rate: rate(round.sampling()).filter(|_| alike),
        numerics: if unverified { "unverified" } else { "exact" }.to_owned(),
        insecure: dataset.insecure().is_some(),
        rounds: facts.done,
        uniform: facts.rounds.iter().all(|entry| entry.round == *round),
        noise_multiplier: noise,
        groups: groups.collect(),
        test_accuracy: facts.test_accuracy,
        metrics: facts
            .metrics
            .iter()
            .map(|(name, values)| Metric { name: name.clone(), values: values.clone() })
            .collect(),
        // Whole ones: what is finer depends on how large samples were.
        seconds: facts.seconds.map(f64::ceil),
        dataset: facts.dataset.to_owned(),
        runs: dataset.runs.len(),
        ledger: Head { id: head.id.clone(), sequence: head.sequence, head: head.to_string() },
        model: facts
            .model
            .map(|parameters| Model { file: "model.safetensors".to_owned(), parameters }),
        curves: curves.map_err(unsupported)?,
    })
}

/// The weakest noise of any round.
fn smallest_noise(rounds: &[Rounds]) -> Result<f64, veilgrad_events::UnitError> {
    rounds.iter().try_fold(f64::INFINITY, |least, entry| {
        Ok(least.min(entry.round.noise_multiplier()?.get()))
    })
}

fn curves(
    rounds: &[Rounds],
    adjacency: veilgrad_events::Adjacency,
    delta: Delta,
    profile: &Profile,
) -> Result<Curves, Unsupported> {
    let spent = spent(rounds, adjacency, delta, &Best, POINTS)?;
    let rates = (0..=100).map(|i| f64::from(i) / 100.0);
    Ok(Curves {
        spent: spent.iter().map(|(round, epsilon)| (*round as f64, *epsilon)).collect(),
        profile: profile.points().to_vec(),
        attack: rates.map(|rate| (rate, profile.true_positive_rate(rate))).collect(),
    })
}

/// The name of a unit on the command line.
pub(crate) fn unit_name(unit: RecordUnit) -> String {
    match unit {
        RecordUnit::Example => "example".to_owned(),
        RecordUnit::User => "user".to_owned(),
        RecordUnit::Microbatch { examples } => format!("microbatch:{examples}"),
        other => other.to_string(),
    }
}

fn sampling_name(sampling: Sampling) -> &'static str {
    match sampling {
        Sampling::Poisson { .. } => "poisson",
        Sampling::Fixed(_) => "fixed",
        Sampling::Shuffle(_) => "shuffle",
        Sampling::TruncatedPoisson(_) => "truncated-poisson",
        Sampling::All {} => "all",
        _ => "unknown",
    }
}

fn rate(sampling: Sampling) -> Option<f64> {
    match sampling {
        Sampling::Poisson { rate } => Some(rate.get()),
        Sampling::Fixed(batch) | Sampling::Shuffle(batch) => {
            Some(batch.batch() as f64 / batch.records() as f64)
        }
        _ => None,
    }
}

impl Report {
    pub(crate) fn json(&self) -> Result<String, Error> {
        serde_json::to_string(self).map_err(|error| Error::Failure(error.to_string()))
    }

    /// The report of a run's directory, of its file, or of a ledger.
    fn read(of: &RunOf, common: &Common) -> Result<Self, Error> {
        let (path, dataset) = (&of.run, of.dataset.as_deref());
        let file = if path.is_dir() { path.join("report.json") } else { path.clone() };
        let name = file.display().to_string();
        if Ledger::anchor_path(&file).exists() {
            return of_ledger(&file, dataset, common);
        }
        let bytes = crate::ledger::read_bytes(&file)?;
        if bytes.starts_with(crate::ledger::DATABASE) {
            return of_ledger(&file, dataset, common);
        }
        if dataset.is_some() {
            return Err(Error::Usage(format!("--dataset is for ledgers, and {name} is none")));
        }
        serde_json::from_slice(&bytes)
            .map_err(|error| Error::Data { path: name, cause: error.to_string() })
    }
}

/// What `train` says in the end.
pub(crate) fn finish(report: &Report, out: &Path, common: &Common) -> Result<(), Error> {
    if common.json {
        return print(&format!("{}\n", report.json()?));
    }
    let mut text = String::new();
    if let Some(accuracy) = report.test_accuracy {
        text.push_str(&format!("test accuracy     {:.2} %\n", 100.0 * accuracy));
    }
    text.push_str(&format!(
        "epsilon           {} at delta {:e} ({}, {}, {})\n",
        up(report.epsilon),
        report.delta,
        report.unit,
        report.adjacency,
        report.accountant
    ));
    text.push_str(&format!("report            {}\n", out.join("report.html").display()));
    print(&text)
}

/// `veilgrad report RUN -o FILE.html`.
pub(crate) fn run(arguments: &ReportOf, common: &Common) -> Result<(), Error> {
    let report = Report::read(&arguments.of, common)?;
    let page = page::page(&report);
    match &arguments.output {
        None if common.json => print(&format!("{}\n", report.json()?)),
        None => print(&page),
        Some(path) => write_file(path, page.as_bytes()),
    }
}

/// `veilgrad statement RUN`.
pub(crate) fn say(of: &RunOf, common: &Common) -> Result<(), Error> {
    let statement = statement::statement(&Report::read(of, common)?);
    if common.json {
        let document = serde_json::json!({ "schema": 1, "statement": statement });
        return print(&format!("{document}\n"));
    }
    print(&statement)
}
