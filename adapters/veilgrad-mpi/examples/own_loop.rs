//! A training loop of its own on the ranks of MPI, with reproducible samples and noise. Prints a hash of everything that was
//! released.
//!
//! `mpirun -n N target/debug/examples/own_loop ROUNDS`, or without mpirun and with `alone`: the same loop in one process, without
//! ranks. The three lines that share a round are numbered as in the documentation of the crate.
#![allow(clippy::print_stdout)]

use mpi::traits::Communicator;
use veilgrad_events::{
    Adjacency, ClipNorm, MemoryLedger, NoiseMultiplier, PublicCount, RecordUnit, Run, RunHeader,
};
use veilgrad_mechanism::insecure::{released_integers, seeded_noise};
use veilgrad_mechanism::{
    Allocation, Estimates, Group, PartialSum, RecordVector, Released, RoundPlan, Sample, Structure,
    SumError,
};
use veilgrad_mpi::{Ranks, end_job_on_panic};

#[path = "training/mod.rs"]
mod training;

use training::{Made, Reproducible, scramble};

const RECORDS: u64 = 500;
const RATE: f64 = 0.2;
/// More than one block of a reduction, and none of them full at the end.
const WEIGHTS: usize = 300_001;

fn main() -> Made<()> {
    end_job_on_panic();
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [rounds, rest @ ..] = &words[..] else { return Err("own_loop ROUNDS [alone]".into()) };
    let rounds = rounds.parse()?;
    let hash = match rest {
        [] => shared(rounds)?,
        _ => Some(alone(rounds)?),
    };
    if let Some(hash) = hash {
        println!("{hash:016x}");
    }
    Ok(())
}

/// The same plan on every rank.
fn plan() -> Made<RoundPlan> {
    let structure = Structure::new([("weights", WEIGHTS)])?;
    let expected = PublicCount::new(RATE * RECORDS as f64)?;
    let group = Group::new("gradient", ["weights"], ClipNorm::new(1.0)?).average(expected);
    Ok(RoundPlan::new(
        structure,
        vec![group],
        Allocation::Proportional(NoiseMultiplier::new(1.1)?),
    )?)
}

/// The gradient of a record: towards made-up values of its own.
fn gradient(id: u64, weights: &[f32]) -> Vec<f32> {
    let seed = scramble(id) >> 40;
    let to = |place: u64| ((seed + place) % 61) as f32 / 61.0 - 0.5;
    (0..).zip(weights).map(|(place, weight)| weight - to(place)).collect()
}

fn add(part: &mut PartialSum, ids: &[u64], weights: &[f32]) -> Result<(), SumError> {
    ids.iter().try_for_each(|id| part.add(&[RecordVector::Values(&gradient(*id, weights))]))
}

fn run() -> Made<Run<MemoryLedger>> {
    let header = RunHeader::new(RecordUnit::Example, Adjacency::AddRemove);
    Ok(Run::open_insecure(MemoryLedger::new(), header, "reproducible")?)
}

/// The loop on all ranks; the hash on rank 0.
fn shared(rounds: u64) -> Made<Option<u64>> {
    let universe = mpi::initialize().ok_or("MPI is already initialised")?;
    let ranks = Ranks::new(universe.world());
    let is_root = universe.world().rank() == 0;
    let (plan, mut hash) = (plan()?, is_root.then_some(0));
    let mut sampler = Reproducible { rate: RATE, truncated: None, round: 0 };
    let mut run = run()?;
    let mut permits = match is_root {
        true => Some(run.reserve(&plan.round(&sampler)?, rounds)?),
        false => None,
    };
    let mut weights = vec![0.0f32; WEIGHTS];
    for round in 0..rounds {
        let permit = permits.as_mut().and_then(Iterator::next);
        let sample =
            permit.map(|permit| Sample::draw(permit, &mut sampler, RECORDS)).transpose()?;
        let (mut part, ids) = ranks.begin(sample.as_ref(), &plan, RECORDS)?; // 1
        add(&mut part, &ids, &weights)?;
        let sum = ranks.reduce(part, sample.as_ref().map(|sample| sample.begin(&plan)))?; // 2
        if let (Some(sum), Some(sample)) = (sum, sample) {
            let released = sum.release(sample, seeded_noise(&plan, round)?)?;
            hash = hash.map(|hash| step(&released, &mut weights, hash));
        }
        ranks.broadcast(&mut weights); // 3
    }
    Ok(hash)
}

/// The loop in one process.
fn alone(rounds: u64) -> Made<u64> {
    let (plan, mut hash) = (plan()?, 0);
    let mut sampler = Reproducible { rate: RATE, truncated: None, round: 0 };
    let mut run = run()?;
    let mut weights = vec![0.0f32; WEIGHTS];
    for (round, permit) in (0..).zip(run.reserve(&plan.round(&sampler)?, rounds)?) {
        let sample = Sample::draw(permit, &mut sampler, RECORDS)?;
        let mut sum = sample.begin(&plan);
        for id in sample.ids() {
            sum.add(&[&gradient(id, &weights)])?;
        }
        let released = sum.release(sample, seeded_noise(&plan, round)?)?;
        hash = step(&released, &mut weights, hash);
    }
    Ok(hash)
}

/// Updates the weights by what was released, and adds its integers to a hash.
fn step(released: &Released<Estimates>, weights: &mut [f32], hash: u64) -> u64 {
    if let Some(gradient) = released.vector("weights") {
        weights.iter_mut().zip(gradient.iter()).for_each(|(w, g)| *w -= 0.5 * g as f32);
    }
    let integers = released_integers(released).iter().flatten();
    integers.fold(hash, |hash, integer| scramble(hash ^ integer.cast_unsigned()))
}
