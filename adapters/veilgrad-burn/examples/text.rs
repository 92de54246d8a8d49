//! Trains a small transformer on generated reviews, with or without privacy: does a review have more positive
//! than negative words?
//!
//! `cargo run --release --example text private|public [ROUNDS]`
#![allow(clippy::print_stdout)]

use std::error::Error;

use burn::module::Module;
use burn::nn::attention::MultiHeadAttentionConfig;
use burn::nn::{EmbeddingConfig, LayerNormConfig, LinearConfig};
use burn::optim::{AdamConfig, GradientsParams};
use burn::tensor::activation::{gelu, softmax};
use burn::tensor::{Device, Int, Tensor, TensorData};
use veilgrad::nn::Clipping;
use veilgrad::prelude::*;
use veilgrad_burn::{
    Outcome, PrivateConfig, PrivateEmbedding, PrivateLayerNorm, PrivateLinear,
    PrivateMultiHeadAttention, PrivateOptimizer, Records, Trainer, TrainingPlan, accuracy,
    cross_entropy,
};

const WORDS: &[&str] = &[
    "the", "a", "film", "plot", "actor", "music", "was", "and", "very", "not", "good", "great",
    "lovely", "bad", "dull", "awful",
];
const LENGTH: usize = 16;
const WIDTH: usize = 32;

/// Pseudorandom reviews: token ids, and whether there are more positive than negative words.
struct Reviews {
    first: u64,
    count: u64,
}

struct Batch {
    words: Tensor<2, Int>,
    labels: Tensor<1, Int>,
}

fn review(number: u64) -> ([i32; LENGTH], i32) {
    let mut state = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x1234_5678;
    let words = std::array::from_fn(|_| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 33) % WORDS.len() as u64) as i32
    });
    let count = |range: std::ops::Range<i32>| words.iter().filter(|w| range.contains(w)).count();
    (words, i32::from(count(10..13) > count(13..16)))
}

impl Records for Reviews {
    type Example = ([i32; LENGTH], i32);
    type Batch = Batch;

    fn count(&self) -> u64 {
        self.count
    }

    fn read(&self, record: u64, _: usize) -> Self::Example {
        review(self.first + record)
    }

    fn made_up(&self, number: u64) -> Self::Example {
        review(u64::MAX - number)
    }

    fn batch(&self, examples: Vec<Self::Example>, device: &Device) -> Batch {
        let count = examples.len();
        let (words, labels): (Vec<_>, Vec<_>) = examples.into_iter().unzip();
        Batch {
            words: Tensor::from_data(TensorData::new(words.concat(), [count, LENGTH]), device),
            labels: Tensor::from_data(TensorData::new(labels, [count]), device),
        }
    }
}

#[derive(Module, Debug)]
struct Transformer {
    words: PrivateEmbedding,
    places: PrivateEmbedding,
    norm_1: PrivateLayerNorm,
    attention: PrivateMultiHeadAttention,
    norm_2: PrivateLayerNorm,
    wide: PrivateLinear,
    narrow: PrivateLinear,
    last: PrivateLinear,
}

impl Transformer {
    fn new(device: &Device) -> Self {
        // The run is unverified, because Burn's operations see several records at once. As a `PerRecordModel` it would be
        // exact: see `benches/training.rs`.
        Self {
            words: EmbeddingConfig::new(WORDS.len(), WIDTH).private(device),
            places: EmbeddingConfig::new(LENGTH, WIDTH).private(device),
            norm_1: LayerNormConfig::new(WIDTH).private(device),
            attention: MultiHeadAttentionConfig::new(WIDTH, 4).with_dropout(0.0).private(device),
            norm_2: LayerNormConfig::new(WIDTH).private(device),
            wide: LinearConfig::new(WIDTH, 2 * WIDTH).private(device),
            narrow: LinearConfig::new(2 * WIDTH, WIDTH).private(device),
            last: LinearConfig::new(WIDTH, 2).private(device),
        }
    }

    fn forward(&self, words: Tensor<2, Int>) -> Tensor<2> {
        let [records, length] = words.dims();
        let places = Tensor::<1, Int>::arange(0..length as i64, &words.device());
        let places = places.unsqueeze::<2>().repeat_dim(0, records);
        let x = self.words.forward(words) + self.places.forward(places);
        let y = self.norm_1.forward(x.clone());
        let x = x + self.attention.forward(y.clone(), y.clone(), y, None);
        let y = self.wide.forward(self.norm_2.forward(x.clone()));
        let x = x + self.narrow.forward(gelu(y));
        self.last.forward(x.mean_dim(1).squeeze_dim::<2>(1))
    }
}

fn losses(model: &Transformer, batch: Batch) -> Outcome {
    Outcome::new(cross_entropy(model.forward(batch.words), batch.labels))
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let rounds = arguments.get(1).map_or(Ok(300), |rounds| rounds.parse())?;
    let device = Device::flex().autodiff();
    let data = Reviews { first: 0, count: 20_000 };
    let mut model = Transformer::new(&device);
    match arguments.first().map(String::as_str) {
        Some("public") => {
            let mut optimizer = AdamConfig::new().init();
            for round in 0..rounds {
                let ids = (0..128).map(|i| (round * 128 + i) % data.count);
                let batch = data.batch(ids.map(|id| data.read(id, 0)).collect(), &device);
                let loss = cross_entropy(model.forward(batch.words), batch.labels).mean();
                let gradients = GradientsParams::from_grads(loss.backward(), &model);
                model = optimizer.step(3e-3, model, gradients);
            }
        }
        Some("private") => {
            let mut optimizer = PrivateOptimizer::new(AdamConfig::new().init());
            let (clip, noise) = (ClipNorm::new(1.0)?, NoiseMultiplier::new(1.0)?);
            let plan = TrainingPlan::new(Clipping::Flat(clip), noise, PublicCount::new(256.0)?);
            let mut trainer = Trainer::new(&model, &data, plan, losses)?;
            let mut sampler = PoissonSampler::new(SampleRate::new(256.0 / 20_000.0)?);
            let mut run = Run::open(MemoryLedger::new(), trainer.header(Adjacency::AddRemove))?;
            for permit in run.reserve(&trainer.event(&sampler)?, rounds)? {
                trainer.round(&model, permit, &mut sampler)?;
                model = trainer.step(&mut optimizer, 3e-3, model);
            }
            println!("numerics: {:?}", trainer.numerics());
        }
        _ => return Err("text private|public [ROUNDS]".into()),
    }
    let (test, model) = (Reviews { first: 1 << 40, count: 2_000 }, model.valid());
    let batch = test.batch((0..test.count).map(|id| test.read(id, 0)).collect(), &Device::flex());
    let logits = softmax(model.forward(batch.words), 1);
    let right = accuracy(logits, batch.labels).mean().into_scalar::<f32>();
    println!("test accuracy {right:.4}");
    Ok(())
}
