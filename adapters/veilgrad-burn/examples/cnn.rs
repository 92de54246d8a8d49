//! Trains the convolutional network of the TensorFlow Privacy tutorial on MNIST, with or without privacy.
//!
//! `cargo run --release --example cnn private|public [ROUNDS [LEDGER]]`, where LEDGER has a budget for "mnist":
//! `veilgrad budget create mnist --epsilon 3 --delta 1e-5 --ledger LEDGER`.
#![allow(clippy::print_stdout)]

use std::error::Error;
use std::path::Path;
use std::sync::Arc;

use burn::optim::{GradientsParams, SgdConfig};
use burn::tensor::Device;
use veilgrad::accounting::Tightest;
use veilgrad::events::LedgerStore;
use veilgrad::ledger::{Ledger, Options};
use veilgrad::nn::round::drive_shown;
use veilgrad::nn::{Clipping, Loss, Pace, Schedule};
use veilgrad::prelude::*;
use veilgrad_burn::{PrivateOptimizer, Trainer, Training, TrainingPlan, cross_entropy};

mod digits;
mod models;
use digits::Digits;
use models::{PrivateCnn, PublicCnn};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let rounds = arguments.get(1).map_or(Ok(500), |rounds| rounds.parse())?;
    let device = Device::flex().autodiff();
    let data = Digits::train()?;
    match arguments.first().map(String::as_str) {
        Some("public") => public(&data, rounds, &device),
        Some("private") => match arguments.get(2) {
            None => private(&data, rounds, &device, MemoryLedger::new()),
            Some(path) => {
                let ledger = Ledger::open(Path::new(path), Options::default())?;
                private(&data, rounds, &device, ledger.dataset("mnist", Arc::new(Tightest))?)
            }
        },
        _ => Err("cnn private|public [ROUNDS [LEDGER]]".into()),
    }
}

fn public(data: &Digits, rounds: u64, device: &Device) -> Result<(), Box<dyn Error>> {
    use burn::module::Module;
    let mut model = PublicCnn::new(device);
    let mut optimizer = SgdConfig::new().init();
    for round in 0..rounds {
        let batch = data.next(round, 256, device);
        let loss = cross_entropy(model.forward(batch.images), batch.labels).mean();
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        model = optimizer.step(0.15, model, gradients);
    }
    let model = model.valid();
    println!("test accuracy {:.4}", Digits::test(|x| model.forward(x))?);
    Ok(())
}

fn private(
    data: &Digits,
    rounds: u64,
    device: &Device,
    store: impl LedgerStore,
) -> Result<(), Box<dyn Error>> {
    use burn::module::Module;
    let model = PrivateCnn::new(device);
    let optimizer = PrivateOptimizer::new(SgdConfig::new().init());
    let (clip, noise) = (ClipNorm::new(1.0)?, NoiseMultiplier::new(1.1)?);
    // Each round also estimates the training accuracy privately.
    let plan = TrainingPlan::new(Clipping::Flat(clip), noise, PublicCount::new(256.0)?)
        .metric(Metric::accuracy()?, BudgetShare::new(0.05)?);
    let loss = Loss::SoftmaxCrossEntropy;
    let trainer = Trainer::per_record(&model, data, plan, loss, digits::numbers)?;
    let mut sampler = PoissonSampler::new(SampleRate::new(256.0 / 60_000.0)?);
    // The tightest accountant needs all rounds declared in advance.
    let plan = vec![Rounds { count: rounds, round: trainer.event(&sampler)? }];
    let mut run = Run::open(store, trainer.header(Adjacency::AddRemove).with_plan(plan))?;
    let mut training = Training { trainer, model, optimizer, schedule: Schedule::Constant(0.15) };
    let pace = Pace { rounds, block: 32, checkpoint_rounds: None };
    drive_shown(&mut training, &mut run, &mut sampler, &(), &pace, |_, progress| {
        if progress.round % 100 == 0 {
            let accuracy = progress.metric("accuracy").unwrap_or_default();
            println!("round {}: private training accuracy {accuracy:.2?}", progress.round);
        }
    })?;
    let model = training.model;
    let model = model.valid();
    println!("test accuracy {:.4}", Digits::test(|x| model.forward(x))?);
    println!("epsilon {} at delta 1e-5", digits::epsilon(&run.close()?, 1e-5)?);
    Ok(())
}
