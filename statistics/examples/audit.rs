//! Audits of many runs, correct and broken: `cargo run --release -p veilgrad-statistics --example audit [RUNS]`, 200 by
//! default. Fails if more than 5 % of the correct runs are accused, or a broken one is not.
#![allow(clippy::print_stdout)]

use std::process::ExitCode;

use veilgrad_statistics::audit::{Rounds, verdicts};

fn main() -> Result<ExitCode, Box<dyn std::error::Error>> {
    let runs = std::env::args().nth(1).map_or(Ok(200), |runs| runs.parse::<usize>())?;
    let mut failed = false;
    println!(
        "{:<58}{:>6}{:>10}{:>8}{:>8}{:>10}",
        "rounds", "runs", "bound", "least", "most", "accused"
    );
    let mut row = |name: String,
                   claimed: Rounds,
                   really: Rounds,
                   canaries: usize,
                   runs: usize,
                   least,
                   most| {
        let verdicts = verdicts(claimed, really, canaries, runs)?;
        let bounds = || verdicts.iter().map(|verdict| verdict.epsilon_lower);
        let mean = bounds().sum::<f64>() / runs as f64;
        let (low, high) = (bounds().fold(f64::INFINITY, f64::min), bounds().fold(0.0, f64::max));
        let accused = verdicts.iter().filter(|verdict| verdict.contradicted).count();
        let wrong = accused < least || accused > most;
        failed |= wrong;
        let verdict = if wrong { "  FAILED" } else { "" };
        println!("{name:<58}{runs:>6}{mean:>10.2}{low:>8.2}{high:>8.2}{accused:>10}{verdict}");
        Ok::<(), Box<dyn std::error::Error>>(())
    };
    // The strength of the method: one release without sampling, and rounds of samples.
    for (rate, count) in [(1.0, 1), (0.1, 50)] {
        for epsilon in [1.0, 3.0, 8.0] {
            let claimed = Rounds::of_epsilon(epsilon, rate, count)?;
            for canaries in [1000, 5000] {
                let name = format!("epsilon {epsilon}, rate {rate} x {count}, {canaries} canaries");
                let few = runs.div_ceil(10);
                row(name, claimed, claimed, canaries, few, 0, few.div_ceil(20))?;
            }
        }
    }
    let claimed = Rounds::reference()?;
    let name = |what: &str| format!("epsilon 3, rate 0.1 x 250, 5000 canaries: {what}");
    row(name("correct"), claimed, claimed, 5000, runs, 0, runs / 20)?;
    for (what, really) in claimed.broken() {
        let few = runs.div_ceil(10);
        row(name(what), claimed, really, 5000, few, few, few)?;
    }
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
