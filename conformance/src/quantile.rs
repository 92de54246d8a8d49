//! Kinds about private quantiles and adaptive clipping.

use serde_json::Value;
use veilgrad::mechanism::insecure::{no_noise, seeded_noise};
use veilgrad::prelude::*;

use crate::case::{Case, Outcome, Verdict, flatten, list, number, require, text, vectors};
use crate::round::{
    estimate as vector, flat, noiseless, one_vector, plan, round, standard_deviation, structure,
};

/// The floor of clip norms, where the source allows 0.
const FLOOR: f64 = 1e-9;

fn learning_rate(case: &Case<'_>) -> Result<LearningRate, String> {
    match case.input("learning_rate")? {
        Value::String(rule) if rule == "1/sqrt(t+1)" => LearningRate::inverse_sqrt(1.0),
        rate => LearningRate::constant(number(rate)?),
    }
    .map_err(text)
}

fn configured(case: &Case<'_>, quantile: Quantile) -> Result<Quantile, String> {
    let quantile = quantile.learning_rate(learning_rate(case)?);
    let geometric = case.input("geometric").ok().and_then(Value::as_bool).unwrap_or(false);
    Ok(if geometric { quantile } else { quantile.arithmetic() })
}

fn expected_records(case: &Case<'_>, records: usize) -> Result<PublicCount, String> {
    let count = case.number("expected_num_records").unwrap_or(records as f64);
    PublicCount::new(count).map_err(text)
}

/// A plan whose clip norm follows a quantile.
fn adaptive(case: &Case<'_>, records: &[Vec<f32>]) -> Result<RoundPlan, String> {
    let initial = ClipNorm::new(case.number("initial_clip")?.max(FLOOR)).map_err(text)?;
    let floor = ClipNorm::new(FLOOR).map_err(text)?;
    let expected = expected_records(case, records.len())?;
    let quantile = Quantile::of_norm("x", case.number("target_quantile")?, expected, floor);
    let quantile = configured(case, quantile.map_err(text)?)?;
    let structure = structure([("x", records.first().map_or(1, Vec::len))])?;
    // Where the source has multiplier 0 (no noise), the noise comes from the plan's allocation.
    let z = case.number("noise_multiplier").ok().and_then(|z| NoiseMultiplier::new(z).ok());
    match z {
        Some(z) => {
            let noise = NoiseStd::new(z.get() * initial.get()).map_err(text)?;
            let bit_noise = NoiseStd::new(1.0).map_err(text)?;
            let bit = Group::quantile("bit", quantile).noise(bit_noise);
            let groups = vec![flat(initial).noise(noise), bit];
            RoundPlan::new(structure, groups, Allocation::Explicit).map_err(text)
        }
        None => plan(structure, vec![flat(initial), Group::quantile("bit", quantile)]),
    }
}

/// One noiseless round: returns the sum, and adapts the plan.
fn step(plan: &mut RoundPlan, records: &[Vec<f32>]) -> Result<Vec<f64>, String> {
    let estimates = noiseless(plan, records)?;
    plan.adapt(&estimates).map_err(text)?;
    vector(&estimates, "x")
}

fn clip_of(plan: &RoundPlan) -> Result<f64, String> {
    Ok(plan.clip_norm("x").ok_or("no clip norm")?.get())
}

pub(crate) fn adaptive_clip(case: &Case<'_>) -> Outcome {
    let records = vectors(case.input("records")?)?;
    let mut plan = adaptive(case, &records)?;
    let clips = list(case.expected("clips_after_round")?)?;
    for (clip, sum) in clips.iter().zip(list(case.expected("sums")?)?) {
        let clip_before = clip_of(&plan)?;
        case.compare_on_grid("sum", &step(&mut plan, &records)?, sum, clip_before)?;
        case.compare_on_grid("clip", &[clip_of(&plan)?], clip, 1.0)?;
    }
    Ok(Verdict::Passed)
}

pub(crate) fn first_sum(case: &Case<'_>) -> Outcome {
    let records = vectors(case.input("records")?)?;
    let mut plan = adaptive(case, &records)?;
    let clip = clip_of(&plan)?;
    case.compare_on_grid("sum", &step(&mut plan, &records)?, case.expected("sum")?, clip)
}

pub(crate) fn convergence(case: &Case<'_>) -> Outcome {
    let described = case.input("records")?.as_str().ok_or("the records are not described")?;
    let records = described_records(described)?;
    let mut plan = adaptive(case, &records)?;
    for round in 0..case.number("rounds")? as u32 {
        step(&mut plan, &records)?;
        if round > 40 {
            let clip = clip_of(&plan)?;
            case.compare("clip", &[clip], case.expected("clip_for_rounds_after_40")?)?;
        }
    }
    Ok(Verdict::Passed)
}

