//! Trains a model with reproducible samples and noise, and prints a hash of everything that was released.
//!
//! `mpirun -n N target/debug/examples/bits MODEL ROUNDS [alone] [panic] [truncated] [checkpoint=FILE]`, MODEL one of a, b, users,
//! microbatches, batch-norm. With `alone`, one process trains without the ranks; with `panic`, the last rank panics in the second
//! round; with `truncated`, samples have a public maximum; with a checkpoint, the run goes on from it if it exists, up to ROUNDS,
//! saves it, and prints a hash of the weights alone.
#![allow(clippy::print_stdout)]

use std::path::Path;

use mpi::traits::Communicator;
use veilgrad_cli::{Follower, Order};
use veilgrad_events::{Adjacency, MemoryLedger, Run, SampleRate, TruncatedPoisson};
use veilgrad_mechanism::insecure::{released_integers, seeded_noise};
use veilgrad_mpi::{Rank, World, end_job_on_panic};

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
        return Err("bits MODEL ROUNDS [alone] [panic] [truncated] [checkpoint=FILE]".into());
    };
    let has = |option: &str| rest.iter().any(|word| word == option);
    let checkpoint = rest.iter().find_map(|word| word.strip_prefix("checkpoint="));
    let trainer = trainer(name, RATE * RECORDS as f64, 1)?;
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
        return follow(trainer, &records, has("panic") && is_last);
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

fn follow(mut trainer: SgdTrainer, records: &MadeUp, panics: bool) -> Made<()> {
    let mut rounds = 0;
    while let Order::Round(round, ids) = Rank.next()? {
        rounds += 1;
        assert!(!panics || rounds < 2, "a private value");
        let part = trainer.part(round, ids, records)?;
        Rank.give(part)?;
    }
    Ok(())
}
