//! Federated averaging at scale: 100,000 users, 200 rounds, about 1000 users in each, local SGD on their examples:
//! `cargo bench -p veilgrad-benches --bench federated [-- --quick]`.
//!
//! Prints CPU seconds on one and two threads, and compares the bits of both models. For that, samples and noise repeat, in
//! runs that are stamped INSECURE; the last line is a run with real samples and noise.
#![allow(clippy::print_stdout, missing_docs)]

use std::error::Error;
use std::num::NonZeroU32;
use std::time::Instant;

use veilgrad::events::{FixedBatch, RoundPermit};
use veilgrad::mechanism::insecure::seeded_noise;
use veilgrad::mechanism::{SampleError, Selection};
use veilgrad::nn::{
    Clipping, Contribution, Layer, Loss, Model, Performance, Records, Schedule, Sgd, Trainer,
    TrainingPlan, Unit,
};
use veilgrad::prelude::*;
use veilgrad_benches::cpu_seconds;

const USERS: u64 = 100_000;
/// Rounds of the long form, and how many CPU seconds they may take: it fails if they take more.
const ROUNDS: u64 = 200;
const LONGEST: f64 = 10.0;
const COHORT: u64 = 1000;
const EXAMPLES: usize = 10;
const INPUTS: usize = 32;
const CLASSES: usize = 10;

type Anything<T> = Result<T, Box<dyn Error>>;

/// Made-up users: their examples are computed when they are read.
struct Users;

impl Records for Users {
    fn count(&self) -> u64 {
        USERS
    }

    fn examples(&self, _: u64) -> usize {
        EXAMPLES
    }

    fn read(&self, user: u64, example: usize, input: &mut [f32], target: &mut [f32]) {
        let mut state =
            (user * EXAMPLES as u64 + example as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let class = (state >> 32) as usize % CLASSES;
        for (place, input) in input.iter_mut().enumerate() {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let shift = if place % CLASSES == class { 0.5 } else { 0.0 };
            *input = (state >> 40) as f32 / (1u64 << 24) as f32 - 0.5 + shift;
        }
        target[0] = class as f32;
    }
}

/// The same cohorts in every run: every hundredth user, from another one in each round.
struct Repeating(FixedBatch);

impl Sampler for Repeating {
    fn policy(&self) -> Sampling {
        Sampling::Fixed(self.0)
    }

    fn select(&mut self, permit: &RoundPermit, users: u64) -> Result<Selection, SampleError> {
        let step = users / COHORT;
        Ok(Selection::ids((permit.number() % step..users).step_by(step as usize).collect()))
    }
}

fn trainer(threads: usize) -> Anything<Trainer<impl veilgrad::nn::Optimizer>> {
    let number = |n| NonZeroU32::new(n).ok_or("zero");
    let (batch, epochs) = (number(5)?, number(1)?);
    let contribution = Contribution::LocalSgd { rate: 0.1, batch, epochs };
    let plan = TrainingPlan::new(
        Clipping::Flat(ClipNorm::new(0.2)?),
        NoiseMultiplier::new(1.0)?,
        PublicCount::new(COHORT as f64)?,
    )
    .unit(Unit::User { examples: number(EXAMPLES as u32)?, contribution });
    let model = Model::new(&[INPUTS], [Layer::linear(CLASSES)], 1)?;
    let (loss, rate) = (Loss::SoftmaxCrossEntropy, Schedule::Constant(1.0));
    let performance = Performance { threads, tile: 0 };
    Ok(Trainer::new(model, loss, plan, Sgd::with_momentum(0.9), rate, performance)?)
}

/// A run whose samples and noise repeat; returns CPU seconds, wall seconds, and the bits of the model.
fn repeating(threads: usize, rounds: u64) -> Anything<(f64, f64, Vec<u32>)> {
    let mut trainer = trainer(threads)?;
    let mut sampler = Repeating(FixedBatch::new(USERS, COHORT)?);
    let header = trainer.header(Adjacency::ZeroOut);
    let mut run = Run::open_insecure(MemoryLedger::new(), header, "repeats")?;
    let (start, cpu) = (Instant::now(), cpu_seconds());
    for (seed, permit) in (0..).zip(run.reserve(&trainer.event(&sampler)?, rounds)?) {
        let noise = seeded_noise(trainer.plan(), seed)?;
        trainer.round_insecure(permit, &mut sampler, &Users, noise)?;
    }
    let (wall, cpu) = (start.elapsed().as_secs_f64(), cpu_seconds() - cpu);
    let parameters = trainer.model().parameters();
    let bits = parameters.flat_map(|(_, _, values)| values.iter().map(|x| x.to_bits())).collect();
    Ok((cpu, wall, bits))
}

fn main() -> Anything<()> {
    let rounds = if std::env::args().any(|word| word == "--quick") { 5 } else { ROUNDS };
    println!(
        "{USERS} users of {EXAMPLES} examples, {rounds} rounds, {COHORT} users a round, two local steps, {} parameters",
        (INPUTS + 1) * CLASSES
    );
    let (one, two) = (repeating(1, rounds)?, repeating(2, rounds)?);
    for (threads, (cpu, wall, _)) in [(1, &one), (2, &two)] {
        println!("{threads} threads: {cpu:.2} CPU s, {wall:.2} s");
    }
    println!("same bits for 1 and 2 threads: {}", one.2 == two.2);
    if one.2 != two.2 {
        return Err("the models differ".into());
    }
    let longest = one.0.max(two.0);
    if rounds == ROUNDS && longest > LONGEST {
        return Err(format!("{longest:.2} CPU s are more than {LONGEST}").into());
    }

    let mut trainer = trainer(2)?;
    let mut sampler = PoissonSampler::new(SampleRate::new(COHORT as f64 / USERS as f64)?);
    let mut run = Run::open(MemoryLedger::new(), trainer.header(Adjacency::AddRemove))?;
    let cpu = cpu_seconds();
    trainer.train(&mut run, &mut sampler, &Users, rounds, 32, |_, _| ())?;
    println!("Poisson cohorts and fresh noise, 2 threads: {:.2} CPU s", cpu_seconds() - cpu);
    Ok(())
}
