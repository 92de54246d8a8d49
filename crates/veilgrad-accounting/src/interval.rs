//! One bracket for every number that is certified.

/// Certified bounds of a number: never above the truth, and never below it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Interval {
    /// Never above the truth.
    pub lower: f64,
    /// Never below the truth.
    pub upper: f64,
}

impl Interval {
    /// Nothing is known of a number that is at least 0.
    pub(crate) const UNKNOWN: Self = Self { lower: 0.0, upper: f64::INFINITY };

    /// How far the bounds are apart; NaN for an infinite one.
    pub(crate) const fn width(&self) -> f64 {
        if self.upper.is_finite() { self.upper - self.lower } else { f64::NAN }
    }

    /// The better bounds of two intervals that both hold.
    pub(crate) const fn intersection(self, other: Self) -> Self {
        Self { lower: self.lower.max(other.lower), upper: self.upper.min(other.upper) }
    }

    /// Bounds of the larger of two numbers.
    pub(crate) const fn larger(self, other: Self) -> Self {
        Self { lower: self.lower.max(other.lower), upper: self.upper.max(other.upper) }
    }
}
