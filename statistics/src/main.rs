//! The long form of the statistical tests: `cargo run --release -p veilgrad-statistics [SAMPLES]`, with a billion
//! samples by default.
#![allow(clippy::print_stdout)]

use std::num::NonZeroU64;
use std::process::ExitCode;
use std::time::Instant;

use veilgrad_events::{FixedBatch, IntegerGrid, SampleRate, TruncatedPoisson};
use veilgrad_mechanism::{
    AllocationSampler, CyclicSampler, FixedSampler, PoissonSampler, ShuffleSampler,
    TruncatedPoissonSampler,
};
use veilgrad_random::{RoundKey, gaussian};
use veilgrad_statistics::{
    ALPHA, Check, correlated, karney::Karney, law, noise::Battery, release, sample,
};

fn main() -> Result<ExitCode, Box<dyn std::error::Error>> {
    let samples = std::env::args().nth(1).map_or(Ok(1e9), |samples| samples.parse::<f64>())? as u64;
    let mut checks = Vec::new();
    // Most samples go to the usual exponent, 27; the others take other paths of the sampler.
    for (k, part) in [(27, 1), (3, 10), (6, 50), (31, 50), (32, 50), (39, 50), (40, 50), (50, 10)] {
        let start = Instant::now();
        let battery = exact(k, samples / part)?;
        println!(
            "floor(2^{k} Z): {} samples, {:.0} s",
            samples / part,
            start.elapsed().as_secs_f64()
        );
        checks.extend(battery.checks());
    }
    let start = Instant::now();
    let reference = samples / 100;
    checks.extend(
        karney(27, reference)
            .checks()
            .into_iter()
            .map(|check| Check { name: format!("Karney's algorithm, {}", check.name), ..check }),
    );
    println!("Karney's algorithm: {reference} samples, {:.0} s", start.elapsed().as_secs_f64());
    checks.extend(ends(samples / 20_000)?);
    for (q, records) in sample::CASES {
        checks.extend(sample::poisson(SampleRate::new(q)?, records, samples / 100_000)?);
    }
    checks.extend(sample::shuffled_and_truncated(SampleRate::new(0.2)?, samples / 100_000)?);
    checks.extend(sample::fixed(FixedBatch::new(1000, 30)?, samples / 100_000)?);
    // Veilgrad's samplers, each against its own event.
    let (rate, batch, rounds) = (SampleRate::new(0.1)?, FixedBatch::new(200, 20)?, samples / 1000);
    let truncated = TruncatedPoisson::new(rate, 200, 24)?;
    checks.extend(law::of_sampler(&mut PoissonSampler::new(rate), 200, rounds)?);
    checks.extend(law::of_sampler(&mut TruncatedPoissonSampler::new(truncated), 200, rounds)?);
    checks.extend(law::of_sampler(&mut FixedSampler::new(batch), 200, rounds)?);
    checks.extend(law::of_sampler(&mut ShuffleSampler::new(batch), 200, rounds)?);
    let rounds_per_epoch = NonZeroU64::new(10).ok_or("an epoch has rounds")?;
    checks.extend(law::of_sampler(&mut AllocationSampler::new(rounds_per_epoch), 200, rounds)?);
    let groups = NonZeroU64::new(4).ok_or("there are groups")?;
    let cyclic = |first| CyclicSampler::new(rate, groups, first);
    checks.extend(law::of_cyclic_sampler(cyclic, 200, 3, samples / 10_000)?);
    // With 1e6 releases, 0.99 of the noise in a single number is 14 standard deviations of its variance.
    checks.extend(release::law(samples / 1000, 1.0)?);
    for threads in [1, 2] {
        checks.extend(release::law_on_threads(samples / 1_000_000, threads)?);
        // With 100 segments, 7.5e7 numbers for every distance between rounds: 0.99 of the noise in one group is 120 standard
        // deviations of its variance.
        checks.extend(correlated::law(samples / 10_000_000, threads, |_| ())?);
    }
    checks.extend(correlated::law_of_coordinates(samples / 10_000, |_| ())?);

    println!("\n{:<58}{:>12}", "check", "tail");
    for check in &checks {
        let verdict = if check.holds() { "" } else { "  FAILED" };
        println!("{:<58}{:>12.3e}{verdict}", check.name, check.tail);
    }
    let failed = checks.iter().filter(|check| !check.holds()).count();
    let smallest = checks.iter().map(|check| check.tail).fold(1.0, f64::min);
    println!(
        "\nfalse-alarm probability about {} x {ALPHA:.0e} = {:.0e}; smallest tail {smallest:.1e}",
        checks.len(),
        checks.len() as f64 * ALPHA
    );
    println!("{} passed, {failed} failed", checks.len() - failed);
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The statistics of vectors of a million coordinates, each with a fresh key, on two threads.
fn exact(k: u8, samples: u64) -> Result<Battery, Box<dyn std::error::Error>> {
    const VECTOR: u64 = 1 << 20;
    let grid = IntegerGrid::new(1, k)?;
    let draw = |vectors: u64| -> Result<Battery, veilgrad_random::RandomError> {
        let (mut battery, mut values) = (Battery::new(k), Vec::new());
        for _ in 0..vectors {
            gaussian::fill(&RoundKey::from_os()?, 0, grid, &mut values, VECTOR as usize, 1)?;
            battery.add(&values);
        }
        Ok(battery)
    };
    let vectors = samples.div_ceil(VECTOR);
    let (one, two) = std::thread::scope(|scope| {
        let one = scope.spawn(|| draw(vectors / 2));
        let two = draw(vectors - vectors / 2);
        (one.join(), two)
    });
    let mut battery = one.map_err(|_| "a thread panicked")??;
    battery.merge(&two?);
    Ok(battery)
}

fn karney(k: u8, samples: u64) -> Battery {
    let (mut karney, mut battery) = (Karney::new(5), Battery::new(k));
    for _ in 0..samples.div_ceil(4096) {
        let values: Vec<i64> = (0..4096).map(|_| karney.sample(k)).collect();
        battery.add(&values);
    }
    battery
}

/// The first and last coordinates of many short vectors.
fn ends(vectors: u64) -> Result<Vec<Check>, Box<dyn std::error::Error>> {
    let (mut checks, grid) = (Vec::new(), IntegerGrid::new(1, 27)?);
    for length in [1usize, 2, 511, 513, 4097] {
        let (mut first, mut last) = (Battery::new(27), Battery::new(27));
        let mut values = Vec::new();
        for _ in 0..vectors.max(20_000) {
            gaussian::fill(&RoundKey::from_os()?, 3, grid, &mut values, length, 2)?;
            first.add(&values[..1]);
            last.add(&values[length - 1..]);
        }
        for (end, battery) in [("first", first), ("last", last)] {
            checks.extend(battery.checks().into_iter().map(|check| Check {
                name: format!("{end} of {length}, {}", check.name),
                ..check
            }));
        }
    }
    Ok(checks)
}
