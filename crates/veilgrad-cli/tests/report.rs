//! A report covers all rounds of a ledger, not only the last.

use std::path::Path;
use std::sync::Arc;

use crate::common::{Directory, veilgrad};
use serde_json::Value;
use veilgrad_accounting::Tightest;
use veilgrad_events::{
    Adjacency, Budget, ClipNorm, Delta, Epsilon, FixedBatch, Mode, NoiseStd, RecordUnit, Round,
    Run, RunHeader, SampleRate, Sampling, SumQuery,
};
use veilgrad_ledger::{DatasetLedger, Ledger, Options};

/// A ledger for data whose number of records is public.
fn create(path: &str) {
    let budget = Budget {
        dataset: "visits".to_owned(),
        unit: RecordUnit::Example,
        adjacency: Adjacency::ZeroOut,
        delta: Delta::new(1e-5).unwrap(),
        epsilon: Epsilon::new(8.0).unwrap(),
        mode: Mode::Planned,
        order: None,
    };
    let mut ledger = Ledger::create(Path::new(path), Options::default()).unwrap();
    ledger.create_budget(budget).unwrap();
}

fn store(path: &str) -> DatasetLedger {
    let ledger = Ledger::open(Path::new(path), Options::default()).unwrap();
    ledger.dataset("visits", Arc::new(Tightest)).unwrap()
}

fn header() -> RunHeader {
    RunHeader::new(RecordUnit::Example, Adjacency::ZeroOut)
}

fn charge(path: &str, sampling: Sampling, noise: f64) {
    let query = SumQuery::new("g", ClipNorm::new(1.0).unwrap(), NoiseStd::new(noise).unwrap());
    let round = Round::new(sampling, vec![query]).unwrap();
    let mut run = Run::open(store(path), header()).unwrap();
    drop(run.reserve(&round, 3).unwrap());
    run.close().unwrap();
}

fn report(path: &str) -> Value {
    serde_json::from_slice(&veilgrad(&["report", path, "--json"]).stdout).unwrap()
}

#[test]
fn the_sampling_that_ran_is_named_and_the_least_noise_is_shown() {
    let directory = Directory::new("report-sampling");
    let path = directory.file("ledger.db");
    create(&path);
    let shuffle = Sampling::Shuffle(FixedBatch::new(60, 10).unwrap());
    charge(&path, shuffle, 9.0);
    assert_eq!(report(&path)["sampling"], "shuffle");
    // A round with less noise between two equal ones.
    charge(&path, shuffle, 8.0);
    charge(&path, shuffle, 9.0);
    let found = report(&path);
    assert_eq!((&found["sampling"], &found["insecure"]), (&"shuffle".into(), &false.into()));
    let noise = found["noise_multiplier"].as_f64().unwrap();
    assert!((noise - 8.0).abs() < 1e-9, "{noise}");
    charge(&path, Sampling::Poisson { rate: SampleRate::new(0.1).unwrap() }, 9.0);
    assert_eq!(report(&path)["sampling"], "mixed");
}

#[test]
fn a_run_that_protects_nothing_is_in_the_report() {
    let directory = Directory::new("report-insecure");
    let path = directory.file("ledger.db");
    create(&path);
    charge(&path, Sampling::All {}, 9.0);
    Run::open_insecure(store(&path), header(), "seeded noise").unwrap().close().unwrap();
    let found = report(&path);
    assert_eq!((&found["insecure"], &found["valid"]), (&true.into(), &false.into()));
}
