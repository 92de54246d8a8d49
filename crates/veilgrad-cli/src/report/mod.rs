//! What a run promises and how that is known: for people, for programs, for privacy officers.

pub(crate) mod chart;
pub(crate) mod page;
pub(crate) mod statement;

use std::path::Path;

use serde::{Deserialize, Serialize};
use veilgrad_accounting::{Accountant, Best, Composition, Profile, Unsupported, spent};
use veilgrad_events::{Delta, Epsilon, Pricing, RecordUnit, Rounds, Sampling};
use veilgrad_ledger::Ledger;
use veilgrad_mechanism::RoundPlan;

use crate::answer::{adjacency_name, up};
use crate::argument::{Common, ReportOf};
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
    pub(crate) accountant: String,
    pub(crate) adjacency: String,
    pub(crate) unit: String,
    pub(crate) sampling: String,
    pub(crate) rate: Option<f64>,
    pub(crate) numerics: String,
    pub(crate) insecure: bool,
    pub(crate) rounds: u64,
    pub(crate) noise_multiplier: f64,
    pub(crate) groups: Vec<Group>,
    pub(crate) test_accuracy: Option<f64>,
    pub(crate) metrics: Vec<Metric>,
    pub(crate) seconds: f64,
    pub(crate) dataset: String,
    pub(crate) runs: usize,
    pub(crate) ledger: Head,
    pub(crate) model: Model,
    pub(crate) curves: Curves,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Group {
    pub(crate) name: String,
    pub(crate) dimension: usize,
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
    /// All rounds of the plan.
    pub(crate) rounds: &'a Rounds,
    /// How many of them were done; fewer, where an interrupted run left charged ones unused.
    pub(crate) done: u64,
    pub(crate) plan: &'a RoundPlan,
    pub(crate) test_accuracy: Option<f64>,
    pub(crate) metrics: Vec<(String, Vec<f64>)>,
    pub(crate) seconds: f64,
    pub(crate) model: usize,
}

/// The report of a run that is finished.
pub(crate) fn of_run(facts: &Facts<'_>) -> Result<Report, Error> {
    let failure = |error: &dyn std::fmt::Display| Error::Failure(error.to_string());
    let unsupported = |error: Unsupported| Error::Failure(error.to_string());
    let datasets = facts.ledger.state().datasets();
    let dataset = datasets
        .get(facts.dataset)
        .ok_or_else(|| Error::Failure(format!("the ledger has no dataset {:?}", facts.dataset)))?;
    let (budget, plan) = (&dataset.budget, std::slice::from_ref(facts.rounds));
    let composition = Composition::fold(plan, budget.adjacency).map_err(unsupported)?;
    let guarantee = Best.epsilon(&composition, budget.delta).map_err(unsupported)?;
    let running = Best.price(budget, &mut dataset.rounds()).ok();
    let last = Epsilon::new(1.5 * guarantee.epsilon).map_err(|error| failure(&error))?;
    let profile = Profile::new(&composition, last, POINTS as usize);
    let header = dataset.runs.values().last().map(|run| &run.header);
    let queries = facts.rounds.round.queries();
    let loss = |clip: f64, noise: f64| (clip / noise).powi(2);
    let total: f64 =
        queries.iter().map(|query| loss(query.clip().get(), query.noise().get())).sum();
    let groups = queries.iter().map(|query| Group {
        name: query.group().to_owned(),
        dimension: facts.plan.members(query.group()).map(|member| member.range.len()).sum(),
        clip: query.clip().get(),
        noise: query.noise().get(),
        share: loss(query.clip().get(), query.noise().get()) / total,
    });
    let head = facts.ledger.head();
    let several = dataset.runs.len() > 1;
    Ok(Report {
        schema: 1,
        // One run of a fixed plan costs what the plan costs; several together at most the budget.
        epsilon: if several { budget.epsilon.get() } else { guarantee.epsilon },
        delta: budget.delta.get(),
        epsilon_running: running,
        accountant: guarantee.accountant.to_owned(),
        adjacency: adjacency_name(budget.adjacency).to_owned(),
        unit: unit_name(budget.unit),
        sampling: sampling_name(facts.rounds.round.sampling()).to_owned(),
        rate: rate(facts.rounds.round.sampling()),
        numerics: header
            .and_then(|header| serde_json::to_value(header.numerics).ok())
            .and_then(|value| value.as_str().map(str::to_owned))
            .unwrap_or_else(|| "unknown".to_owned()),
        insecure: dataset.insecure().is_some(),
        rounds: facts.done,
        noise_multiplier: facts.plan.noise_multiplier().map_err(|error| failure(&error))?.get(),
        groups: groups.collect(),
        test_accuracy: facts.test_accuracy,
        metrics: facts
            .metrics
            .iter()
            .map(|(name, values)| Metric { name: name.clone(), values: values.clone() })
            .collect(),
        // Whole ones: what is finer depends on how large samples were.
        seconds: facts.seconds.ceil(),
        dataset: facts.dataset.to_owned(),
        runs: dataset.runs.len(),
        ledger: Head { id: head.id.clone(), sequence: head.sequence, head: head.to_string() },
        model: Model { file: "model.safetensors".to_owned(), parameters: facts.model },
        curves: curves(facts.rounds, budget.adjacency, budget.delta, &profile)
            .map_err(unsupported)?,
    })
}

fn curves(
    rounds: &Rounds,
    adjacency: veilgrad_events::Adjacency,
    delta: Delta,
    profile: &Profile,
) -> Result<Curves, Unsupported> {
    let spent = spent(std::slice::from_ref(rounds), adjacency, delta, &Best, POINTS)?;
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

    /// The report of a run's directory, or of its file.
    fn read(path: &Path) -> Result<Self, Error> {
        let file = if path.is_dir() { path.join("report.json") } else { path.to_owned() };
        let name = file.display().to_string();
        let text = std::fs::read_to_string(&file)
            .map_err(|cause| Error::File { path: name.clone(), cause })?;
        serde_json::from_str(&text)
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
    let report = Report::read(&arguments.run)?;
    let page = page::page(&report);
    match &arguments.output {
        None if common.json => print(&format!("{}\n", report.json()?)),
        None => print(&page),
        Some(path) => write_file(path, page.as_bytes()),
    }
}

/// `veilgrad statement RUN`.
pub(crate) fn say(run: &Path, common: &Common) -> Result<(), Error> {
    let statement = statement::statement(&Report::read(run)?);
    if common.json {
        let document = serde_json::json!({ "schema": 1, "statement": statement });
        return print(&format!("{document}\n"));
    }
    print(&statement)
}
