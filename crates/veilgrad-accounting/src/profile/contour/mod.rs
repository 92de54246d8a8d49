//! The profile by inversion of its Laplace transform along one line.
//!
//! - `step`: one step's characteristic function on that line, by quadrature over outputs.
//! - `product`: the product of those of all steps, with its error.
//! - `inversion`: delta from that product.
//! - `smoothing`: where characteristic functions hardly decay.
//! - `many`: thousands of distinct steps, by the sum of their cumulants.

mod inversion;
mod many;
mod product;
pub(crate) mod smoothing;
mod step;

pub(crate) use inversion::Contour;

use crate::Composition;
use crate::cumulant::{Cumulant, Smoothing};
use crate::pair::Direction;

/// The contour at a tilt; `None` where this way does not apply. The cumulant must be that with the same smoothing.
pub(crate) fn contour(
    composition: &Composition,
    direction: Direction,
    cumulant: &mut Cumulant,
    tilt: f64,
    smoothing: Smoothing,
) -> Option<Contour> {
    match composition.sample() {
        Some(sample) => many::contour(composition, sample, direction, tilt),
        None => Contour::new(composition, direction, cumulant, tilt, smoothing),
    }
}
