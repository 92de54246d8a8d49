//! The likelihood ratio and the loss of a sampled Gaussian at complex outputs, and the bounds that quadrature over outputs
//! needs.

use realfft::num_complex::Complex64;

use super::likelihood::{Change, Pair};
use crate::number::{log_upper_tail, upper_tail};

impl Pair {
    /// Whether the privacy loss has no largest value, as for removal and replacement.
    pub(crate) fn is_unbounded(&self) -> bool {
        self.change != Change::Add
    }

    /// The output at this distance from 0, on the side of large losses.
    pub(crate) fn outward(&self, distance: f64) -> f64 {
        if self.change == Change::Replace { -distance } else { distance }
    }

    /// An upper bound on the probability of outputs at this distance or beyond, on the side of large losses. For unbounded
    /// losses.
    pub(crate) fn tail_probability(&self, distance: f64) -> f64 {
        let (without, with) = (upper_tail(distance), upper_tail(distance - 1.0 / self.z));
        ((1.0 - self.q) * without + self.q * with) * (1.0 + 1e-12)
    }

    /// `log(1 + u)` at `y + i shift`.
    fn ratio_shifted(&self, y: f64, shift: f64) -> Complex64 {
        let (exponent, angle) = (y / self.z - 0.5 / (self.z * self.z), shift / self.z);
        if exponent > 700.0 {
            let rest = (1.0 - self.q) / self.q * Complex64::from_polar((-exponent).exp(), -angle);
            return Complex64::new(self.q.ln() + exponent, angle) + rest;
        }
        let half = libm::sin(0.5 * angle);
        let re = self.q * (libm::expm1(exponent) * libm::cos(angle) - 2.0 * half * half);
        let im = self.q * libm::exp(exponent) * libm::sin(angle);
        let modulus = 0.5 * libm::log1p(2.0 * re + (re * re + im * im));
        Complex64::new(modulus, libm::atan2(im, 1.0 + re))
    }

    /// `(weight, loss)` at the complex output at distance `shift` from y, on the side of the real line where the modulus of
    /// `e^{i t loss}` is at most 1 for t >= 0.
    pub(crate) fn at_shifted(&self, y: f64, shift: f64) -> (Complex64, Complex64) {
        match self.change {
            Change::Remove => {
                let up = self.ratio_shifted(y, shift);
                (up, up)
            }
            Change::Add => (Complex64::ZERO, -self.ratio_shifted(y, -shift)),
            Change::Replace => {
                let down = self.ratio_shifted(-y, shift);
                (down, down - self.ratio_shifted(y, -shift))
            }
        }
    }

    /// The imaginary part of the output that [`at_shifted`](Self::at_shifted) uses: `shift` with the sign of that side.
    pub(crate) fn side(&self, shift: f64) -> f64 {
        if self.change == Change::Remove { shift } else { -shift }
    }

    /// Whether moments are summed without the linear term in u. With less noise, u is far above 1 on the outputs that
    /// matter, and subtracting the term would add cancellation instead of removing it.
    pub(crate) fn subtracts_linear_term(&self) -> bool {
        self.z >= 0.4
    }

    /// Trapezoid rules are chosen for an error of e^-digits: small compared with the square of the sampling rate, to which
    /// the excess of a moment over 1 is proportional.
    pub(crate) fn digits(&self) -> f64 {
        (42.0 - 2.0 * self.q.ln()).min(100.0)
    }

    /// Upper bounds on the outward slope of `weight + tilt * loss`: to the left of `left`, and to the right.
    fn growth(&self, left: f64, tilt: f64) -> (f64, f64) {
        match self.change {
            Change::Remove => (0.0, (1.0 + tilt) / self.z),
            Change::Add => (tilt * self.slope(left), 0.0),
            Change::Replace => ((1.0 + tilt) / self.z + tilt * self.slope(left), 0.0),
        }
    }

