//! Kinds about a single round: sums, averages, groups, merges, clipping.

use veilgrad::mechanism::insecure::{no_noise, seeded_noise};
use veilgrad::mechanism::{StructureError, SumError};
use veilgrad::prelude::*;

use crate::case::{Case, Outcome, Verdict, flatten, list, norm, number, require, text, vectors};

/// A clip norm for these vectors. One far above all norms is replaced by four times the largest norm: it
/// clips nothing either, and makes the grid finer.
pub(crate) fn clip_norm<'a>(
    clip: f64,
    vectors: impl IntoIterator<Item = &'a Vec<f32>>,
) -> Result<ClipNorm, String> {
    let longest = vectors.into_iter().map(|vector| norm(vector)).fold(0.0, f64::max);
    let clips_nothing = if longest > 0.0 { 4.0 * longest } else { 1.0 };
    ClipNorm::new(clip.min(clips_nothing)).map_err(text)
}

pub(crate) fn plan(structure: Structure, groups: Vec<Group>) -> Result<RoundPlan, String> {
    let z = NoiseMultiplier::new(1.0).map_err(text)?;
    RoundPlan::new(structure, groups, Allocation::Proportional(z)).map_err(text)
}

/// One round in a run that is stamped INSECURE: `add` fills the sum.
pub(crate) fn round(
    plan: &RoundPlan,
    noise: Noise,
    add: impl FnOnce(&Sample, &mut ClippedSum) -> Result<(), SumError>,
) -> Result<Released<Estimates>, String> {
    let header = RunHeader::new(RecordUnit::Example, Adjacency::AddRemove);
    let mut run = Run::open_insecure(MemoryLedger::new(), header, "conformance").map_err(text)?;
    let round = plan.round(&AllRecords).map_err(text)?;
    let permit = run.reserve(&round, 1).map_err(text)?.next().ok_or("no permit")?;
    // At least as many as any case adds.
    let sample = Sample::draw(permit, &mut AllRecords, 1 << 20).map_err(text)?;
    let mut sum = sample.begin(plan);
    add(&sample, &mut sum).map_err(text)?;
    sum.release(sample, noise).map_err(text)
}

/// The noiseless result of a round with one vector per record.
pub(crate) fn noiseless(
    plan: &RoundPlan,
    records: &[Vec<f32>],
) -> Result<Released<Estimates>, String> {
    round(plan, no_noise(plan), |_, sum| records.iter().try_for_each(|record| sum.add(&[record])))
}

/// The same, summed in parts that are merged.
fn noiseless_in_parts(
    plan: &RoundPlan,
    parts: &[&[Vec<f32>]],
) -> Result<Released<Estimates>, String> {
    round(plan, no_noise(plan), |sample, merged| {
        parts.iter().try_for_each(|records| {
            let mut part = sample.begin(plan);
            records.iter().try_for_each(|record| part.add(&[record]))?;
            merged.merge(part)
        })
    })
}

pub(crate) fn estimate(estimates: &Estimates, vector: &str) -> Result<Vec<f64>, String> {
    Ok(estimates.vector(vector).ok_or_else(|| format!("no vector '{vector}'"))?.to_vec())
}

pub(crate) fn structure<N: Into<String>>(
    vectors: impl IntoIterator<Item = (N, usize)>,
) -> Result<Structure, String> {
    Structure::new(vectors).map_err(text)
}

/// A plan for one vector, clipped as a whole.
pub(crate) fn one_vector(dimension: usize, group: Group) -> Result<RoundPlan, String> {
    plan(structure([("x", dimension)])?, vec![group])
}

pub(crate) fn flat(clip: ClipNorm) -> Group {
    Group::new("x", ["x"], clip)
}

fn dimension(records: &[Vec<f32>]) -> usize {
    records.first().map_or(1, Vec::len)
}

pub(crate) fn gaussian_sum(case: &Case<'_>) -> Outcome {
    let records = vectors(case.input("records")?)?;
    let mut clip = case.number("clip")?;
    if clip == 0.0 {
        // A clip norm of zero is refused; a tiny one gives the same result within tolerance.
        require(ClipNorm::new(0.0).is_err(), "a clip norm of 0 was taken")?;
        clip = 1e-9;
    }
    let clip = clip_norm(clip, &records)?;
    let plan = one_vector(dimension(&records), flat(clip))?;
    if let Ok(expected) = case.expected("clipped") {
        for (record, expected) in records.iter().zip(list(expected)?) {
            let estimates = noiseless(&plan, std::slice::from_ref(record))?;
            case.compare_on_grid("clipped", &estimate(&estimates, "x")?, expected, clip.get())?;
        }
    }
    let found = estimate(&*noiseless(&plan, &records)?, "x")?;
    case.compare_on_grid("sum", &found, case.expected("sum")?, clip.get())
}

