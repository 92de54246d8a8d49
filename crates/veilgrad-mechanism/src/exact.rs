//! The passes over a record's coordinates, for implementations of [`OuterProducts`](crate::OuterProducts).

pub use crate::clip::round_down;
pub use crate::kernel::{Direction, Part, Quantised, flush, quantise, squared_norm};
pub use veilgrad_random::vectorised::vectorised;
