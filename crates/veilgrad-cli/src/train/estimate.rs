//! How long a run will take, from a trial on made-up records: the data is not looked at for it.

use std::time::Instant;

use veilgrad_events::{Adjacency, MemoryLedger, NoiseMultiplier, Run, SampleRate};
use veilgrad_mechanism::PoissonSampler;
use veilgrad_nn::{Performance, Records, Trainer};

use super::build::{self, AnyOptimizer};
use super::config::{Config, Features, Record};
use super::data;

/// Records of the two trials: what a round costs in any case, and what records add to it.
const FEW: u64 = 32;
const MANY: u64 = 512;
/// Images of the trial of features.
const IMAGES: usize = 32;

/// Seconds for features and rounds; none if the trial does not work.
pub(crate) fn seconds(config: &Config, threads: usize) -> Option<f64> {
    let records = config.data.records as f64;
    let features = features(config, threads)? / IMAGES as f64 * records;
    let mut trainer = Trainer::new(
        build::model(&config.declaration()).ok()?,
        build::plan(config, NoiseMultiplier::new(1.0).ok()?).ok()?,
        AnyOptimizer::new(config),
        build::schedule(config),
        Performance { threads, ..Performance::default() },
    )
    .ok()?;
    let mut sampler = PoissonSampler::new(SampleRate::new(1.0).ok()?);
    let header = trainer.header(Adjacency::AddRemove);
    let mut run = Run::open(MemoryLedger::new(), header).ok()?;
    let examples = match &config.data.record {
        Record::Named(_) => 1,
        Record::User(user) => user.max_examples.get() as usize,
        Record::Microbatch(record) => record.microbatch.get() as usize,
    };
    let mut round = |count: u64| {
        let permit = run.reserve(&trainer.event(&sampler).ok()?, 1).ok()?.next()?;
        let start = Instant::now();
        trainer.round(permit, &mut sampler, &MadeUp { count, examples }).ok()?;
        Some(start.elapsed().as_secs_f64())
    };
    // The first round also makes room.
    round(FEW)?;
    let (few, many) = (round(FEW)?, round(MANY)?);
    let record = ((many - few) / (MANY - FEW) as f64).max(0.0);
    let fixed = (few - record * FEW as f64).max(0.0);
    let rounds = config.train.rounds as f64;
    Some(features + rounds * (fixed + record * config.privacy.expected_batch))
}

/// Seconds for the features of a few images.
fn features(config: &Config, threads: usize) -> Option<f64> {
    let declaration = config.declaration();
    if declaration.model.features == Features::None {
        return Some(0.0);
    }
    let size: usize = declaration.shape.iter().flatten().product();
    let images = (0..size * IMAGES).map(made_up).collect();
    let start = Instant::now();
    data::features(&declaration, images, threads).ok()?;
    Some(start.elapsed().as_secs_f64())
}

fn made_up(place: usize) -> f32 {
    (place.wrapping_mul(2_654_435_761) >> 8) as u8 as f32 / 255.0
}

/// Records of numbers in [0, 1] and of class 0.
struct MadeUp {
    count: u64,
    examples: usize,
}

impl Records for MadeUp {
    fn count(&self) -> u64 {
        self.count
    }

    fn examples(&self, _: u64) -> usize {
        self.examples
    }

    fn read(&self, record: u64, example: usize, input: &mut [f32], _: &mut [f32]) {
        for (place, value) in input.iter_mut().enumerate() {
            *value = made_up(place + 7919 * (record as usize + example));
        }
    }
}