pub(crate) fn merge(case: &Case<'_>) -> Outcome {
    let parts: Vec<Vec<Vec<f32>>> =
        list(case.input("parts")?)?.iter().map(vectors).collect::<Result<_, _>>()?;
    let clip = clip_norm(case.number("clip")?, parts.iter().flatten())?;
    let plan = one_vector(parts.first().map_or(1, |part| dimension(part)), flat(clip))?;
    let parts: Vec<&[Vec<f32>]> = parts.iter().map(Vec::as_slice).collect();
    let found = estimate(&*noiseless_in_parts(&plan, &parts)?, "x")?;
    case.compare_on_grid("merged", &found, case.expected("merged_state")?, clip.get())
}

/// Names of the vectors in a shape such as `list[2]` or `[q,q]`.
fn names(shape: &str) -> Result<Vec<String>, String> {
    let (container, items) =
        shape.split_once('[').ok_or_else(|| format!("{shape} is not a shape"))?;
    let items = items.trim_end_matches(']');
    let count = items.parse().unwrap_or_else(|_| items.split(',').count());
    Ok((0..count).map(|index| format!("{container}/{index}")).collect())
}

pub(crate) fn structure_error(case: &Case<'_>) -> Outcome {
    let shape = |key| case.input(key).ok().and_then(|value| value.as_str());
    let (expected, found) = match (shape("record1_shape"), shape("record2_shape")) {
        (Some(first), Some(second)) => (names(first)?, names(second)?),
        _ => match (shape("queries"), shape("record")) {
            (Some(queries), Some(record)) => (names(queries)?, names(record)?),
            _ => return Ok(Verdict::Skipped("queries that are not sums cannot be written down")),
        },
    };
    let structure = structure(expected.into_iter().map(|name| (name, 1)))?;
    let value = [1f32];
    let named: Vec<(&str, &[f32])> =
        found.iter().map(|name| (name.as_str(), value.as_slice())).collect();
    match structure.order(&named) {
        Err(StructureError::Unknown(_) | StructureError::Missing(_)) => {}
        other => return Err(format!("a record of another structure gave {other:?}")),
    }
    // Without names, a sum refuses the wrong number of vectors.
    let count = structure.vectors().count();
    if found.len() != count {
        let plan = plan(structure, Group::flat("all", "*", ClipNorm::new(1.0).map_err(text)?))?;
        let record = vec![value.as_slice(); found.len()];
        let refused = round(&plan, no_noise(&plan), |_, sum| sum.add(&record)).is_err();
        require(refused, format!("{} vectors were taken for {count}", found.len()))?;
    }
    Ok(Verdict::Passed)
}

pub(crate) fn initial_state(case: &Case<'_>) -> Outcome {
    let dimension = flatten(case.input("shape")?)?.iter().product::<f64>() as usize;
    let plan = one_vector(dimension, flat(ClipNorm::new(1.0).map_err(text)?))?;
    let found = estimate(&*noiseless(&plan, &[])?, "x")?;
    case.compare_on_grid("state", &found, case.expected("state")?, 1.0)
}

pub(crate) fn no_privacy_sum(case: &Case<'_>) -> Outcome {
    let records = vectors(case.input("records")?)?;
    let clip = clip_norm(f64::INFINITY, &records)?;
    let estimates = noiseless(&one_vector(dimension(&records), flat(clip))?, &records)?;
    require(estimates.is_insecure(), "a release without noise is not stamped INSECURE")?;
    let found = estimate(&estimates, "x")?;
    case.compare_on_grid("result", &found, case.expected("result")?, clip.get())
}

