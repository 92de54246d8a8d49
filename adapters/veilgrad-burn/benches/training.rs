//! Speed of private training in Burn. `benches/training.sh --burn` alternates it with PyTorch + Opacus.
//!
//! Run on its own, it prints the examples per second and per CPU second of one case:
//! `training MODEL MODE THREADS BATCH ROUNDS`, with model `A`, `B` or `C` and mode `private` or `public`.
#![allow(clippy::print_stdout, missing_docs)]

use std::error::Error;
use std::time::Instant;

use burn::module::Module;
use burn::optim::{GradientsParams, SgdConfig};
use burn::tensor::{Device, Int, Tensor, TensorData};
use veilgrad::nn::{Clipping, Loss, Performance};
use veilgrad::prelude::*;
use veilgrad_burn::{
    PerRecord, PerRecordModel, PrivateConfig, PrivateEmbedding, PrivateLayerNorm, PrivateLinear,
    PrivateMultiHeadAttention, PrivateOptimizer, Records, Trainer, TrainingPlan, cross_entropy,
    outputs,
};

#[path = "../examples/digits/mod.rs"]
mod digits;
#[path = "../examples/models/mod.rs"]
mod models;

use burn::nn::attention::MultiHeadAttentionConfig;
use burn::nn::{EmbeddingConfig, LayerNormConfig, LinearConfig};
use digits::Digits;
use models::{PrivateCnn, PublicCnn};

#[derive(Module, Debug)]
struct Mlp {
    first: PrivateLinear,
    second: PrivateLinear,
    last: PrivateLinear,
}

impl Mlp {
    fn new(device: &Device) -> Self {
        let linear = |inputs, outputs| burn::nn::LinearConfig::new(inputs, outputs).private(device);
        Self { first: linear(784, 512), second: linear(512, 256), last: linear(256, 10) }
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

const LENGTH: usize = 64;
const WORDS: usize = 10_000;
const WIDTH: usize = 64;
const HEADS: usize = 4;
const CLASSES: usize = 4;

/// Pseudorandom texts, as in benches/training.py. Small numbers are frequent, as in texts whose words are numbered by
/// frequency.
struct Texts;

impl Texts {
    const RECORDS: u64 = 60_000;

    fn word(place: u64) -> f32 {
        let mixed = place.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let chance = (mixed ^ (mixed >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93) >> 48;
        ((chance.pow(3) * WORDS as u64) >> 48) as f32
    }

    /// A batch for training without privacy.
    fn next(round: u64, batch: u64, device: &Device) -> (Tensor<2>, Tensor<1, Int>) {
        let ids = (0..batch).map(|i| (round * batch + i) % Self::RECORDS);
        let (words, labels): (Vec<_>, Vec<_>) = ids.map(|id| Self.read(id, 0)).unzip();
        let shape = [batch as usize, LENGTH];
        let words = Tensor::from_data(TensorData::new(words.concat(), shape), device);
        let labels = TensorData::new(labels.concat(), [shape[0]]);
        (words, Tensor::<1>::from_data(labels, device).int())
    }
}

impl Records for Texts {
    type Example = (Vec<f32>, Vec<f32>);
    type Batch = ();

    fn count(&self) -> u64 {
        Self::RECORDS
    }

    fn read(&self, record: u64, _: usize) -> Self::Example {
        let words = (0..LENGTH as u64).map(|place| Self::word(record * LENGTH as u64 + place));
        (words.collect(), vec![(record % CLASSES as u64) as f32])
    }

    fn made_up(&self, number: u64) -> Self::Example {
        self.read(Self::RECORDS + number, 0)
    }

    fn batch(&self, _: Vec<Self::Example>, _: &Device) {}
}

/// A block of a transformer, with the order and activation that torch.nn.TransformerEncoderLayer has by default.
#[derive(Module, Debug)]
struct Block {
    attention: PrivateMultiHeadAttention,
    norm_1: PrivateLayerNorm,
    wide: PrivateLinear,
    narrow: PrivateLinear,
    norm_2: PrivateLayerNorm,
}

impl Block {
    fn new(device: &Device) -> Self {
        let attention = MultiHeadAttentionConfig::new(WIDTH, HEADS).with_dropout(0.0);
        Self {
            attention: attention.private(device),
            norm_1: LayerNormConfig::new(WIDTH).private(device),
            wide: LinearConfig::new(WIDTH, 4 * WIDTH).private(device),
            narrow: LinearConfig::new(4 * WIDTH, WIDTH).private(device),
            norm_2: LayerNormConfig::new(WIDTH).private(device),
        }
    }

    fn each(&self, x: PerRecord<3>) -> PerRecord<3> {
        let x = self.norm_1.each(x.clone() + self.attention.each(x));
        self.norm_2.each(x.clone() + self.narrow.each(self.wide.each(x).relu()))
    }
}

#[derive(Module, Debug)]
struct Transformer {
    words: PrivateEmbedding,
    places: PrivateEmbedding,
    first: Block,
    second: Block,
    last: PrivateLinear,
}

impl Transformer {
    fn new(device: &Device) -> Self {
        Self {
            words: EmbeddingConfig::new(WORDS, WIDTH).private(device),
            places: EmbeddingConfig::new(LENGTH, WIDTH).private(device),
            first: Block::new(device),
            second: Block::new(device),
            last: LinearConfig::new(WIDTH, CLASSES).private(device),
        }
    }

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        outputs(self, x)
    }
}

impl PerRecordModel for Transformer {
    fn each(&self, x: PerRecord<2>) -> PerRecord<2> {
        let places = self.places.each(x.positions());
        let x = self.words.each(x) + places;
        self.last.each(self.second.each(self.first.each(x)).average())
    }
}

/// The inputs and labels of a batch: from the number of the round and the size.
type Next<'a> = &'a dyn Fn(u64, u64, &Device) -> (Tensor<2>, Tensor<1, Int>);

/// CPU seconds of all threads of this process.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after = stat.rsplit(')').next().unwrap_or("");
    let fields: Vec<f64> = after.split_whitespace().map(|f| f.parse().unwrap_or(0.0)).collect();
    // utime and stime, in ticks of 10 ms.
    (fields.get(11).unwrap_or(&0.0) + fields.get(12).unwrap_or(&0.0)) / 100.0
}

fn peak_megabytes() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap_or("");
    line.split_whitespace().nth(1).and_then(|kb| kb.parse::<f64>().ok()).unwrap_or(0.0) / 1024.0
}

