//! Tests whether a sampler has the distribution of its own event.
//!
//! All policies are exchangeable: given its size N, every sample of that size is equally likely. So the probability that
//! k given records are all sampled is `p_k = E [N (N-1) ... (N-k+1)] / (n (n-1) ... (n-k+1))`. The distribution of sizes
//! and the independence of rounds determine the law of a policy.

use veilgrad_events::{
    Adjacency, ClipNorm, MemoryLedger, NoiseStd, RecordUnit, Round, Run, RunHeader, Sampling,
    SumQuery,
};
use veilgrad_mechanism::{Sample, Sampler};

use crate::Check;

mod cyclic;

pub use cyclic::of_cyclic_sampler;

/// Draws `rounds` samples from `records` records and tests them against the law of the sampler's policy: how
/// often every record is sampled, how sizes are distributed, how often pairs of records are sampled together, and whether
/// rounds are independent. For shuffled epochs and random allocation, it tests independence between batches with the same
/// number in consecutive epochs, and that no record is in two batches of one epoch; for random allocation also that none is in
/// no round of an epoch. Cyclic samples, whose rounds depend on each other, have [`of_cyclic_sampler`].
///
/// # Errors
/// When the sampler fails, a record is in two batches of an epoch, or the law of the policy is not implemented here.
pub fn of_sampler(
    sampler: &mut impl Sampler,
    records: u64,
    rounds: u64,
) -> Result<Vec<Check>, Box<dyn std::error::Error>> {
    let policy = sampler.policy();
    let sizes = sizes(policy, records)?;
    // Rounds per epoch; the batches of one epoch are disjoint.
    let epoch = match policy {
        Sampling::Shuffle(batch) => (batch.records() / batch.batch()) as usize,
        Sampling::Allocation { rounds_per_epoch } => rounds_per_epoch.get() as usize,
        _ => 1,
    };
    let query = SumQuery::new("law", ClipNorm::new(1.0)?, NoiseStd::new(1.0)?);
    let round = Round::new(policy, vec![query])?;
    let header = RunHeader::new(RecordUnit::Example, Adjacency::ZeroOut);
    let mut run = Run::open(MemoryLedger::new(), header)?;
    let mut samples: Vec<Vec<u64>> = Vec::new();
    for permit in run.reserve(&round, rounds)? {
        samples.push(Sample::draw(permit, sampler, records)?.ids().collect());
    }
    for batches in samples.chunks(epoch).filter(|_| epoch > 1) {
        let mut seen: Vec<u64> = batches.iter().flatten().copied().collect();
        seen.sort_unstable();
        if seen.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err("a record is in two batches of one epoch".into());
        }
        let is_complete = batches.len() == epoch && seen.len() as u64 == records;
        if matches!(policy, Sampling::Allocation { .. }) && batches.len() == epoch && !is_complete {
            return Err("a record is in no round of an epoch".into());
        }
    }
    let mut checks = Vec::new();
    // For shuffled epochs, the first and the last batch of every epoch.
    for batch in if epoch > 1 { vec![0, epoch - 1] } else { vec![0] } {
        let rounds: Vec<&[u64]> =
            samples.iter().skip(batch).step_by(epoch).map(Vec::as_slice).collect();
        let name =
            if epoch > 1 { format!("{policy:?}, batch {batch}") } else { format!("{policy:?}") };
        checks.extend(check_rounds(&name, &rounds, records, &sizes));
    }
    Ok(checks)
}

/// The probability of every sample size.
fn sizes(policy: Sampling, records: u64) -> Result<Vec<f64>, Box<dyn std::error::Error>> {
    let always = |size: u64| {
        let mut sizes = vec![0.0; records as usize + 1];
        sizes[size as usize] = 1.0;
        sizes
    };
    Ok(match policy {
        Sampling::All {} => always(records),
        Sampling::Poisson { rate } => binomial(records, rate.get()),
        // Between epochs, round i of an epoch is a Poisson sample.
        Sampling::Allocation { rounds_per_epoch } => {
            binomial(records, 1.0 / rounds_per_epoch.get() as f64)
        }
        Sampling::TruncatedPoisson(truncated) => {
            let mut sizes = binomial(records, truncated.rate().get());
            let most = truncated.maximum() as usize;
            let beyond: f64 = sizes.drain(most + 1..).sum();
            sizes[most] += beyond;
            sizes
        }
        Sampling::Fixed(batch) | Sampling::Shuffle(batch) => always(batch.batch()),
        other => return Err(format!("the law of {other:?} is not implemented").into()),
    })
}

/// The probabilities of `0..=n` successes in n trials of probability q.
fn binomial(n: u64, q: f64) -> Vec<f64> {
    let log_factorial = |k: u64| libm::lgamma(k as f64 + 1.0);
    let probability = |k: u64| {
        if q == 1.0 {
            return if k == n { 1.0 } else { 0.0 };
        }
        let log_choose = log_factorial(n) - log_factorial(k) - log_factorial(n - k);
        (log_choose + k as f64 * q.ln() + (n - k) as f64 * libm::log1p(-q)).exp()
    };
    (0..=n).map(probability).collect()
}

