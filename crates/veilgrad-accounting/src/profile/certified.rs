//! Certified numbers, and the interface of the three methods: closed form, contour and lattice.

use crate::Interval;

/// How a bound was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// The profile of one step, or of the Gaussian.
    ClosedForm,
    /// Inversion of the Laplace transform of the profile.
    Contour,
    /// Connect-the-dots on a lattice, composed by Fourier transform.
    Lattice,
}

/// A certified number, and how it was found.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Certified {
    /// Bounds of the number, which count their own numerical error.
    pub bounds: Interval,
    /// How the upper bound was found.
    pub method: Method,
}

impl Certified {
    pub(crate) const fn new(lower: f64, upper: f64, method: Method) -> Self {
        Self { bounds: Interval { lower, upper }, method }
    }

    /// The better bounds of two of which both hold.
    pub(crate) const fn and(self, other: Self) -> Self {
        let smaller = self.bounds.upper <= other.bounds.upper;
        let method = if smaller { self.method } else { other.method };
        Self { bounds: self.bounds.intersection(other.bounds), method }
    }

    /// The larger of two numbers.
    pub(crate) const fn larger(self, other: Self) -> Self {
        let larger = self.bounds.upper >= other.bounds.upper;
        let method = if larger { self.method } else { other.method };
        Self { bounds: self.bounds.larger(other.bounds), method }
    }

    /// The same number with its lower bound replaced (not with the larger of both).
    pub(crate) const fn with_lower(self, lower: f64) -> Self {
        Self { bounds: Interval { lower, ..self.bounds }, ..self }
    }
}

/// Certified bounds of the privacy profile of a composition in one direction, by one method.
pub(crate) trait DeltaBounds {
    /// Bounds of delta at `epsilon`.
    fn delta(&self, epsilon: f64) -> Interval;
}
