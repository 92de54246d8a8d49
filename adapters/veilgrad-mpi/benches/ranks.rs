//! How long reductions take, and how much CPU time a record costs on 1, 2 and 4 ranks beside as many processes without MPI, each
//! of which does the work of all ranks. They run at once, because processes share caches and cores whatever they do.
//!
//! `cargo bench --features clock --bench ranks [-- --quick]` starts `mpirun` on itself. Without `--quick` it exits with 1 if
//! compute per record exceeds that of one such process by more than a twentieth.
//!
//! The CPU time of a rank is that of its thread over all rounds but the first, which allocates. It has two parts. *Within MPI*:
//! the CPU time between entering and leaving the functions of the MPI library. Most of it is waiting, because MPI waits without
//! sleeping; the rest copies messages and adds integers. *Compute*: everything else, which is all code of this repository:
//! records, noise, release and optimizer, and also packing weights, finishing and checking partial sums. A process
//! without MPI has compute alone. Both are summed over ranks, and divided by the expected number of records.
#![allow(clippy::print_stdout)]

use std::collections::BTreeMap;
use std::process::Command;
use std::time::{Duration, Instant};

use mpi::collective::SystemOperation;
use mpi::environment::Universe;
use mpi::traits::{Communicator, CommunicatorCollectives, Root};
use rustix::time::{ClockId, clock_gettime};
use veilgrad_cli::{Follower, Order};
use veilgrad_events::{
    Adjacency, ClipNorm, MemoryLedger, NoiseMultiplier, RecordUnit, Run, RunHeader,
};
use veilgrad_mechanism::{
    AllRecords, Allocation, Group, RecordVector, RoundPlan, Sample, Structure,
};
use veilgrad_mpi::{Rank, Ranks, World, cpu_time_within_mpi, end_job_on_panic};

#[path = "../examples/training/mod.rs"]
mod training;

use training::{Made, MadeUp, Reproducible, trainer};

fn main() -> Made<()> {
    end_job_on_panic();
    let words: Vec<String> = std::env::args().skip(1).collect();
    let quick = words.iter().any(|word| word == "--quick");
    match words.iter().find_map(|word| word.strip_prefix("--measure=")) {
        Some("reduce") => reductions(quick),
        Some(model) => cpu_time(model, quick, words.iter().any(|word| word == "--alone")),
        None => {
            for ranks in [1, 2, 4] {
                print!("{}", measure(ranks, "reduce", false, quick)?);
            }
            compare_cpu_time(quick)
        }
    }
}

/// Runs this program on some ranks, or as many times at once without MPI if it is `alone`.
fn measure(ranks: u32, what: &str, alone: bool, quick: bool) -> Made<String> {
    let mut command = Command::new("mpirun");
    command.args(["--oversubscribe", "--allow-run-as-root", "--bind-to", "none"]);
    command.args(["--mca", "btl_vader_single_copy_mechanism", "none"]);
    command.args(["-n", &ranks.to_string()]).arg(std::env::current_exe()?);
    if alone {
        command.arg("--alone");
    }
    command.arg(format!("--measure={what}"));
    if quick {
        command.arg("--quick");
    }
    let output = command.output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned().into());
    }
    Ok(String::from_utf8(output.stdout)?)
}

/// The most that compute per record may be on any number of ranks, beside as many processes without MPI.
const MOST: f64 = 1.05;

/// The least of several measurements of compute per record, with and without MPI in turn. Only many of them are judged.
fn compare_cpu_time(quick: bool) -> Made<()> {
    let turns = if quick { 1 } else { 5 };
    let mut worst = 0.0f64;
    for (model, ranks) in ["a", "b"].into_iter().flat_map(|model| [1, 2, 4].map(|n| (model, n))) {
        // Compute, and the time within MPI beside it.
        let mut least = BTreeMap::new();
        for alone in (0..turns).flat_map(|_| [true, false]) {
            let found = measure(ranks, model, alone, quick)?;
            let lines: Vec<(f64, f64)> = found.lines().map(parts).collect::<Made<_>>()?;
            let mean = |part: fn(&(f64, f64)) -> f64| {
                lines.iter().map(part).sum::<f64>() / lines.len() as f64
            };
            let found = (mean(|line| line.0), mean(|line| line.1));
            let best = least.entry(alone).or_insert(found);
            if found.0 < best.0 {
                *best = found;
            }
        }
        let ((separate, _), (compute, within)) = (least[&true], least[&false]);
        let ratio = compute / separate;
        worst = worst.max(ratio);
        println!(
            "model {model}, {ranks} ranks: compute {compute:.2} us per record, {ratio:.3} of {ranks} processes without MPI \
             ({separate:.2} us); within MPI {within:.2} us"
        );
    }
    if !quick && worst > MOST {
        return Err(
            format!("compute per record is {worst:.3} of that without MPI, above {MOST}").into()
        );
    }
    Ok(())
}

/// The two numbers of a line.
fn parts(line: &str) -> Made<(f64, f64)> {
    let (compute, within) = line.split_once(' ').ok_or("no measurement")?;
    Ok((compute.parse()?, within.parse()?))
}

