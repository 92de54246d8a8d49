//! What a round of private training costs as records, parameters and rounds grow, and what that means for
//! 1e10 records and 1e9 parameters: `cargo bench -p veilgrad-benches --bench scale [-- --quick]`.
//!
//! Every case is a process of its own, on one thread, with a durable ledger. Needs 2 GB of disk in the directory for
//! temporary files and 5 GB of memory.
#![allow(clippy::print_stdout, missing_docs)]

use std::error::Error;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

use veilgrad::accounting::{Composition, Tightest, profile};
use veilgrad::events::{Budget, Mode};
use veilgrad::ledger::{Ledger, Options};
use veilgrad::nn::{
    Clipping, Layer, Loss, Model, Performance, Records, Schedule, Sgd, Trainer, TrainingPlan,
};
use veilgrad::prelude::*;
use veilgrad_benches::{cpu_seconds, peak_megabytes};

/// A stored record: 16 features of a byte each, and a label.
const FEATURES: usize = 16;
const RECORD: usize = FEATURES + 1;
/// Records per round in expectation, where the number of records or rounds varies, and where that of parameters does.
const SAMPLE: f64 = 4096.0;
const SMALL_SAMPLE: f64 = 64.0;

type Anything<T> = Result<T, Box<dyn Error>>;

/// Records that stay on disk. Only those that are sampled are read.
struct OnDisk {
    file: File,
    count: u64,
}

impl Records for OnDisk {
    fn count(&self) -> u64 {
        self.count
    }

    fn read(&self, record: u64, _: usize, input: &mut [f32], target: &mut [f32]) {
        let mut bytes = [0; RECORD];
        if self.file.read_exact_at(&mut bytes, record * RECORD as u64).is_err() {
            return;
        }
        for (input, byte) in input.iter_mut().zip(&bytes[..FEATURES]) {
            *input = f32::from(*byte) * (1.0 / 255.0);
        }
        target[0] = f32::from(bytes[FEATURES]);
    }
}

/// Made-up records of any width, each computed when it is read.
struct MadeUp {
    classes: u64,
}

impl Records for MadeUp {
    fn count(&self) -> u64 {
        1_000_000
    }

    fn read(&self, record: u64, _: usize, input: &mut [f32], target: &mut [f32]) {
        for (index, input) in (record * 7919..).zip(input) {
            *input = (index % 1009) as f32 * (2.0 / 1009.0) - 1.0;
        }
        target[0] = (record % self.classes) as f32;
    }
}

/// Writes records to a file, for the largest case; smaller cases use its beginning.
fn write_records(path: &Path, count: u64) -> Anything<()> {
    let mut file = BufWriter::new(File::create(path)?);
    let mut state = 1u64;
    for _ in 0..count {
        let mut record = [0; RECORD];
        for bytes in record.chunks_mut(8) {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            bytes.copy_from_slice(&state.swap_bytes().to_le_bytes()[..bytes.len()]);
        }
        record[FEATURES] %= 10;
        file.write_all(&record)?;
    }
    Ok(file.flush()?)
}

/// Trains for some rounds, and prints CPU ms per round, wall ms per round, peak MB and the ledger's KB.
fn train(
    directory: &Path,
    records: &impl Records,
    (inputs, outputs): (usize, usize),
    sample: f64,
    rounds: u64,
) -> Anything<()> {
    let model = Model::new(&[inputs], [Layer::linear(outputs)], 1)?;
    let clipping = Clipping::Flat(ClipNorm::new(1.0)?);
    let noise = NoiseMultiplier::new(1.1)?;
    let plan = TrainingPlan::new(clipping, noise, PublicCount::new(sample)?);
    let performance = Performance { threads: 1, tile: 0 };
    let loss = Loss::SoftmaxCrossEntropy;
    let schedule = Schedule::Constant(0.1);
    let mut trainer = Trainer::new(model, loss, plan, Sgd::plain(), schedule, performance)?;
    let rate = SampleRate::new((sample / records.count() as f64).min(0.5))?;
    let mut sampler = PoissonSampler::new(rate);
    let budget = Budget {
        dataset: "made-up".to_owned(),
        unit: RecordUnit::Example,
        adjacency: Adjacency::AddRemove,
        delta: Delta::new(1e-5)?,
        epsilon: Epsilon::new(1e5)?,
        mode: Mode::Planned,
        order: None,
    };
    let path = directory.join(format!("ledger-{}.db", std::process::id()));
    let header = trainer.header(Adjacency::AddRemove);
    let (mut run, _) =
        Ledger::open_run(&path, Options::default(), &budget, header, Arc::new(Tightest))?;
    trainer.train(&mut run, &mut sampler, records, 1, 1, |_, _| ())?;
    let (start, cpu) = (Instant::now(), cpu_seconds());
    trainer.train(&mut run, &mut sampler, records, rounds, 32, |_, _| ())?;
    let (wall, cpu) = (start.elapsed().as_secs_f64(), cpu_seconds() - cpu);
    run.close()?;
    let per_round = 1e3 / rounds as f64;
    let kilobytes = std::fs::metadata(&path)?.len() as f64 / 1e3;
    println!("{} {} {} {kilobytes}", cpu * per_round, wall * per_round, peak_megabytes());
    Ok(())
}

