//! Are records drawn independently, each with its probability?

use veilgrad_events::{FixedBatch, SampleRate};
use veilgrad_random::subset::{Poisson, without_replacement};
use veilgrad_random::{RandomError, RoundKey};

use crate::Check;

/// Poisson sampling of `records` records over `rounds` rounds: who is taken how often, gaps, sizes,
/// and independence of neighbours and of consecutive rounds.
///
/// # Errors
/// When the operating system has no randomness.
pub fn poisson(rate: SampleRate, records: u64, rounds: u64) -> Result<Vec<Check>, RandomError> {
    let (q, n, t) = (rate.get(), records as f64, rounds as f64);
    let poisson = Poisson::new(rate);
    let mut taken = vec![0u64; records as usize];
    let mut gaps = vec![0u64; 4096];
    let mut sizes = (0.0, 0.0);
    let (mut neighbours, mut again) = (0u64, 0u64);
    let mut before: Vec<u64> = Vec::new();
    for _ in 0..rounds {
        let ids = poisson.draw(&RoundKey::from_os()?, records);
        ids.iter().for_each(|id| taken[*id as usize] += 1);
        for pair in ids.windows(2) {
            let gap = (pair[1] - pair[0] - 1) as usize;
            gaps[gap.min(4095)] += 1;
            neighbours += u64::from(gap == 0);
        }
        let size = ids.len() as f64;
        sizes.0 += size;
        sizes.1 += (size - q * n) * (size - q * n);
        again += ids.iter().filter(|id| before.binary_search(id).is_ok()).count() as u64;
        before = ids;
    }
    let name = |what: &str| format!("Poisson q = {q}: {what}");
    let mut checks = Vec::new();

    // Inclusion counts of each record are binomial: their dispersion is chi-square.
    let spread = t * q * (1.0 - q);
    let chi2: f64 = taken.iter().map(|count| (*count as f64 - t * q).powi(2) / spread).sum();
    checks.push(Check::by_dispersion(name("inclusion counts"), chi2, n));
    let deviations = (sizes.0 - t * n * q) / (t * n * q * (1.0 - q)).sqrt();
    checks.push(Check::by_deviations(name("mean size"), deviations));
    let chi2 = sizes.1 / (n * q * (1.0 - q));
    checks.push(Check::by_dispersion(name("variance of the size"), chi2, t));
    // Neighbours: n - 1 pairs a round, each with probability q^2. Overlapping pairs correlate:
    // Var = (n-1) q^2 (1 - q^2) + 2 (n-2) (q^3 - q^4).
    let pairs = |count: u64, trials: f64, overlaps: f64| {
        let variance = trials * q * q * (1.0 - q * q) + 2.0 * overlaps * (q.powi(3) - q.powi(4));
        (count as f64 - trials * q * q) / variance.sqrt()
    };
    let deviations = pairs(neighbours, t * (n - 1.0), t * (n - 2.0));
    checks.push(Check::by_deviations(name("neighbours in one round"), deviations));
    let deviations = pairs(again, (t - 1.0) * n, (t - 2.0) * n);
    checks.push(Check::by_deviations(name("one record in two rounds"), deviations));
    // Gaps between taken records, short enough that the end of the data hardly cuts them off.
    let cut = ((20.0 / q).min(n / 50.0) as usize).clamp(2, 4095);
    let found: u64 = gaps.iter().take(cut).sum();
    let weight: f64 = (0..cut).map(|gap| gap_weight(q, n, gap)).sum();
    let expected: Vec<f64> =
        (0..cut).map(|gap| found as f64 * gap_weight(q, n, gap) / weight).collect();
    checks.push(Check::chi_square(name("gaps"), &gaps[..cut], &expected));
    Ok(checks)
}

/// The expected number of gaps of this length in a round, up to a factor: n - 1 - gap places.
fn gap_weight(q: f64, n: f64, gap: usize) -> f64 {
    (n - 1.0 - gap as f64) * (gap as f64 * (-q).ln_1p()).exp()
}

/// Fixed batches without replacement: inclusion counts and pairs.
///
/// # Errors
/// When the operating system has no randomness.
pub fn fixed(batch: FixedBatch, rounds: u64) -> Result<Vec<Check>, RandomError> {
    let (n, b, t) = (batch.records() as f64, batch.batch() as f64, rounds as f64);
    let mut taken = vec![0u64; batch.records() as usize];
    let mut pairs = 0u64;
    for _ in 0..rounds {
        let ids = without_replacement(&RoundKey::from_os()?, batch);
        ids.iter().for_each(|id| taken[*id as usize] += 1);
        pairs += u64::from(ids.starts_with(&[0, 1]));
    }
    let q = b / n;
    // Counts sum to t b, so the dispersion has n - 1 degrees of freedom.
    let spread = t * q * (1.0 - q) * n / (n - 1.0);
    let chi2: f64 = taken.iter().map(|count| (*count as f64 - t * q).powi(2) / spread).sum();
    let name = |what: &str| format!("fixed {b} of {n}: {what}");
    Ok(vec![
        Check::by_dispersion(name("inclusion counts"), chi2, n - 1.0),
        Check::poisson(
            name("records 0 and 1 together"),
            pairs,
            t * b * (b - 1.0) / (n * (n - 1.0)),
        ),
    ])
}
