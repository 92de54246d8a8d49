//! Rounds whose parameters were chosen from earlier outputs.

mod envelope;
mod filter;

pub use envelope::Envelope;
pub use filter::Filter;

use veilgrad_events::{Adjacency, Mode, Rounds};

use crate::{Composition, Unsupported};

/// The composition that bounds these rounds: the rounds themselves if they were planned, else the declared envelope.
///
/// # Errors
/// In adaptive mode, when there is no envelope or the rounds are outside of it: then only an
/// [RDP filter](Filter), declared before the first round, bounds them.
pub fn composition(
    mode: Mode,
    rounds: &[Rounds],
    adjacency: Adjacency,
    envelope: Option<&Envelope>,
) -> Result<Composition, Unsupported> {
    match (mode, envelope) {
        (Mode::Planned, _) => Composition::fold(rounds, adjacency),
        (Mode::Adaptive, Some(envelope)) => envelope.composition(rounds, adjacency),
        (Mode::Adaptive, None) => Err(Unsupported::new(
            "sampling or noise was chosen from earlier outputs: only a filter or an envelope that was \
             declared before the first round bounds that",
        )),
    }
}
