//! Speed of drawing samples: `cargo bench -p veilgrad-benches --bench sample`.
#![allow(clippy::print_stdout, missing_docs)]

use std::hint::black_box;

use veilgrad::events::{FixedBatch, SampleRate};
use veilgrad_benches::race;
use veilgrad_random::subset::{Poisson, permutation, without_replacement};
use veilgrad_random::{RandomError, RoundKey};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let quick = std::env::args().any(|argument| argument == "--quick");
    let turns = if quick { 3 } else { 11 };
    println!("{:<44}{:>10}{:>22}", "draw, best of alternating turns", "ms", "ns per drawn record");
    let report =
        |name: String, drawn: f64, draw: &mut dyn FnMut() -> Result<usize, RandomError>| {
            let mut failed = None;
            let seconds = race(
                turns,
                1,
                &mut [&mut || match draw() {
                    Ok(size) => {
                        black_box(size);
                    }
                    Err(error) => failed = Some(error),
                }],
            );
            let seconds = seconds.first().copied().unwrap_or(f64::NAN);
            println!("{name:<44}{:>10.2}{:>22.1}", seconds * 1e3, seconds * 1e9 / drawn);
            failed.map_or(Ok(()), Err)
        };
    for (n, q) in
        [(100_000_000u64, 1e-3), (100_000_000, 1e-5), (10_000_000, 0.1), (10_000_000, 0.5)]
    {
        let poisson = Poisson::new(SampleRate::new(q)?);
        let name = format!("Poisson, n = {n}, q = {q}");
        report(name, n as f64 * q, &mut || Ok(poisson.draw(&RoundKey::from_os()?, n)?.len()))?;
    }
    let batch = FixedBatch::new(1_000_000, 8192)?;
    let name = "8192 of 1000000 without replacement".to_owned();
    report(name, 8192.0, &mut || Ok(without_replacement(&RoundKey::from_os()?, batch)?.len()))?;
    let name = "permutation of 1000000".to_owned();
    report(name, 1e6, &mut || Ok(permutation(&RoundKey::from_os()?, 1_000_000)?.len()))?;
    Ok(())
}
