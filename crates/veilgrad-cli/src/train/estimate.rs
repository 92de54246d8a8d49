//! Estimates the time of a run from a trial on synthetic records, without reading the data.

use std::time::Instant;

use veilgrad_events::{Adjacency, MemoryLedger, NoiseMultiplier, Run, SampleRate};
use veilgrad_mechanism::PoissonSampler;
use veilgrad_nn::Records;

use super::build;
use super::config::{Config, Features, Record};
use super::inputs::Inputs;
use super::progress::time;

/// Records of the two trials, from which the fixed time of a round and the time per record follow.
const FEW: u64 = 32;
const MANY: u64 = 512;
/// The same for images and their features.
const FEW_IMAGES: usize = 16;
const MANY_IMAGES: usize = 80;
/// Each trial runs up to `TRIES` times, but not on after `PATIENCE` seconds; the quickest counts.
const TRIES: usize = 3;
const PATIENCE: f64 = 0.2;
/// Most examples per record in a trial; the time of larger records is extrapolated.
const MOST_EXAMPLES: u32 = 8;

/// The estimated time as text: "at most" for users, who may have fewer than the declared number of examples.
pub(crate) fn text(config: &Config, threads: usize) -> Option<String> {
    let time = time(seconds(config, threads)?);
    let most = if config.data.record.user_examples().is_some() { "at most " } else { "" };
    Some(format!("{most}about {time} on {threads} threads"))
}

/// Seconds for features and rounds; `None` if the trial fails.
fn seconds(config: &Config, threads: usize) -> Option<f64> {
    // Without canaries: few of the real records are, but most of the trial's would be.
    let config = &Config { audit: None, ..config.clone() };
    let records = config.data.records as f64;
    let images = |count: usize| quickest(|| features(config, count, threads));
    let (few, many) = (images(FEW_IMAGES)?, images(MANY_IMAGES)?);
    let features = ((many - few) / (MANY_IMAGES - FEW_IMAGES) as f64).max(0.0) * records + few;
    let mut model = build::model(&config.declaration()).ok()?;
    config.model.frozen.iter().try_for_each(|pattern| model.freeze(pattern)).ok()?;
    let noise = NoiseMultiplier::new(1.0).ok()?;
    let mut trainer = build::trainer(config, model, noise, None, threads).ok()?;
    let mut sampler = PoissonSampler::new(SampleRate::new(1.0).ok()?);
    let header = trainer.header(Adjacency::AddRemove);
    let mut run = Run::open(MemoryLedger::new(), header).ok()?;
    let most = match &config.data.record {
        Record::Microbatch(record) => record.microbatch.get(),
        record => record.user_examples().map_or(config.copies() as u32, |most| most.get()),
    };
    let examples = most.min(MOST_EXAMPLES);
    let numbers: Vec<f32> = (0..SHIFTS + INPUTS).map(synthetic_value).collect();
    let mut round = |count: u64| {
        let permit = run.reserve(&trainer.event(&sampler).ok()?, 1).ok()?.next()?;
        let start = Instant::now();
        let records = Synthetic { count, examples: examples as usize, numbers: &numbers };
        trainer.round(permit, &mut sampler, &records).ok()?;
        Some(start.elapsed().as_secs_f64())
    };
    // The first round also allocates.
    round(FEW)?;
    let (few, many) = (quickest(|| round(FEW))?, quickest(|| round(MANY))?);
    let record = ((many - few) / (MANY - FEW) as f64).max(0.0);
    let fixed = (few - record * FEW as f64).max(0.0);
    let record = record * f64::from(most) / f64::from(examples);
    let rounds = config.rounds() as f64;
    Some(features + rounds * (fixed + record * config.privacy.expected_batch))
}

fn quickest(mut trial: impl FnMut() -> Option<f64>) -> Option<f64> {
    let (mut best, mut all) = (f64::INFINITY, 0.0);
    for _ in 0..TRIES {
        let seconds = trial()?;
        (best, all) = (best.min(seconds), all + seconds);
        if all > PATIENCE {
            break;
        }
    }
    Some(best)
}

fn features(config: &Config, count: usize, threads: usize) -> Option<f64> {
    let declaration = config.declaration();
    if declaration.model.features == Features::None {
        return Some(0.0);
    }
    let size: usize = declaration.shape.iter().flatten().product();
    let images: Vec<f32> = (0..size * count).map(synthetic_value).collect();
    let inputs = Inputs::new(&declaration).ok()?;
    let start = Instant::now();
    inputs.compute(&images, None, threads);
    Some(start.elapsed().as_secs_f64())
}

fn synthetic_value(place: usize) -> f32 {
    (place.wrapping_mul(2_654_435_761) >> 8) as u8 as f32 / 255.0
}

/// Records of numbers in [0, 1] and of class 0. They are copied from memory, as real ones are.
struct Synthetic<'a> {
    count: u64,
    examples: usize,
    numbers: &'a [f32],
}

/// Records start at one of `SHIFTS` offsets, with at least `INPUTS` numbers after each.
const SHIFTS: usize = 1021;
const INPUTS: usize = 1 << 12;

impl Records for Synthetic<'_> {
    fn count(&self) -> u64 {
        self.count
    }

    fn examples(&self, _: u64) -> usize {
        self.examples
    }

    fn read(&self, record: u64, example: usize, input: &mut [f32], _: &mut [f32]) {
        let first = 7919 * (record as usize + example) % SHIFTS;
        for input in input.chunks_mut(INPUTS) {
            let numbers = self.numbers.iter().skip(first);
            input.iter_mut().zip(numbers).for_each(|(input, number)| *input = *number);
        }
    }
}
