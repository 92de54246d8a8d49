//! Reports, computed from a ledger.

use std::num::NonZeroU64;
use std::path::Path;

use serde_json::Value;
use veilgrad_accounting::audit::RunVerdict;
use veilgrad_accounting::claim::{Basis, Claim, NoClaim, Protection, warnings};
use veilgrad_accounting::statement::{self, Done, LedgerHead, ReleasedGroup, Statement};
use veilgrad_accounting::{Composition, Profile, Tightest, Tuning, Unsupported, spent};
use veilgrad_events::{Delta, Epsilon, Numerics, RecordUnit, Round, Rounds, Sampling, UnitError};
use veilgrad_ledger::{Dataset, Ledger, StoreError};

use super::document::{
    Attacker, Audit, Correlated, Curves, Group, GroupEpsilon, Head, LedgerPlace, Metric, Model,
    Newer, Report, Start, TunedResult,
};
use crate::answer::{rate, sampling_name, unit_name};
use crate::error::Error;
use crate::hash::sha256;
use crate::path;

const POINTS: u64 = 64;

/// The inputs of a report: a ledger, and facts about results that do not affect the guarantee.
pub(crate) struct Facts<'a> {
    pub(crate) ledger: &'a Ledger,
    pub(crate) dataset: &'a str,
    /// The ids of the runs that made the results: several if a run was resumed; all runs of the dataset if empty.
    pub(crate) runs: &'a [String],
    /// The number of rounds done; all charged rounds if unknown.
    pub(crate) done: Option<u64>,
    /// The declared, public number of records.
    pub(crate) records: Option<u64>,
    pub(crate) directory: Option<&'a Path>,
    /// Rows that were added to the ledger after the results were written.
    pub(crate) newer: Option<Newer>,
    pub(crate) test_accuracy: Option<f64>,
    pub(crate) test_mean_absolute_error: Option<f64>,
    /// The temperature of class probabilities, if one was fitted.
    pub(crate) temperature: Option<f64>,
    /// The model that the results started from, if it was not a new one.
    pub(crate) start: Option<Start>,
    pub(crate) metrics: Vec<(String, Vec<f64>)>,
    pub(crate) model: Option<Model>,
    /// The day on which the command that made the results began.
    pub(crate) date: Option<String>,
    /// The configuration without paths, as the ledger has its hash.
    pub(crate) configuration: Option<Value>,
    /// The verdict, if the run was an audit.
    pub(crate) audit: Option<RunVerdict>,
    /// The setting that a tuning chose.
    pub(crate) setting: Option<Value>,
}

