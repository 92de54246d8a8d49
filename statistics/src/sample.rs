//! Tests whether records are drawn independently, each with its probability.

use veilgrad_events::{FixedBatch, SampleRate};
use veilgrad_random::subset::{BLOCK, Poisson, permutation, without_replacement};
use veilgrad_random::{RandomError, RoundKey};

use crate::Check;

/// Rates and numbers of records: cover sampling by gaps and by bits, within a block and over several.
pub const CASES: [(f64, u64); 7] = [
    (1e-5, 2_000_000),
    (1e-3, 20_000),
    (0.01, 200_000),
    (0.01, 5_000),
    (0.03, 5_000),
    (0.1, 2_000),
    (0.5, 2_000),
];

/// Tests Poisson sampling of `records` records over `rounds` rounds: inclusion counts, gaps, sizes,
/// and the independence of neighbours and of consecutive rounds.
///
/// # Errors
/// When the operating system has no randomness.
pub fn poisson(rate: SampleRate, records: u64, rounds: u64) -> Result<Vec<Check>, RandomError> {
    let (q, n, t) = (rate.get(), records as f64, rounds as f64);
    let poisson = Poisson::new(rate);
    let mut taken = vec![0u64; records as usize];
    let mut gaps = vec![0u64; 4096];
    let mut sizes = Vec::new();
    let (mut neighbours, mut again) = (0u64, 0u64);
    let mut before: Vec<u64> = Vec::new();
    for _ in 0..rounds {
        let ids = poisson.draw(&RoundKey::from_os()?, records)?;
        ids.iter().for_each(|id| taken[*id as usize] += 1);
        for pair in ids.windows(2) {
            let gap = (pair[1] - pair[0] - 1) as usize;
            gaps[gap.min(4095)] += 1;
            neighbours += u64::from(gap == 0);
        }
        sizes.push(ids.len() as u64);
        again += ids.iter().filter(|id| before.binary_search(id).is_ok()).count() as u64;
        before = ids;
    }
    let name = |what: &str| format!("Poisson q = {q}: {what}");
    let mut checks = Vec::new();

    checks.push(dispersion(name("inclusion counts"), &taken, t, q));
    // The first and last records of blocks, where one stream ends and the next begins.
    let is_edge = |id: &u64| (*id + 1) % BLOCK <= 1;
    let at_edges = (0..records).filter(is_edge);
    let (count, found) =
        at_edges.fold((0.0, 0), |(n, sum), id| (n + 1.0, sum + taken[id as usize]));
    checks.push(Check::poisson(name("edges of blocks"), found, t * q * count));
    let total: u64 = sizes.iter().sum();
    let deviations = (total as f64 - t * n * q) / (t * n * q * (1.0 - q)).sqrt();
    checks.push(Check::by_deviations(name("mean size"), deviations));
    checks.push(dispersion(name("variance of the size"), &sizes, n, q));
    // Pairs of neighbours: n - 1 per round, each with probability q^2; overlapping pairs are correlated.
    // A small count is nearly Poisson, a large one nearly normal.
    let pairs = |what: &str, count: u64, trials: f64, overlaps: f64| {
        let mean = trials * q * q;
        if mean < 5000.0 {
            return Check::poisson(name(what), count, mean);
        }
        let variance = mean * (1.0 - q * q) + 2.0 * overlaps * (q.powi(3) - q.powi(4));
        Check::by_deviations(name(what), (count as f64 - mean) / variance.sqrt())
    };
    checks.push(pairs("neighbours in one round", neighbours, t * (n - 1.0), t * (n - 2.0)));
    checks.push(pairs("one record in two rounds", again, (t - 1.0) * n, (t - 2.0) * n));
    // Gaps between sampled records, up to a length that the end of the dataset rarely truncates.
    let longest = ((20.0 / q).min(n / 50.0) as usize).clamp(2, 4095);
    let found: u64 = gaps.iter().take(longest).sum();
    let weight: f64 = (0..longest).map(|gap| gap_weight(q, n, gap)).sum();
    let expected: Vec<f64> =
        (0..longest).map(|gap| found as f64 * gap_weight(q, n, gap) / weight).collect();
    checks.push(Check::chi_square(name("gaps"), &gaps[..longest], &expected));
    Ok(checks)
}

/// The expected number of gaps of this length in a round, up to a constant factor.
fn gap_weight(q: f64, n: f64, gap: usize) -> f64 {
    (n - 1.0 - gap as f64) * (gap as f64 * (-q).ln_1p()).exp()
}

/// Tests fixed batches without replacement: inclusion counts and pairs.
///
/// # Errors
/// When the operating system has no randomness.
pub fn fixed(batch: FixedBatch, rounds: u64) -> Result<Vec<Check>, RandomError> {
    let (n, b, t) = (batch.records() as f64, batch.batch() as f64, rounds as f64);
    let mut taken = vec![0u64; batch.records() as usize];
    let mut pairs = 0u64;
    for _ in 0..rounds {
        let ids = without_replacement(&RoundKey::from_os()?, batch)?;
        ids.iter().for_each(|id| taken[*id as usize] += 1);
        pairs += ids.windows(2).filter(|pair| pair[1] == pair[0] + 1).count() as u64;
    }
    let q = b / n;
    let name = |what: &str| format!("fixed {b} of {n}: {what}");
    Ok(vec![
        dispersion(name("inclusion counts"), &taken, t, q),
        Check::poisson(name("neighbours"), pairs, t * b * (b - 1.0) / n),
    ])
}

/// Tests shuffled epochs and truncated Poisson samples: every record is in the first batch, or survives
/// truncation, equally often.
///
/// # Errors
/// When the operating system has no randomness.
pub fn shuffled_and_truncated(rate: SampleRate, rounds: u64) -> Result<Vec<Check>, RandomError> {
    let poisson = Poisson::new(rate);
    let (records, batch) = (300usize, 30usize);
    let (mut first, mut kept) = (vec![0u64; records], vec![0u64; records]);
    let mut total = 0u64;
    for _ in 0..rounds {
        let key = RoundKey::from_os()?;
        let order = permutation(&key, records as u64)?;
        order[..batch].iter().for_each(|id| first[*id as usize] += 1);
        let ids = poisson.draw_truncated(&key, records as u64, 50)?;
        total += ids.len() as u64;
        ids.iter().for_each(|id| kept[*id as usize] += 1);
    }
    let t = rounds as f64;
    let kept_rate = total as f64 / (t * records as f64);
    Ok(vec![
        dispersion("shuffle: first batch".to_owned(), &first, t, batch as f64 / records as f64),
        dispersion("truncated Poisson: inclusion counts".to_owned(), &kept, t, kept_rate),
    ])
}

/// Tests the sum of squared deviations of binomial counts, by its exact mean and variance.
fn dispersion(name: String, counts: &[u64], trials: f64, q: f64) -> Check {
    let variance = trials * q * (1.0 - q);
    let sum: f64 = counts.iter().map(|c| (*c as f64 - trials * q).powi(2) / variance).sum();
    let n = counts.len() as f64;
    let spread = n * (2.0 + (1.0 - 6.0 * q * (1.0 - q)) / variance);
    Check::by_deviations(name, (sum - n) / spread.sqrt())
}
