//! Temporary directories and ledgers for the sweeps.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use veilgrad_accounting::Tightest;
use veilgrad_events::{
    Adjacency, Budget, ClipNorm, Delta, Epsilon, Mode, NoiseStd, RecordUnit, Round, Run, RunHeader,
    SampleRate, Sampling, SumQuery,
};
use veilgrad_ledger::{DatasetLedger, Ledger, Options};

/// The result of a sweep: the first failure, if any.
pub(crate) type Found = Result<(), String>;

/// A temporary directory, removed on drop.
pub(crate) struct Directory(PathBuf);

impl Directory {
    /// In the system's directory for temporary files.
    pub(crate) fn new() -> Result<Self, String> {
        Self::inside(&std::env::temp_dir())
    }

    /// In memory if possible, for tests that need no disk.
    pub(crate) fn in_memory() -> Result<Self, String> {
        let memory = Path::new("/dev/shm");
        if memory.is_dir() { Self::inside(memory) } else { Self::new() }
    }

    pub(crate) fn inside(parent: &Path) -> Result<Self, String> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = parent.join(format!("veilgrad-durability-{}-{number}", std::process::id()));
        std::fs::create_dir(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Self(path))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn ledger(&self) -> PathBuf {
        self.0.join("ledger.db")
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A deterministic random generator (SplitMix64).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

pub(crate) fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// A new ledger with one dataset whose budget is `epsilon`.
pub(crate) fn create(path: &Path, epsilon: f64) -> Result<Ledger, String> {
    if path.exists() {
        return Err(format!("{} exists", path.display()));
    }
    open_or_create(path, epsilon)
}

/// Opens or creates a ledger with that dataset; an existing budget is not changed.
pub(crate) fn open_or_create(path: &Path, epsilon: f64) -> Result<Ledger, String> {
    with_budget(Ledger::open_or_create(path, Options::default()).map_err(text)?, epsilon)
}

/// The ledger with that dataset.
pub(crate) fn with_budget(mut ledger: Ledger, epsilon: f64) -> Result<Ledger, String> {
    if ledger.state().datasets().contains_key("data") {
        return Ok(ledger);
    }
    let budget = Budget {
        dataset: "data".to_owned(),
        unit: RecordUnit::Example,
        adjacency: Adjacency::AddRemove,
        delta: Delta::new(1e-5).map_err(text)?,
        epsilon: Epsilon::new(epsilon).map_err(text)?,
        mode: Mode::Planned,
        order: None,
    };
    match ledger.create_budget(budget) {
        // Another process may have been faster.
        Err(error) if !ledger.state().datasets().contains_key("data") => Err(text(error)),
        _ => Ok(ledger),
    }
}

/// A run on that dataset.
pub(crate) fn open_run(ledger: Ledger) -> Result<Run<DatasetLedger>, String> {
    let store = ledger.dataset("data", Arc::new(Tightest)).map_err(text)?;
    let header = RunHeader::new(RecordUnit::Example, Adjacency::AddRemove);
    Run::open(store, header).map_err(text)
}

pub(crate) fn round(q: f64, z: f64) -> Result<Round, String> {
    let clip = ClipNorm::new(1.0).map_err(text)?;
    let query = SumQuery::new("gradient", clip, NoiseStd::new(z).map_err(text)?);
    let sampling = Sampling::Poisson { rate: SampleRate::new(q).map_err(text)? };
    Round::new(sampling, vec![query]).map_err(text)
}

/// The number of charged rounds in a ledger.
pub(crate) fn charged(ledger: &Ledger) -> u64 {
    let runs = ledger.state().datasets().values().flat_map(|dataset| dataset.runs.values());
    runs.map(|run| run.charged()).sum()
}

/// The number of released rounds: one per line of the file.
pub(crate) fn released(path: &Path) -> u64 {
    std::fs::read(path)
        .map_or(0, |bytes| bytes.iter().filter(|byte| **byte == b'\n').count() as u64)
}
