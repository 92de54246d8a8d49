//! Labels that are numbers, in double precision.

use std::path::Path;

use crate::file::{Skip, open_array};
use crate::number::{self, Layout};
use crate::{DataError, idx, npy};

/// Reads one number for each example from a `.npy` file, the array `name` of a `.npz` file, or an IDX file. Numbers of type
/// float64 are not rounded.
///
/// # Errors
/// When the file cannot be read, is malformed, or is not of one number per example.
///
/// # Example
/// ```
/// use veilgrad_data::double;
///
/// // Three bytes: type 8, one dimension.
/// let path = std::env::temp_dir().join(format!("veilgrad-double-{}.idx", std::process::id()));
/// std::fs::write(&path, [0, 0, 8, 1, 0, 0, 0, 3, 7, 9, 7])?;
/// assert_eq!(double::read(&path, None)?, [7.0, 9.0, 7.0]);
/// # std::fs::remove_file(path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn read(path: &Path, name: Option<&str>) -> Result<Vec<f64>, DataError> {
    let is = |end: &str| path.extension().is_some_and(|found| found.eq_ignore_ascii_case(end));
    if is("npy") || is("npz") {
        return npy::open(path, name, |reader| {
            let layout = npy::header(path, &mut *reader)?;
            numbers(path, reader, &layout)
        });
    }
    let mut reader = open_array(path)?;
    let layout = idx::header(path, &mut reader)?;
    numbers(path, &mut *reader, &layout)
}

fn numbers(path: &Path, reader: &mut dyn Skip, layout: &Layout) -> Result<Vec<f64>, DataError> {
    if layout.shape.iter().any(|length| *length != 1) {
        return Err(DataError::format(path, "has rows of another shape than the declared one"));
    }
    number::read_double(path, reader, layout.coding, layout.rows)
}
