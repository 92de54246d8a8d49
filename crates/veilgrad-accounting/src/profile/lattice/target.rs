//! What a lattice is made for.

/// What counts as infinite in all rounds together, as a part of delta.
pub(crate) const TAIL: f64 = 5e-6;
/// The work per point of a transform, forth and back.
pub(crate) const TRANSFORM: u64 = 12;

/// What is asked for.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Target {
    /// The smallest epsilon for this delta.
    Delta(f64),
    /// The smallest delta at this epsilon.
    Epsilon(f64),
}