pub(crate) fn no_privacy_average(case: &Case<'_>) -> Outcome {
    let records = vectors(case.input("records")?)?;
    let weights = match case.input("weights") {
        Ok(weights) => flatten(weights)?,
        Err(_) => vec![1.0; records.len()],
    };
    let bound = WeightBound::new(weights.iter().copied().fold(0.0, f64::max)).map_err(text)?;
    let clip = clip_norm(f64::INFINITY, &records)?;
    let minimum = PublicCount::new(1e-9).map_err(text)?;
    let groups = vec![
        flat(clip).weighted(bound).average_over("weights", minimum),
        Group::weight("weights", bound),
    ];
    let plan = plan(structure([("x", dimension(&records))])?, groups)?;
    let estimates = round(&plan, no_noise(&plan), |_, sum| {
        let mut pairs = records.iter().zip(&weights);
        pairs.try_for_each(|(record, weight)| sum.add_weighted(&[record], *weight))
    })?;
    require(estimates.is_insecure(), "a release without noise is not stamped INSECURE")?;
    let found = estimate(&estimates, "x")?;
    case.compare_on_grid("result", &found, case.expected("result")?, clip.get())
}

pub(crate) fn normalised_gaussian(case: &Case<'_>) -> Outcome {
    let records = vectors(case.input("records")?)?;
    let clip = clip_norm(case.number("clip")?, &records)?;
    let denominator = PublicCount::new(case.number("denominator")?).map_err(text)?;
    let plan = one_vector(dimension(&records), flat(clip).average(denominator))?;
    let found = estimate(&*noiseless(&plan, &records)?, "x")?;
    case.compare_on_grid("result", &found, case.expected("result")?, clip.get())
}

/// The groups of a nested case: the plan, and each record's vectors.
struct Nested {
    plan: RoundPlan,
    records: Vec<Vec<Vec<f32>>>,
    names: Vec<String>,
    largest_clip: f64,
}

impl Nested {
    fn new(case: &Case<'_>) -> Result<Self, String> {
        let (mut groups, mut vectors_of, mut shapes) = (Vec::new(), Vec::new(), Vec::new());
        let (mut names, mut largest_clip) = (Vec::new(), 0f64);
        let mut explicit = true;
        for (index, group) in list(case.input("groups")?)?.iter().enumerate() {
            let field = |key: &str| group.get(key).ok_or_else(|| format!("no '{key}'"));
            let records = vectors(field("records")?)?;
            let clip = clip_norm(number(field("clip")?)?, &records)?;
            let denominator = PublicCount::new(number(field("denominator")?)?).map_err(text)?;
            let name = index.to_string();
            let planned = Group::new(&name, [&name], clip).average(denominator);
            let stddev = number(field("stddev")?)?;
            explicit &= stddev > 0.0;
            groups.push(match NoiseStd::new(stddev) {
                Ok(noise) => planned.noise(noise),
                Err(_) => planned,
            });
            shapes.push((name.clone(), dimension(&records)));
            vectors_of.push(records);
            names.push(name);
            largest_clip = largest_clip.max(clip.get());
        }
        let structure = structure(shapes)?;
        let plan = if explicit {
            RoundPlan::new(structure, groups, Allocation::Explicit).map_err(text)?
        } else {
            plan(structure, groups)?
        };
        let count = vectors_of.first().map_or(0, Vec::len);
        let record = |index: usize| vectors_of.iter().filter_map(move |v| v.get(index).cloned());
        let records = (0..count).map(|index| record(index).collect()).collect();
        Ok(Self { plan, records, names, largest_clip })
    }

    fn release(&self, noise: Noise) -> Result<Vec<f64>, String> {
        let estimates = round(&self.plan, noise, |_, sum| {
            self.records.iter().try_for_each(|record| {
                let record: Vec<&[f32]> = record.iter().map(Vec::as_slice).collect();
                sum.add(&record)
            })
        })?;
        let all: Result<Vec<Vec<f64>>, String> =
            self.names.iter().map(|name| estimate(&estimates, name)).collect();
        Ok(all?.concat())
    }
}

pub(crate) fn nested(case: &Case<'_>) -> Outcome {
    let nested = Nested::new(case)?;
    let found = nested.release(no_noise(&nested.plan))?;
    case.compare_on_grid("results", &found, case.expected("results")?, nested.largest_clip)
}

