//! The interface of the three methods: closed form, contour and lattice.

use crate::Interval;

/// Certified bounds of the privacy profile of a composition in one direction, by one method.
pub(crate) trait DeltaBounds {
    /// Bounds of delta at `epsilon`.
    fn delta(&self, epsilon: f64) -> Interval;
}
