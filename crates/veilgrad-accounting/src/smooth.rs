//! One Poisson-sampled Gaussian as a smooth loss on the real line: what the contour needs to know.
//!
//! Outputs y are standard normal without the record. With it they are shifted by 1/z, and
//! `u(y) = q (e^{y/z - 1/(2z^2)} - 1)` is how much more likely a sampled round makes them.

use realfft::num_complex::Complex64;

use crate::number::{log_beyond_linear, log_upper_tail, upper_tail};
use crate::output::Direction;
use crate::{Sampled, Step};

/// A step in one direction: under the neighbour that ran, y has density `e^{weight(y)}` relative to
/// the standard normal one, and its privacy loss is `loss(y)`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Smooth {
    kind: Kind,
    q: f64,
    z: f64,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    /// weight = loss = log(1 + u(y)).
    Remove,
    /// weight = 0, loss = -log(1 + u(y)).
    Add,
    /// weight = log(1 + u(-y)), loss = log(1 + u(-y)) - log(1 + u(y)).
    Replace,
}

/// What [`Smooth`] says of one output.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Point {
    pub(crate) weight: f64,
    pub(crate) loss: f64,
    /// `(weight, loss)` less what is linear in u: zero expectation removed, no cancellation.
    pub(crate) weight_bend: f64,
    pub(crate) loss_bend: f64,
}

impl Smooth {
    /// `None` for steps that are no Poisson sample.
    pub(crate) fn new(step: Step, direction: Direction) -> Option<Self> {
        let (kind, q) = match (step.sampled, direction) {
            (Sampled::Poisson(q), Direction::Remove) => (Kind::Remove, q),
            (Sampled::Poisson(q), Direction::Add) => (Kind::Add, q),
            (Sampled::PoissonReplaced(q), _) => (Kind::Replace, q),
            (Sampled::Always | Sampled::FixedReplaced(_), _) => return None,
        };
        Some(Self { kind, q, z: step.z })
    }

    /// Whether losses have no upper end: they grow with outputs, or with their opposites.
    pub(crate) fn is_unbounded(&self) -> bool {
        self.kind != Kind::Add
    }

    /// The output that is this far on the side of large losses.
    pub(crate) fn outward(&self, distance: f64) -> f64 {
        if self.kind == Kind::Replace { -distance } else { distance }
    }

    /// At least the probability of outputs farther out than this on the side of large losses, for losses
    /// without an upper end.
    pub(crate) fn beyond(&self, distance: f64) -> f64 {
        let (without, with) = (upper_tail(distance), upper_tail(distance - 1.0 / self.z));
        ((1.0 - self.q) * without + self.q * with) * (1.0 + 1e-12)
    }

    /// `(log(1 + u), log(1 + u) - u)` at y.
    fn ratio(&self, y: f64) -> (f64, f64) {
        let exponent = y / self.z - 0.5 / (self.z * self.z);
        if exponent > 700.0 {
            // The ratio itself would overflow; its log does not.
            let log =
                self.q.ln() + exponent + libm::log1p((1.0 - self.q) / self.q * (-exponent).exp());
            (log, log - self.q * libm::expm1(exponent))
        } else {
            let u = self.q * libm::expm1(exponent);
            (libm::log1p(u), log_beyond_linear(u))
        }
    }

    pub(crate) fn at(&self, y: f64) -> Point {
        let (up, up_bend) = self.ratio(y);
        match self.kind {
            Kind::Remove => {
                Point { weight: up, loss: up, weight_bend: up_bend, loss_bend: up_bend }
            }
            Kind::Add => Point { weight: 0.0, loss: -up, weight_bend: 0.0, loss_bend: -up_bend },
            Kind::Replace => {
                let (down, down_bend) = self.ratio(-y);
                Point {
                    weight: down,
                    loss: down - up,
                    weight_bend: down_bend,
                    loss_bend: down_bend - up_bend,
                }
            }
        }
    }

    /// `(weight, loss)` at y: quicker than [`at`](Self::at).
    pub(crate) fn weight_and_loss(&self, y: f64) -> (f64, f64) {
        match self.kind {
            Kind::Remove => {
                let up = self.log_ratio(y);
                (up, up)
            }
            Kind::Add => (0.0, -self.log_ratio(y)),
            Kind::Replace => {
                let down = self.log_ratio(-y);
                (down, down - self.log_ratio(y))
            }
        }
    }

