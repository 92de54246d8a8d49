//! Trains a model with reproducible samples and noise, and prints a hash of everything that was released.
//!
//! `mpirun -n N target/debug/examples/bits MODEL ROUNDS [alone] [panic] [panic-on-thread] [truncated] [threads=N]
//! [checkpoint=FILE]`, MODEL one of a, b, users, microbatches, batch-norm, or precondition, which stands for as many rounds of
//! preconditioning. With `alone`, one process trains without the ranks; with `panic`, the last rank panics in the second
//! round, with `panic-on-thread` on another thread than that of MPI; with `truncated`, samples have a public maximum; with a
//! checkpoint, the run goes on from it if it exists, up to ROUNDS, saves it, and prints a hash of the weights alone.
#![allow(clippy::print_stdout)]

use std::path::Path;

use mpi::traits::Communicator;
use veilgrad_cli::{Follower, Order};
use veilgrad_events::{
    Adjacency, MemoryLedger, NoiseMultiplier, PublicCount, Run, SampleRate, TruncatedPoisson,
};
use veilgrad_mechanism::insecure::{released_integers, seeded_noise};
use veilgrad_mpi::{Rank, World, end_job_on_panic};
use veilgrad_nn::round::Peers;
use veilgrad_nn::{Performance, PreconditionPlan, Preconditioning};

#[path = "training/mod.rs"]
mod training;

use training::{Made, MadeUp, Reproducible, SgdTrainer, scramble, trainer};

const RECORDS: u64 = 600;
const RATE: f64 = 0.08;
/// The most records of a truncated sample: some samples have more.
const MAXIMUM: u64 = 48;

fn main() -> Made<()> {
    end_job_on_panic();
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [name, rounds, rest @ ..] = &words[..] else {
        return Err(
            "bits MODEL ROUNDS [alone] [panic] [truncated] [threads=N] [checkpoint=FILE]".into()
        );
    };
    let has = |option: &str| rest.iter().any(|word| word == option);
    let checkpoint = rest.iter().find_map(|word| word.strip_prefix("checkpoint="));
    let threads = rest.iter().find_map(|word| word.strip_prefix("threads="));
    let threads = threads.map_or(Ok(1), str::parse)?;
    if name == "precondition" {
        return precondition(rounds.parse()?, threads, has("alone"));
    }
    let trainer = trainer(name, RATE * RECORDS as f64, threads)?;
    let records =
        MadeUp { count: RECORDS, most: if trainer.training().is_materialised() { 4 } else { 1 } };
    let rounds = rounds.parse()?;
    let run =
        Settings { rounds, truncated: has("truncated"), checkpoint: checkpoint.map(Path::new) };
    if has("alone") {
        println!("{:016x}", lead(trainer, &records, &run)?);
        return Ok(());
    }
    let universe = mpi::initialize().ok_or("MPI is already initialised")?;
    if universe.world().rank() > 0 {
        let is_last = universe.world().rank() + 1 == universe.world().size();
        let panics = match (is_last, has("panic"), has("panic-on-thread")) {
            (true, true, _) => Panics::Here,
            (true, _, true) => Panics::OnThread,
            _ => Panics::Never,
        };
        return follow(trainer, &records, panics);
    }
    let (mut trainer, world) = (trainer, World::default());
    trainer.share_with(Box::new(world.clone()));
    println!("{:016x}", lead(trainer, &records, &run)?);
    assert!(world.end());
    Ok(())
}

/// What rank 0 does.
struct Settings<'a> {
    rounds: u64,
    truncated: bool,
    checkpoint: Option<&'a Path>,
}

