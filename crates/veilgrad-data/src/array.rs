//! Rows of numbers.

/// Rows of equal shape, one after the other. Not `Debug`: what is in it is private.
#[derive(Clone, PartialEq)]
pub struct Array {
    /// All numbers, row by row.
    pub values: Vec<f32>,
    /// The shape of one row; nothing for single numbers.
    pub shape: Vec<usize>,
}

impl Array {
    /// How many numbers a row has.
    #[must_use]
    pub fn width(&self) -> usize {
        self.shape.iter().product()
    }

    /// The rows.
    pub fn rows(&self) -> std::slice::ChunksExact<'_, f32> {
        self.values.chunks_exact(self.width().max(1))
    }
}
