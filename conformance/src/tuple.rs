//! Kinds about privacy tuples: events, ledgers, combining queries, noise allocation.

use serde_json::Value;
use veilgrad::events::{RoundsFile, rounds_to_jsonl};
use veilgrad::mechanism::GroupSize;
use veilgrad::prelude::*;

use crate::case::{Case, Outcome, Verdict, flatten, list, number, require, text};

fn query(clip: f64, noise: f64) -> Result<SumQuery, String> {
    Ok(SumQuery::new("g", ClipNorm::new(clip).map_err(text)?, NoiseStd::new(noise).map_err(text)?))
}

fn folded(queries: Vec<SumQuery>) -> Result<f64, String> {
    let round = Round::new(Sampling::All {}, queries).map_err(text)?;
    Ok(round.noise_multiplier().map_err(text)?.get())
}

/// Queries given as pairs of clip norm and noise.
fn queries(value: &Value) -> Result<Vec<SumQuery>, String> {
    let pair = |value: &Value| match flatten(value)?[..] {
        [clip, noise] => query(clip, noise),
        _ => Err(format!("{value} is not a privacy tuple")),
    };
    list(value)?.iter().map(pair).collect()
}

pub(crate) fn event(case: &Case<'_>) -> Outcome {
    let z = folded(vec![query(case.number("clip")?, case.number("stddev")?)?])?;
    case.compare("noise_multiplier", &[z], case.expected("noise_multiplier")?)
}

pub(crate) fn effective_z(case: &Case<'_>) -> Outcome {
    let queries = match case.input("queries") {
        Ok(tuples) => queries(tuples)?,
        Err(_) => flatten(case.input("multipliers")?)?
            .into_iter()
            .map(|z| query(1.0, z))
            .collect::<Result<_, _>>()?,
    };
    let z = folded(queries)?;
    if let Ok(s_star) = case.expected("S_star") {
        case.compare("S*", &[1.0 / z], s_star)?;
    }
    case.compare("z", &[z], case.expected("z")?)
}

/// Sampling events and tuples survive a round trip through JSON Lines. The number of records is not kept:
/// under Poisson sampling it is private.
pub(crate) fn ledger(case: &Case<'_>) -> Outcome {
    let sample = |rate: &Value, tuples: &Value| -> Result<Rounds, String> {
        let sampling = Sampling::Poisson { rate: SampleRate::new(number(rate)?).map_err(text)? };
        Ok(Rounds { count: 1, round: Round::new(sampling, queries(tuples)?).map_err(text)? })
    };
    let samples = match case.input("samples_in") {
        Ok(samples) => list(samples)?
            .iter()
            .map(|s| sample(s.get("q").ok_or("no q")?, s.get("queries").ok_or("no queries")?))
            .collect::<Result<Vec<_>, _>>()?,
        Err(_) => vec![sample(case.input("selection_probability")?, case.input("queries")?)?],
    };
    let written = rounds_to_jsonl(&samples).map_err(text)?;
    let read = RoundsFile::from_jsonl(&written).map_err(text)?.runs.concat();
    let expected = list(case.expected("samples")?)?;
    require(read.len() == expected.len(), "the ledger has another number of samples")?;
    for (rounds, expected) in read.iter().zip(expected) {
        let Sampling::Poisson { rate } = rounds.round.sampling() else {
            return Err("the policy is not Poisson".to_owned());
        };
        case.compare("q", &[rate.get()], expected.get("q").ok_or("no q")?)?;
        let tuples: Vec<f64> = rounds
            .round
            .queries()
            .iter()
            .flat_map(|query| [query.clip().get(), query.noise().get()])
            .collect();
        case.compare("queries", &tuples, expected.get("queries").ok_or("no queries")?)?;
    }
    Ok(Verdict::Passed)
}

pub(crate) fn noise_allocation(case: &Case<'_>) -> Outcome {
    let clips = flatten(case.input("S")?)?;
    let dimensions = match case.input("dims") {
        Ok(dimensions) => flatten(dimensions)?,
        Err(_) => vec![1.0; clips.len()],
    };
    let groups: Vec<GroupSize> = clips
        .iter()
        .zip(&dimensions)
        .map(|(s, d)| Ok(GroupSize::new(ClipNorm::new(*s).map_err(text)?, *d as usize)))
        .collect::<Result<_, String>>()?;
    let z = NoiseMultiplier::new(case.number("z")?).map_err(text)?;
    let allocation = match case.input("strategy")?.as_str() {
        Some("proportional") => Allocation::Proportional(z),
        Some("dimension_adjusted") => Allocation::DimensionAdjusted(z),
        other => return Err(format!("strategy {other:?}")),
    };
    let noise = allocation.noise(&groups).map_err(text)?;
    let sigma: Vec<f64> = noise.iter().map(|noise| noise.get()).collect();
    case.compare("sigma", &sigma, case.expected("sigma")?)?;
    let queries = clips.iter().zip(&sigma).map(|(s, sigma)| query(*s, *sigma));
    let z = folded(queries.collect::<Result<_, _>>()?)?;
    case.compare("effective z", &[z], case.expected("effective_z")?)
}

/// Layers with separate clip norms and the same noise: their combined sensitivity is the total.
pub(crate) fn per_layer_bound(case: &Case<'_>) -> Outcome {
    let bounds = flatten(case.input("max_grad_norms")?)?;
    // With noise 1 on every layer, the combined sensitivity S* is 1/z; noise z S* has multiplier z.
    let queries = bounds.iter().map(|s| query(*s, 1.0)).collect::<Result<_, _>>()?;
    let total = 1.0 / folded(queries)?;
    case.compare("total", &[total], case.expected("total")?)?;
    case.compare("noise", &[total], case.expected("noise_std_at_z1")?)
}