pub(crate) fn of_run(facts: &Facts<'_>) -> Result<Report, Error> {
    let datasets = facts.ledger.state().datasets();
    let dataset = datasets.get(facts.dataset).ok_or_else(|| {
        Error::Ledger(StoreError::Refused(format!("the ledger has no dataset {:?}", facts.dataset)))
    })?;
    let rounds = crate::ledger::charges(facts.ledger, facts.dataset, facts.runs)?;
    let Some(last) = rounds.iter().rfind(|entry| entry.count > 0) else {
        return Err(Error::Usage(format!("nothing is charged to {:?}", facts.dataset)));
    };
    let count = rounds.iter().fold(0u64, |sum, entry| sum.saturating_add(entry.count));
    let last_groups = groups(&last.round, count);
    let done = done(&rounds, &last.round, &last_groups).map_err(Error::failure)?;
    let budget = &dataset.budget;
    let claim = crate::claim::of(dataset);
    let claimed = claim.as_ref().ok();
    let unverified = dataset.runs.values().any(|run| run.header.numerics != Numerics::Exact);
    let numerics = if unverified { Numerics::Unverified } else { Numerics::Exact };
    // Fixed-size batches are drawn from records and canaries together.
    let canaries = facts.audit.map_or(0, |audit| audit.canaries);
    let drawn_from = last.round.sampling().records().map(|all| all.saturating_sub(canaries));
    let records = drawn_from.or(facts.records);
    let head = facts.ledger.head();
    let head = Head { id: head.id.clone(), sequence: head.sequence, head: head.to_string() };
    let curves = claimed.map_or(Ok(Curves::default()), |claim| curves(dataset, claim));
    let of_groups = match budget.unit {
        RecordUnit::Example => claimed.map_or_else(Vec::new, of_groups),
        // A record is all that a user has, or a block of examples.
        _ => Vec::new(),
    };
    let statement = Statement {
        dataset: facts.dataset,
        unit: budget.unit,
        adjacency: budget.adjacency,
        claim: &claim,
        group_epsilons: of_groups.iter().map(|one| (one.records, one.epsilon)).collect(),
        records,
        runs: dataset.runs.len(),
        done: done.clone(),
        numerics,
        public_test: facts.test_accuracy.or(facts.test_mean_absolute_error).is_some(),
        start: facts.start.as_ref().map(|start| statement::Start {
            sha256: &start.sha256,
            trained: start.trained.as_ref().map(|head| LedgerHead {
                id: &head.id,
                sequence: head.sequence,
                head: &head.head,
            }),
        }),
        made_up_users: facts.configuration.as_ref().is_some_and(has_made_up_users),
        ledger: LedgerHead { id: &head.id, sequence: head.sequence, head: &head.head },
        since_results: facts.newer.as_ref().map(|newer| newer.changes.as_slice()),
        audit: facts.audit.as_ref(),
    }
    .text();
    let warnings =
        claimed.map_or_else(Vec::new, |claim| warnings(claim.epsilon, claim.delta, records));
    let rate = sampling_rate(&done);
    let declared_batch = facts.configuration.as_ref().and_then(|configuration| {
        configuration.pointer("/privacy/expected_batch").and_then(Value::as_f64)
    });
    let expected_batch = declared_batch.or_else(|| Some(whole(rate? * records? as f64)));
    let all_groups = all_groups(&rounds, &last.round, count);
    let tuning = tuned(dataset, facts);
    // Without a public test set a tuning chooses by the private estimates of accuracy.
    let has_test = facts.test_accuracy.or(facts.test_mean_absolute_error).is_some();
    let metric = |(name, values): &(String, Vec<f64>)| {
        let selected = tuning.is_some() && !has_test && name == "accuracy";
        let error = standard_error(&all_groups, name, declared_batch).filter(|_| !selected);
        Metric { name: name.clone(), values: values.clone(), standard_error: error, selected }
    };
    let metrics = facts.metrics.iter().map(metric).collect();
    Ok(Report {
        schema: 1,
        date: facts.date.clone(),
        epsilon: claimed.map(|claim| claim.epsilon),
        delta: budget.delta.get(),
        valid: claim.is_ok(),
        reason: claim.as_ref().err().map(NoClaim::to_string),
        why: claimed.map(Claim::why),
        conditions: claimed.map_or_else(Vec::new, |claim| {
            claim.conditions.iter().map(|condition| (*condition).to_owned()).collect()
        }),
        warnings,
        attacker: claimed.map(attacker),
        group_epsilons: of_groups,
        epsilon_running: claimed.map(|claim| claim.spent),
        accountant: claimed.map(|claim| claim.accountant().to_owned()),
        mode: match claimed {
            Some(claim) if claim.is_planned() => "planned",
            _ => "adaptive",
        }
        .to_owned(),
        adjacency: budget.adjacency.name().to_owned(),
        unit: unit_name(budget.unit),
        sampling: done.sampling.map_or("mixed", sampling_name).to_owned(),
        rate,
        expected_batch,
        numerics: if unverified { "unverified" } else { "exact" }.to_owned(),
        insecure: dataset.insecure().is_some(),
        rounds: facts.done.map_or(done.rounds, |rounds| rounds.min(done.rounds)),
        charged: done.rounds,
        uniform: done.uniform,
        noise_multiplier: done.noise_multiplier.get(),
        groups: all_groups,
        test_accuracy: facts.test_accuracy,
        test_mean_absolute_error: facts.test_mean_absolute_error,
        temperature: facts.temperature,
        start: facts.start.clone(),
        metrics,
        seconds: None,
        dataset: facts.dataset.to_owned(),
        records,
        runs: dataset.runs.len(),
        run_ids: facts.runs.to_vec(),
        ledger: LedgerPlace {
            head,
            path: facts.directory.map(|directory| path::stored(directory, facts.ledger.location())),
        },
        newer: facts.newer.clone(),
        model: facts.model.clone(),
        configuration_sha256: facts.configuration.as_ref().map(|value| sha256(value.to_string())),
        configuration: facts.configuration.clone(),
        audit: facts.audit.map(Audit::from),
        tuning,
        statement,
        curves: curves.map_err(Error::failure)?,
    })
}

/// Epsilons of people with several records.
fn of_groups(claim: &Claim) -> Vec<GroupEpsilon> {
    let row = |records: u64| {
        let epsilon = claim.for_group(NonZeroU64::new(records)?)?;
        Some(GroupEpsilon { records, epsilon })
    };
    [2, 5].into_iter().filter_map(row).collect()
}

/// The tuning that made the results, if one did.
fn tuned(dataset: &Dataset, facts: &Facts<'_>) -> Option<TunedResult> {
    let mut runs = dataset.runs.values().filter(|run| facts.runs.contains(&run.id));
    let count = runs.find_map(|run| run.header.tuning)?;
    Some(TunedResult {
        mean_runs: Tuning::of(count).mean_runs(),
        distribution: count.name().to_owned(),
        setting: facts.setting.clone(),
    })
}

/// Whether the users of a configuration were made up from public data.
fn has_made_up_users(configuration: &Value) -> bool {
    configuration.pointer("/data/record/partition").is_some()
}

