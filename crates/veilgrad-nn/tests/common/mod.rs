//! Shared code of the training tests.
#![allow(dead_code, missing_docs, unreachable_pub)]

use std::sync::atomic::{AtomicUsize, Ordering};

use veilgrad_events::{Adjacency, ClipNorm, MemoryLedger, NoiseMultiplier, PublicCount, Run};
use veilgrad_mechanism::AllRecords;
use veilgrad_mechanism::insecure::no_noise;
use veilgrad_nn::{
    Clipping, Conv2d, InMemory, Layer, Loss, Model, Optimizer, Padding, Performance, Progress,
    Records, Schedule, Sgd, TrainError, Trainer, TrainingPlan,
};

/// Pseudorandom numbers from a seed.
pub struct SplitMix64(pub u64);

impl SplitMix64 {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }

    pub fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 24) as f32
    }
}

pub const INPUT: usize = 36;

/// A small image model with every kind of gradient.
pub fn model() -> Model {
    let layers = [
        Conv2d::new(5, 3).stride(2).padding(Padding::Same).into(),
        Layer::Relu,
        Layer::max_pool(2, 1),
        Layer::GroupNorm { groups: 5 },
        Layer::Flatten,
        Layer::linear(7),
        Layer::Tanh,
        Layer::linear(3),
    ];
    Model::new(&[6, 6, 1], layers, 11).unwrap()
}

/// Images and classes: bright on the left, bright on the right, or neither.
pub fn examples(count: usize, seed: u64) -> Vec<(Vec<f32>, f32)> {
    let mut random = SplitMix64(seed);
    (0..count)
        .map(|_| {
            let class = random.next() % 3;
            let pixel = |i: usize| {
                let bright = class < 2 && (i % 6 < 3) == (class == 0);
                (if bright { 1.0 } else { 0.0 }) + 0.3 * random.unit()
            };
            ((0..INPUT).map(pixel).collect(), class as f32)
        })
        .collect()
}

pub fn in_memory(examples: &[(Vec<f32>, f32)]) -> InMemory {
    let inputs = examples.iter().flat_map(|(x, _)| x.clone()).collect();
    InMemory::new(inputs, INPUT, examples.iter().map(|(_, y)| *y).collect(), 1)
}

pub fn plan(clip: f64, expected: f64) -> TrainingPlan {
    let clipping = Clipping::Flat(ClipNorm::new(clip).unwrap());
    let noise = NoiseMultiplier::new(1.1).unwrap();
    let expected = PublicCount::new(expected).unwrap();
    TrainingPlan::new(clipping, noise, expected)
}

pub fn trainer(plan: TrainingPlan, performance: Performance) -> Trainer<impl Optimizer> {
    let rate = Schedule::Constant(0.5);
    Trainer::new(
        model(),
        Loss::SoftmaxCrossEntropy,
        plan,
        Sgd::with_momentum(0.5),
        rate,
        performance,
    )
    .unwrap()
}

/// A trainer with plain SGD at a constant rate.
pub fn plain_trainer(
    model: &Model,
    plan: TrainingPlan,
    rate: f64,
    performance: Performance,
) -> Result<Trainer<impl Optimizer>, TrainError> {
    let (loss, rate) = (Loss::SoftmaxCrossEntropy, Schedule::Constant(rate));
    Trainer::new(model.clone(), loss, plan, Sgd::plain(), rate, performance)
}

/// Runs rounds over all records without noise, in a run that is stamped INSECURE.
pub fn train_exactly<O: Optimizer>(
    trainer: &mut Trainer<O>,
    records: &impl Records,
    rounds: u64,
) -> Option<Progress> {
    let header = trainer.header(Adjacency::AddRemove);
    let mut run = Run::open_insecure(MemoryLedger::new(), header, "test").unwrap();
    let mut last = None;
    for permit in run.reserve(&trainer.event(&AllRecords).unwrap(), rounds).unwrap() {
        let noise = no_noise(trainer.plan());
        last = Some(trainer.round_insecure(permit, &mut AllRecords, records, noise).unwrap());
    }
    last
}

/// All parameters, bit by bit.
pub fn bits(model: &Model) -> Vec<u32> {
    model.parameters().flat_map(|(_, _, values)| values.iter().map(|v| v.to_bits())).collect()
}

pub fn distance(a: &Model, b: &Model) -> f64 {
    let pairs = a.parameters().zip(b.parameters());
    pairs
        .flat_map(|((_, _, a), (_, _, b))| a.iter().zip(b).map(|(a, b)| f64::from(a - b).powi(2)))
        .sum::<f64>()
        .sqrt()
}

/// Counts how many examples are read.
pub struct Counted {
    pub records: InMemory,
    pub reads: AtomicUsize,
}

impl Records for Counted {
    fn count(&self) -> u64 {
        self.records.count()
    }

    fn read(&self, record: u64, example: usize, input: &mut [f32], target: &mut [f32]) {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.records.read(record, example, input, target);
    }
}
