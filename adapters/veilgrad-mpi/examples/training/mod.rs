//! Models and made-up records for tests and measurements, the same on every rank.
#![allow(dead_code)]

use std::error::Error;
use std::num::NonZeroU32;

use veilgrad_events::{
    BudgetShare, ClipNorm, NoiseMultiplier, NoiseStd, PublicCount, RoundPermit, SampleRate,
    Sampling, TruncatedPoisson,
};
use veilgrad_mechanism::{Group, Metric, Quantile, SampleError, Sampler, Selection};
use veilgrad_nn::{
    Clipping, Contribution, Conv2d, Layer, Loss, Model, Padding, PerWeight, Performance, Records,
    Schedule, Sgd, Trainer, TrainingPlan, Unit,
};

pub(crate) type Made<T> = Result<T, Box<dyn Error + Send + Sync>>;
pub(crate) type SgdTrainer = Trainer<PerWeight<Sgd, 1>>;

/// Pseudorandom numbers from a seed: for made-up records and reproducible samples, never for private ones.
pub(crate) fn scramble(number: u64) -> u64 {
    let mut z = number.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(0x1234_5678_9abc_def1);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Made-up images of 28 x 28 with a class each. A record has one to `most` examples.
pub(crate) struct MadeUp {
    pub(crate) count: u64,
    pub(crate) most: u64,
}

impl Records for MadeUp {
    fn count(&self) -> u64 {
        self.count
    }

    fn examples(&self, record: u64) -> usize {
        (1 + scramble(record) % self.most) as usize
    }

    fn read(&self, record: u64, example: usize, input: &mut [f32], target: &mut [f32]) {
        let seed = scramble(record ^ (example as u64) << 40);
        let class = seed % 10;
        for (pixels, word) in input.chunks_mut(4).zip(seed..) {
            let word = scramble(word ^ class << 32);
            for (pixel, byte) in pixels.iter_mut().zip(word.to_le_bytes()) {
                *pixel = f32::from(byte) / 255.0;
            }
        }
        target.fill(class as f32);
    }
}

/// The network of the TensorFlow Privacy tutorial.
pub(crate) fn model_a() -> Made<Model> {
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
    Ok(Model::new(&[28, 28, 1], layers, 1)?)
}

/// 784-512-256-10.
pub(crate) fn model_b() -> Made<Model> {
    let layers =
        [Layer::linear(512), Layer::Relu, Layer::linear(256), Layer::Relu, Layer::linear(10)];
    Ok(Model::new(&[784], layers, 1)?)
}

fn with_batch_norm() -> Made<Model> {
    let layers = [
        Conv2d::new(8, 5).stride(2).into(),
        Layer::BatchNorm,
        Layer::Relu,
        Layer::max_pool(2, 2),
        Layer::Flatten,
        Layer::linear(10),
    ];
    Ok(Model::new(&[28, 28, 1], layers, 1)?)
}

/// A trainer whose rounds have every kind of group: gradients, a metric, a quantile that adapts the clip norm, and batch-norm
/// statistics where the model has some.
pub(crate) fn trainer(name: &str, batch: f64, threads: usize) -> Made<SgdTrainer> {
    let expected = PublicCount::new(batch)?;
    let clipping = Clipping::Flat(ClipNorm::new(1.0)?);
    let median = Quantile::of_norm("gradient", 0.5, expected, ClipNorm::new(0.01)?)?;
    let plan = TrainingPlan::new(clipping, NoiseMultiplier::new(1.1)?, expected)
        .metric(Metric::accuracy()?, BudgetShare::new(0.05)?)
        .group(Group::quantile("median norm", median).noise(NoiseStd::new(batch / 10.0)?));
    let examples = NonZeroU32::new(3).ok_or("zero")?;
    let (model, plan) = match name {
        "a" => (model_a()?, plan),
        "b" => (model_b()?, plan),
        "batch-norm" => {
            (with_batch_norm()?, plan.statistics(ClipNorm::new(2.0)?, BudgetShare::new(0.05)?))
        }
        "users" => {
            let contribution = Contribution::Average;
            (model_a()?, plan.unit(Unit::User { examples, contribution }))
        }
        "microbatches" => (model_b()?, plan.unit(Unit::Microbatch { examples })),
        _ => return Err(format!("there is no model {name:?}").into()),
    };
    let performance = Performance { threads, ..Performance::default() };
    let (loss, rate) = (Loss::SoftmaxCrossEntropy, Schedule::Constant(0.15));
    Ok(Trainer::new(model, loss, plan, Sgd::with_momentum(0.5), rate, performance)?)
}

/// The same samples in every run: each record with the given probability, up to a maximum, if there is one.
pub(crate) struct Reproducible {
    pub(crate) rate: f64,
    pub(crate) truncated: Option<TruncatedPoisson>,
    pub(crate) round: u64,
}

impl Sampler for Reproducible {
    fn policy(&self) -> Sampling {
        match self.truncated {
            Some(policy) => Sampling::TruncatedPoisson(policy),
            None => SampleRate::new(self.rate)
                .map_or(Sampling::All {}, |rate| Sampling::Poisson { rate }),
        }
    }

    fn select(&mut self, _: &RoundPermit, records: u64) -> Result<Selection, SampleError> {
        self.round += 1;
        let draw = |record: &u64| scramble(record ^ self.round << 32) as f64 / 2f64.powi(64);
        let drawn = (0..records).filter(|record| draw(record) < self.rate);
        let most = self.truncated.map_or(usize::MAX, |policy| policy.maximum() as usize);
        Ok(Selection::ids(drawn.take(most).collect()))
    }
}