    /// Upper bounds on the log of the tilted mass to the left and to the right of `[left, right]`. Beyond an end the exponent
    /// grows at most linearly, which shifts the normal tail.
    pub(crate) fn log_tails(&self, left: f64, right: f64, tilt: f64) -> (f64, f64) {
        let tail = |end: f64, outward: f64, growth: f64| {
            let point = self.at(end);
            let exponent = point.weight + tilt * point.loss;
            exponent - growth * outward + 0.5 * growth * growth + log_upper_tail(outward - growth)
        };
        let (to_left, to_right) = self.growth(left, tilt);
        (tail(left, -left, to_left), tail(right, right, to_right))
    }

    /// Half the width of a strip around the real line in which the integrand of the tilted moment is analytic; at most 9,
    /// since a wider one does not help at the digits that are used.
    pub(crate) fn strip(&self, tilt: f64) -> f64 {
        let angle = match self.change {
            Change::Remove => 0.98 * std::f64::consts::PI,
            Change::Add | Change::Replace => {
                std::f64::consts::FRAC_PI_2.min((320.0 / (1.0 + tilt)).sqrt())
            }
        };
        (angle * self.z).min(9.0)
    }

    /// The width of a strip on one side of the real line in which moduli stay small at every frequency.
    pub(crate) fn one_sided_strip(&self, tilt: f64) -> f64 {
        // So narrow that moduli grow only by a small factor.
        let narrow = match self.change {
            Change::Remove => 2.0,
            Change::Add | Change::Replace => (4.0 * self.z / (1.0 + tilt).sqrt()).min(2.0),
        };
        self.strip(tilt).min(narrow)
    }

    /// An upper bound on `log(I(distance, t) / I(0, 0))`, where `I(distance, t)` integrates the modulus of
    /// `normal density * e^{weight + (tilt + i t) loss}` over a line at this distance from the real one. (On the side of
    /// [`at_shifted`](Self::at_shifted), any t >= 0 counts as 0.)
    ///
    /// There, `1 + u` is the sum of two vectors at an angle of `distance/z`. It is at most as long as on the real line, at
    /// least `cos(distance/(2z))` times as long, and turned by at most that angle.
    pub(crate) fn log_growth(&self, distance: f64, tilt: f64, t: f64) -> f64 {
        let angle = distance / self.z;
        let shortest = -libm::log(libm::cos(0.5 * angle));
        let (turns, shrinks) = match self.change {
            Change::Remove => (1.0, 0.0),
            Change::Add => (1.0, tilt),
            Change::Replace => (2.0, tilt),
        };
        0.5 * distance * distance + shrinks * shortest + turns * angle * t.abs()
    }

    /// An upper bound on the rounding error of `loss(y)` that comes from its exponent, in unit roundoffs.
    pub(crate) fn loss_rounding(&self, y: f64) -> f64 {
        4.0 * (y.abs() + 1.0 / self.z) * self.steepest(y, y)
    }

    /// An upper bound on the rounding errors of weight and loss at `y + i shift`, in unit roundoffs: those of their exponents
    /// and of the cancellation off the real line.
    pub(crate) fn shifted_rounding(&self, y: f64, shift: f64) -> f64 {
        let cancelled = |y: f64| {
            let exponent = y / self.z - 0.5 / (self.z * self.z);
            // q (e^x + 1) / (1 + u)
            (1.0 + (-exponent).exp()) * self.slope(y) * self.z
        };
        let cancelled =
            cancelled(y) + if self.change == Change::Replace { cancelled(-y) } else { 0.0 };
        // The modulus of 1 + u is at least 0.7 times that on the real line.
        24.0 * cancelled + 8.0 * (y.abs() + shift + 1.0 / self.z) * self.steepest(y, y)
    }

    /// An upper bound on the absolute slope of the loss anywhere in `[left, right]`.
    pub(crate) fn steepest(&self, left: f64, right: f64) -> f64 {
        match self.change {
            Change::Remove | Change::Add => self.slope(right),
            Change::Replace => self.slope(right) + self.slope(-left),
        }
    }

    /// `d log(1 + u) / dy`, which increases with y.
    fn slope(&self, y: f64) -> f64 {
        let exponent = y / self.z - 0.5 / (self.z * self.z);
        let odds = self.q / (1.0 - self.q);
        // odds e^x / (1 + odds e^x)
        1.0 / (self.z * (1.0 + (-exponent).exp() / odds))
    }
}