pub(crate) fn nested_statistical(case: &Case<'_>) -> Outcome {
    let nested = Nested::new(case)?;
    // Twenty times the source's trials, so that the error of the estimate is far below the tolerance.
    let trials = 20 * case.number("trials")? as u64;
    let runs: Vec<Vec<f64>> = (0..trials)
        .map(|trial| nested.release(seeded_noise(&nested.plan, trial).map_err(text)?))
        .collect::<Result<_, _>>()?;
    let columns = runs.first().map_or(0, Vec::len);
    let stds: Vec<f64> =
        (0..columns).map(|column| standard_deviation(runs.iter().map(|run| run[column]))).collect();
    case.compare("sample_stddev", &stds, case.expected("sample_stddev")?)
}

pub(crate) fn standard_deviation(values: impl Iterator<Item = f64> + Clone) -> f64 {
    let count = values.clone().count() as f64;
    let mean = values.clone().sum::<f64>() / count;
    (values.map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1.0)).sqrt()
}

/// Metrics are vectors whose names are paths.
pub(crate) fn metrics(case: &Case<'_>) -> Outcome {
    let structure_text = case.input("structure")?.as_str().ok_or("no structure")?;
    let values: Vec<f32> = structure_text
        .split("m=")
        .skip(1)
        .map(|rest| rest.trim_end_matches(|c: char| !c.is_ascii_digit()))
        .map(|rest| rest.split(|c: char| !c.is_ascii_digit()).next().unwrap_or(""))
        .map(|digits| digits.parse().map_err(text))
        .collect::<Result<_, _>>()?;
    // "{key1: m=1, key2: [m=2, m=3]}": a key with one metric, and a key with a list of them.
    let mut names = Vec::new();
    for part in structure_text.trim_matches(['{', '}']).split_inclusive(&[',', ']']) {
        if let Some((key, rest)) = part.split_once(':') {
            let listed = rest.contains('[');
            names.push((key.trim().to_owned(), listed, 0));
        } else if part.contains("m=")
            && let Some((key, listed, index)) = names.last().cloned()
        {
            names.push((key, listed, index + 1));
        }
    }
    let names: Vec<String> = names
        .into_iter()
        .map(
            |(key, listed, i)| {
                if listed { format!("{key}/{i}/metric") } else { format!("{key}/metric") }
            },
        )
        .collect();
    let clip = ClipNorm::new(8.0).map_err(text)?;
    let groups = names.iter().map(|name| Group::new(name, [name], clip)).collect();
    let plan = plan(structure(names.iter().map(|name| (name.as_str(), 1)))?, groups)?;
    let record: Vec<[f32; 1]> = values.iter().map(|value| [*value]).collect();
    let record: Vec<&[f32]> = record.iter().map(<[f32; 1]>::as_slice).collect();
    let estimates = round(&plan, no_noise(&plan), |_, sum| sum.add(&record))?;
    for name in &names {
        case.compare_on_grid(name, &estimate(&estimates, name)?, case.expected(name)?, 8.0)?;
    }
    require(!names.is_empty(), "no metric was found in the structure")
}

/// The vectors of a record that is given as an object of lists.
fn tree(case: &Case<'_>) -> Result<Vec<(String, Vec<f32>)>, String> {
    let tree = case.input("tree")?.as_object().ok_or("the tree is not an object")?;
    tree.iter()
        .map(|(name, value)| {
            Ok((name.clone(), flatten(value)?.into_iter().map(|x| x as f32).collect()))
        })
        .collect()
}

fn compare_tree(
    case: &Case<'_>,
    vectors: &[(String, Vec<f32>)],
    groups: Vec<Group>,
    clip: f64,
) -> Outcome {
    let shapes = vectors.iter().map(|(name, vector)| (name.as_str(), vector.len()));
    let plan = plan(structure(shapes)?, groups)?;
    let record: Vec<&[f32]> = vectors.iter().map(|(_, vector)| vector.as_slice()).collect();
    let estimates = round(&plan, no_noise(&plan), |_, sum| sum.add(&record))?;
    for (name, _) in vectors {
        let expected = case.expected("clipped")?.get(name).ok_or("a vector is not expected")?;
        case.compare_on_grid(name, &estimate(&estimates, name)?, expected, clip)?;
    }
    Ok(Verdict::Passed)
}

