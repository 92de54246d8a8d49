//! Trained models and reports from files.

use std::path::PathBuf;

use numpy::{PyArray1, PyArray2, PyArrayMethods};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use veilgrad_cli::Trained;

use crate::array::Array;
use crate::error::refused;
use crate::fit::shaped;

/// A model that `train` wrote, with what is declared of its data.
#[pyclass(frozen, module = "veilgrad")]
pub(crate) struct Model {
    trained: Trained,
}

#[pymethods]
impl Model {
    #[new]
    fn new(path: PathBuf) -> PyResult<Self> {
        Ok(Self { trained: Trained::read(&path).map_err(refused)? })
    }

    /// Its weights by name.
    #[getter]
    fn weights<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let weights = PyDict::new(py);
        for (name, shape, values) in self.trained.model().parameters() {
            weights.set_item(name, shaped(py, values.to_vec(), shape.to_vec())?)?;
        }
        Ok(weights)
    }

    /// The names of its classes.
    #[getter]
    fn classes(&self) -> Vec<String> {
        self.trained.classes()
    }

    /// What is declared of its data, as JSON.
    #[getter]
    fn declaration(&self) -> PyResult<String> {
        self.trained.declaration().map_err(refused)
    }

    /// The outputs for examples of the declared shape, one row each.
    fn outputs<'py>(
        &self,
        py: Python<'py>,
        inputs: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyArray2<f32>>> {
        let values = Array::new(inputs)?.to_singles()?;
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let outputs = py.detach(|| self.trained.outputs(values, threads)).map_err(refused)?;
        let classes = self.trained.classes().len().max(1);
        let rows = outputs.len() / classes;
        PyArray1::from_vec(py, outputs).reshape([rows, classes])
    }
}

/// The report of a run's directory or of a ledger: as JSON, as a page, and its statement.
#[pyfunction]
#[pyo3(signature = (run, dataset=None))]
pub(crate) fn report(
    py: Python<'_>,
    run: PathBuf,
    dataset: Option<String>,
) -> PyResult<(String, String, String)> {
    py.detach(|| veilgrad_cli::report(&run, dataset.as_deref())).map_err(refused)
}
