//! The passes over a record's coordinates, for those who form sums outside
//! ([`Group::summed_outside`](crate::Group::summed_outside)).

pub use crate::clip::round_down;
pub use crate::kernel::{Direction, Part, flush, quantise, squared_norm};
