//! `veilgrad-fuzz [--executions N] [--seconds S] [--seed X] [--limit S] [TARGET...]`: runs readers on altered inputs.
//! `veilgrad-fuzz --input TARGET SEED NUMBER` writes one of the inputs to stdout.
//!
//! The executions are divided among all targets; slow ones get fewer. Each target runs in a process with two threads and 1 GiB
//! of address space (`RLIMIT_AS`). Inputs that fail are written to `fuzz/regressions/TARGET`.

#![allow(clippy::print_stdout)]

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use veilgrad_fuzz::drive::{MEMORY, THREADS, input, run, work};
use veilgrad_fuzz::{TARGETS, Target, corpus, saved};

const USAGE: &str = "veilgrad-fuzz [--executions N] [--seconds S] [--seed X] [--limit S] [--write-corpus] [TARGET...]";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let done = match words.split_first() {
        Some((first, rest)) if first == "--worker" => work(rest).map(|text| {
            print!("{text}");
            true
        }),
        Some((first, [name, seed, number])) if first == "--input" => show(name, seed, number),
        Some((first, [])) if first == "--write-corpus" => corpus::write().map(|()| true),
        _ => Plan::read(&words).map_err(Into::into).and_then(|plan| plan.run()),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}\n{USAGE}");
            ExitCode::from(2)
        }
    }
}

/// Writes an input to stdout.
fn show(name: &str, seed: &str, number: &str) -> Result<bool, Box<dyn std::error::Error>> {
    let target = TARGETS.iter().find(|target| target.name == name).ok_or("not a target")?;
    let bytes = input(target, &saved::of(name), seed.parse()?, number.parse()?);
    std::io::stdout().write_all(&bytes)?;
    Ok(true)
}

struct Plan {
    executions: u64,
    seconds: u64,
    seed: u64,
    /// Seconds of CPU time after which an input counts as a hang.
    limit: u64,
    targets: Vec<&'static Target>,
}

impl Plan {
    fn read(words: &[String]) -> Result<Self, String> {
        // By default there is no time limit, and the seed is the current time; it is printed.
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let seed = now.map_or(1, |now| now.as_secs());
        let mut plan =
            Self { executions: 100_000, seconds: 0, seed, limit: 1, targets: Vec::new() };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let option = match word.as_str() {
                "--executions" => Some(&mut plan.executions),
                "--seconds" => Some(&mut plan.seconds),
                "--seed" => Some(&mut plan.seed),
                "--limit" => Some(&mut plan.limit),
                _ => None,
            };
            if let Some(option) = option {
                let number = words.next().and_then(|number| number.parse().ok());
                *option = number.ok_or_else(|| format!("{word} needs a number"))?;
                continue;
            }
            let found = TARGETS.iter().find(|target| target.name == word);
            plan.targets.push(found.ok_or_else(|| format!("{word} is not a target"))?);
        }
        if plan.targets.is_empty() {
            plan.targets = TARGETS.iter().collect();
        }
        Ok(plan)
    }

    /// Runs all targets; returns whether none failed.
    fn run(&self) -> Result<bool, Box<dyn std::error::Error>> {
        println!(
            "seed {}: at most {} s of CPU time for an input; {THREADS} threads per process, at most {} MiB of address space",
            self.seed,
            self.limit,
            MEMORY >> 20
        );
        println!(
            "{:<14}{:>12}{:>10}{:>14}{:>10}{:>12}{:>10}",
            "target", "executions", "seconds", "slowest (ms)", "input", "peak (MiB)", "failures"
        );
        let shares: u64 = self.targets.iter().map(|target| target.share).sum();
        let (mut executions, mut failures) = (0, 0);
        for target in &self.targets {
            let portion_of = |whole: u64| (whole * target.share).div_ceil(shares);
            let time = match self.seconds {
                0 => Duration::MAX / 4,
                seconds => Duration::from_secs(seconds) / self.targets.len() as u32,
            };
            let time = time.min(Duration::from_secs(1 << 30));
            let report = run(
                target,
                (self.seed, Duration::from_secs(self.limit)),
                portion_of(self.executions),
                time,
            )?;
            println!(
                "{:<14}{:>12}{:>10.1}{:>14.2}{:>10}{:>12.1}{:>10}",
                target.name,
                report.executions,
                report.seconds,
                report.slowest.0.as_secs_f64() * 1e3,
                report.slowest.1,
                report.memory as f64 / f64::from(1 << 20),
                report.failures.len()
            );
            for (number, what) in report.failures.iter().take(5) {
                println!("    input {number}: {what}");
            }
            executions += report.executions;
            failures += report.failures.len();
        }
        println!("{executions} executions, {failures} failures");
        Ok(failures == 0)
    }
}
