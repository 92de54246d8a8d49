//! Trains an MLP on MNIST in plain Burn. `mlp_private.rs` is the same program with privacy.
//!
//! `cargo run --release --example mlp_public [ROUNDS]`
#![allow(clippy::print_stdout)]

use std::error::Error;

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::{GradientsParams, SgdConfig};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Tensor};
use veilgrad_burn::cross_entropy;

mod digits;
use digits::{Batch, Digits};

#[derive(Module, Debug)]
struct Mlp {
    first: Linear,
    second: Linear,
    last: Linear,
}

impl Mlp {
    fn new(device: &Device) -> Self {
        Self {
            first: LinearConfig::new(784, 512).init(device),
            second: LinearConfig::new(512, 256).init(device),
            last: LinearConfig::new(256, 10).init(device),
        }
    }

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        let x = relu(self.first.forward(x));
        self.last.forward(relu(self.second.forward(x)))
    }
}

fn losses(model: &Mlp, batch: Batch) -> Tensor<1> {
    cross_entropy(model.forward(batch.images), batch.labels)
}

fn main() -> Result<(), Box<dyn Error>> {
    let rounds = std::env::args().nth(1).map_or(Ok(500), |rounds| rounds.parse())?;
    let device = Device::flex().autodiff();
    let data = Digits::train()?;
    let mut model = Mlp::new(&device);
    let mut optimizer = SgdConfig::new().init();
    for round in 0..rounds {
        let loss = losses(&model, data.next(round, 256, &device)).mean();
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        model = optimizer.step(0.15, model, gradients);
    }
    let model = model.valid();
    println!("test accuracy {:.4}", Digits::test(|x| model.forward(x))?);
    Ok(())
}
