//! Samplers.

use std::num::NonZeroU64;
use std::sync::{Mutex, MutexGuard};

use pyo3::prelude::*;
use veilgrad_events::{FixedBatch, SampleRate, TruncatedPoisson};
use veilgrad_mechanism::{
    AllRecords, AllocationSampler, FixedSampler, PoissonSampler, ShuffleSampler,
    TruncatedPoissonSampler,
};

use crate::capability::{Capability, Owner, lock, object};
use crate::error::invalid;

pub(crate) type AnySampler = Box<dyn veilgrad_mechanism::Sampler + Send>;

/// Draws samples, and says how: the ledger records the policy of the sampler that runs.
///
/// >>> Sampler.poisson(0.01)
/// Sampler.poisson(rate=0.01)
#[pyclass(frozen, extends = Capability, module = "veilgrad")]
pub(crate) struct Sampler {
    owner: Owner,
    inner: Mutex<AnySampler>,
    text: String,
}

impl Sampler {
    pub(crate) fn inner(&self) -> PyResult<MutexGuard<'_, AnySampler>> {
        self.owner.check()?;
        lock(&self.inner, "sampler")
    }
}

fn wrap(py: Python<'_>, inner: AnySampler, text: String) -> PyResult<Py<Sampler>> {
    object(py, Sampler { owner: Owner::this()?, inner: Mutex::new(inner), text })
}

#[pymethods]
impl Sampler {
    /// Takes each record independently with one probability.
    #[staticmethod]
    fn poisson(py: Python<'_>, rate: f64) -> PyResult<Py<Self>> {
        let sampler = PoissonSampler::new(SampleRate::new(rate).map_err(invalid)?);
        wrap(py, Box::new(sampler), format!("poisson(rate={rate})"))
    }

    /// Takes a random batch of a fixed size, without replacement, afresh in every round. The number of records becomes
    /// public, so the run needs replace-one or zero-out adjacency.
    #[staticmethod]
    fn fixed(py: Python<'_>, records: u64, batch: u64) -> PyResult<Py<Self>> {
        let sampler = FixedSampler::new(FixedBatch::new(records, batch).map_err(invalid)?);
        wrap(py, Box::new(sampler), format!("fixed(records={records}, batch={batch})"))
    }

    /// Takes each record independently with one probability, and of more than ``maximum`` a random part of that size.
    #[staticmethod]
    fn truncated(py: Python<'_>, rate: f64, records: u64, maximum: u64) -> PyResult<Py<Self>> {
        let rate = SampleRate::new(rate).map_err(invalid)?;
        let policy = TruncatedPoisson::new(rate, records, maximum).map_err(invalid)?;
        let text = format!("truncated(rate={rate}, records={records}, maximum={maximum})");
        wrap(py, Box::new(TruncatedPoissonSampler::new(policy)), text)
    }

    /// Puts each record into one of the ``rounds_per_epoch`` rounds of each epoch, uniformly and independently, in secret: once
    /// per epoch, with amplification. Epochs are charged whole.
    #[staticmethod]
    fn allocation(py: Python<'_>, rounds_per_epoch: u64) -> PyResult<Py<Self>> {
        let rounds = NonZeroU64::new(rounds_per_epoch);
        let rounds = rounds.ok_or_else(|| invalid("an epoch has at least one round"))?;
        let text = format!("allocation(rounds_per_epoch={rounds})");
        wrap(py, Box::new(AllocationSampler::new(rounds)), text)
    }

    /// Permutes the records once per epoch and takes disjoint batches. Earns no amplification by sampling: ``allocation`` also
    /// takes every record once per epoch, and does.
    #[staticmethod]
    fn shuffle(py: Python<'_>, records: u64, batch: u64) -> PyResult<Py<Self>> {
        let sampler = ShuffleSampler::new(FixedBatch::new(records, batch).map_err(invalid)?);
        wrap(py, Box::new(sampler), format!("shuffle(records={records}, batch={batch})"))
    }

    /// Takes every record.
    #[staticmethod]
    fn all(py: Python<'_>) -> PyResult<Py<Self>> {
        wrap(py, Box::new(AllRecords), "all()".to_owned())
    }

    fn __repr__(&self) -> String {
        format!("Sampler.{}", self.text)
    }
}
