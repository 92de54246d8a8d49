//! A function value with its first two derivatives.

use crate::number::UNIT;

/// A function value with its first two derivatives.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Jet {
    pub(crate) value: f64,
    pub(crate) first: f64,
    pub(crate) second: f64,
}

impl Jet {
    /// A cumulant with its derivatives, the mean and variance of the tilted loss, from total mass and first two moments.
    pub(crate) fn of_moments(value: f64, total: f64, first: f64, second: f64) -> Self {
        let (mean, square) = (first / total, second / total);
        Self { value, first: mean, second: square - mean * mean }
    }

    pub(crate) fn add_scaled(&mut self, factor: f64, other: Self) {
        self.value += factor * other.value;
        self.first += factor * other.first;
        self.second += factor * other.second;
    }
}

/// `tilt (tilt + 1) / (2 z^2)`, rounded up.
pub(crate) fn gaussian_jet(z: f64, tilt: f64) -> Jet {
    let rate = 0.5 / (z * z);
    let value = rate * tilt * (tilt + 1.0) * (1.0 + 8.0 * UNIT);
    Jet { value, first: rate * (2.0 * tilt + 1.0), second: 2.0 * rate }
}

/// `log(1/(tilt (tilt + 1)))` and its derivatives: the term that the hockey-stick function `(1 - e^{-x})_+` adds to
/// `K(tilt) - tilt epsilon` in the exponent of the inversion integral.
pub(crate) fn payoff(tilt: f64) -> Jet {
    Jet {
        value: -tilt.ln() - libm::log1p(tilt),
        first: -1.0 / tilt - 1.0 / (1.0 + tilt),
        second: 1.0 / (tilt * tilt) + 1.0 / ((1.0 + tilt) * (1.0 + tilt)),
    }
}