/// The memory of the training data in MB: images of a byte per pixel and their labels, or texts that are made up when they
/// are read.
fn data_megabytes(model: &str) -> f64 {
    if model == "C" { 0.0 } else { 60_000.0 * 785.0 / f64::from(1 << 20) }
}

/// Resets the peak memory of this process.
fn forget_peak() {
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

/// Seconds and CPU seconds of some rounds, after three warm-up rounds.
fn timed(
    rounds: u64,
    mut step: impl FnMut() -> Result<(), Box<dyn Error>>,
) -> Result<(f64, f64), Box<dyn Error>> {
    (0..3).try_for_each(|_| step())?;
    let (start, cpu) = (Instant::now(), cpu_seconds());
    (0..rounds).try_for_each(|_| step())?;
    Ok((start.elapsed().as_secs_f64(), cpu_seconds() - cpu))
}

fn public<M: Module>(
    model: M,
    forward: impl Fn(&M, Tensor<2>) -> Tensor<2>,
    next: Next<'_>,
    (batch, rounds): (u64, u64),
) -> Result<(f64, f64), Box<dyn Error>> {
    let (device, mut round, mut model) = (Device::flex().autodiff(), 0, Some(model));
    let mut optimizer = SgdConfig::new().init();
    timed(rounds, || {
        let (inputs, labels) = next(round, batch, &device);
        round += 1;
        let mut own = model.take().ok_or("no model")?;
        let loss = cross_entropy(forward(&own, inputs), labels).mean();
        let gradients = GradientsParams::from_grads(loss.backward(), &own);
        own = optimizer.step(0.15, own, gradients);
        model = Some(own);
        Ok(())
    })
}

fn private<M: PerRecordModel + Sync, R: Records + Sync>(
    model: M,
    data: R,
    numbers: impl Fn(&R::Example) -> (Vec<f32>, Vec<f32>) + Sync,
    (batch, rounds): (u64, u64),
) -> Result<(f64, f64), Box<dyn Error>> {
    let expected = PublicCount::new(batch as f64)?;
    let plan = TrainingPlan::new(
        Clipping::Flat(ClipNorm::new(1.0)?),
        NoiseMultiplier::new(1.1)?,
        expected,
    );
    let tile = std::env::var("VEILGRAD_BENCH_TILE").map_or(Ok(0), |tile| tile.parse())?;
    let loss = Loss::SoftmaxCrossEntropy;
    let mut trainer = Trainer::per_record_with(
        &model,
        data,
        plan,
        loss,
        numbers,
        Performance { threads: 1, tile },
    )?;
    let mut optimizer = PrivateOptimizer::new(SgdConfig::new().init());
    let mut sampler = PoissonSampler::new(SampleRate::new(batch as f64 / 60_000.0)?);
    // Includes the syncs of the durable ledger.
    let directory =
        std::env::temp_dir().join(format!("veilgrad-burn-bench-{}", std::process::id()));
    std::fs::create_dir_all(&directory)?;
    let mut ledger = veilgrad::ledger::Ledger::create(
        directory.join("ledger.db"),
        veilgrad::ledger::Options::default(),
    )?;
    ledger.create_budget(veilgrad::events::Budget {
        dataset: "mnist".to_owned(),
        unit: RecordUnit::Example,
        adjacency: Adjacency::AddRemove,
        delta: Delta::new(1e-5)?,
        epsilon: Epsilon::new(50.0)?,
        mode: veilgrad::events::Mode::Planned,
        order: None,
    })?;
    let store = ledger.dataset("mnist", std::sync::Arc::new(veilgrad::accounting::Tightest))?;
    let mut run = Run::open(store, trainer.header(Adjacency::AddRemove))?;
    let mut permits = run.reserve(&trainer.event(&sampler)?, 0)?;
    let mut model = Some(model);
    let times = timed(rounds, || {
        let permit = match permits.next() {
            Some(permit) => permit,
            None => {
                permits = run.reserve(&trainer.event(&sampler)?, 32)?;
                permits.next().ok_or("no permit")?
            }
        };
        let own = model.take().ok_or("no model")?;
        trainer.round(&own, permit, &mut sampler)?;
        model = Some(trainer.step(&mut optimizer, 0.15, own));
        Ok(())
    })?;
    std::fs::remove_dir_all(directory)?;
    Ok(times)
}

fn with_images(model: &str, mode: &str, size: (u64, u64)) -> Result<(f64, f64), Box<dyn Error>> {
    let (data, device) = (Digits::train()?, Device::flex().autodiff());
    // Unpacking the data takes more memory than training.
    forget_peak();
    let next = |round, batch, device: &Device| {
        let batch = data.next(round, batch, device);
        (batch.images, batch.labels)
    };
    match (model, mode) {
        ("A", "private") => private(PrivateCnn::new(&device), &data, digits::numbers, size),
        ("A", _) => public(PublicCnn::new(&device), PublicCnn::forward, &next, size),
        (_, "private") => private(Mlp::new(&device), &data, digits::numbers, size),
        _ => public(Mlp::new(&device), Mlp::forward, &next, size),
    }
}

fn with_texts(mode: &str, size: (u64, u64)) -> Result<(f64, f64), Box<dyn Error>> {
    let model = Transformer::new(&Device::flex().autodiff());
    match mode {
        "private" => private(model, Texts, Clone::clone, size),
        _ => public(model, Transformer::forward, &Texts::next, size),
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    let quick = arguments.iter().any(|a| a == "--quick") || arguments.is_empty();
    let cases = if quick {
        ["A", "B", "C"].map(|model| (model, "private", 256, 3)).to_vec()
    } else {
        let [model, mode, threads, batch, rounds] = &arguments[..] else {
            return Err("MODEL MODE THREADS BATCH ROUNDS".into());
        };
        if threads != "1" {
            return Err("the adapter runs on one thread".into());
        }
        vec![(model.as_str(), mode.as_str(), batch.parse()?, rounds.parse()?)]
    };
    for (model, mode, batch, rounds) in cases {
        let (seconds, cpu) = match model {
            "A" | "B" => with_images(model, mode, (batch, rounds))?,
            "C" => with_texts(mode, (batch, rounds))?,
            other => return Err(format!("there is no model {other}").into()),
        };
        let examples = (batch * rounds) as f64;
        println!(
            "{{\"model\": \"{model}\", \"mode\": \"{mode}\", \"threads\": 1, \"batch\": {batch}, \
             \"per_second\": {:.0}, \"per_cpu_second\": {:.0}, \"peak_mb\": {:.1}, \
             \"data_mb\": {:.1}}}",
            examples / seconds,
            examples / cpu,
            peak_megabytes(),
            data_megabytes(model)
        );
    }
    Ok(())
}
