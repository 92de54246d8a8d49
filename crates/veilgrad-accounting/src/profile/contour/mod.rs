//! The profile by inversion of its Laplace transform along one line: characteristic functions of steps, their product,
//! and delta from that.

mod inversion;
pub(crate) mod many;
mod product;
pub(crate) mod smoothing;
mod step;

pub(crate) use inversion::Contour;
