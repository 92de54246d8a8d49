//! Rounds that fail before the backend sees any record.

use std::sync::atomic::{AtomicUsize, Ordering};

use veilgrad_events::{ClipNorm, MemoryLedger, NoiseMultiplier, PublicCount, Run};
use veilgrad_mechanism::{AllRecords, RecordVector};

use super::*;
use crate::round::{Clipping, ExampleId, Vector};

/// A backend of 40 records with one coordinate of 0.5; counts the calls of `records` and `run`.
#[derive(Default)]
struct Counted {
    records: AtomicUsize,
    runs: AtomicUsize,
}

impl Backend for Counted {
    type Memory = ();

    fn memory(&self) {}

    fn capacity(&self, (): &()) -> usize {
        4
    }

    fn records(&self) -> u64 {
        self.records.fetch_add(1, Ordering::Relaxed);
        40
    }

    fn examples(&self, _: u64) -> usize {
        1
    }

    fn run(&self, (): &mut (), _: &[ExampleId]) -> bool {
        self.runs.fetch_add(1, Ordering::Relaxed);
        true
    }

    fn run_summed(&self, (): &mut (), _: &[ExampleId], _: &mut [Vec<f32>]) -> bool {
        false
    }

    fn is_sound(&self, (): &(), _: usize) -> bool {
        true
    }

    fn vector<'m>(&self, (): &'m (), _: usize, _: usize) -> RecordVector<'m> {
        RecordVector::Values(&[0.5])
    }

    fn metric(&self, (): &(), _: usize, _: usize) -> f64 {
        0.0
    }
}

fn engine(threads: usize, numerics: Numerics) -> Engine<()> {
    let clipping = Clipping::Flat(ClipNorm::new(1.0).unwrap());
    let noise = NoiseMultiplier::new(1.0).unwrap();
    let training = TrainingPlan::new(clipping, noise, PublicCount::new(40.0).unwrap());
    let trained = vec![Vector { name: "w".to_owned(), length: 1, outer: None }];
    let vectors = Vectors { trained, statistics: Vec::new() };
    Engine::new(training, vectors, Performance { threads, tile: 4 }, numerics).unwrap()
}

fn permit(engine: &Engine<()>, declared: Numerics) -> RoundPermit {
    let mut header = engine.header(Adjacency::ZeroOut);
    header.numerics = declared;
    let mut run = Run::open(MemoryLedger::new(), header).unwrap();
    run.reserve(&engine.event(&AllRecords).unwrap(), 1).unwrap().next().unwrap()
}

#[test]
fn a_run_that_declares_exact_numerics_refuses_an_unverified_trainer_before_any_data() {
    for (declared, actual, refused) in [
        (Numerics::Exact, Numerics::Unverified, true),
        (Numerics::Exact, Numerics::Exact, false),
        (Numerics::Unverified, Numerics::Exact, false),
        (Numerics::Unverified, Numerics::Unverified, false),
    ] {
        let (mut engine, backend) = (engine(1, actual), Counted::default());
        let round = engine.round(&backend, permit(&engine, declared), &mut AllRecords);
        assert_eq!(matches!(round, Err(TrainError::Numerics)), refused, "{declared:?} {actual:?}");
        assert_eq!(round.is_err(), refused);
        assert_eq!(backend.records.into_inner() == 0, refused);
    }
}

#[test]
fn when_noise_fails_nothing_is_released_and_one_thread_runs_no_record() {
    for threads in [1, 4] {
        let (mut engine, backend) = (engine(threads, Numerics::Exact), Counted::default());
        let no_noise = |_: &RoundPlan, _| Err(NoiseError::TooManyGroups);
        let permit_of_failure = permit(&engine, Numerics::Exact);
        let failed = engine.round_with(&backend, permit_of_failure, &mut AllRecords, no_noise);
        assert!(matches!(failed, Err(TrainError::Noise(NoiseError::TooManyGroups))));
        assert!(engine.estimates().is_none());
        assert_eq!(engine.rounds(), 0);
        // The other threads begin while the noise is drawn, and stop when it fails.
        if threads == 1 {
            assert_eq!(backend.runs.load(Ordering::Relaxed), 0);
        }
        // No later round contains what they had added: the average of 40 records of 0.5 is 0.5.
        let permit = permit(&engine, Numerics::Exact);
        engine.round(&backend, permit, &mut AllRecords).unwrap();
        let average = engine.estimates().unwrap().vector("w").unwrap().to_vec()[0];
        // The noise of the average has a standard deviation of 1/40; eight standard deviations: probability 1e-15.
        assert!((average - 0.5).abs() < 0.2, "{average}");
    }
}
