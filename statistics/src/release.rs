//! Does every kind of group release the noise that its event says?
//!
//! Rounds without records release noise alone. Each coordinate, divided by the standard deviation that the charged event
//! gives it, must be a standard normal number, independent of all others of its round and of those of other rounds.

use veilgrad_events::{
    Adjacency, ClipNorm, JointScale, MemoryLedger, NoiseMultiplier, PublicCount, RecordUnit, Round,
    Run, RunHeader, WeightBound,
};
use veilgrad_mechanism::{
    AllRecords, Allocation, Estimates, Group, Metric, Noise, Quantile, RoundPlan, Sample, Structure,
};

use crate::Check;

type Error = Box<dyn std::error::Error>;

/// Where a released number comes from: its vector or group without vectors, and by what the noise of its event was
/// multiplied.
struct Released {
    name: &'static str,
    group: &'static str,
    is_vector: bool,
    /// What public constants make of one unit of the group's sum.
    scale: f64,
    /// What the number is where the noise is 0.
    zero: f64,
}

/// A plan with every kind of group and every estimator, and what it releases.
fn every_kind() -> Result<(RoundPlan, Vec<Released>), Error> {
    let clip = |norm: f64| ClipNorm::new(norm);
    let (hundred, thousand) = (PublicCount::new(100.0)?, PublicCount::new(1000.0)?);
    // So many that no noise reaches it: the average is then over a public number.
    let many = PublicCount::new(1e6)?;
    let bound = WeightBound::new(2.0)?;
    let (accuracy, classes) = (Metric::accuracy()?, Metric::class_counts("classes", 3));
    let (accuracy_vector, accuracy_size) = accuracy.vector();
    let vectors = [
        ("first", 3),
        ("second", 2),
        ("mean", 2),
        ("square", 3),
        ("weighted", 2),
        ("normalised", 2),
        ("value", 1),
        (accuracy_vector.as_str(), accuracy_size),
        ("classes", 3),
    ];
    let scales = [("mean", JointScale::new(1.0)?), ("square", JointScale::new(4.0)?)];
    let groups = vec![
        Group::new("flat", ["first", "second"], clip(0.5)?),
        Group::joint("statistics", scales, clip(2.0)?).average(hundred),
        Group::new("weighted", ["weighted"], clip(1.5)?)
            .weighted(bound)
            .average_over("count", many),
        Group::new("normalised", ["normalised"], clip(3.0)?).normalised().average(thousand),
        Group::weight("count", bound),
        Group::quantile("median", Quantile::of_norm("flat", 0.5, many, clip(0.01)?)?),
        Group::quantile("quartile", Quantile::of_value("value", 0.25, many, 1.0)?),
        Group::new("value", ["value"], clip(1.0)?),
        accuracy.group(hundred)?,
        classes.group(hundred)?,
    ];
    let allocation = Allocation::Proportional(NoiseMultiplier::new(1.3)?);
    let plan = RoundPlan::new(Structure::new(vectors)?, groups, allocation)?;
    let vector = |name, group, scale| Released { name, group, is_vector: true, scale, zero: 0.0 };
    let scalar = |name, scale, zero| Released { name, group: name, is_vector: false, scale, zero };
    let released = vec![
        vector("first", "flat", 1.0),
        vector("second", "flat", 1.0),
        vector("mean", "statistics", 0.01),
        vector("square", "statistics", 0.04),
        vector("weighted", "weighted", 1e-6),
        vector("normalised", "normalised", 1e-3),
        vector("value", "value", 1.0),
        vector("accuracy", "accuracy", 0.01),
        vector("classes", "classes", 1.0),
        scalar("count", 1.0, 0.0),
        scalar("median", 1e-6, 0.5),
        scalar("quartile", 1e-6, 0.5),
    ];
    Ok((plan, released))
}

/// The numbers that a round releases, each with its expected deviation from its value without noise.
fn standardised(
    released: &[Released],
    round: &Round,
    estimates: &Estimates,
) -> Result<Vec<(String, f64)>, Error> {
    let mut numbers = Vec::new();
    for Released { name, group, is_vector, scale, zero } in released {
        let query = round.queries().iter().find(|query| query.group() == *group);
        let deviation = query.ok_or(*group)?.noise().get() * scale;
        let values = match is_vector {
            true => estimates.vector(name).ok_or(*name)?.to_vec(),
            false => vec![estimates.scalar(name).ok_or(*name)?],
        };
        for (index, value) in values.into_iter().enumerate() {
            numbers.push((format!("{name}[{index}]"), (value - zero) / deviation));
        }
    }
    Ok(numbers)
}

/// Releases of a plan with every kind of group and every estimator: their variances, alone and of all numbers of a group
/// together, and correlations between all of them, within a round and from one round to the next. The noise of round i is
/// drawn on `threads` threads, and multiplied by `factor` in the reader's eye, so that tests can be wrong on purpose.
///
/// # Errors
/// When a round cannot be charged, drawn or released.
pub fn law(releases: u64, threads: usize, factor: f64) -> Result<Vec<Check>, Error> {
    let (plan, released) = every_kind()?;
    let round = plan.round(&AllRecords)?;
    let header = RunHeader::new(RecordUnit::Example, Adjacency::AddRemove);
    let mut run = Run::open(MemoryLedger::new(), header)?;
    let (mut names, mut before): (Vec<String>, Vec<f64>) = (Vec::new(), Vec::new());
    let (mut sums, mut products, mut next): (Vec<f64>, Vec<f64>, Vec<f64>) = Default::default();
    for permit in run.reserve(&round, releases)? {
        let sample = Sample::draw(permit, &mut AllRecords, 0)?;
        let sum = sample.begin(&plan);
        let estimates = sum.release(sample, Noise::draw_on(&plan, threads)?)?;
        let numbers = standardised(&released, &round, &estimates)?;
        let values: Vec<f64> = numbers.iter().map(|(_, value)| value * factor).collect();
        if names.is_empty() {
            names = numbers.into_iter().map(|(name, _)| name).collect();
            sums = vec![0.0; values.len()];
            products = vec![0.0; values.len() * values.len()];
            next = products.clone();
            before = vec![0.0; values.len()];
        }
        for (i, value) in values.iter().enumerate() {
            sums[i] += value;
            for (j, other) in values.iter().enumerate() {
                products[i * values.len() + j] += value * other;
                next[i * values.len() + j] += value * before[j];
            }
        }
        before = values;
    }
    let (n, size) = (releases as f64, names.len());
    let name = |what: String| format!("releases on {threads} threads, {what}");
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
            let found = next[i * size + j] / n.sqrt();
            let what = format!("{what} after {}", names[j]);
            checks.push(Check::by_deviations(name(what), found));
        }
    }
    let squares: f64 = (0..size).map(|i| products[i * size + i]).sum();
    let all = n * size as f64;
    let off = (squares - all) / (2.0 * all).sqrt();
    checks.push(Check::by_deviations(name("all variances together".to_owned()), off));
    Ok(checks)
}
