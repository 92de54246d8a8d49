//! Speed of private training. `benches/training.sh` alternates it with PyTorch + Opacus.
//!
//! Run on its own, it prints the examples per second and per CPU second of one case:
//! `training MODEL MODE THREADS BATCH ROUNDS`, with model `A`, `B` or `D` and mode `private` or `public`.
#![allow(clippy::print_stdout, missing_docs)]

use std::error::Error;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::Instant;

use flate2::read::GzDecoder;
use veilgrad::data::CompactRows;
use veilgrad::nn::public::PublicTrainer;
use veilgrad::nn::{
    Clipping, Conv2d, Layer, Loss, Model, Padding, Performance, Records, Schedule, Sgd, Trainer,
    TrainingPlan,
};
use veilgrad::prelude::*;
use veilgrad_benches::{cpu_seconds, peak_megabytes};

const RECORDS: u64 = 60_000;
/// The features of model D: as many as in the recipe for Fashion-MNIST.
const FEATURES: usize = 10_287;
/// Made-up records of D that are repeated, so that they fit memory.
const DISTINCT: usize = 4_000;

enum Data {
    Images {
        pixels: Vec<u8>,
        labels: Vec<u8>,
    },
    /// In 16 bits each, as `veilgrad train` holds features.
    Features(CompactRows),
}

impl Data {
    fn open(model: &str) -> Result<Self, Box<dyn Error>> {
        if model == "D" {
            let value = |i: usize| ((i * 7919) % 1009) as f32 * (2.0 / 1009.0) - 1.0;
            let mut rows = CompactRows::new(FEATURES);
            rows.reserve(DISTINCT);
            for row in 0..DISTINCT {
                let values = row * FEATURES..(row + 1) * FEATURES;
                rows.extend(&values.map(value).collect::<Vec<_>>());
            }
            return Ok(Self::Features(rows));
        }
        let read = |name: &str| -> Result<Vec<u8>, Box<dyn Error>> {
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../data/mnist").join(name);
            let mut bytes = Vec::new();
            GzDecoder::new(File::open(path)?).read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        let pixels = read("train-images-idx3-ubyte.gz")?.split_off(16);
        let labels = read("train-labels-idx1-ubyte.gz")?.split_off(8);
        Ok(Self::Images { pixels, labels })
    }

    /// How much memory the records take, in MB.
    fn megabytes(&self) -> f64 {
        let bytes = match self {
            Self::Images { pixels, labels } => pixels.len() + labels.len(),
            Self::Features(_) => DISTINCT * FEATURES * size_of::<i16>(),
        };
        bytes as f64 / f64::from(1 << 20)
    }
}

impl Records for Data {
    fn count(&self) -> u64 {
        RECORDS
    }

    fn read(&self, record: u64, _: usize, input: &mut [f32], target: &mut [f32]) {
        let record = record as usize;
        match self {
            Self::Images { pixels, labels } => {
                for (input, pixel) in input.iter_mut().zip(&pixels[record * 784..]) {
                    *input = f32::from(*pixel) * (1.0 / 255.0);
                }
                target[0] = f32::from(labels[record]);
            }
            Self::Features(rows) => {
                rows.read(record % DISTINCT, input);
                target[0] = (record % 10) as f32;
            }
        }
    }
}

fn model(name: &str) -> Result<Model, Box<dyn Error>> {
    Ok(match name {
        "A" => Model::new(
            &[28, 28, 1],
            [
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
            ],
            1,
        )?,
        "B" => Model::new(
            &[784],
            [Layer::linear(512), Layer::Relu, Layer::linear(256), Layer::Relu, Layer::linear(10)],
            1,
        )?,
        "D" => Model::new(&[FEATURES], [Layer::linear(10)], 1)?,
        other => return Err(format!("there is no model {other}").into()),
    })
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    let quick = arguments.iter().any(|a| a == "--quick") || arguments.is_empty();
    let cases = if quick {
        vec![("A", "private", 2, 256, 5), ("B", "private", 2, 256, 5), ("D", "private", 2, 4096, 1)]
    } else {
        let [model, mode, threads, batch, rounds] = &arguments[..] else {
            return Err("MODEL MODE THREADS BATCH ROUNDS".into());
        };
        let (threads, batch, rounds) = (threads.parse()?, batch.parse()?, rounds.parse()?);
        vec![(model.as_str(), mode.as_str(), threads, batch, rounds)]
    };
    for (model_name, mode, threads, batch, rounds) in cases {
        let data = Data::open(model_name)?;
        // Resets the peak memory: unpacking the data takes more memory than training.
        let _ = std::fs::write("/proc/self/clear_refs", "5");
        let model = model(model_name)?;
        let tile = std::env::var("VEILGRAD_BENCH_TILE").map_or(Ok(0), |tile| tile.parse())?;
        let performance = Performance { threads, tile };
        let loss = Loss::SoftmaxCrossEntropy;
        let (seconds, cpu) = if mode == "public" {
            let mut trainer = PublicTrainer::new(model, loss, performance);
            let mut numbers = 1u64;
            let mut step = || {
                let ids: Vec<u64> = (0..batch)
                    .map(|_| {
                        numbers = numbers.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                        (numbers >> 33) % RECORDS
                    })
                    .collect();
                trainer.step(&data, &ids, 0.15);
            };
            (0..3).for_each(|_| step());
            let (start, cpu) = (Instant::now(), cpu_seconds());
            (0..rounds).for_each(|_| step());
            (start.elapsed().as_secs_f64(), cpu_seconds() - cpu)
        } else {
            let clipping = Clipping::Flat(ClipNorm::new(1.0)?);
            let expected = PublicCount::new(batch as f64)?;
            let plan = TrainingPlan::new(clipping, NoiseMultiplier::new(1.1)?, expected);
            let rate = Schedule::Constant(0.15);
            let mut trainer = Trainer::new(model, loss, plan, Sgd::plain(), rate, performance)?;
            let mut sampler = PoissonSampler::new(SampleRate::new(batch as f64 / RECORDS as f64)?);
            // Includes the syncs of the durable ledger.
            let directory =
                std::env::temp_dir().join(format!("veilgrad-bench-{}", std::process::id()));
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
            let store =
                ledger.dataset("mnist", std::sync::Arc::new(veilgrad::accounting::Tightest))?;
            let mut run = Run::open(store, trainer.header(Adjacency::AddRemove))?;
            trainer.train(&mut run, &mut sampler, &data, 3, 32, |_, _| ())?;
            let (start, cpu) = (Instant::now(), cpu_seconds());
            trainer.train(&mut run, &mut sampler, &data, rounds, 32, |_, _| ())?;
            let times = (start.elapsed().as_secs_f64(), cpu_seconds() - cpu);
            std::fs::remove_dir_all(directory)?;
            times
        };
        let examples = (batch * rounds) as f64;
        println!(
            "{{\"model\": \"{model_name}\", \"mode\": \"{mode}\", \"threads\": {threads}, \"batch\": {batch}, \
             \"per_second\": {:.0}, \"per_cpu_second\": {:.0}, \"peak_mb\": {:.1}, \
             \"data_mb\": {:.1}}}",
            examples / seconds,
            examples / cpu,
            peak_megabytes(),
            data.megabytes()
        );
    }
    Ok(())
}