/// One case, in a process of its own.
fn one_case(kind: &str, size: f64, directory: &Path, quick: bool) -> Anything<()> {
    let fewer = if quick { 20 } else { 1 };
    match kind {
        "records" => {
            let file = File::open(directory.join("records"))?;
            let records = OnDisk { file, count: size as u64 };
            train(directory, &records, (FEATURES, 10), SAMPLE, 400 / fewer)
        }
        "parameters" => {
            // One more input than outputs would be the bias.
            let width = size.sqrt().round() as usize;
            let records = MadeUp { classes: width as u64 };
            let rounds = (1e9 / size).clamp(4.0, 2000.0) as u64;
            train(directory, &records, (width, width), SMALL_SAMPLE, (rounds / fewer).max(2))
        }
        "rounds" => {
            let records = MadeUp { classes: 10 };
            train(directory, &records, (FEATURES, 10), SMALL_SAMPLE, size as u64)
        }
        other => Err(format!("there is no case {other}").into()),
    }
}

struct Costs {
    cpu_ms: f64,
    wall_ms: f64,
    megabytes: f64,
    ledger_kilobytes: f64,
}

fn main() -> Anything<()> {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    let quick = arguments.iter().any(|a| a == "--quick");
    if let [kind, size, directory, ..] = &arguments[..] {
        return one_case(kind, size.parse()?, Path::new(directory), quick);
    }
    let directory = Scratch::new()?;
    let measure = |kind: &str, size: f64| -> Anything<Costs> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args([kind, &size.to_string()]).arg(&directory.0);
        if quick {
            command.arg("--quick");
        }
        let output = command.output()?;
        let text = String::from_utf8(output.stdout)?;
        let numbers: Vec<f64> = text.split_whitespace().filter_map(|n| n.parse().ok()).collect();
        let [cpu_ms, wall_ms, megabytes, ledger_kilobytes] = numbers[..] else {
            return Err(String::from_utf8_lossy(&output.stderr).into());
        };
        Ok(Costs { cpu_ms, wall_ms, megabytes, ledger_kilobytes })
    };

    let most = if quick { 5 } else { 8 };
    write_records(&directory.0.join("records"), 10u64.pow(most))?;
    println!("records on disk, {RECORD} bytes each; {SAMPLE} a round, 170 parameters");
    println!("{:>10}{:>14}{:>14}{:>10}", "records", "CPU ms/round", "ms/round", "MB");
    let mut by_records = Vec::new();
    for n in (4..=most).map(|power| 10f64.powi(power as i32)) {
        let costs = measure("records", n)?;
        println!(
            "{n:>10.0e}{:>14.3}{:>14.3}{:>10.0}",
            costs.cpu_ms, costs.wall_ms, costs.megabytes
        );
        by_records.push((n, costs));
    }

    println!("\none linear layer; {SMALL_SAMPLE} records a round");
    println!(
        "{:>10}{:>14}{:>14}{:>10}{:>14}{:>12}",
        "parameters", "CPU ms/round", "ms/round", "MB", "ns/parameter", "bytes/par."
    );
    let mut by_parameters = Vec::new();
    for d in (4..=if quick { 6 } else { 8 }).map(|power| 10f64.powi(power)) {
        let costs = measure("parameters", d)?;
        println!(
            "{d:>10.0e}{:>14.3}{:>14.3}{:>10.0}{:>14.2}{:>12.1}",
            costs.cpu_ms,
            costs.wall_ms,
            costs.megabytes,
            costs.cpu_ms * 1e6 / d,
            costs.megabytes * 1_048_576.0 / d
        );
        by_parameters.push((d, costs));
    }

    println!("\nrounds, charged in blocks of 32; {SMALL_SAMPLE} records a round, 170 parameters");
    println!(
        "{:>10}{:>14}{:>14}{:>12}{:>14}",
        "rounds", "CPU ms/round", "ms/round", "ledger KB", "account ms"
    );
    for rounds in (2..=if quick { 3 } else { 5 }).map(|power| 10f64.powi(power)) {
        let costs = measure("rounds", rounds)?;
        println!(
            "{rounds:>10.0e}{:>14.3}{:>14.3}{:>12.0}{:>14.2}",
            costs.cpu_ms,
            costs.wall_ms,
            costs.ledger_kilobytes,
            account_ms(rounds as u64)?
        );
    }

    extrapolate(&by_records, &by_parameters);
    Ok(())
}

/// The time to account for so many rounds.
fn account_ms(rounds: u64) -> Anything<f64> {
    let (rate, noise) = (SampleRate::new(1e-3)?, NoiseMultiplier::new(1.1)?);
    let composition = Composition::poisson(rate, noise, rounds, Adjacency::AddRemove)?;
    let start = Instant::now();
    std::hint::black_box(profile::epsilon(&composition, Delta::new(1e-6)?)?);
    Ok(start.elapsed().as_secs_f64() * 1e3)
}

/// What the largest cases say of 1e10 records and of 1e9 parameters.
fn extrapolate(by_records: &[(f64, Costs)], by_parameters: &[(f64, Costs)]) {
    let (Some((n, records)), Some((d, parameters))) = (by_records.last(), by_parameters.last())
    else {
        return;
    };
    println!("\nextrapolated from the last rows");
    println!(
        "1e10 records:    {:.1} CPU ms a round, as with {n:.0e}: only sampled records are read; {:.0} GB of disk",
        records.cpu_ms,
        1e10 * RECORD as f64 / 1e9
    );
    println!(
        "1e9 parameters:  {:.0} CPU s a round of {SMALL_SAMPLE} records, {:.0} GB of memory",
        parameters.cpu_ms / d * 1e9 / 1e3,
        parameters.megabytes * 1_048_576.0 / d
    );
}

/// A directory that is deleted at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Anything<Self> {
        let path = std::env::temp_dir().join(format!("veilgrad-scale-{}", std::process::id()));
        std::fs::create_dir_all(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
