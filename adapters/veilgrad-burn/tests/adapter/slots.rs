//! Samples of at most a public size: the network sees as many rows as the maximum, and the same bits are released.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use burn::tensor::Device;
use veilgrad_burn::{Outcome, Records, Trainer, TrainingPlan};
use veilgrad_events::{
    Adjacency, MemoryLedger, RoundPermit, Run, SampleRate, Sampling, TruncatedPoisson,
};
use veilgrad_mechanism::insecure::no_noise;
use veilgrad_mechanism::{SampleError, Sampler, Selection};
use veilgrad_nn::{Loss, Performance};

use crate::common::{Batch, Mlp, Points, all_integers, backends, example, flat, judge};

const RECORDS: u64 = 60;
const MAXIMUM: u64 = 28;
/// The maximum is no multiple of it, so that the last tile has made-up rows as well.
const TILE: usize = 8;

/// Selects the same records in every round.
struct Chosen {
    policy: Sampling,
    ids: Vec<u64>,
}

impl Sampler for Chosen {
    fn policy(&self) -> Sampling {
        self.policy
    }

    fn select(&mut self, _: &RoundPermit, _: u64) -> Result<Selection, SampleError> {
        Ok(Selection::ids(self.ids.clone()))
    }
}

/// Counts the examples that are read and made up, and notes the number of rows of every batch of tensors.
struct Counted {
    points: Points,
    read: AtomicUsize,
    made_up: AtomicUsize,
    batches: Mutex<Vec<usize>>,
}

/// What the network saw: real examples, made-up ones, and the rows of every batch in ascending order.
type Seen = (usize, usize, Vec<usize>);

impl Counted {
    fn new() -> Self {
        let points = Points::new(RECORDS as usize, 12, None);
        let (read, made_up) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Self { points, read, made_up, batches: Mutex::new(Vec::new()) }
    }

    /// What was counted since the last call.
    fn take(&self) -> Seen {
        let mut batches = std::mem::take(&mut *self.batches.lock().unwrap());
        batches.sort_unstable();
        let count = |counter: &AtomicUsize| counter.swap(0, Ordering::Relaxed);
        (count(&self.read), count(&self.made_up), batches)
    }
}

impl Records for Counted {
    type Example = (Vec<f32>, i64);
    type Batch = Batch;

    fn count(&self) -> u64 {
        self.points.count()
    }

    fn read(&self, record: u64, example: usize) -> Self::Example {
        self.read.fetch_add(1, Ordering::Relaxed);
        self.points.read(record, example)
    }

    fn made_up(&self, number: u64) -> Self::Example {
        self.made_up.fetch_add(1, Ordering::Relaxed);
        self.points.made_up(number)
    }

    fn batch(&self, examples: Vec<Self::Example>, device: &Device) -> Batch {
        self.batches.lock().unwrap().push(examples.len());
        self.points.batch(examples, device)
    }
}

/// The released sums of one round on the first `size` of some records, and what the network saw in it.
fn round<R: Records + Sync, F: Fn(&Mlp, R::Batch) -> Outcome + Sync>(
    mut trainer: Trainer<Mlp, R, F>,
    model: &Mlp,
    counted: &Counted,
    policy: Sampling,
    size: u64,
) -> (Vec<i64>, Seen) {
    let mut sampler = Chosen { policy, ids: (0..size).map(|i| 2 * i + 1).collect() };
    let header = trainer.header(Adjacency::ZeroOut);
    let mut run = Run::open_insecure(MemoryLedger::new(), header, "test").unwrap();
    let permit = run.reserve(&trainer.event(&sampler).unwrap(), 1).unwrap().next().unwrap();
    let plan = trainer.plan().clone();
    // A trainer tries the model on made-up examples when it is built.
    counted.take();
    trainer.round_insecure(model, permit, &mut sampler, no_noise(&plan)).unwrap();
    (all_integers(&(trainer.estimates().unwrap().clone(), plan)), counted.take())
}

/// How a model sees records: types that keep them apart, tensors of several records, one record at a time.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Way {
    PerRecord,
    Tiles,
    Materialised,
}

fn sums(
    way: Way,
    device: &Device,
    threads: usize,
    policy: Sampling,
    size: u64,
) -> (Vec<i64>, Seen) {
    let (model, counted) = (Mlp::new(device), Counted::new());
    let performance = Performance { threads, tile: TILE };
    let plan =
        |plan: TrainingPlan| if way == Way::Materialised { plan.materialised() } else { plan };
    let plan = plan(flat(0.4));
    if way == Way::PerRecord {
        let loss = Loss::SoftmaxCrossEntropy;
        let trainer =
            Trainer::per_record_with(&model, &counted, plan, loss, example, performance).unwrap();
        return round(trainer, &model, &counted, policy, size);
    }
    let trainer = Trainer::with(&model, &counted, plan, judge, performance).unwrap();
    round(trainer, &model, &counted, policy, size)
}

#[test]
fn every_sample_takes_as_many_rows_as_the_maximum_and_gives_the_same_bits_as_without() {
    let rate = SampleRate::new(0.3).unwrap();
    let truncated = TruncatedPoisson::new(rate, RECORDS, MAXIMUM).unwrap();
    for (backend, device) in backends() {
        for way in [Way::PerRecord, Way::Tiles, Way::Materialised] {
            for threads in [1, 2] {
                let mut shapes = None;
                for size in [0, 1, 7, 8, 9, 27, 28] {
                    let name = format!("{backend}, {way:?}, {size} records, {threads} threads");
                    let policy = Sampling::TruncatedPoisson(truncated);
                    let (padded, seen) = sums(way, &device, threads, policy, size);
                    let policy = Sampling::Poisson { rate };
                    let (plain, seen_without) = sums(way, &device, threads, policy, size);
                    assert_eq!(padded, plain, "{name}");
                    assert_eq!(seen_without.0, size as usize, "{name}");
                    assert_eq!(seen.0, MAXIMUM as usize, "{name}");
                    // Made-up rows and the shapes of batches do not depend on the sample either.
                    assert_eq!(*shapes.get_or_insert_with(|| seen.clone()), seen, "{name}");
                    assert_eq!(size == 0, padded.iter().all(|sum| *sum == 0), "{name}");
                }
            }
        }
    }
}
