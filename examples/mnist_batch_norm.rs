//! Gradients, batch-norm statistics, training accuracy and an adaptive clip norm: four groups of each
//! round, from one sample, accounted as one Gaussian mechanism.
//!
//! `cargo run --release --example mnist_batch_norm [ROUNDS]`
#![allow(clippy::print_stdout)]

use std::error::Error;

use veilgrad::nn::{
    Clipping, Conv2d, Layer, Loss, Model, Performance, Schedule, Sgd, Trainer, TrainingPlan, public,
};
use veilgrad::prelude::*;

#[path = "mnist.rs"]
mod mnist;

const BATCH: f64 = 1024.0;
const RATE: f64 = BATCH / 60_000.0;

fn main() -> Result<(), Box<dyn Error>> {
    let rounds: u64 = std::env::args().nth(1).map_or(Ok(300), |rounds| rounds.parse())?;
    let (train, test) = (mnist::Images::train()?, mnist::Images::test()?);
    let layers = [
        Conv2d::new(16, 5).stride(2).into(),
        Layer::BatchNorm,
        Layer::Relu,
        Layer::max_pool(2, 2),
        Layer::Flatten,
        Layer::linear(32),
        Layer::Relu,
        Layer::linear(10),
    ];
    let model = Model::new(&[28, 28, 1], layers, 1)?;

    let expected = PublicCount::new(BATCH)?;
    let clipping = Clipping::Flat(ClipNorm::new(1.0)?);
    let noise = NoiseMultiplier::new(1.5)?;
    let median = Quantile::of_norm("gradient", 0.5, expected, ClipNorm::new(0.2)?)?;
    let loss = Loss::SoftmaxCrossEntropy;
    let plan = TrainingPlan::new(clipping, noise, expected)
        .statistics(ClipNorm::new(2.0)?, BudgetShare::new(0.05)?)
        .metric(Metric::accuracy()?, BudgetShare::new(0.01)?)
        .group(Group::quantile("median norm", median).noise(NoiseStd::new(BATCH / 20.0)?));
    let rate = Schedule::Constant(0.5);
    let mut trainer =
        Trainer::new(model, loss, plan, Sgd::with_momentum(0.5), rate, Performance::default())?;

    let mut run = Run::open(MemoryLedger::new(), trainer.header(Adjacency::AddRemove))?;
    let mut sampler = PoissonSampler::new(SampleRate::new(RATE)?);
    // The noise is proportional to the clip norm. Only their ratio is charged, and it stays the same.
    trainer.train(&mut run, &mut sampler, &train, rounds, 100, |trainer, progress| {
        if progress.round % 50 == 0
            && let Some(accuracy) = progress.metric("accuracy")
            && let Some(clip) = trainer.plan().clip_norm("gradient")
        {
            let round = progress.round;
            println!(
                "round {round}: training accuracy {:.3} (private), clip norm {clip:.3}",
                accuracy[0]
            );
        }
    })?;
    let accuracy = public::evaluate(trainer.model(), loss, &test).accuracy;
    println!("test accuracy {accuracy:.4} after {rounds} rounds");

    let ledger = run.close()?;
    println!("the ledger's groups, in units of the noise on the sum:");
    let charged = ledger.rounds();
    let round = &charged.first().ok_or("nothing was charged")?.round;
    for query in round.queries() {
        let ratio = query.noise().get() / query.clip().get();
        println!("  {:<14}{:>10.4} = sigma/S", query.group(), ratio);
    }
    println!("folded noise multiplier {:.6}, asked for {}", round.noise_multiplier()?.get(), 1.5);
    let by_ledger = mnist::epsilon(&ledger, 1e-5)?;
    let by_plan = veilgrad::accounting::Composition::poisson(
        SampleRate::new(RATE)?,
        noise,
        rounds,
        Adjacency::AddRemove,
    )?;
    let by_plan = veilgrad::accounting::Accountant::epsilon(
        &veilgrad::accounting::Pld,
        &by_plan,
        Delta::new(1e-5)?,
    )?;
    println!(
        "epsilon at delta 1e-5: {by_ledger:.4} by the ledger, {:.4} by q, z and rounds",
        by_plan.epsilon
    );
    Ok(())
}
