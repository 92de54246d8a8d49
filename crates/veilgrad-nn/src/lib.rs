//! Neural networks trained privately.
mod book;
mod gemm;
mod layer;
mod loss;
mod model;
mod outer;
mod records;
#[cfg(test)]
mod test;
mod tile;

pub use layer::{Conv2d, Layer, Padding, Window};
pub use loss::Loss;
pub use model::{Model, ModelError};
pub use records::{InMemory, Microbatches, Records};
