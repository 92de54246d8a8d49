//! Trains an MLP on MNIST with privacy. `mlp_public.rs` is the same program in plain Burn.
//!
//! `cargo run --release --example mlp_private [ROUNDS]`
#![allow(clippy::print_stdout)]

use std::error::Error;

use burn::module::Module;
use burn::nn::LinearConfig;
use burn::optim::SgdConfig;
use burn::tensor::{Device, Tensor};
use veilgrad::nn::{Clipping, Loss};
use veilgrad::prelude::*;
use veilgrad_burn::{
    PerRecord, PerRecordModel, PrivateConfig, PrivateLinear, PrivateOptimizer, Trainer,
    TrainingPlan, outputs,
};

mod digits;
use digits::Digits;

#[derive(Module, Debug)]
struct Mlp {
    first: PrivateLinear,
    second: PrivateLinear,
    last: PrivateLinear,
}

impl Mlp {
    fn new(device: &Device) -> Self {
        Self {
            first: LinearConfig::new(784, 512).private(device),
            second: LinearConfig::new(512, 256).private(device),
            last: LinearConfig::new(256, 10).private(device),
        }
    }

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        outputs(self, x)
    }
}

impl PerRecordModel for Mlp {
    fn each(&self, x: PerRecord<2>) -> PerRecord<2> {
        let x = self.first.each(x).relu();
        self.last.each(self.second.each(x).relu())
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let rounds = std::env::args().nth(1).map_or(Ok(500), |rounds| rounds.parse())?;
    let device = Device::flex().autodiff();
    let data = Digits::train()?;
    let mut model = Mlp::new(&device);
    let mut optimizer = PrivateOptimizer::new(SgdConfig::new().init());
    let (clip, noise) = (ClipNorm::new(1.0)?, NoiseMultiplier::new(1.1)?);
    let plan = TrainingPlan::new(Clipping::Flat(clip), noise, PublicCount::new(256.0)?);
    let loss = Loss::SoftmaxCrossEntropy;
    let mut trainer = Trainer::per_record(&model, &data, plan, loss, digits::numbers)?;
    let mut sampler = PoissonSampler::new(SampleRate::new(256.0 / 60_000.0)?);
    let mut run = Run::open(MemoryLedger::new(), trainer.header(Adjacency::AddRemove))?;
    for permit in run.reserve(&trainer.event(&sampler)?, rounds)? {
        trainer.round(&model, permit, &mut sampler)?;
        model = trainer.step(&mut optimizer, 0.15, model);
    }
    let model = model.valid();
    println!("test accuracy {:.4}", Digits::test(|x| model.forward(x))?);
    println!("epsilon {} at delta 1e-5", digits::epsilon(run.store(), 1e-5)?);
    Ok(())
}