/// Tests independent rounds with this distribution of sizes.
fn check_rounds(policy: &str, rounds: &[&[u64]], records: u64, sizes: &[f64]) -> Vec<Check> {
    let (n, t) = (records as f64, rounds.len() as f64);
    let name = |what: &str| format!("{policy}: {what}");
    let falling = |x: f64, k: u32| (0..k).map(|i| x - f64::from(i)).product::<f64>();
    let moment = |k: u32| -> f64 {
        sizes.iter().enumerate().map(|(size, p)| p * falling(size as f64, k)).sum()
    };
    // The probability that k given records are sampled together.
    let together = |k: u32| moment(k) / falling(n, k);
    let (mean, second) = (moment(1), moment(2) + moment(1));
    let (p1, p2, p4) = (together(1), together(2), together(4));
    let mut checks = Vec::new();

    let mut counts = vec![0u64; sizes.len()];
    let mut impossible = 0;
    for round in rounds {
        match counts.get_mut(round.len()) {
            Some(count) => *count += 1,
            None => impossible += 1,
        }
    }
    let expected: Vec<f64> = sizes.iter().map(|p| p * t).collect();
    let elsewhere = counts.iter().zip(sizes).filter(|(count, p)| **count > 0 && **p == 0.0).count();
    let possible = if impossible + elsewhere == 0 { 1.0 } else { 0.0 };
    checks.push(Check { name: name("sizes that the policy can have"), tail: possible });
    checks.push(Check::chi_square(name("sizes"), &counts, &expected));
    let total: usize = rounds.iter().map(|round| round.len()).sum();
    let variance = second - mean * mean;
    checks.push(by_variance(name("mean size"), total as f64 - t * mean, t * variance));

    // Counts of records have variance `a` and covariance `c`: orthogonal to their mean, the variance is `a - c`.
    let mut taken = vec![0u64; records as usize];
    rounds.iter().flat_map(|round| round.iter()).for_each(|id| taken[*id as usize] += 1);
    let (a, c) = (t * p1 * (1.0 - p1), t * (p2 - p1 * p1));
    let average = total as f64 / n;
    let squares: f64 = taken.iter().map(|count| (*count as f64 - average).powi(2)).sum();
    if a - c > 1e-9 {
        checks.push(Check::by_dispersion(name("inclusion"), squares / (a - c), n - 1.0));
        for (which, id) in [("first", 0), ("last", taken.len() - 1)] {
            checks.push(by_variance(
                name(&format!("{which} record")),
                taken[id] as f64 - t * p1,
                a,
            ));
        }
    } else {
        let exact = if squares == 0.0 { 1.0 } else { 0.0 };
        checks.push(Check { name: name("inclusion"), tail: exact });
        return checks;
    }

    // Disjoint pairs of records: neighbours, and records half of the dataset apart.
    let pairs = (records / 2) as f64;
    let pair_variance = t * (pairs * p2 + pairs * (pairs - 1.0) * p4 - (pairs * p2).powi(2));
    for (what, distance) in
        [("neighbours together", 1), ("records far apart together", records / 2)]
    {
        let found: usize = rounds.iter().map(|round| pairs_at(round, distance, records)).sum();
        checks.push(by_variance(name(what), found as f64 - t * pairs * p2, pair_variance));
    }

    // Records that are in both rounds of a pair, over disjoint pairs of rounds: consecutive, and 7 apart.
    let overlap = n * p1 * p1;
    let overlap_variance = n * p1 * p1 + n * (n - 1.0) * p2 * p2 - overlap * overlap;
    for lag in [1, 7] {
        let blocks = rounds.chunks_exact(2 * lag);
        let both = blocks.clone().flat_map(|block| block[..lag].iter().zip(&block[lag..]));
        let found: usize = both.map(|(one, other)| common(one, other)).sum();
        let trials = (blocks.len() * lag) as f64;
        checks.push(by_variance(
            name(&format!("rounds {lag} apart")),
            found as f64 - trials * overlap,
            trials * overlap_variance,
        ));
    }
    checks
}

/// Tests a sum by its deviation from the mean, which must be zero if there is no variance.
fn by_variance(name: String, deviation: f64, variance: f64) -> Check {
    match variance > 1e-6 {
        true => Check::by_deviations(name, deviation / variance.sqrt()),
        false => Check { name, tail: if deviation.abs() < 1e-6 { 1.0 } else { 0.0 } },
    }
}

/// How many of the disjoint pairs `(i, i + distance)` are sampled together.
fn pairs_at(round: &[u64], distance: u64, records: u64) -> usize {
    let is_first = |id: u64| match distance {
        1 => id.is_multiple_of(2) && id + 1 < records,
        _ => id < distance,
    };
    let has_both = |id: &&u64| is_first(**id) && round.binary_search(&(**id + distance)).is_ok();
    round.iter().filter(has_both).count()
}

/// How many records are in both samples.
fn common(one: &[u64], other: &[u64]) -> usize {
    one.iter().filter(|id| other.binary_search(id).is_ok()).count()
}