fn initialise() -> Made<Universe> {
    mpi::initialize().ok_or_else(|| "MPI is already initialised".into())
}

/// The CPU time of this thread outside of MPI and within it, in nanoseconds.
fn cpu() -> [u64; 2] {
    let all = Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default();
    let within = cpu_time_within_mpi();
    [all.saturating_sub(within), within].map(|time| time.as_nanos() as u64)
}

/// The median time of a reduction of every size, and of MPI's own on as many integers.
fn reductions(quick: bool) -> Made<()> {
    let universe = initialise()?;
    let world = universe.world();
    let ranks = Ranks::new(universe.world());
    let root = world.process_at_rank(0);
    for power in if quick { 4..=6 } else { 4..=7 } {
        let d = 10usize.pow(power);
        let times = if quick { 3 } else { (100_000_000 / d).clamp(11, 301) };
        let structure = Structure::new([("x", d)])?;
        let group = Group::new("x", ["x"], ClipNorm::new(1.0)?);
        let noise = Allocation::Proportional(NoiseMultiplier::new(1.0)?);
        let plan = RoundPlan::new(structure, vec![group], noise)?;
        let (record, integers) = (vec![0.001f32; d], vec![1u64; d]);
        let (mut ours, mut bare) = (Vec::new(), Vec::new());
        for _ in 0..times {
            let sample = match world.rank() {
                0 => Some(sample(&plan)?),
                _ => None,
            };
            let (mut part, _) = ranks.begin(sample.as_ref(), &plan, 1)?;
            part.add(&[RecordVector::Values(&record)])?;
            let total = sample.as_ref().map(|sample| sample.begin(&plan));
            world.barrier();
            let start = Instant::now();
            let total = ranks.reduce(part, total)?;
            ours.push(start.elapsed());
            drop(total);
            let mut reduced = vec![0u64; d];
            world.barrier();
            let start = Instant::now();
            match world.rank() {
                0 => root.reduce_into_root(&integers[..], &mut reduced[..], SystemOperation::sum()),
                _ => root.reduce_into(&integers[..], SystemOperation::sum()),
            }
            bare.push(start.elapsed());
        }
        if world.rank() == 0 {
            ours.sort();
            bare.sort();
            let milliseconds =
                |times: &[std::time::Duration]| 1e3 * times[times.len() / 2].as_secs_f64();
            println!(
                "{} ranks, d = 1e{power}: reduced, checked and added in {:.3} ms; MPI_Reduce alone {:.3} ms; {:.1} MB sent by a rank",
                world.size(),
                milliseconds(&ours),
                milliseconds(&bare),
                8e-6 * d as f64
            );
        }
    }
    Ok(())
}

fn sample(plan: &RoundPlan) -> Made<Sample> {
    let header = RunHeader::new(RecordUnit::Example, Adjacency::AddRemove);
    let mut run = Run::open(MemoryLedger::new(), header)?;
    let permit = run.reserve(&plan.round(&AllRecords)?, 1)?.next().ok_or("no permit")?;
    Ok(Sample::draw(permit, &mut AllRecords, 1)?)
}

/// Prints the CPU time of all ranks per record, outside of MPI and within it.
fn cpu_time(model: &str, quick: bool, alone: bool) -> Made<()> {
    let (batch, rounds) = if quick { (1024.0, 3) } else { (4096.0, 6) };
    let records = MadeUp { count: 60_000, most: 1 };
    let mut trainer = trainer(model, batch, 1)?;
    let universe = if alone { None } else { Some(initialise()?) };
    let rank = universe.as_ref().map_or(0, |universe| universe.world().rank());
    // The first round allocates.
    let mut start = cpu();
    if rank > 0 {
        let mut round = 0;
        while let Order::Round(shared, ids) = Rank.next()? {
            let part = trainer.part(shared, ids, &records)?;
            Rank.give(part)?;
            round += 1;
            if round == 1 {
                start = cpu();
            }
        }
    } else {
        let world = World::default();
        if !alone {
            trainer.share_with(Box::new(world.clone()));
        }
        let rate = batch / records.count as f64;
        let mut sampler = Reproducible { rate, truncated: None, round: 0 };
        let mut run = Run::open(MemoryLedger::new(), trainer.header(Adjacency::AddRemove))?;
        for round in 0..=rounds {
            let permit = run.reserve(&trainer.event(&sampler)?, 1)?.next().ok_or("no permit")?;
            trainer.round(permit, &mut sampler, &records)?;
            if round == 0 {
                start = cpu();
            }
        }
        if !alone {
            assert!(world.end());
        }
    }
    let end = cpu();
    let mut spent: [u64; 2] = std::array::from_fn(|part| end[part] - start[part]);
    if let Some(universe) = &universe {
        let world = universe.world();
        let (root, mut total) = (world.process_at_rank(0), [0; 2]);
        match rank {
            0 => root.reduce_into_root(&spent[..], &mut total[..], SystemOperation::sum()),
            _ => root.reduce_into(&spent[..], SystemOperation::sum()),
        }
        spent = total;
    }
    if rank == 0 {
        let [compute, within] = spent.map(|time| time as f64 / 1e3 / (batch * f64::from(rounds)));
        println!("{compute} {within}");
    }
    Ok(())
}
