//! What a round released.

use std::sync::Arc;

use numpy::{PyArray1, PyArrayMethods};
use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use veilgrad_events::LedgerKind;
use veilgrad_mechanism::Released;

use crate::capability::{Capability, Owner, object};
use crate::error::invalid;
use crate::vectors::Shapes;

/// The estimates that a round released: sums or averages, as each group says. Reading them is post-processing.
///
/// >>> plan = Plan({"w": (2, 3)}, [Group("w", "w", clip=1.0), Group.weight("count", 1.0)], 0.001)
/// >>> with Run() as run:
/// ...     (permit,) = run.reserve(plan, Sampler.all(), 1)
/// ...     with permit.draw(Sampler.all(), records=1) as sample:
/// ...         total = sample.begin(plan)
/// ...         total.add({"w": [[0.0, 0.0, 0.5], [0.0, 0.0, 0.0]]})
/// ...         estimates = total.release()
/// >>> estimates["w"].shape, estimates["w"].dtype.name, round(float(estimates["w"][0, 2]), 1)
/// ((2, 3), 'float32', 0.5)
/// >>> list(estimates), round(estimates.scalar("count")), estimates.charged_to
/// (['w'], 1, 'memory')
#[pyclass(frozen, extends = Capability, mapping, module = "veilgrad")]
pub(crate) struct Estimates {
    owner: Owner,
    shapes: Arc<Shapes>,
    released: Released<veilgrad_mechanism::Estimates>,
}

impl Estimates {
    pub(crate) fn wrap(
        py: Python<'_>,
        released: Released<veilgrad_mechanism::Estimates>,
        shapes: Arc<Shapes>,
    ) -> PyResult<Py<Self>> {
        object(py, Self { owner: Owner::this()?, shapes, released })
    }

    pub(crate) fn released(&self) -> PyResult<&Released<veilgrad_mechanism::Estimates>> {
        self.owner.check_quickly()?;
        Ok(&self.released)
    }

    fn shape(&self, name: &str) -> PyResult<&[usize]> {
        let found = self.shapes.iter().find(|(known, _)| known == name);
        found.map(|(_, shape)| shape.as_slice()).ok_or_else(|| PyKeyError::new_err(name.to_owned()))
    }
}

#[pymethods]
impl Estimates {
    /// The estimate of one vector as float32, in the shape of the structure.
    fn __getitem__<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
        self.vector(py, name, "float32")
    }

    /// The estimate of one vector, in the shape of the structure. ``dtype`` is ``"float32"`` or ``"float64"``.
    #[pyo3(signature = (name, dtype="float32"))]
    fn vector<'py>(&self, py: Python<'py>, name: &str, dtype: &str) -> PyResult<Bound<'py, PyAny>> {
        let shape = self.shape(name)?.to_vec();
        let estimate = self.released()?.vector(name);
        let estimate = estimate.ok_or_else(|| PyKeyError::new_err(name.to_owned()))?;
        Ok(match dtype {
            "float32" => {
                let mut values = vec![0f32; shape.iter().product()];
                py.detach(|| {
                    estimate.for_each_run(|first, run| {
                        values[first..first + run.len()].copy_from_slice(run);
                    });
                });
                PyArray1::from_vec(py, values).reshape(shape)?.into_any()
            }
            "float64" => PyArray1::from_vec(py, estimate.to_vec()).reshape(shape)?.into_any(),
            other => {
                return Err(invalid(format!("dtype {other:?} is neither 'float32' nor 'float64'")));
            }
        })
    }

    /// The estimate of a group without vectors: a weight sum, or the fraction of records below a quantile.
    fn scalar(&self, group: &str) -> PyResult<f64> {
        let found = self.released()?.scalar(group);
        found.ok_or_else(|| PyKeyError::new_err(group.to_owned()))
    }

    /// The names of the vectors.
    fn keys(&self) -> Vec<String> {
        self.shapes.iter().map(|(name, _)| name.clone()).collect()
    }

    fn __len__(&self) -> usize {
        self.shapes.len()
    }

    fn __contains__(&self, name: &str) -> bool {
        self.shapes.iter().any(|(known, _)| known == name)
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Ok(pyo3::types::PyList::new(py, self.keys())?.try_iter()?.into_any())
    }

    /// Where the round was charged: ``"durable"``, ``"memory"`` or ``"other"``.
    #[getter]
    fn charged_to(&self) -> PyResult<&'static str> {
        Ok(match self.released()?.charged_to() {
            LedgerKind::Durable => "durable",
            LedgerKind::Memory => "memory",
            _ => "other",
        })
    }

    fn __repr__(&self) -> String {
        format!("Estimates({})", self.keys().join(", "))
    }
}
