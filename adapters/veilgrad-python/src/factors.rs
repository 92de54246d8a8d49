//! Batches in which vectors come as two factors: gradients of linear layers, without writing them out.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use veilgrad_mechanism::{PartialSum, RecordVector, RoundPlan, Sample, SumError};

use crate::array::Array;
use crate::error::invalid;
use crate::vectors::{Shapes, check_shape};

/// Whether some vector of a batch comes as a pair of arrays.
pub(crate) fn has_factors<'a, 'py>(
    arrays: &'a Bound<'py, PyAny>,
) -> Option<&'a Bound<'py, PyDict>> {
    let dict = arrays.cast::<PyDict>().ok()?;
    dict.values().iter().any(|value| value.is_instance_of::<PyTuple>()).then_some(dict)
}

/// A batch: for each vector its coordinates, or the left and right factors of its records.
pub(crate) struct FactorBatch<'py> {
    vectors: Vec<Vec<Array<'py>>>,
    records: usize,
}

impl<'py> FactorBatch<'py> {
    pub(crate) fn new(shapes: &Shapes, arrays: &Bound<'py, PyDict>) -> PyResult<Self> {
        if arrays.len() != shapes.len() {
            return Err(invalid("a batch has all vectors of the structure and no other"));
        }
        let (mut vectors, mut records) = (Vec::new(), None);
        for (name, shape) in shapes {
            let missing = || invalid(format!("vector {name:?} is missing"));
            let value = arrays.get_item(name)?.ok_or_else(missing)?;
            let (parts, sides) = match value.cast::<PyTuple>() {
                Ok(pair) => match (shape.as_slice(), pair.len()) {
                    ([left, right], 2) => {
                        let parts =
                            vec![Array::new(&pair.get_item(0)?)?, Array::new(&pair.get_item(1)?)?];
                        (parts, vec![vec![*left], vec![*right]])
                    }
                    _ => return Err(invalid(format!("{name:?} is not a matrix with two factors"))),
                },
                Err(_) => (vec![Array::new(&value)?], vec![shape.clone()]),
            };
            for (part, side) in parts.iter().zip(&sides) {
                let Some((count, rest)) = part.shape().split_first() else {
                    return Err(invalid(format!("the batch of {name:?} has no axis of records")));
                };
                check_shape(name, side, rest)?;
                if *records.get_or_insert(*count) != *count {
                    return Err(invalid("the arrays of a batch differ in their number of records"));
                }
            }
            vectors.push(parts);
        }
        Ok(Self { vectors, records: records.unwrap_or(0) })
    }

    /// Which vectors come as factors.
    pub(crate) fn forms(&self) -> Vec<bool> {
        self.vectors.iter().map(|parts| parts.len() == 2).collect()
    }

    /// Adds all records. Each is copied first, so that what is checked is what is added.
    pub(crate) fn add_to(
        &self,
        py: Python<'_>,
        part: &mut PartialSum,
    ) -> PyResult<Result<(), SumError>> {
        let mut numbers = Vec::new();
        for parts in &self.vectors {
            numbers.push(parts.iter().map(Array::numbers).collect::<PyResult<Vec<_>>>()?);
        }
        let records = self.records;
        let mut copies: Vec<Vec<Vec<f32>>> = self
            .vectors
            .iter()
            .map(|parts| {
                let length = |part: &Array<'_>| part.shape().iter().skip(1).product();
                parts.iter().map(|part| vec![0.0; length(part)]).collect()
            })
            .collect();
        Ok(py.detach(move || {
            for record in 0..records {
                for (copies, numbers) in copies.iter_mut().zip(&numbers) {
                    for (copy, numbers) in copies.iter_mut().zip(numbers) {
                        numbers.copy(record * copy.len(), copy);
                    }
                }
                let vectors: Vec<RecordVector<'_>> = copies
                    .iter()
                    .map(|copies| match copies.as_slice() {
                        [left, right] => RecordVector::Outer(left, right),
                        others => {
                            RecordVector::Values(others.first().map_or(&[][..], Vec::as_slice))
                        }
                    })
                    .collect();
                part.add(&vectors)?;
            }
            Ok(())
        }))
    }
}

/// An empty part of a round's sum, for batches with factors where `forms` says so.
pub(crate) fn begin(
    sample: &Sample,
    plan: &RoundPlan,
    shapes: &Shapes,
    forms: &[bool],
) -> PartialSum {
    sample.begin_part(plan, |name| {
        let (_, (_, shape)) =
            forms.iter().zip(shapes).find(|(form, (known, _))| **form && known == name)?;
        let [left, right] = shape.as_slice() else { return None };
        let s_int = plan.grid_of(name).map_or(1, |grid| grid.s_int());
        Some(veilgrad_nn::adapter::outer_products(*left, *right, s_int))
    })
}
