//! Tests whether every kind of group releases the noise of its event.
//!
//! Rounds without records release noise alone. Each coordinate, divided by its standard deviation in the charged event,
//! must be standard normal, and independent of all other coordinates and of other rounds.

use veilgrad_events::{
    Adjacency, ClipNorm, JointScale, MemoryLedger, NoiseMultiplier, PublicCount, RecordUnit, Round,
    Run, RunHeader, WeightBound,
};
use veilgrad_mechanism::{
    AllRecords, Allocation, Estimates, Group, Metric, Noise, Quantile, RoundPlan, Sample, Structure,
};

use crate::Check;

type Error = Box<dyn std::error::Error>;

/// Numbers that a round releases under one name: a vector, or a group without vectors.
struct Released {
    name: String,
    /// The group whose event determines the noise.
    group: String,
    is_vector: bool,
    /// The factor from the group's sum to the released number.
    scale: f64,
    /// The value without noise.
    zero: f64,
}

/// A minimum count far above the noise: an average over a private count then divides by this number.
const MANY: f64 = 1e6;

/// A plan with every kind of group and every estimator, and what it releases.
fn every_kind() -> Result<(RoundPlan, Vec<Released>), Error> {
    let (hundred, many) = (PublicCount::new(100.0)?, PublicCount::new(MANY)?);
    let bound = WeightBound::new(2.0)?;
    let (mut vectors, mut groups, mut released) = (Vec::new(), Vec::new(), Vec::new());
    let mut vector = |name: &str, dimension: usize, group: &str, scale: f64| {
        vectors.push((name.to_owned(), dimension));
        let (name, group) = (name.to_owned(), group.to_owned());
        released.push(Released { name, group, is_vector: true, scale, zero: 0.0 });
    };
    for (estimator, scale) in [("sum", 1.0), ("average", 0.01), ("average over", 1.0 / MANY)] {
        let estimated = |group: Group| match estimator {
            "average" => group.average(hundred),
            "average over" => group.average_over("count", many),
            _ => group,
        };
        let name = |part: &str| format!("{part}, {estimator}");
        let (first, second) = (name("first"), name("second"));
        vector(&first, 2, &name("flat"), scale);
        vector(&second, 1, &name("flat"), scale);
        let flat = Group::new(name("flat"), [&first, &second], ClipNorm::new(0.5)?);
        let (mean, square) = (name("mean"), name("square"));
        vector(&mean, 1, &name("joint"), scale);
        vector(&square, 1, &name("joint"), 4.0 * scale);
        let scales =
            [(mean.as_str(), JointScale::new(1.0)?), (square.as_str(), JointScale::new(4.0)?)];
        let joint = Group::joint(name("joint"), scales, ClipNorm::new(2.0)?);
        let (weighted, normalised) = (name("weighted"), name("normalised"));
        vector(&weighted, 1, &weighted, scale);
        vector(&normalised, 1, &normalised, scale);
        let clip = ClipNorm::new(1.5)?;
        let weighted = Group::new(weighted.as_str(), [&weighted], clip).weighted(bound);
        let normalised = Group::new(normalised.as_str(), [&normalised], clip).normalised();
        groups.extend([flat, joint, weighted, normalised].map(estimated));
    }
    let metrics = [
        (Metric::accuracy()?, 0.01),
        (Metric::loss(5.0)?, 0.01),
        (Metric::class_counts("classes", 3), 1.0),
    ];
    for (metric, scale) in metrics {
        let (name, dimension) = metric.vector();
        vector(&name, dimension, &name, scale);
        groups.push(metric.group(hundred)?);
    }
    vector("value", 1, "value", 1.0);
    groups.push(Group::new("value", ["value"], ClipNorm::new(1.0)?));
    groups.push(Group::weight("count", bound));
    groups.push(Group::weight("average weight", bound).average(hundred));
    let floor = ClipNorm::new(0.01)?;
    groups.push(Group::quantile("median", Quantile::of_norm("flat, sum", 0.5, many, floor)?));
    groups.push(Group::quantile("quartile", Quantile::of_value("value", 0.25, many, 1.0)?));
    let scalars = [
        ("count", 1.0, 0.0),
        ("average weight", 0.01, 0.0),
        ("median", 1.0 / MANY, 0.5),
        ("quartile", 1.0 / MANY, 0.5),
    ];
    released.extend(scalars.map(|(name, scale, zero)| {
        let (name, group) = (name.to_owned(), name.to_owned());
        Released { name, group, is_vector: false, scale, zero }
    }));
    let allocation = Allocation::Proportional(NoiseMultiplier::new(1.3)?);
    let structure = Structure::new(vectors.iter().map(|(name, d)| (name.as_str(), *d)))?;
    Ok((RoundPlan::new(structure, groups, allocation)?, released))
}

