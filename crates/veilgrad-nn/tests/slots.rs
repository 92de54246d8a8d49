//! Samples of at most a public size: a round computes as many rows as the maximum, and releases the same bits.

use std::sync::atomic::AtomicUsize;

use crate::common::{Counted, bits, examples, in_memory, plan, trainer};
use veilgrad_events::{
    Adjacency, MemoryLedger, RoundPermit, Run, SampleRate, Sampling, TruncatedPoisson,
};
use veilgrad_mechanism::insecure::no_noise;
use veilgrad_mechanism::{SampleError, Sampler, Selection};
use veilgrad_nn::{Performance, TrainingPlan};

const RECORDS: u64 = 60;
const MAXIMUM: u64 = 24;

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

/// The parameters after two rounds on the first `size` of some records, and how many examples were read.
fn train(policy: Sampling, size: u64, plan: TrainingPlan, threads: usize) -> (Vec<u32>, usize) {
    let records = in_memory(&examples(RECORDS as usize, 9));
    let records = Counted { records, reads: AtomicUsize::new(0) };
    let mut sampler = Chosen { policy, ids: (0..size).map(|i| 2 * i + 1).collect() };
    let mut trainer = trainer(plan, Performance { threads, tile: 8 });
    let header = trainer.header(Adjacency::ZeroOut);
    let mut run = Run::open_insecure(MemoryLedger::new(), header, "test").unwrap();
    for permit in run.reserve(&trainer.event(&sampler).unwrap(), 2).unwrap() {
        let noise = no_noise(trainer.plan());
        trainer.round_insecure(permit, &mut sampler, &records, noise).unwrap();
    }
    (bits(trainer.model()), records.reads.into_inner())
}

#[test]
fn every_sample_takes_as_many_rows_as_the_maximum_and_gives_the_same_bits_as_without() {
    let rate = SampleRate::new(0.3).unwrap();
    let truncated = TruncatedPoisson::new(rate, RECORDS, MAXIMUM).unwrap();
    for materialised in [false, true] {
        for threads in [1, 2] {
            let plan = || {
                let plan = plan(0.3, 20.0);
                if materialised { plan.materialised() } else { plan }
            };
            for size in [0, 1, 7, 8, 9, 23, 24] {
                let (padded, reads) =
                    train(Sampling::TruncatedPoisson(truncated), size, plan(), threads);
                let (plain, plain_reads) = train(Sampling::Poisson { rate }, size, plan(), threads);
                let name = format!("{size} records, {threads} threads, {materialised}");
                assert_eq!(padded, plain, "{name}");
                assert_eq!(reads, 2 * MAXIMUM as usize, "{name}");
                assert_eq!(plain_reads, 2 * size as usize, "{name}");
            }
        }
    }
}
