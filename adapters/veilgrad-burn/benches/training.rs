//! Speed of private training in Burn. `benches/training.sh --burn` alternates it with PyTorch + Opacus.
//!
//! Run on its own, it prints the examples per second and per CPU second of one case:
//! `training MODEL MODE THREADS BATCH ROUNDS`, with model `A` or `B` and mode `private` or `public`.
#![allow(clippy::print_stdout, missing_docs)]

use std::error::Error;
use std::time::Instant;

use burn::module::Module;
use burn::optim::{GradientsParams, SgdConfig};
use burn::tensor::{Device, Tensor};
use veilgrad::nn::{Clipping, Loss, Performance};
use veilgrad::prelude::*;
use veilgrad_burn::{
    PerRecord, PerRecordModel, PrivateConfig, PrivateLinear, PrivateOptimizer, Trainer,
    TrainingPlan, cross_entropy, outputs,
};

#[path = "../examples/digits/mod.rs"]
mod digits;
#[path = "../examples/models/mod.rs"]
mod models;

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
    data: &Digits,
    (batch, rounds): (u64, u64),
) -> Result<(f64, f64), Box<dyn Error>> {
    let (device, mut round, mut model) = (Device::flex().autodiff(), 0, Some(model));
    let mut optimizer = SgdConfig::new().init();
    timed(rounds, || {
        let batch = data.next(round, batch, &device);
        round += 1;
        let mut own = model.take().ok_or("no model")?;
        let loss = cross_entropy(forward(&own, batch.images), batch.labels).mean();
        let gradients = GradientsParams::from_grads(loss.backward(), &own);
        own = optimizer.step(0.15, own, gradients);
        model = Some(own);
        Ok(())
    })
}

fn private<M: PerRecordModel + Sync>(
    model: M,
    data: &Digits,
    (batch, rounds): (u64, u64),
) -> Result<(f64, f64), Box<dyn Error>> {
    let expected = PublicCount::new(batch as f64)?;
    let plan = TrainingPlan::new(
        Clipping::Flat(ClipNorm::new(1.0)?),
        NoiseMultiplier::new(1.1)?,
        expected,
    );
    let tile = std::env::var("VEILGRAD_BENCH_TILE").map_or(Ok(0), |tile| tile.parse())?;
    let (loss, numbers) = (Loss::SoftmaxCrossEntropy, digits::numbers);
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
        &directory.join("ledger.db"),
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

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    let quick = arguments.iter().any(|a| a == "--quick") || arguments.is_empty();
    let cases = if quick {
        vec![("A", "private", 256, 3), ("B", "private", 256, 3)]
    } else {
        let [model, mode, threads, batch, rounds] = &arguments[..] else {
            return Err("MODEL MODE THREADS BATCH ROUNDS".into());
        };
        if threads != "1" {
            return Err("the adapter runs on one thread".into());
        }
        vec![(model.as_str(), mode.as_str(), batch.parse()?, rounds.parse()?)]
    };
    let data = Digits::train()?;
    // Resets the peak memory: unpacking the data takes more memory than training.
    let _ = std::fs::write("/proc/self/clear_refs", "5");
    let device = Device::flex().autodiff();
    for (model, mode, batch, rounds) in cases {
        let size = (batch, rounds);
        let (seconds, cpu) = match (model, mode) {
            ("A", "private") => private(PrivateCnn::new(&device), &data, size)?,
            ("A", _) => public(PublicCnn::new(&device), PublicCnn::forward, &data, size)?,
            ("B", "private") => private(Mlp::new(&device), &data, size)?,
            ("B", _) => public(Mlp::new(&device), Mlp::forward, &data, size)?,
            (other, _) => return Err(format!("there is no model {other}").into()),
        };
        let examples = (batch * rounds) as f64;
        println!(
            "{{\"model\": \"{model}\", \"mode\": \"{mode}\", \"threads\": 1, \"batch\": {batch}, \
             \"per_second\": {:.0}, \"per_cpu_second\": {:.0}, \"peak_mb\": {:.0}}}",
            examples / seconds,
            examples / cpu,
            peak_megabytes()
        );
    }
    Ok(())
}