/// The numbers that a round releases, in standard deviations of its event's noise.
fn standardised(
    released: &[Released],
    round: &Round,
    estimates: &Estimates,
) -> Result<Vec<(String, f64)>, Error> {
    let mut numbers = Vec::new();
    for Released { name, group, is_vector, scale, zero } in released {
        let query = round.queries().iter().find(|query| query.group() == group);
        let deviation = query.ok_or(group.as_str())?.noise().get() * scale;
        let values = match is_vector {
            true => estimates.vector(name).ok_or(name.as_str())?.to_vec(),
            false => vec![estimates.scalar(name).ok_or(name.as_str())?],
        };
        for (index, value) in values.into_iter().enumerate() {
            numbers.push((format!("{name}[{index}]"), (value - zero) / deviation));
        }
    }
    Ok(numbers)
}

/// Tests the releases of a plan with every kind of group and every estimator: means and variances of all numbers, and
/// their correlations within a round and between consecutive rounds. Every number is multiplied by `factor`, so that a
/// test can simulate less noise than was charged.
///
/// # Errors
/// When a round cannot be charged, drawn or released.
pub fn law(releases: u64, factor: f64) -> Result<Vec<Check>, Error> {
    let (plan, released) = every_kind()?;
    let round = plan.round(&AllRecords)?;
    let header = RunHeader::new(RecordUnit::Example, Adjacency::AddRemove);
    let mut run = Run::open(MemoryLedger::new(), header)?;
    let (mut names, mut before): (Vec<String>, Vec<f64>) = (Vec::new(), Vec::new());
    let (mut sums, mut products, mut lagged): (Vec<f64>, Vec<f64>, Vec<f64>) = Default::default();
    for permit in run.reserve(&round, releases)? {
        let sample = Sample::draw(permit, &mut AllRecords, 0)?;
        let sum = sample.begin(&plan);
        let estimates = sum.release(sample, Noise::draw_on(&plan, 1)?)?;
        let numbers = standardised(&released, &round, &estimates)?;
        let values: Vec<f64> = numbers.iter().map(|(_, value)| value * factor).collect();
        if names.is_empty() {
            names = numbers.into_iter().map(|(name, _)| name).collect();
            sums = vec![0.0; values.len()];
            products = vec![0.0; values.len() * values.len()];
            lagged = products.clone();
            before = vec![0.0; values.len()];
        }
        for (i, value) in values.iter().enumerate() {
            sums[i] += value;
            for (j, other) in values.iter().enumerate() {
                products[i * values.len() + j] += value * other;
                lagged[i * values.len() + j] += value * before[j];
            }
        }
        before = values;
    }
    let (n, size) = (releases as f64, names.len());
    let name = |what: String| format!("releases: {what}");
    let mut checks = Vec::new();
    for i in 0..size {
        let what = &names[i];
        checks.push(Check::by_deviations(name(format!("{what}: mean")), sums[i] / n.sqrt()));
        let square = products[i * size + i];
        checks.push(Check::by_deviations(
            name(format!("{what}: variance")),
            (square - n) / (2.0 * n).sqrt(),
        ));
        for j in 0..size {
            if j < i {
                let found = products[i * size + j] / n.sqrt();
                checks.push(Check::by_deviations(name(format!("{what} and {}", names[j])), found));
            }
            let found = lagged[i * size + j] / n.sqrt();
            let what = format!("{what} after {}", names[j]);
            checks.push(Check::by_deviations(name(what), found));
        }
    }
    let squares: f64 = (0..size).map(|i| products[i * size + i]).sum();
    let all = n * size as f64;
    let deviations = (squares - all) / (2.0 * all).sqrt();
    checks.push(Check::by_deviations(name("all variances together".to_owned()), deviations));
    Ok(checks)
}

