//! Trains the convolutional network of the TensorFlow Privacy tutorial on MNIST with privacy: noise
//! multiplier 1.1, clip norm 1, expected batch 256, 60 epochs, with a budget on disk.
//!
//! `cargo run --release --example mnist_cnn [EPOCHS]`
#![allow(clippy::print_stdout)]

use std::error::Error;
use std::sync::Arc;

use veilgrad::accounting::Tightest;
use veilgrad::events::{Budget, Mode};
use veilgrad::ledger::{Ledger, Options};
use veilgrad::nn::{
    Clipping, Conv2d, Layer, Loss, Model, Padding, Performance, Schedule, Sgd, Trainer,
    TrainingPlan, public,
};
use veilgrad::prelude::*;

#[path = "mnist.rs"]
mod mnist;

const BATCH: f64 = 256.0;
const RECORDS: f64 = 60_000.0;

fn main() -> Result<(), Box<dyn Error>> {
    let epochs: f64 = std::env::args().nth(1).map_or(Ok(60.0), |epochs| epochs.parse())?;
    let rounds_per_epoch = (RECORDS / BATCH) as u64;
    let rounds = (epochs * rounds_per_epoch as f64).ceil() as u64;
    let (train, test) = (mnist::Images::train()?, mnist::Images::test()?);

    let layers = [
        Conv2d::new(16, 8).stride(2).padding(Padding::Same).into(),
        Layer::Relu,
        Layer::max_pool(2, 1),
        Conv2d::new(32, 4).stride(2).into(),
        Layer::Relu,
        Layer::max_pool(2, 1),
        Layer::Flatten,
        Layer::linear(32),
        Layer::Relu,
        Layer::linear(10),
    ];
    let model = Model::new(&[28, 28, 1], layers, 1)?;

    // Public settings: clipping, noise, and the denominator of the average.
    let clipping = Clipping::Flat(ClipNorm::new(1.0)?);
    let noise = NoiseMultiplier::new(1.1)?;
    let loss = Loss::SoftmaxCrossEntropy;
    let plan = TrainingPlan::new(clipping, noise, PublicCount::new(BATCH)?);
    let rate = Schedule::Constant(0.15);
    let mut trainer = Trainer::new(model, loss, plan, Sgd::plain(), rate, Performance::default())?;

    // A budget on disk: rounds are charged to it before they touch data.
    let directory = std::env::temp_dir().join(format!("veilgrad-mnist-cnn-{}", std::process::id()));
    std::fs::create_dir(&directory)?;
    let mut ledger = Ledger::create(directory.join("ledger.db"), Options::default())?;
    ledger.create_budget(Budget {
        dataset: "mnist".to_owned(),
        unit: RecordUnit::Example,
        adjacency: Adjacency::AddRemove,
        delta: Delta::new(1e-5)?,
        epsilon: Epsilon::new(2.4)?,
        mode: Mode::Planned,
        order: None,
    })?;
    let store = ledger.dataset("mnist", Arc::new(Tightest))?;
    let mut sampler = PoissonSampler::new(SampleRate::new(BATCH / RECORDS)?);
    // The tightest accountant needs all rounds declared in advance.
    let plan = vec![Rounds { count: rounds, round: trainer.event(&sampler)? }];
    let mut run = Run::open(store, trainer.header(Adjacency::AddRemove).with_plan(plan))?;

    trainer.train(&mut run, &mut sampler, &train, rounds, 32, |trainer, progress| {
        if progress.round % (5 * rounds_per_epoch) == 0 {
            let epoch = progress.round / rounds_per_epoch;
            let accuracy = public::evaluate(trainer.model(), loss, &test).accuracy;
            println!("epoch {epoch}: test accuracy {accuracy:.4}");
        }
    })?;
    let accuracy = public::evaluate(trainer.model(), loss, &test).accuracy;
    println!("test accuracy {accuracy:.4} after {rounds} rounds");
    println!("epsilon {} at delta 1e-5, by the ledger", mnist::epsilon(run.store(), 1e-5)?);
    run.close()?;
    std::fs::write(directory.join("model.safetensors"), trainer.model().to_safetensors()?)?;
    println!("model and ledger: {}", directory.display());
    Ok(())
}