/// A hash of all integers that were released, of the weights and of the events; with a checkpoint, of the weights.
fn lead(mut trainer: SgdTrainer, records: &MadeUp, settings: &Settings<'_>) -> Made<u64> {
    let mut hash = 0;
    let mut add = |word: u64| hash = scramble(hash ^ word);
    if let Some(checkpoint) = settings.checkpoint.filter(|path| path.exists()) {
        trainer.resume(checkpoint, None)?;
    }
    let adjacency = if settings.truncated { Adjacency::ZeroOut } else { Adjacency::AddRemove };
    let header = trainer.header(adjacency);
    let mut run = Run::open_insecure(MemoryLedger::new(), header, "reproducible")?;
    let policy = TruncatedPoisson::new(SampleRate::new(RATE)?, RECORDS, MAXIMUM)?;
    let truncated = settings.truncated.then_some(policy);
    let mut sampler = Reproducible { rate: RATE, truncated, round: trainer.rounds() };
    for round in trainer.rounds()..settings.rounds {
        let permit = run.reserve(&trainer.event(&sampler)?, 1)?.next().ok_or("no permit")?;
        let noise = seeded_noise(trainer.plan(), round)?;
        trainer.round_insecure(permit, &mut sampler, records, noise)?;
        let released = trainer.estimates().ok_or("nothing was released")?;
        let integers = released_integers(released).iter().flatten();
        if settings.checkpoint.is_none() {
            integers.for_each(|integer| add(integer.cast_unsigned()));
        }
    }
    let values = trainer.model().parameters().flat_map(|(_, _, values)| values);
    values.for_each(|value| add(u64::from(value.to_bits())));
    let charged = run.close()?;
    match settings.checkpoint {
        Some(checkpoint) => trainer.save(checkpoint, None)?,
        None => {
            format!("{:?}", charged.rounds()).bytes().for_each(|byte| add(u64::from(byte)));
        }
    }
    Ok(hash)
}

/// Where a rank panics.
#[derive(Clone, Copy, PartialEq)]
enum Panics {
    Never,
    Here,
    OnThread,
}

fn follow(mut trainer: SgdTrainer, records: &MadeUp, panics: Panics) -> Made<()> {
    let mut rounds = 0;
    while let Order::Round(round, ids) = Rank.next()? {
        rounds += 1;
        assert!(panics != Panics::Here || rounds < 2, "a private value");
        if panics == Panics::OnThread && rounds == 2 {
            // This one goes on: nobody asks how the other ended.
            std::thread::spawn(|| panic!("a private value"));
        }
        let part = trainer.part(round, ids, records)?;
        Rank.give(part)?;
    }
    Ok(())
}

/// Rounds of preconditioning on all ranks. Prints a hash of all integers that were released.
fn precondition(rounds: usize, threads: usize, alone: bool) -> Made<()> {
    let plan = PreconditionPlan {
        width: 784,
        records: PublicCount::new(RECORDS as f64)?,
        mean: NoiseMultiplier::new(2.0)?,
        directions: NoiseMultiplier::new(2.0)?,
        count: 8,
        rounds: rounds.saturating_sub(1),
        floor: 0.01,
    };
    let performance = Performance { threads, ..Performance::default() };
    let mut phase = Preconditioning::new(plan, performance)?;
    let records = MadeUp { count: RECORDS, most: 1 };
    let universe = match alone {
        true => None,
        false => Some(mpi::initialize().ok_or("MPI is already initialised")?),
    };
    if universe.as_ref().is_some_and(|universe| universe.world().rank() > 0) {
        // It does no round itself, so that its phase stays at the first.
        while let Order::Round(round, ids) = Rank.next()? {
            Rank.give(phase.part(&round, ids, &records)?)?;
        }
        return Ok(());
    }
    let world = World::default();
    let mut hash = 0;
    let header = phase.header(Adjacency::AddRemove);
    let mut run = Run::open_insecure(MemoryLedger::new(), header, "reproducible")?;
    while let Some(round) = phase.event()? {
        let permit = run.reserve(&round, 1)?.next().ok_or("no permit")?;
        let noise = seeded_noise(&phase.round_plan()?, phase.rounds() as u64)?;
        let peers = universe.as_ref().map(|_| -> Box<dyn Peers> { Box::new(world.clone()) });
        let released = phase.round_insecure(permit, &records, peers, noise)?;
        hash = released.iter().fold(hash, |hash, one| scramble(hash ^ one.cast_unsigned()));
    }
    println!("{hash:016x}");
    assert!(universe.is_none() || world.end());
    Ok(())
}
