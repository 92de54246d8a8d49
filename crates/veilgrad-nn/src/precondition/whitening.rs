//! Whitening of inputs, the result of preconditioning.

use crate::file::{Arrays, FileError};
use crate::gemm::{Left, Panels, Start, multiply};
use crate::model::Model;

/// Rows per tile.
const TILE: usize = 32;

/// Whitens inputs with a released mean and released principal directions: scales an input to norm 1, subtracts the mean,
/// scales to norm 1, scales its components along the directions, and scales to norm 1 again.
///
/// # Guarantee
/// A function of one input and of released values, so applying it costs no budget. The result for a row does not depend on
/// other rows.
///
/// # Example
/// ```
/// use veilgrad_nn::Whitening;
///
/// // The mean, one direction, and its scale.
/// let whitening = Whitening::new(vec![0.0, 0.0], vec![1.0, 0.0], vec![0.5]).ok_or("lengths")?;
/// let mut input = [4.0, 2.0];
/// whitening.apply(&mut input);
/// assert!((input[0] - input[1]).abs() < 1e-6);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Whitening {
    mean: Vec<f32>,
    directions: Vec<f32>,
    scales: Vec<f32>,
    /// The directions, as columns and as rows.
    columns: Panels,
    rows: Panels,
}

/// Names of the arrays in a model file.
const MEAN: &str = "precondition.mean";
const DIRECTIONS: &str = "precondition.directions";
const SCALES: &str = "precondition.scales";

impl Whitening {
    /// The names of its arrays in a model file: mean, directions, scales.
    pub const ARRAYS: [&str; 3] = [MEAN, DIRECTIONS, SCALES];

    /// A whitening with this mean, these directions (concatenated) and a scale for each direction. `None` if the lengths do not
    /// match or a number is not finite.
    #[must_use]
    pub fn new(mean: Vec<f32>, directions: Vec<f32>, scales: Vec<f32>) -> Option<Self> {
        let (width, count) = (mean.len(), scales.len());
        let is_finite = mean.iter().chain(&directions).chain(&scales).all(|x| x.is_finite());
        if width == 0 || directions.len() != width * count || !is_finite {
            return None;
        }
        let (mut columns, mut rows) = (Panels::default(), Panels::default());
        columns.pack_transposed(&directions, width, count);
        rows.pack(&directions, count, width);
        Some(Self { mean, directions, scales, columns, rows })
    }

    /// The length of an input.
    #[must_use]
    pub fn width(&self) -> usize {
        self.mean.len()
    }

    /// The number of directions.
    #[must_use]
    pub fn directions(&self) -> usize {
        self.scales.len()
    }

    /// The mean that is subtracted, the directions (concatenated) and their scales.
    #[must_use]
    pub fn parts(&self) -> (&[f32], &[f32], &[f32]) {
        (&self.mean, &self.directions, &self.scales)
    }

    /// Whitens a sequence of inputs in place. An incomplete input at the end is left as it is. An input with a value that is not
    /// finite becomes NaN.
    pub fn apply(&self, inputs: &mut [f32]) {
        let (width, count) = (self.width(), self.scales.len());
        let complete = inputs.len() / width * width;
        let mut projected = vec![0.0; TILE * count];
        for tile in inputs[..complete].chunks_mut(TILE * width) {
            let rows = tile.len() / width;
            tile.chunks_exact_mut(width).for_each(|row| centre(row, &self.mean));
            if count > 0 {
                multiply(rows, Left::Rows(tile), &self.columns, Start::Zero, &mut projected);
                for row in projected.chunks_exact_mut(count) {
                    row.iter_mut().zip(&self.scales).for_each(|(x, scale)| *x *= scale - 1.0);
                }
                multiply(rows, Left::Rows(&projected), &self.rows, Start::Existing, tile);
            }
            tile.chunks_exact_mut(width).for_each(unit);
        }
    }

    /// Adds the arrays of the whitening to a file.
    fn insert_into(&self, arrays: &mut Arrays) {
        arrays.insert(MEAN.to_owned(), &[self.width()], &self.mean);
        let shape = [self.scales.len(), self.width()];
        arrays.insert(DIRECTIONS.to_owned(), &shape, &self.directions);
        arrays.insert(SCALES.to_owned(), &[self.scales.len()], &self.scales);
    }

    /// Takes the arrays of a whitening out of a file; `None` if it has none of them.
    fn take_from(arrays: &mut Arrays) -> Result<Option<Self>, FileError> {
        let found = [MEAN, DIRECTIONS, SCALES].map(|name| arrays.arrays.remove(name));
        match found {
            [None, None, None] => Ok(None),
            [Some((_, mean)), Some((_, directions)), Some((_, scales))] => {
                let wrong = || {
                    FileError::Format("the arrays of a preconditioned model do not fit".to_owned())
                };
                Self::new(mean, directions, scales).map(Some).ok_or_else(wrong)
            }
            _ => Err(FileError::Format("an array of a preconditioned model is missing".to_owned())),
        }
    }
}

impl Model {
    /// The parameters as a safetensors file, with a public text and the whitening of the inputs;
    /// [`load_preconditioned`](Self::load_preconditioned) reads it.
    ///
    /// # Errors
    /// As for [`to_safetensors`](Self::to_safetensors).
    pub fn to_safetensors_preconditioned(
        &self,
        text: String,
        whitening: &Whitening,
    ) -> Result<Vec<u8>, FileError> {
        let mut arrays = self.to_arrays();
        whitening.insert_into(&mut arrays);
        arrays.with_text(Some(text))
    }

    /// Loads parameters from a safetensors file, and the whitening of the inputs if it has one.
    ///
    /// # Errors
    /// As for [`load_safetensors`](Self::load_safetensors).
    pub fn load_preconditioned(&mut self, bytes: &[u8]) -> Result<Option<Whitening>, FileError> {
        let mut arrays = Arrays::from_bytes(bytes)?;
        if let Some(name) = arrays.bytes.keys().next() {
            return Err(FileError::Format(format!("'{name}' is not f32")));
        }
        let whitening = Whitening::take_from(&mut arrays)?;
        arrays.load("", self)?;
        Ok(whitening)
    }
}

/// Scales a row to norm 1; a row of zeros stays as it is.
pub(super) fn unit(row: &mut [f32]) {
    let squares = veilgrad_mechanism::exact::squared_norm(row);
    if squares > 0.0 {
        let scale = 1.0 / squares.sqrt();
        row.iter_mut().for_each(|x| *x = (f64::from(*x) * scale) as f32);
    }
}

/// Scales a row to norm 1, subtracts the mean, and scales to norm 1 again.
pub(super) fn centre(row: &mut [f32], mean: &[f32]) {
    unit(row);
    row.iter_mut().zip(mean).for_each(|(x, mean)| *x -= mean);
    unit(row);
}