/// Coordinates of a group that is large enough for two threads: sixteen blocks and part of another.
const LARGE: usize = (16 << 12) + 100;

/// Tests the releases of two groups whose noise is drawn on several threads: the variance of all coordinates, and
/// correlations between the threads' halves, consecutive blocks, coordinates and rounds, both groups, and the first and
/// last coordinates.
///
/// # Errors
/// When a round cannot be charged, drawn or released.
pub fn law_on_threads(releases: u64, threads: usize) -> Result<Vec<Check>, Error> {
    let groups =
        ["one", "two"].map(|name| Ok::<_, Error>(Group::new(name, [name], ClipNorm::new(1.0)?)));
    let groups = groups.into_iter().collect::<Result<Vec<_>, _>>()?;
    let structure = Structure::new([("one", LARGE), ("two", LARGE)])?;
    let allocation = Allocation::Proportional(NoiseMultiplier::new(1.3)?);
    let plan = RoundPlan::new(structure, groups, allocation)?;
    let round = plan.round(&AllRecords)?;
    let deviation = round.queries().first().ok_or("no query")?.noise().get();
    let header = RunHeader::new(RecordUnit::Example, Adjacency::AddRemove);
    let mut run = Run::open(MemoryLedger::new(), header)?;
    let mut sums = [("halves", 0.0, 0.0); 5];
    // Too few products of single numbers to be normal: only their signs are counted.
    let mut agreements = [0; 3];
    let mut before = vec![0.0; LARGE];
    let (mut squares, mut count) = (0.0, 0.0);
    for permit in run.reserve(&round, releases)? {
        let sample = Sample::draw(permit, &mut AllRecords, 0)?;
        let sum = sample.begin(&plan);
        let estimates = sum.release(sample, Noise::draw_on(&plan, threads)?)?;
        let values = |name: &str| -> Result<Vec<f64>, Error> {
            let vector = estimates.vector(name).ok_or("no such vector")?;
            Ok(vector.iter().map(|value| value / deviation).collect())
        };
        let (one, two) = (values("one")?, values("two")?);
        squares += one.iter().chain(&two).map(|value| value * value).sum::<f64>();
        count += 2.0 * LARGE as f64;
        let (half, block, last) = (8 << 12, 1 << 12, LARGE - 1);
        let pairs: [(&str, &[f64], &[f64]); 5] = [
            ("halves", &one[..half], &one[half..2 * half]),
            ("blocks", &one[..last - block], &one[block..last]),
            ("neighbours", &one[..last], &one[1..]),
            ("groups", &one, &two),
            ("rounds", &before, &one),
        ];
        for (sum, (name, left, right)) in sums.iter_mut().zip(pairs) {
            let product: f64 = left.iter().zip(right).map(|(left, right)| left * right).sum();
            *sum = (name, sum.1 + product, sum.2 + left.len() as f64);
        }
        let ends = [(one[0], one[last]), (one[0], two[0]), (one[last], two[last])];
        for (agreement, (left, right)) in agreements.iter_mut().zip(ends) {
            *agreement += u64::from((left > 0.0) == (right > 0.0));
        }
        before = one;
    }
    let name = |what: &str| format!("noise on {threads} threads: {what}");
    let variance = (squares - count) / (2.0 * count).sqrt();
    let mut checks = vec![Check::by_deviations(name("variance"), variance)];
    checks.extend(
        sums.map(|(what, sum, count)| Check::by_deviations(name(what), sum / count.sqrt())),
    );
    let ends = ["first and last", "first of both groups", "last of both groups"];
    checks.extend(
        ends.iter().zip(agreements).map(|(what, found)| Check::coins(name(what), found, releases)),
    );
    Ok(checks)
}
