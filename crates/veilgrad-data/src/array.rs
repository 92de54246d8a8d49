//! Arrays of private numbers.

use std::path::Path;

use crate::file::Skip;
use crate::number::{self, Layout};
use crate::{DataError, RowRanges};

/// An array of examples: rows of equal shape, one after the other. Not `Debug`: its values are private.
#[derive(Clone, PartialEq)]
pub struct Array {
    /// All numbers, row by row.
    pub values: Vec<f32>,
    /// The shape of one row; empty if a row is a single number.
    pub shape: Vec<usize>,
}

impl Array {
    /// The rows.
    pub fn rows(&self) -> std::slice::ChunksExact<'_, f32> {
        self.values.chunks_exact(self.shape.iter().product::<usize>().max(1))
    }

    /// Reads the rows that follow a header, or some of them, if they have the declared width.
    pub(crate) fn read(
        path: &Path,
        reader: &mut dyn Skip,
        layout: Layout,
        width: usize,
        wanted: Option<&RowRanges>,
    ) -> Result<Self, DataError> {
        let Layout { coding, rows, shape, fortran } = layout;
        let found = shape.iter().try_fold(1usize, |size, length| size.checked_mul(*length));
        if found != Some(width) {
            return Err(DataError::format(path, "has rows of another shape than the declared one"));
        }
        if !fortran || shape.is_empty() {
            let values = number::read(path, reader, coding, (rows, width), wanted)?;
            return Ok(Self { values, shape });
        }
        // The numbers of a row are far apart.
        let values = number::read(path, reader, coding, (rows, width), None)?;
        let mut array = Self { values: by_rows(&values, rows, &shape), shape };
        if let Some(wanted) = wanted {
            let mut places = (0..).zip(array.rows());
            let row = |row: usize| places.find(|(place, _)| *place == row).map(|(_, row)| row);
            array.values = wanted.iter().filter_map(row).flatten().copied().collect();
        }
        Ok(array)
    }
}

/// The numbers of an array in Fortran order (the first index varies fastest), row by row.
fn by_rows(values: &[f32], rows: usize, shape: &[usize]) -> Vec<f32> {
    let width = shape.iter().product::<usize>().max(1);
    let mut all = vec![0.0; values.len()];
    for (place, column) in values.chunks_exact(rows.max(1)).enumerate() {
        // The indices of this place, of which the first varies fastest, as a place in a row.
        let (mut rest, mut stride, mut to) = (place, width, 0);
        for length in shape {
            stride /= length.max(&1);
            to += rest % length.max(&1) * stride;
            rest /= length.max(&1);
        }
        all.iter_mut().skip(to).step_by(width).zip(column).for_each(|(to, from)| *to = *from);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_in_fortran_order_become_rows() {
        // Element (r, i, j) of shape (2, 3, 4) is at r + 2 (i + 3 j).
        let value = |r: usize, i: usize, j: usize| (100 * r + 10 * i + j) as f32;
        let places = |a: usize, b: usize, c: usize| {
            (0..a * b * c).map(move |k| (k / (b * c), k / c % b, k % c))
        };
        let mut fortran = vec![0.0; 24];
        places(2, 3, 4).for_each(|(r, i, j)| fortran[r + 2 * (i + 3 * j)] = value(r, i, j));
        let rows: Vec<f32> = places(2, 3, 4).map(|(r, i, j)| value(r, i, j)).collect();
        assert!(by_rows(&fortran, 2, &[3, 4]) == rows);
        assert!(by_rows(&fortran, 2, &[12]).len() == 24);
        assert!(by_rows(&[], 0, &[3, 4]).is_empty());
    }
}
