//! Arrays of numpy, as the rows of numbers that they mean.

use numpy::{
    PyArrayDescrMethods, PyArrayDyn, PyArrayMethods, PyReadonlyArrayDyn, PyUntypedArray,
    PyUntypedArrayMethods,
};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

use crate::error::invalid;

/// Numbers in C order. Whoever reads them copies first: another thread may write to the array at any time.
pub(crate) enum Numbers<'a> {
    Single(&'a [f32]),
    Double(&'a [f64]),
}

impl Numbers<'_> {
    /// Copies the numbers from `first` on. Doubles are rounded to singles; what is too large becomes infinite, and its
    /// record will contribute zero.
    pub(crate) fn copy(&self, first: usize, to: &mut [f32]) {
        let last = first + to.len();
        match self {
            Self::Single(from) => to.copy_from_slice(&from[first..last]),
            Self::Double(from) => {
                to.iter_mut().zip(&from[first..last]).for_each(|(to, from)| *to = *from as f32);
            }
        }
    }
}

/// Writes `one - other`, rounded to singles. Both have the length of `to`.
pub(crate) fn subtract(one: &Numbers<'_>, other: &Numbers<'_>, to: &mut [f32]) {
    use Numbers::{Double, Single};
    match (one, other) {
        (Single(one), Single(other)) => each(to, one, other, |one, other| one - other),
        (Double(one), Double(other)) => each(to, one, other, |one, other| (one - other) as f32),
        (Single(one), Double(other)) => {
            each(to, one, other, |one, other| (f64::from(one) - other) as f32);
        }
        (Double(one), Single(other)) => {
            each(to, one, other, |one, other| (one - f64::from(other)) as f32);
        }
    }
}

fn each<A: Copy, B: Copy>(to: &mut [f32], one: &[A], other: &[B], value: impl Fn(A, B) -> f32) {
    for ((to, one), other) in to.iter_mut().zip(one).zip(other) {
        *to = value(*one, *other);
    }
}

/// An array of float32 or float64 in C order, aligned.
pub(crate) enum Array<'py> {
    Single(PyReadonlyArrayDyn<'py, f32>),
    Double(PyReadonlyArrayDyn<'py, f64>),
}

impl<'py> Array<'py> {
    /// An array, a torch tensor on the CPU, or anything that numpy makes an array of without changing its numbers. What is
    /// not in C order is copied into it: numpy's own idea of contiguous includes Fortran order, where a row is not what it
    /// seems.
    ///
    /// # Errors
    /// For other types of numbers, and for masked arrays.
    pub(crate) fn new(values: &Bound<'py, PyAny>) -> PyResult<Self> {
        let numpy = values.py().import("numpy")?;
        let is_array = values.get_type().is(&numpy.getattr("ndarray")?);
        if !is_array && values.is_instance(&numpy.getattr("ma")?.getattr("MaskedArray")?)? {
            return Err(PyTypeError::new_err("masked arrays are not supported: fill them first"));
        }
        let array = if is_array { values.clone() } else { as_array(&numpy, values)? };
        let untyped = array.cast::<PyUntypedArray>().map_err(PyErr::from)?;
        let kind = untyped.dtype();
        if !(kind.is_equiv_to(&numpy::dtype::<f32>(array.py()))
            || kind.is_equiv_to(&numpy::dtype::<f64>(array.py())))
        {
            return Err(PyTypeError::new_err(format!(
                "arrays must be float32 or float64, in the byte order of this machine; this one is {kind}"
            )));
        }
        let array = match untyped.is_c_contiguous() && untyped.is_aligned() {
            true => array,
            false => numpy.call_method1("require", (array, values.py().None(), ("C", "A")))?,
        };
        if let Ok(single) = array.cast::<PyArrayDyn<f32>>() {
            return Ok(Self::Single(readonly(single)?));
        }
        let double = array.cast::<PyArrayDyn<f64>>().map_err(PyErr::from)?;
        Ok(Self::Double(readonly(double)?))
    }

    pub(crate) fn shape(&self) -> &[usize] {
        match self {
            Self::Single(array) => array.shape(),
            Self::Double(array) => array.shape(),
        }
    }

    pub(crate) fn numbers(&self) -> PyResult<Numbers<'_>> {
        Ok(match self {
            Self::Single(array) => Numbers::Single(array.as_slice().map_err(invalid)?),
            Self::Double(array) => Numbers::Double(array.as_slice().map_err(invalid)?),
        })
    }

    /// All numbers, as singles.
    pub(crate) fn to_singles(&self) -> PyResult<Vec<f32>> {
        let mut values = vec![0.0; self.shape().iter().product()];
        self.numbers()?.copy(0, &mut values);
        Ok(values)
    }
}

/// What numpy makes of a value that is not exactly its array.
fn as_array<'py>(
    numpy: &Bound<'py, PyModule>,
    values: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    // Torch gives no array of a tensor that needs a gradient, although the numbers are the same.
    let values = match values.hasattr("detach")? {
        true => values.call_method0("detach")?,
        false => values.clone(),
    };
    // Torch says "unsupported ScalarType BFloat16" without saying what is supported.
    numpy.call_method1("asarray", (values,)).map_err(|cause| {
        let error =
            PyTypeError::new_err(format!("arrays must be float32 or float64, on the CPU: {cause}"));
        error.set_cause(numpy.py(), Some(cause));
        error
    })
}

fn readonly<'py, T: numpy::Element>(
    array: &Bound<'py, PyArrayDyn<T>>,
) -> PyResult<PyReadonlyArrayDyn<'py, T>> {
    if !array.is_c_contiguous() {
        return Err(invalid("the array is not in C order"));
    }
    array.try_readonly().map_err(invalid)
}
