//! Time and memory of correlated noise against the number of parameters and bands, beside plain noise in the same run, and the
//! time of the optimiser of strategies.
//!
//! `cargo bench -p veilgrad-benches --bench correlated [-- --quick]`. Without `--quick` it fails beyond its limits.
#![allow(clippy::print_stdout, missing_docs)]

use std::num::NonZeroU64;
use std::time::Instant;

use veilgrad::events::{
    Adjacency, ClipNorm, MemoryLedger, NoiseMultiplier, RecordUnit, Run, RunHeader, SampleRate,
};
use veilgrad::mechanism::{
    Allocation, CorrelatedNoise, CyclicSampler, Group, Noise, RoundPlan, Sample, Structure,
};
use veilgrad_accounting::Workload;
use veilgrad_benches::{peak_megabytes, resident_megabytes};

/// Nanoseconds per coordinate and band at most.
const NANOSECONDS: f64 = 1.5;
/// Seconds of the optimiser at most.
const SECONDS: f64 = 2.0;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> Result<()> {
    let quick = std::env::args().any(|argument| argument == "--quick");
    let sizes: &[usize] = if quick { &[10_000, 100_000] } else { &[10_000, 100_000, 1_000_000] };
    println!("one thread, best of the rounds after the bands are full");
    println!(
        "{:>10} {:>6} {:>12} {:>12} {:>14} {:>10} {:>10}",
        "parameters", "bands", "plain ms", "round ms", "ns/coord/band", "ring MB", "more MB"
    );
    let mut slowest: f64 = 0.0;
    for (d, bands) in sizes.iter().flat_map(|d| [2, 8, 16, 32, 64].map(|bands| (*d, bands))) {
        slowest = slowest.max(row(d, bands)?);
    }
    println!("peak memory {:.0} MB", peak_megabytes());
    let mut longest: f64 = 0.0;
    for (rounds, bands) in [(500, 16), (1172, 16), (10_000, 16), (10_000, 64)] {
        let start = Instant::now();
        let workload = Workload::prefix_sums(rounds);
        let ratio = workload.error_ratio(&workload.strategy(bands)?);
        let seconds = start.elapsed().as_secs_f64();
        println!("strategy of {bands} bands for {rounds} rounds: error {ratio:.4}, {seconds:.3} s");
        longest = longest.max(seconds);
    }
    match quick || (slowest <= NANOSECONDS && longest <= SECONDS) {
        true => Ok(()),
        false => {
            Err(format!("{slowest:.2} ns per coordinate and band, or {longest:.2} s, are too many")
                .into())
        }
    }
}

/// Prints the best time of a round with plain and with correlated noise, and returns nanoseconds per coordinate and band. The
/// last column is how much more of memory is resident after the rounds, which is less than the ring where memory that was used
/// before is used again.
fn row(d: usize, bands: usize) -> Result<f64> {
    let structure = Structure::new([("x", d)])?;
    let group = Group::new("x", ["x"], ClipNorm::new(1.0)?);
    let noise = Allocation::Proportional(NoiseMultiplier::new(1.0)?);
    let plain = RoundPlan::new(structure, vec![group], noise)?;
    let plan = plain.correlated(Workload::prefix_sums(1000).strategy(bands)?)?;
    let rounds = bands as u64 + 10;
    let resident = resident_megabytes();
    let mut source = CorrelatedNoise::new(&plan, rounds)?;
    let groups = NonZeroU64::new(bands as u64).ok_or("zero")?;
    let mut sampler = CyclicSampler::new(SampleRate::new(0.5)?, groups, 0);
    let header = RunHeader::new(RecordUnit::Example, Adjacency::AddRemove);
    let mut run = Run::open(MemoryLedger::new(), header)?;
    let (mut best, mut best_plain) = (f64::INFINITY, f64::INFINITY);
    for (t, permit) in run.reserve(&plan.round(&sampler)?, rounds)?.enumerate() {
        let sample = Sample::draw(permit, &mut sampler, 0)?;
        let start = Instant::now();
        let drawn = source.draw(&sample, 1)?;
        let middle = Instant::now();
        drop(drawn);
        let between = Instant::now();
        drop(Noise::draw_on(&plain, 1)?);
        if t + 1 >= bands {
            best = best.min((middle - start).as_secs_f64());
            best_plain = best_plain.min(between.elapsed().as_secs_f64());
        }
    }
    let per_band = (best - best_plain) * 1e9 / d as f64 / (bands - 1) as f64;
    let ring = 8.0 * (bands - 1) as f64 * d as f64 / 1e6;
    let (plain, round) = (best_plain * 1e3, best * 1e3);
    let more = resident_megabytes() - resident;
    println!(
        "{d:>10} {bands:>6} {plain:>12.3} {round:>12.3} {per_band:>14.2} {ring:>10.2} {more:>10.2}"
    );
    Ok(per_band)
}
