//! The Laplace transform of the hockey-stick function `(1 - e^{-x})_+`, which turns moments of the loss into delta.

use crate::cumulant::Jet;

/// `log(1/(tilt (tilt + 1)))` and its derivatives: what the hockey-stick function adds to `K(tilt) - tilt epsilon` in
/// the exponent of the inversion integral.
pub(crate) fn payoff(tilt: f64) -> Jet {
    Jet {
        value: -tilt.ln() - libm::log1p(tilt),
        first: -1.0 / tilt - 1.0 / (1.0 + tilt),
        second: 1.0 / (tilt * tilt) + 1.0 / ((1.0 + tilt) * (1.0 + tilt)),
    }
}
