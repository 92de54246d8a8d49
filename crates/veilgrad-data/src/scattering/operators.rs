//! The constants of a scattering transform, for programs that compute it without this code.

use super::Scattering;
use crate::wavelet::{Taps, transpose};

/// The constants of a scattering transform: what an export needs to compute it with Fourier transforms as matrix products.
///
/// A signal of level 0 is the image, padded with [`padding`](Self::padding). A wavelet multiplies the spectrum of a signal
/// by a real transfer function; the modulus of the inverse transform, subsampled to a coarser level, is the next
/// signal. Every signal is averaged along rows and columns to one channel.
///
/// # Example
/// ```
/// let operators = veilgrad_data::Scattering::new(8, 8, 1, 4)?.operators();
/// assert_eq!(operators.levels.len(), 1);
/// assert_eq!(operators.levels[0].filters[0].len(), 4); // orientations of scale 0
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Operators {
    /// The pixel of the image for each row and each column of the padded image.
    pub padding: [Vec<usize>; 2],
    /// The levels, by scale. Signals of a coarser level have fewer rows and columns.
    pub levels: Vec<LevelOperators>,
}

/// The constants of signals of one scale.
#[derive(Debug, Clone, PartialEq)]
pub struct LevelOperators {
    /// Rows and columns of a signal.
    pub size: [usize; 2],
    /// Transfer functions, row by row, of the wavelets of this scale and of every larger one, by scale and orientation.
    pub filters: Vec<Vec<Vec<f32>>>,
    /// The averages along rows and along columns: one line of weights for each row or column of a channel.
    pub averages: [Vec<Vec<f32>>; 2],
}

impl Scattering {
    /// The constants of the transform.
    #[must_use]
    pub fn operators(&self) -> Operators {
        let padding = |padded: usize, side: usize| {
            (0..padded).map(|place| Self::mirror(place, (padded - side) / 2, side)).collect()
        };
        let dense = |taps: &[Taps], length: usize| -> Vec<Vec<f32>> {
            let line = |taps: &Taps| {
                let mut line = vec![0.0; length];
                let to = line.iter_mut().skip(taps.first);
                to.zip(&taps.weights).for_each(|(to, weight)| *to = *weight);
                line
            };
            taps.iter().map(line).collect()
        };
        let levels = self.levels.iter().map(|level| LevelOperators {
            size: [level.rows, level.columns],
            filters: level
                .filters
                .iter()
                .map(|scale| scale.iter().map(|filter| transpose(filter, level.rows)).collect())
                .collect(),
            averages: [dense(&level.average.0, level.rows), dense(&level.average.1, level.columns)],
        });
        Operators {
            padding: [padding(self.padded.0, self.image.0), padding(self.padded.1, self.image.1)],
            levels: levels.collect(),
        }
    }
}
