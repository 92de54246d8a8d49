//! Trains a model with reproducible samples and noise, and prints a hash of everything that was released.
//!
//! `mpirun -n N target/debug/examples/bits MODEL ROUNDS [alone|panic]`, MODEL one of a, b, users, microbatches, batch-norm. With
//! `alone`, one process trains without the ranks; with `panic`, the last rank panics in the second round.
#![allow(clippy::print_stdout)]

use mpi::traits::Communicator;
use veilgrad_cli::{Follower, Order};
use veilgrad_events::{Adjacency, MemoryLedger, Run};
use veilgrad_mechanism::insecure::{released_integers, seeded_noise};
use veilgrad_mpi::{Rank, World, end_job_on_panic};

#[path = "training/mod.rs"]
mod training;

use training::{Made, MadeUp, Reproducible, SgdTrainer, scramble, trainer};

const RECORDS: u64 = 600;
const RATE: f64 = 0.08;

fn main() -> Made<()> {
    end_job_on_panic();
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [name, rounds, rest @ ..] = &words[..] else {
        return Err("bits MODEL ROUNDS [alone|panic]".into());
    };
    let trainer = trainer(name, RATE * RECORDS as f64, 1)?;
    let records =
        MadeUp { count: RECORDS, most: if trainer.training().is_materialised() { 4 } else { 1 } };
    if rest == ["alone"] {
        println!("{:016x}", lead(trainer, &records, rounds.parse()?)?);
        return Ok(());
    }
    let universe = mpi::initialize().ok_or("MPI is already initialised")?;
    if universe.world().rank() > 0 {
        let is_last = universe.world().rank() + 1 == universe.world().size();
        return follow(trainer, &records, rest == ["panic"] && is_last);
    }
    let (mut trainer, world) = (trainer, World::default());
    trainer.share_with(Box::new(world.clone()));
    println!("{:016x}", lead(trainer, &records, rounds.parse()?)?);
    assert!(world.end());
    Ok(())
}

/// A hash of all integers that were released, of the weights and of the events.
fn lead(mut trainer: SgdTrainer, records: &MadeUp, rounds: u64) -> Made<u64> {
    let mut hash = 0;
    let mut add = |word: u64| hash = scramble(hash ^ word);
    let header = trainer.header(Adjacency::AddRemove);
    let mut run = Run::open_insecure(MemoryLedger::new(), header, "reproducible")?;
    let mut sampler = Reproducible { rate: RATE, round: 0 };
    for round in 0..rounds {
        let permit = run.reserve(&trainer.event(&sampler)?, 1)?.next().ok_or("no permit")?;
        let noise = seeded_noise(trainer.plan(), round)?;
        trainer.round_insecure(permit, &mut sampler, records, noise)?;
        let released = trainer.estimates().ok_or("nothing was released")?;
        let integers = released_integers(released).iter().flatten();
        integers.for_each(|integer| add(integer.cast_unsigned()));
    }
    let values = trainer.model().parameters().flat_map(|(_, _, values)| values);
    values.for_each(|value| add(u64::from(value.to_bits())));
    for byte in format!("{:?}", run.close()?.rounds()).bytes() {
        add(u64::from(byte));
    }
    Ok(hash)
}

fn follow(mut trainer: SgdTrainer, records: &MadeUp, panics: bool) -> Made<()> {
    let mut rounds = 0;
    while let Order::Round(round, ids) = Rank.next()? {
        rounds += 1;
        assert!(!panics || rounds < 2, "a private value");
        let part = trainer.part(&round, &ids, records)?;
        Rank.give(part)?;
    }
    Ok(())
}
