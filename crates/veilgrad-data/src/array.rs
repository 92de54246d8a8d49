//! Arrays of private numbers.

use std::io::Read;
use std::path::Path;

use crate::DataError;
use crate::number::{self, Coding};

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

    /// Reads the rows that follow a header, if they have the declared width.
    pub(crate) fn read(
        path: &Path,
        reader: impl Read,
        coding: Coding,
        rows: usize,
        shape: Vec<usize>,
        width: usize,
    ) -> Result<Self, DataError> {
        let found = shape.iter().try_fold(1usize, |size, length| size.checked_mul(*length));
        if found != Some(width) {
            return Err(DataError::format(path, "has rows of another shape than the declared one"));
        }
        Ok(Self { values: number::read(path, reader, coding, (rows, width))?, shape })
    }
}
