//! Records as Python hands them in: named arrays of declared shapes.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};

use crate::array::{Array, Numbers};
use crate::error::invalid;

/// The names and shapes of the vectors of a record.
pub(crate) type Shapes = Vec<(String, Vec<usize>)>;

/// The shapes of a structure, from a dict or from pairs.
pub(crate) fn shapes(structure: &Bound<'_, PyAny>) -> PyResult<Shapes> {
    let pairs = match structure.cast::<PyDict>() {
        Ok(dict) => dict.items().into_any(),
        Err(_) => structure.clone(),
    };
    let mut shapes = Vec::new();
    for pair in pairs.try_iter()? {
        let (name, shape): (String, Bound<'_, PyAny>) = pair?.extract()?;
        let sides = match shape.extract::<usize>() {
            Ok(length) => vec![length],
            Err(_) => shape.extract::<Vec<usize>>()?,
        };
        let product = sides.iter().try_fold(1usize, |product, side| product.checked_mul(*side));
        if product.is_none() {
            return Err(invalid(format!("the shape of {name:?} is too large")));
        }
        shapes.push((name, sides));
    }
    Ok(shapes)
}

/// The arrays of a record or a batch, in the order of the structure, each with the right shape.
pub(crate) struct Vectors<'py> {
    arrays: Vec<Array<'py>>,
    /// How many records there are.
    pub(crate) records: usize,
}

impl<'py> Vectors<'py> {
    /// One record: a dict by name, a list in the order of the structure, or one array if there is one vector.
    pub(crate) fn record(shapes: &Shapes, values: &Bound<'py, PyAny>) -> PyResult<Self> {
        let arrays = arrays(shapes, values)?;
        for ((name, shape), array) in shapes.iter().zip(&arrays) {
            check_shape(name, shape, array.shape())?;
        }
        Ok(Self { arrays, records: 1 })
    }

    /// Several records: the same with one axis more, the first.
    pub(crate) fn batch(shapes: &Shapes, values: &Bound<'py, PyAny>) -> PyResult<Self> {
        let arrays = arrays(shapes, values)?;
        let mut records = None;
        for ((name, shape), array) in shapes.iter().zip(&arrays) {
            let Some((count, rest)) = array.shape().split_first() else {
                return Err(invalid(format!("the batch of {name:?} has no axis of records")));
            };
            check_shape(name, shape, rest)?;
            if *records.get_or_insert(*count) != *count {
                return Err(invalid("the arrays of a batch differ in their number of records"));
            }
        }
        Ok(Self { arrays, records: records.unwrap_or(0) })
    }

    pub(crate) fn numbers(&self) -> PyResult<Vec<Numbers<'_>>> {
        self.arrays.iter().map(Array::numbers).collect()
    }
}

pub(crate) fn check_shape(name: &str, shape: &[usize], found: &[usize]) -> PyResult<()> {
    let flat = [shape.iter().product::<usize>()];
    if found == shape || found == flat {
        return Ok(());
    }
    Err(invalid(format!("a record's {name:?} has shape {found:?}, not {shape:?}")))
}

fn arrays<'py>(shapes: &Shapes, values: &Bound<'py, PyAny>) -> PyResult<Vec<Array<'py>>> {
    if let Ok(dict) = values.cast::<PyDict>() {
        if let Some(unknown) = dict.keys().iter().find(|key| {
            let key = key.extract::<String>();
            !key.is_ok_and(|key| shapes.iter().any(|(name, _)| *name == key))
        }) {
            return Err(invalid(format!("there is no vector {unknown}")));
        }
        return shapes
            .iter()
            .map(|(name, _)| {
                let missing = || invalid(format!("vector {name:?} is missing"));
                Array::new(&dict.get_item(name)?.ok_or_else(missing)?)
            })
            .collect();
    }
    let is_list = values.is_instance_of::<PyList>() || values.is_instance_of::<PyTuple>();
    if !is_list {
        return match shapes.len() {
            1 => Ok(vec![Array::new(values)?]),
            several => {
                Err(invalid(format!("a record has {several} vectors: give a dict or a list")))
            }
        };
    }
    let found: Vec<Array<'py>> =
        values.try_iter()?.map(|value| Array::new(&value?)).collect::<PyResult<_>>()?;
    if found.len() != shapes.len() {
        let (found, expected) = (found.len(), shapes.len());
        return Err(invalid(format!("a record has {expected} vectors, not {found}")));
    }
    Ok(found)
}
