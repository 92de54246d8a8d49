//! The sample of a charged round.

use std::sync::{Arc, Mutex};

use numpy::PyArray1;
use pyo3::prelude::*;

use crate::capability::{Capability, Owner, lock, object};
use crate::error::{consumed, invalid};
use crate::plan::Plan;
use crate::sum::{Slot, Sum};

/// The sample of one charged round, good for one release. Use it in a ``with`` block: leaving it without a release keeps
/// the charge. It has no length, because the size of a sample is private.
///
/// >>> plan, sampler = Plan({"x": 1}, [Group("x", "x", clip=1.0, average=100)], 1.0), Sampler.poisson(0.1)
/// >>> incomes = [0.5] * 1000
/// >>> with Run() as run:
/// ...     (permit,) = run.reserve(plan, sampler, 1)
/// ...     with permit.draw(sampler, records=len(incomes)) as sample:
/// ...         total = sample.begin(plan)
/// ...         for record in sample.ids():
/// ...             total.add({"x": [incomes[record]]})
/// ...         estimates = total.release()
/// >>> 0.2 < float(estimates["x"][0]) < 0.8
/// True
#[pyclass(frozen, extends = Capability, module = "veilgrad")]
pub(crate) struct Sample {
    owner: Owner,
    slot: Slot,
}

impl Sample {
    pub(crate) fn wrap(py: Python<'_>, sample: veilgrad_mechanism::Sample) -> PyResult<Py<Self>> {
        let slot = Arc::new(Mutex::new(Some(sample)));
        object(py, Self { owner: Owner::this()?, slot })
    }

    fn with<T>(
        &self,
        read: impl FnOnce(&veilgrad_mechanism::Sample) -> PyResult<T>,
    ) -> PyResult<T> {
        self.owner.check()?;
        read(lock(&self.slot, "sample")?.as_ref().ok_or_else(|| consumed("sample"))?)
    }
}

#[pymethods]
impl Sample {
    /// The numbers of the sampled records, ascending. They are private: use them to fetch records, nothing else.
    fn ids<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray1<i64>>> {
        let ids: Vec<i64> = self.with(|sample| {
            let ids = sample.ids().map(|id| i64::try_from(id).map_err(invalid));
            ids.collect()
        })?;
        Ok(PyArray1::from_vec(py, ids))
    }

    /// An empty sum of this round. ``threads`` are used for batches and noise; the result does not depend on them.
    #[pyo3(signature = (plan, *, threads=None))]
    fn begin(
        &self,
        py: Python<'_>,
        plan: &Bound<'_, Plan>,
        threads: Option<usize>,
    ) -> PyResult<Py<Sum>> {
        let now = plan.get().now()?;
        let sum = self.with(|sample| Ok(sample.begin(&now)))?;
        Sum::wrap(py, sum, Arc::clone(&self.slot), now, plan.get().shapes(), threads)
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __exit__(
        &self,
        _kind: &Bound<'_, PyAny>,
        _value: &Bound<'_, PyAny>,
        _trace: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        lock(&self.slot, "sample")?.take();
        Ok(())
    }

    fn __repr__(&self) -> &'static str {
        "Sample()"
    }
}
