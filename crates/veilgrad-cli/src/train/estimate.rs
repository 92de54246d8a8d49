//! How long a run will take, from a trial on made-up records: the data is not looked at for it.

use std::time::Instant;

use veilgrad_events::{Adjacency, MemoryLedger, NoiseMultiplier, Run, SampleRate};
use veilgrad_mechanism::PoissonSampler;
use veilgrad_nn::{Loss, Performance, Records, Trainer};

use super::build;
use super::config::{Config, Features, Record};
use super::data;
use super::progress::time;

/// Records of the two trials: what a round costs in any case, and what records add to it.
const FEW: u64 = 32;
const MANY: u64 = 512;
/// The same for images and their features.
const FEW_IMAGES: usize = 16;
const MANY_IMAGES: usize = 80;
/// How often each is tried, if that takes less than these seconds; the quickest counts.
const TRIES: usize = 3;
const PATIENCE: f64 = 0.2;
/// Examples of a record in a trial. With more, a record takes as many times longer.
const MOST_EXAMPLES: u32 = 8;

/// How long the run will take, in words. Users have at most the declared number of examples.
pub(crate) fn text(config: &Config, threads: usize) -> Option<String> {
    let time = time(seconds(config, threads)?);
    let most = if matches!(config.data.record, Record::User(_)) { "at most " } else { "" };
    Some(format!("{most}about {time} on {threads} threads"))
}

/// Seconds for features and rounds; none if the trial does not work.
fn seconds(config: &Config, threads: usize) -> Option<f64> {
    // Few of the records are canaries; in these short trials most would be.
    let config = &Config { audit: None, ..config.clone() };
    let records = config.data.records as f64;
    let images = |count: usize| quickest(|| features(config, count, threads));
    let (few, many) = (images(FEW_IMAGES)?, images(MANY_IMAGES)?);
    let features = ((many - few) / (MANY_IMAGES - FEW_IMAGES) as f64).max(0.0) * records + few;
    let mut trainer = Trainer::new(
        build::model(&config.declaration()).ok()?,
        Loss::SoftmaxCrossEntropy,
        build::plan(config, NoiseMultiplier::new(1.0).ok()?).ok()?,
        build::optimizer(config),
        build::schedule(config),
        Performance { threads, ..Performance::default() },
    )
    .ok()?;
    let mut sampler = PoissonSampler::new(SampleRate::new(1.0).ok()?);
    let header = trainer.header(Adjacency::AddRemove);
    let mut run = Run::open(MemoryLedger::new(), header).ok()?;
    let most = match &config.data.record {
        Record::Named(_) => 1,
        Record::User(user) => user.max_examples.get(),
        Record::Microbatch(record) => record.microbatch.get(),
    };
    let examples = most.min(MOST_EXAMPLES);
    let numbers: Vec<f32> = (0..SHIFTS + INPUTS).map(made_up).collect();
    let mut round = |count: u64| {
        let permit = run.reserve(&trainer.event(&sampler).ok()?, 1).ok()?.next()?;
        let start = Instant::now();
        let records = MadeUp { count, examples: examples as usize, numbers: &numbers };
        trainer.round(permit, &mut sampler, &records).ok()?;
        Some(start.elapsed().as_secs_f64())
    };
    // The first round also allocates.
    round(FEW)?;
    let (few, many) = (quickest(|| round(FEW))?, quickest(|| round(MANY))?);
    let record = ((many - few) / (MANY - FEW) as f64).max(0.0);
    let fixed = (few - record * FEW as f64).max(0.0);
    let record = record * f64::from(most) / f64::from(examples);
    let rounds = config.train.rounds as f64;
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
    let images = (0..size * count).map(made_up).collect();
    let start = Instant::now();
    data::features(&declaration, images, threads).ok()?;
    Some(start.elapsed().as_secs_f64())
}

fn made_up(place: usize) -> f32 {
    (place.wrapping_mul(2_654_435_761) >> 8) as u8 as f32 / 255.0
}

/// Records of numbers in [0, 1] and of class 0, copied from a table, as real ones are.
struct MadeUp<'a> {
    count: u64,
    examples: usize,
    numbers: &'a [f32],
}

/// How far records begin apart in the table, at most, and how many numbers are behind that.
const SHIFTS: usize = 1021;
const INPUTS: usize = 1 << 12;

impl Records for MadeUp<'_> {
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