/// The rate of all rounds, if they have one. Using all records is not sampling.
fn sampling_rate(done: &Done<'_>) -> Option<f64> {
    done.sampling.filter(|sampling| *sampling != Sampling::All {}).and_then(rate)
}

/// A batch size that was computed from its rate: a whole number comes back as one.
pub(crate) fn whole(batch: f64) -> f64 {
    let whole = batch.round();
    if (batch - whole).abs() < 1e-6 * whole.max(1.0) { whole } else { batch }
}

/// The standard deviation of a private estimate, from the ledger's noise and the public batch size B. Counts are those of
/// the sample, so that the noise is their only error. An average over a sample of about B records, each within `clip` of
/// the middle, has a standard deviation of at most `clip / sqrt(B)` in addition.
fn standard_error(groups: &[Group], name: &str, batch: Option<f64>) -> Option<f64> {
    let group = groups.iter().find(|group| group.name == name)?;
    match name {
        "classes" => Some(group.noise_on_sum()),
        _ => batch.map(|batch| (group.noise_on_sum() / batch).hypot(group.clip / batch.sqrt())),
    }
}

/// A summary of the rounds that the ledger charged.
fn done<'a>(rounds: &[Rounds], last: &Round, groups: &'a [Group]) -> Result<Done<'a>, UnitError> {
    let mut noise_multiplier = last.noise_multiplier()?;
    for entry in rounds {
        let noise = entry.round.noise_multiplier()?;
        if noise < noise_multiplier {
            noise_multiplier = noise;
        }
    }
    let same_sampling = rounds.iter().all(|entry| entry.round.sampling() == last.sampling());
    let released = |group: &'a Group| {
        let Group { name, dimension, clip, noise, correlated, .. } = group;
        let bands = correlated.map(|correlated| correlated.bands);
        ReleasedGroup { name, dimension: *dimension, clip: *clip, noise: *noise, bands }
    };
    Ok(Done {
        rounds: rounds.iter().fold(0, |sum, entry| sum.saturating_add(entry.count)),
        sampling: same_sampling.then_some(last.sampling()),
        uniform: rounds.iter().all(|entry| entry.round == *last),
        noise_multiplier,
        groups: groups.iter().map(released).collect(),
    })
}

/// The groups of the last round, then those of other rounds that it does not have, such as those of preconditioning.
fn all_groups(rounds: &[Rounds], last: &Round, count: u64) -> Vec<Group> {
    let mut found = groups(last, count);
    for group in
        rounds.iter().filter(|entry| entry.count > 0).flat_map(|entry| groups(&entry.round, count))
    {
        if found.iter().all(|known| known.name != group.name) {
            found.push(group);
        }
    }
    found
}

/// The groups of a round. In a segment of correlated noise it is at most the `count`-th.
fn groups(round: &Round, count: u64) -> Vec<Group> {
    let loss = |clip: f64, noise: f64| (clip / noise).powi(2);
    let queries = round.queries();
    let total: f64 =
        queries.iter().map(|query| loss(query.clip().get(), query.noise().get())).sum();
    let group = |query: &veilgrad_events::SumQuery| Group {
        name: query.group().to_owned(),
        dimension: query.dimension(),
        clip: query.clip().get(),
        noise: query.noise().get(),
        correlated: query.strategy().filter(|strategy| strategy.bands() > 1).map(|strategy| {
            let last = count.saturating_sub(1);
            Correlated { bands: strategy.bands(), noise_on_sum: query.noise_on_sum(last) }
        }),
        share: loss(query.clip().get(), query.noise().get()) / total,
    };
    queries.iter().map(group).collect()
}

fn attacker(claim: &Claim) -> Attacker {
    let attacker = claim.attacker();
    Attacker {
        advantage: attacker.advantage,
        true_positive_rate: attacker.true_positive_rate,
        protection: match attacker.protection() {
            Protection::VeryStrong => "very-strong",
            Protection::Strong => "strong",
            Protection::Moderate => "moderate",
            Protection::Weak => "weak",
            Protection::None => "none",
        }
        .to_owned(),
    }
}

/// The curves of the plan, if the claim is its cost; a claim of the budget has none, nor has that of a tuning, which is not
/// the cost of its rounds.
fn curves(dataset: &Dataset, claim: &Claim) -> Result<Curves, Unsupported> {
    let plan = dataset.runs.values().next().and_then(|run| run.header.plan.as_deref());
    let (Basis::Plan { .. }, Some(plan), []) = (&claim.basis, plan, claim.tunings.as_slice())
    else {
        return Ok(Curves::default());
    };
    let (adjacency, delta): (_, Delta) = (dataset.budget.adjacency, dataset.budget.delta);
    let composition = Composition::fold(plan, adjacency)?;
    let profile = Profile::new(&composition, Epsilon::new(1.5 * claim.epsilon)?, POINTS as usize);
    let spent = spent(plan, adjacency, delta, &Tightest, POINTS)?;
    Ok(Curves::new(&spent, &profile))
}