pub(crate) fn clip_groups(case: &Case<'_>) -> Outcome {
    let vectors = tree(case)?;
    let mut largest = 0f64;
    let mut groups = Vec::new();
    for (name, _) in &vectors {
        let clip = number(case.input("clip")?.get(name).ok_or("a vector has no clip")?)?;
        largest = largest.max(clip);
        groups.push(Group::new(name, [name], ClipNorm::new(clip).map_err(text)?));
    }
    compare_tree(case, &vectors, groups, largest)
}

pub(crate) fn clip_tree(case: &Case<'_>) -> Outcome {
    let vectors = tree(case)?;
    let clip = case.number("clip")?;
    let rescale = case.input("rescale_to_unit_norm").ok().and_then(|v| v.as_bool()) == Some(true);
    let group = match (rescale, ClipNorm::new(clip)) {
        // Divided by the clip norm; in the limit of clip norm 0, this is normalisation.
        (true, Err(_)) => Group::new("all", ["*"], ClipNorm::new(1.0).map_err(text)?).normalised(),
        (true, Ok(norm)) => {
            Group::new("all", ["*"], norm).average(PublicCount::new(clip).map_err(text)?)
        }
        (false, norm) => Group::new("all", ["*"], norm.map_err(text)?),
    };
    compare_tree(case, &vectors, vec![group], if rescale { 1.0 } else { clip })
}

pub(crate) fn clipped_sum(case: &Case<'_>) -> Outcome {
    let records = vectors(case.input("values")?)?;
    let clip = clip_norm(case.number("clip")?, &records)?;
    let plan = one_vector(dimension(&records), flat(clip))?;
    let found = estimate(&*noiseless(&plan, &records)?, "x")?;
    case.compare_on_grid("sum", &found, case.expected("sum")?, clip.get())?;
    let Ok(expected) = case.expected("with_padding_last_two") else { return Ok(Verdict::Passed) };
    let kept = &records[..records.len().saturating_sub(2)];
    let padded = round(&plan, no_noise(&plan), |_, sum| {
        kept.iter().try_for_each(|record| sum.add(&[record]))?;
        (0..2).try_for_each(|_| sum.add(&[]))
    })?;
    case.compare_on_grid("padded", &estimate(&padded, "x")?, expected, clip.get())
}

pub(crate) fn joint_clip(case: &Case<'_>) -> Outcome {
    let record = vectors(case.input("record")?)?;
    let names: Vec<String> = (0..record.len()).map(|index| format!("v{index}")).collect();
    let clip = case.number("S")?;
    let alphas = flatten(case.input("alphas")?)?;
    let scales: Vec<(&String, JointScale)> = names
        .iter()
        .zip(&alphas)
        .map(|(name, alpha)| Ok((name, JointScale::new(*alpha).map_err(text)?)))
        .collect::<Result<_, String>>()?;
    let group = Group::joint("all", scales, ClipNorm::new(clip).map_err(text)?);
    let shapes = names.iter().zip(&record).map(|(name, vector)| (name.as_str(), vector.len()));
    let plan = plan(structure(shapes)?, vec![group])?;
    let slices: Vec<&[f32]> = record.iter().map(Vec::as_slice).collect();
    let estimates = round(&plan, no_noise(&plan), |_, sum| sum.add(&slices))?;
    for ((name, alpha), expected) in names.iter().zip(&alphas).zip(list(case.expected("clipped")?)?)
    {
        let found = estimate(&estimates, name)?;
        case.compare_on_grid(name, &found, expected, alpha * clip)?;
    }
    Ok(Verdict::Passed)
}

/// Rules given as text; one of them applies to Veilgrad: splitting a batch changes no bit.
pub(crate) fn rule(case: &Case<'_>) -> Outcome {
    if case.input("physical_batches").is_err() {
        return Ok(Verdict::Skipped("a rule about optimizers"));
    }
    let records: Vec<Vec<f32>> =
        (0..64u16).map(|i| vec![f32::from(i).sin() * 3.0, f32::from(i).cos()]).collect();
    let plan = one_vector(2, flat(ClipNorm::new(1.0).map_err(text)?))?;
    let whole = estimate(&*noiseless(&plan, &records)?, "x")?;
    for size in 1..records.len() {
        let batches: Vec<&[Vec<f32>]> = records.chunks(size).collect();
        let split = estimate(&*noiseless_in_parts(&plan, &batches)?, "x")?;
        require(split == whole, format!("batches of {size} give other bits"))?;
    }
    Ok(Verdict::Passed)
}
