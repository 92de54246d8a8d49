//! The bounds on a certified number.

/// A lower and an upper bound on a number.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Interval {
    /// The lower bound.
    pub lower: f64,
    /// The upper bound.
    pub upper: f64,
}

impl Interval {
    /// The trivial bounds on a non-negative number.
    pub(crate) const UNKNOWN: Self = Self { lower: 0.0, upper: f64::INFINITY };

    /// The difference between the bounds; NaN if the upper bound is infinite.
    pub(crate) const fn width(&self) -> f64 {
        if self.upper.is_finite() { self.upper - self.lower } else { f64::NAN }
    }

    /// The tighter bounds of two intervals for the same number.
    pub(crate) const fn intersection(self, other: Self) -> Self {
        Self { lower: self.lower.max(other.lower), upper: self.upper.min(other.upper) }
    }

    /// Bounds on the larger of two numbers.
    pub(crate) const fn larger(self, other: Self) -> Self {
        Self { lower: self.lower.max(other.lower), upper: self.upper.max(other.upper) }
    }
}
