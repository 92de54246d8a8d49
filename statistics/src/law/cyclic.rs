//! Tests whether cyclic Poisson samples have the distribution of their event.
//!
//! Records are alike and independent of each other, and so are segments. In a segment, a record has a group, uniform over all
//! groups, and is sampled in each turn of its group independently with probability q. So a sum over records and segments has a
//! known mean and variance.

use veilgrad_events::{
    Adjacency, ClipNorm, MemoryLedger, NoiseStd, RecordUnit, Round, Run, RunHeader, Sampling,
    SumQuery,
};
use veilgrad_mechanism::{Sample, Sampler};

use super::{binomial, by_variance, check_rounds, common};
use crate::Check;

/// Draws `segments` segments in which every group has this many turns, and tests them against the law of the policy: what
/// [`of_sampler`](super::of_sampler) tests, for the first and the last rounds of all segments; the mean size of every round; in
/// how many turns records are sampled; and whether rounds of a segment are independent, given the groups. `sampler` makes the
/// sampler of the segment that begins with the given round.
///
/// # Errors
/// When a sampler fails or is not a cyclic one, or a record is in rounds of two groups of a segment.
pub fn of_cyclic_sampler<S: Sampler>(
    mut sampler: impl FnMut(u64) -> S,
    records: u64,
    turns: u64,
    segments: u64,
) -> Result<Vec<Check>, Box<dyn std::error::Error>> {
    let policy = sampler(0).policy();
    let Sampling::CyclicPoisson { rate, groups, .. } = policy else {
        return Err(format!("{policy:?} is not cyclic").into());
    };
    let (b, q) = (groups.get() as usize, rate.get());
    let length = turns * groups.get();
    let query = SumQuery::new("law", ClipNorm::new(1.0)?, NoiseStd::new(1.0)?);
    let header = RunHeader::new(RecordUnit::Example, Adjacency::AddRemove);
    let mut run = Run::open(MemoryLedger::new(), header)?;
    let mut samples: Vec<Vec<Vec<u64>>> = Vec::new();
    // How often a record was sampled in 0, 1, ... turns of a segment.
    let mut turns_taken = vec![0u64; turns as usize + 1];
    for segment in 0..segments {
        let mut sampler = sampler(segment * length);
        let round = Round::new(sampler.policy(), vec![query.clone()])?;
        let mut rounds: Vec<Vec<u64>> = Vec::new();
        for permit in run.reserve(&round, length)? {
            rounds.push(Sample::draw(permit, &mut sampler, records)?.ids().collect());
        }
        let mut taken = vec![(None, 0); records as usize];
        for (t, round) in rounds.iter().enumerate() {
            for id in round {
                let (group, count) = &mut taken[*id as usize];
                if *group.get_or_insert(t % b) != t % b {
                    return Err("a record is in rounds of two groups of a segment".into());
                }
                *count += 1;
            }
        }
        taken.iter().for_each(|(_, count)| turns_taken[*count] += 1);
        samples.push(rounds);
    }

    let name = |what: String| format!("CyclicPoisson, q = {q}, {b} groups: {what}");
    let (n, s, last) = (records as f64, segments as f64, length as usize - 1);
    // The probability of a record in a round, if its group is not known.
    let p = q / b as f64;
    let mut checks = Vec::new();
    for t in [0, last] {
        let rounds: Vec<&[u64]> = samples.iter().map(|rounds| rounds[t].as_slice()).collect();
        let sizes = binomial(records, p);
        checks.extend(check_rounds(&name(format!("round {t}")), &rounds, records, &sizes));
    }
    for t in 0..=last {
        let total: usize = samples.iter().map(|rounds| rounds[t].len()).sum();
        let deviation = total as f64 - s * n * p;
        checks.push(by_variance(
            name(format!("mean size of round {t}")),
            deviation,
            s * n * p * (1.0 - p),
        ));
    }
    let expected: Vec<f64> = binomial(turns, q).iter().map(|p| p * n * s).collect();
    checks.push(Check::chi_square(name("turns of a record".into()), &turns_taken, &expected));
    // Rounds of one group, which share a record with probability q^2 / b, and of others, which share none.
    for (t, together) in [(b, q * p), (last + 1 - b, q * p), (1, 0.0), (b + 1, 0.0)] {
        let pairs = samples.iter().map(|rounds| (&rounds[0], &rounds[t]));
        if together > 0.0 {
            let found: usize = pairs.clone().map(|(one, other)| common(one, other)).sum();
            checks.push(by_variance(
                name(format!("records in rounds 0 and {t}")),
                found as f64 - s * n * together,
                s * n * together * (1.0 - together),
            ));
        }
        let centred = |round: &Vec<u64>| round.len() as f64 - n * p;
        let sum: f64 = pairs.map(|(one, other)| centred(one) * centred(other)).sum();
        let (mean, variance) = product_of_sizes(n, p, together);
        let what = name(format!("sizes of rounds 0 and {t}"));
        checks.push(by_variance(what, sum - s * mean, s * variance));
    }
    Ok(checks)
}

/// Mean and variance of the product of the deviations of two sizes from their means. Each is the number of n independent
/// records with probability `p`; a record is in both rounds with probability `together`.
fn product_of_sizes(n: f64, p: f64, together: f64) -> (f64, f64) {
    let cells = [
        (1.0 - p, 1.0 - p, together),
        (1.0 - p, -p, p - together),
        (-p, 1.0 - p, p - together),
        (-p, -p, 1.0 - 2.0 * p + together),
    ];
    let covariance: f64 = cells.iter().map(|(x, y, chance)| chance * x * y).sum();
    let fourth: f64 = cells.iter().map(|(x, y, chance)| chance * (x * y).powi(2)).sum();
    let variance = p * (1.0 - p);
    let mean = n * covariance;
    let square = n * fourth + n * (n - 1.0) * (variance.powi(2) + 2.0 * covariance.powi(2));
    (mean, square - mean.powi(2))
}