/// `linspace(low,high,count)` or `count x value`.
fn described_records(described: &str) -> Result<Vec<Vec<f32>>, String> {
    let parse = |part: &str| part.trim().parse::<f64>().map_err(text);
    if let Some(arguments) = described.strip_prefix("linspace(").and_then(|s| s.strip_suffix(')')) {
        let numbers: Vec<f64> = arguments.split(',').map(parse).collect::<Result<_, _>>()?;
        let [low, high, count] = numbers[..] else { return Err(described.to_owned()) };
        let value = |index: u32| low + (high - low) * f64::from(index) / (count - 1.0);
        return Ok((0..count as u32).map(|index| vec![value(index) as f32]).collect());
    }
    let (count, value) = described.split_once(" x ").ok_or_else(|| described.to_owned())?;
    Ok(vec![vec![parse(value)? as f32]; parse(count)? as usize])
}

fn estimator(case: &Case<'_>, records: usize) -> Result<RoundPlan, String> {
    let (target, initial) = (case.number("target_quantile")?, case.number("initial_estimate")?);
    let expected = expected_records(case, records)?;
    let quantile = Quantile::of_value("x", target, expected, initial).map_err(text)?;
    let group = Group::quantile("quantile", configured(case, quantile)?);
    let noise = case.number("count_stddev").ok().and_then(|noise| NoiseStd::new(noise).ok());
    let structure = structure([("x", 1)])?;
    match noise {
        Some(noise) => {
            RoundPlan::new(structure, vec![group.noise(noise)], Allocation::Explicit).map_err(text)
        }
        None => plan(structure, vec![group]),
    }
}

fn move_estimate(plan: &mut RoundPlan, records: &[Vec<f32>], noise: Noise) -> Result<f64, String> {
    let estimates =
        round(plan, noise, |_, sum| records.iter().try_for_each(|record| sum.add(&[record])))?;
    plan.adapt(&estimates).map_err(text)?;
    plan.quantile("quantile").ok_or_else(|| "no estimate".to_owned())
}

pub(crate) fn estimate(case: &Case<'_>) -> Outcome {
    let records = vectors(case.input("records")?)?;
    let mut plan = estimator(case, records.len())?;
    for expected in list(case.expected("estimates")?)? {
        let noise = no_noise(&plan);
        let found = move_estimate(&mut plan, &records, noise)?;
        case.compare_on_grid("estimate", &[found], expected, 1.0)?;
    }
    Ok(Verdict::Passed)
}

/// The standard deviation of the estimate after one round, over trials with different noise.
pub(crate) fn statistical(case: &Case<'_>) -> Outcome {
    let records = vectors(case.input("records")?)?;
    let trials = 10 * case.number("trials")? as u64;
    let estimates: Vec<f64> = (0..trials)
        .map(|trial| {
            let mut plan = estimator(case, records.len())?;
            let noise = seeded_noise(&plan, trial).map_err(text)?;
            move_estimate(&mut plan, &records, noise)
        })
        .collect::<Result<_, String>>()?;
    let spread = standard_deviation(estimates.iter().copied());
    case.compare("sample_stddev", &[spread], case.expected("sample_stddev")?)
}

/// The ledger has both queries of an adaptive round, each with its own bound.
pub(crate) fn ledger_adaptive(case: &Case<'_>) -> Outcome {
    let records = vectors(case.input("records")?)?;
    let mut plan = adaptive(case, &records)?;
    for round in 1..=case.number("rounds")? as u32 {
        let expected = list(case.expected(&format!("queries_round{round}"))?)?;
        let event = plan.round(&AllRecords).map_err(text)?;
        let [gradient, bit] = event.queries() else {
            return Err("an adaptive round has two queries".to_owned());
        };
        // The noise is proportional to the clip norm: the plan fixes their ratio.
        let tuple = [gradient.clip().get(), gradient.noise().get()];
        case.compare("gradient", &tuple, expected.first().ok_or("no gradient query")?)?;
        let bit_bound = flatten(expected.get(1).ok_or("no bit query")?)?.first().copied();
        case.compare("bit", &[bit.clip().get()], &Value::from(bit_bound))?;
        step(&mut plan, &records)?;
    }
    Ok(Verdict::Passed)
}

pub(crate) fn argument_error(case: &Case<'_>) -> Outcome {
    let one = PublicCount::new(1.0).map_err(text)?;
    if let Ok(targets) = case.input("target_quantile") {
        for target in flatten(targets)? {
            let quantile = Quantile::of_value("x", target, one, 1.0);
            require(quantile.is_err(), format!("target {target} was taken"))?;
        }
        for rate in case.input("learning_rate").and_then(flatten).unwrap_or_default() {
            let taken = LearningRate::constant(rate).is_ok();
            require(!taken, format!("learning rate {rate} was taken"))?;
        }
        return Ok(Verdict::Passed);
    }
    if let Ok(record) = case.input("record") {
        let quantile = Quantile::of_value("x", 0.5, one, 1.0).map_err(text)?;
        let dimension = flatten(record)?.len();
        let message = match one_vector(dimension, Group::quantile("q", quantile)) {
            Ok(_) => return Err("a quantile of a vector was taken".to_owned()),
            Err(message) => message,
        };
        return require(message.contains("scalar"), message);
    }
    Ok(Verdict::Skipped("discrete Gaussian and Skellam noise"))
}
