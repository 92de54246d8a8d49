//! Metrics as groups of a round.

use numpy::{PyArray2, PyArrayMethods};
use pyo3::prelude::*;
use veilgrad_events::{BudgetShare, PublicCount};

use crate::array::Array;
use crate::capability::{Capability, Owner, object};
use crate::error::invalid;
use crate::estimates::Estimates;
use crate::group::Group;

/// A bounded number or a class of each record, averaged or counted privately in the same round.
///
/// >>> loss = Metric.loss(4.0)  # losses above the public bound 4 count as 4
/// >>> loss.vector
/// ('loss', 1)
/// >>> loss.encode([3.0, float("nan")]).tolist()
/// [[1.0], [0.0]]
#[pyclass(frozen, extends = Capability, module = "veilgrad")]
pub(crate) struct Metric {
    owner: Owner,
    inner: veilgrad_mechanism::Metric,
}

fn wrap(py: Python<'_>, inner: veilgrad_mechanism::Metric) -> PyResult<Py<Metric>> {
    object(py, Metric { owner: Owner::this()?, inner })
}

#[pymethods]
impl Metric {
    /// The average of a number in [low, high].
    #[staticmethod]
    fn bounded(py: Python<'_>, name: &str, low: f64, high: f64) -> PyResult<Py<Self>> {
        wrap(py, veilgrad_mechanism::Metric::bounded(name, low, high).map_err(invalid)?)
    }

    /// The share of right predictions, as ``accuracy``.
    #[staticmethod]
    fn accuracy(py: Python<'_>) -> PyResult<Py<Self>> {
        wrap(py, veilgrad_mechanism::Metric::accuracy().map_err(invalid)?)
    }

    /// The average loss, as ``loss``; losses above the public bound ``most`` count as that.
    #[staticmethod]
    fn loss(py: Python<'_>, most: f64) -> PyResult<Py<Self>> {
        wrap(py, veilgrad_mechanism::Metric::loss(most).map_err(invalid)?)
    }

    /// How many records each of ``classes`` classes has.
    #[staticmethod]
    fn class_counts(py: Python<'_>, name: &str, classes: usize) -> PyResult<Py<Self>> {
        wrap(py, veilgrad_mechanism::Metric::class_counts(name, classes))
    }

    /// The name and length of its vector: an entry of the structure of a `Plan`.
    #[getter]
    fn vector(&self) -> (String, usize) {
        self.inner.vector()
    }

    /// Its group. ``expected`` is the public expected number of records in a sample.
    #[pyo3(signature = (expected, *, share=None))]
    fn group(&self, py: Python<'_>, expected: f64, share: Option<f64>) -> PyResult<Py<Group>> {
        self.owner.check()?;
        let group = self.inner.group(PublicCount::new(expected).map_err(invalid)?);
        let group = group.map_err(invalid)?;
        Group::wrap(
            py,
            match share {
                Some(share) => group.share(BudgetShare::new(share).map_err(invalid)?),
                None => group,
            },
        )
    }

    /// The vectors of a batch of values, one row each. Values outside of the bounds are clamped; NaN and unknown classes
    /// contribute zero.
    fn encode<'py>(
        &self,
        py: Python<'py>,
        values: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyArray2<f32>>> {
        let values = Array::new(values)?;
        let length = self.inner.vector().1;
        let singles = values.to_singles()?;
        let rows: Vec<f32> =
            singles.iter().flat_map(|value| self.inner.encode(f64::from(*value))).collect();
        numpy::PyArray1::from_vec(py, rows).reshape([singles.len(), length])
    }

    /// The estimated average (one number) or the estimated counts.
    fn decode(&self, estimates: &Bound<'_, Estimates>) -> PyResult<Vec<f64>> {
        let decoded = self.inner.decode(estimates.get().released()?);
        decoded.ok_or_else(|| invalid("the round had no such metric"))
    }

    fn __repr__(&self) -> String {
        format!("Metric('{}')", self.inner.vector().0)
    }
}