    /// `log(1 + u)` at y.
    fn log_ratio(&self, y: f64) -> f64 {
        let exponent = y / self.z - 0.5 / (self.z * self.z);
        if exponent > 700.0 {
            return self.ratio(y).0;
        }
        libm::log1p(self.q * libm::expm1(exponent))
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

    /// `(weight, loss)` at the distance `shift` from y, on the side of the real line where the modulus
    /// of `e^{i t loss}` is at most 1 for t >= 0.
    pub(crate) fn at_shifted(&self, y: f64, shift: f64) -> (Complex64, Complex64) {
        match self.kind {
            Kind::Remove => {
                let up = self.ratio_shifted(y, shift);
                (up, up)
            }
            Kind::Add => (Complex64::ZERO, -self.ratio_shifted(y, -shift)),
            Kind::Replace => {
                let down = self.ratio_shifted(-y, shift);
                (down, down - self.ratio_shifted(y, -shift))
            }
        }
    }

    /// How far the normal density moves off the real line, with its sign, for [`at_shifted`](Self::at_shifted).
    pub(crate) fn side(&self, shift: f64) -> f64 {
        if self.kind == Kind::Remove { shift } else { -shift }
    }

    /// Whether sums without their linear part lose nothing: elsewhere u itself is far above 1.
    pub(crate) fn bends(&self) -> bool {
        self.z >= 0.4
    }

    /// Trapezoid rules are chosen for an error of e^-digits: small against the square of the sampling
    /// rate, which the excess of a moment over 1 has for a factor.
    pub(crate) fn digits(&self) -> f64 {
        (42.0 - 2.0 * self.q.ln()).min(100.0)
    }

    /// At most how fast `weight + tilt * loss` grows to the left of `left` and to the right.
    fn growth(&self, left: f64, tilt: f64) -> (f64, f64) {
        match self.kind {
            Kind::Remove => (0.0, (1.0 + tilt) / self.z),
            Kind::Add => (tilt * self.slope(left), 0.0),
            Kind::Replace => ((1.0 + tilt) / self.z + tilt * self.slope(left), 0.0),
        }
    }

    /// At least the log of the tilted mass to the left and to the right of `[left, right]`:
    /// beyond an end the exponent grows at most linearly, which shifts the normal tail.
    pub(crate) fn log_tails(&self, left: f64, right: f64, tilt: f64) -> (f64, f64) {
        let tail = |end: f64, outward: f64, growth: f64| {
            let point = self.at(end);
            let exponent = point.weight + tilt * point.loss;
            exponent - growth * outward + 0.5 * growth * growth + log_upper_tail(outward - growth)
        };
        let (to_left, to_right) = self.growth(left, tilt);
        (tail(left, -left, to_left), tail(right, right, to_right))
    }

    /// Half the width of a strip around the real line in which the tilted moment is analytic, and not
    /// larger than rules with forty digits can use.
    pub(crate) fn strip(&self, tilt: f64) -> f64 {
        let angle = match self.kind {
            Kind::Remove => 0.98 * std::f64::consts::PI,
            Kind::Add | Kind::Replace => {
                std::f64::consts::FRAC_PI_2.min((320.0 / (1.0 + tilt)).sqrt())
            }
        };
        (angle * self.z).min(9.0)
    }

    /// The width of a strip on one side of the real line that is not worse for any frequency.
    pub(crate) fn one_sided_strip(&self, tilt: f64) -> f64 {
        // Not wider than moduli grow by a small factor there.
        let narrow = match self.kind {
            Kind::Remove => 2.0,
            Kind::Add | Kind::Replace => (4.0 * self.z / (1.0 + tilt).sqrt()).min(2.0),
        };
        self.strip(tilt).min(narrow)
    }

    /// At least the log of how much larger the integral of the modulus of
    /// `normal density * e^{weight + (tilt + i t) loss}` is at this distance from the real line than on it
    /// at t = 0. (On one side of the line any t >= 0 counts as 0.)
    ///
    /// `1 + u` is there a sum of two vectors with angle `distance/z` between them: not longer than on the
    /// line, not shorter than by `cos(distance/(2z))`, and turned by at most that angle.
    pub(crate) fn log_growth(&self, distance: f64, tilt: f64, t: f64) -> f64 {
        let angle = distance / self.z;
        let shortest = -libm::log(libm::cos(0.5 * angle));
        let (turns, shrinks) = match self.kind {
            Kind::Remove => (1.0, 0.0),
            Kind::Add => (1.0, tilt),
            Kind::Replace => (2.0, tilt),
        };
        0.5 * distance * distance + shrinks * shortest + turns * angle * t.abs()
    }

    /// At least the error of `loss(y)`, in unit roundoffs, that comes from its exponent.
    pub(crate) fn loss_rounding(&self, y: f64) -> f64 {
        4.0 * (y.abs() + 1.0 / self.z) * self.steepest(y, y)
    }

    /// At least the errors of weight and loss at `y + i shift`, in unit roundoffs, that come from their
    /// exponents and from what cancels off the real line.
    pub(crate) fn shifted_rounding(&self, y: f64, shift: f64) -> f64 {
        let cancelled = |y: f64| {
            let exponent = y / self.z - 0.5 / (self.z * self.z);
            // q (e^x + 1) / (1 + u)
            (1.0 + (-exponent).exp()) * self.slope(y) * self.z
        };
        let cancelled = cancelled(y) + if self.kind == Kind::Replace { cancelled(-y) } else { 0.0 };
        // The modulus of 1 + u is at least 0.7 of that on the line.
        24.0 * cancelled + 8.0 * (y.abs() + shift + 1.0 / self.z) * self.steepest(y, y)
    }

    /// At least the slope of the loss, in modulus, anywhere in `[left, right]`.
    pub(crate) fn steepest(&self, left: f64, right: f64) -> f64 {
        match self.kind {
            Kind::Remove | Kind::Add => self.slope(right),
            Kind::Replace => self.slope(right) + self.slope(-left),
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
