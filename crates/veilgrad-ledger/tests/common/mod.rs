//! Ledgers in temporary directories.
#![allow(dead_code)] // Not every test uses all of it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use veilgrad_accounting::{Accountant, Composition, Tightest};
use veilgrad_events::{
    Adjacency, Budget, ClipNorm, Delta, Epsilon, LedgerError, Mode, NoiseStd, Pricing, RecordUnit,
    Round, Rounds, Run, RunHeader, SampleRate, Sampling, SumQuery,
};
use veilgrad_ledger::{DatasetLedger, Ledger, Options, StoreError};

/// A temporary directory, removed on drop.
pub(crate) struct Directory(PathBuf);

impl Directory {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("veilgrad-ledger-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    pub(crate) fn ledger(&self) -> PathBuf {
        self.0.join("ledger.db")
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub(crate) fn budget(dataset: &str, epsilon: f64, mode: Mode) -> Budget {
    let (delta, epsilon) = (Delta::new(1e-5).unwrap(), Epsilon::new(epsilon).unwrap());
    Budget {
        dataset: dataset.to_owned(),
        unit: RecordUnit::Example,
        adjacency: Adjacency::AddRemove,
        delta,
        epsilon,
        mode,
        order: match mode {
            Mode::Planned => None,
            Mode::Adaptive => Tightest.order(epsilon, delta),
        },
    }
}

pub(crate) fn round(q: f64, z: f64) -> Round {
    let query = SumQuery::new("g", ClipNorm::new(1.0).unwrap(), NoiseStd::new(z).unwrap());
    let sampling = Sampling::Poisson { rate: SampleRate::new(q).unwrap() };
    Round::new(sampling, vec![query]).unwrap()
}

pub(crate) fn header() -> RunHeader {
    RunHeader::new(RecordUnit::Example, Adjacency::AddRemove)
}

/// A new ledger with one dataset.
pub(crate) fn create(path: &Path, epsilon: f64) -> Ledger {
    let mut ledger = Ledger::create(path, Options::default()).unwrap();
    ledger.create_budget(budget("data", epsilon, Mode::Planned)).unwrap();
    ledger
}

pub(crate) fn run(ledger: Ledger) -> Run<DatasetLedger> {
    Run::open(ledger.dataset("data", Arc::new(Tightest)).unwrap(), header()).unwrap()
}

pub(crate) fn open(directory: &Directory) -> Result<Ledger, StoreError> {
    Ledger::open(directory.ledger(), Options::default())
}

pub(crate) fn copy_files(from: &Directory, to: &Directory) {
    for file in std::fs::read_dir(from.path()).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), to.path().join(file.file_name())).unwrap();
    }
}

/// The number of charged rounds in a ledger.
pub(crate) fn charged(ledger: &Ledger) -> u64 {
    ledger.state().datasets().values().flat_map(|d| d.runs.values()).map(|run| run.charged()).sum()
}

/// The epsilon of `count` rounds.
pub(crate) fn cost(count: u64) -> f64 {
    let rounds = [Rounds { count, round: round(0.05, 1.0) }];
    let composition = Composition::fold(&rounds, Adjacency::AddRemove).unwrap();
    Tightest.epsilon(&composition, Delta::new(1e-5).unwrap()).unwrap().epsilon
}

/// A run that declares a plan of `count` rounds.
pub(crate) fn planned(ledger: Ledger, count: u64) -> Result<Run<DatasetLedger>, LedgerError> {
    let mut header = header();
    header.plan = Some(vec![Rounds { count, round: round(0.05, 1.0) }]);
    Run::open(ledger.dataset("data", Arc::new(Tightest)).unwrap(), header)
}

/// Creates a ledger whose budget covers exactly `rounds` rounds.
pub(crate) fn begin(directory: &Directory, rounds: u64) {
    drop(create(&directory.ledger(), 0.5 * (cost(rounds) + cost(rounds + 1))));
}

/// The number of runs that have a hold.
pub(crate) fn holding(directory: &Directory) -> usize {
    Ledger::read(directory.ledger(), Options::default()).unwrap().holding("data").len()
}
