//! Certified bounds, and the interface of the three methods: closed form, contour and lattice.

use crate::Interval;

/// The method that computed a bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// The closed-form profile of one step, or of Gaussians without sampling.
    ClosedForm,
    /// Inversion of the Laplace transform of the profile.
    Contour,
    /// Connect-the-dots on a lattice, composed by Fourier transform.
    Lattice,
}

/// Certified bounds on epsilon or delta, and the method that computed them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Certified {
    /// The bounds, which account for their own numerical error.
    pub bounds: Interval,
    /// The method that computed the upper bound.
    pub method: Method,
}

impl Certified {
    pub(crate) const fn new(lower: f64, upper: f64, method: Method) -> Self {
        Self { bounds: Interval { lower, upper }, method }
    }

    /// The tighter bounds of two results for the same number.
    pub(crate) const fn and(self, other: Self) -> Self {
        let smaller = self.bounds.upper <= other.bounds.upper;
        let method = if smaller { self.method } else { other.method };
        Self { bounds: self.bounds.intersection(other.bounds), method }
    }

    /// Bounds on the larger of two numbers.
    pub(crate) const fn larger(self, other: Self) -> Self {
        let larger = self.bounds.upper >= other.bounds.upper;
        let method = if larger { self.method } else { other.method };
        Self { bounds: self.bounds.larger(other.bounds), method }
    }

    /// With the lower bound replaced, even by a smaller one.
    pub(crate) const fn with_lower(self, lower: f64) -> Self {
        Self { bounds: Interval { lower, ..self.bounds }, ..self }
    }
}

/// Certified bounds on the privacy profile of a composition in one direction, by one method.
pub(crate) trait DeltaBounds {
    /// Bounds on delta at `epsilon`.
    fn delta(&self, epsilon: f64) -> Interval;
}
