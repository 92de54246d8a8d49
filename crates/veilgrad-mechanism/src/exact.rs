//! The passes over a record's coordinates, for those who keep sums of outer products
//! ([`OuterProducts`](crate::OuterProducts)).

pub use crate::clip::round_down;
pub use crate::kernel::{Direction, Part, flush, quantise, squared_norm};
pub use crate::vectorised::vectorised;
