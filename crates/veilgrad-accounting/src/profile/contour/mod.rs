//! The profile by inversion of its Laplace transform along one line: characteristic functions of steps, their product,
//! and delta from the product.

pub(crate) mod interpolation;
mod inversion;
mod product;
pub(crate) mod smoothing;
mod step;

pub(crate) use inversion::Contour;
