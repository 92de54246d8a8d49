//! Sums of tilted losses in one window, as they come from Fourier transforms: products with their errors, and the
//! profile that is read from masses.

use realfft::num_complex::Complex64;

use crate::contour::Interval;
use crate::number::UNIT;

/// A product of Fourier coefficients, as a log, with bounds of its error.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Product {
    log_modulus: f64,
    phase: f64,
    /// At least the log of the modulus, errors included.
    bound: f64,
    /// At least the error, relative to that.
    relative: f64,
    /// What large losses add to the log, at least its modulus, and its error.
    factor: Complex64,
    factor_bound: f64,
    factor_error: f64,
}

impl Product {
    /// Multiplies by `value`, which is off by at most `error`, `count` times; `each` is what every one of these
    /// adds to the roundings of sums.
    pub(crate) fn times(&mut self, value: Complex64, count: f64, error: f64, each: f64) {
        let modulus = value.norm_sqr().max(1e-300).sqrt();
        let log_modulus = modulus.ln();
        self.log_modulus += count * log_modulus;
        self.phase += count * value.arg();
        // log(modulus + error)
        let (large, small) = if modulus > error { (modulus, error) } else { (error, modulus) };
        let log_large = if modulus > error { log_modulus } else { error.ln() };
        self.bound += count * (log_large + small / large);
        self.relative += count * (error / large + each * (1.0 + log_modulus.abs()));
    }

    /// Notes the large losses beside the small ones that it was multiplied by; they are off by at most their `total`
    /// times the error.
    pub(crate) fn also(
        &mut self,
        small: Complex64,
        large: Complex64,
        count: f64,
        (error, total): (f64, f64),
        each: f64,
    ) {
        let ratio = large / small;
        // log(1 + ratio), without cancellation.
        let square = 2.0 * ratio.re + ratio.norm_sqr();
        let log = Complex64::new(0.5 * libm::log1p(square), ratio.im.atan2(1.0 + ratio.re));
        self.factor += log * count;
        let modulus = small.norm_sqr().sqrt() + error;
        let bound = (large.norm_sqr().sqrt() + error * total) / modulus;
        self.factor_bound += count * libm::log1p(bound) * (1.0 + 1e-12);
        self.factor_error += count * (error * total / modulus + 2.0 * each * bound);
    }

    /// The product, and at least its error, the next transform's included.
    pub(crate) fn whole(&self, fft_error: f64) -> (Complex64, f64) {
        let value = Complex64::from_polar(self.log_modulus.exp(), self.phase);
        (value, self.bound.exp() * (self.relative + fft_error + 64.0 * UNIT))
    }

    /// The product with large losses less that without, and at least its error: all terms of the difference
    /// have positive coefficients, so it grows the most along the moduli.
    pub(crate) fn with_large(&self, fft_error: f64) -> (Complex64, f64) {
        let without = Complex64::from_polar(self.log_modulus.exp(), self.phase);
        let Complex64 { re, im } = self.factor;
        let value = if re > 1.0 {
            Complex64::from_polar((self.log_modulus + re).exp(), self.phase + im) - without
        } else {
            // e^x - 1 without cancellation: expm1(a) cos b - 2 sin^2(b/2) + i e^a sin b.
            let half = libm::sin(0.5 * im);
            let more = libm::expm1(re) * libm::cos(im) - 2.0 * half * half;
            without * Complex64::new(more, libm::exp(re) * libm::sin(im))
        };
        // Times e^bound, which may be as small as these are large.
        let grown = match self.factor_bound > 1.0 {
            true => (self.bound + self.factor_bound).exp(),
            false => self.bound.exp() * libm::expm1(self.factor_bound),
        };
        let error = grown * (self.relative + fft_error + 64.0 * UNIT)
            + (self.bound + self.factor_bound).exp() * self.factor_error;
        (value, error)
    }
}

/// What is known of the tilted sum of all losses beside its masses.
pub(crate) struct Sum {
    pub(crate) grid: f64,
    /// The window begins at this multiple of the grid.
    pub(crate) first: i64,
    /// All losses are larger than their multiples by this, and how far that may be off.
    pub(crate) offset: (f64, f64),
    pub(crate) tilt: f64,
    /// The log of the factor that undoes the tilt at loss 0, and how far it may be off.
    pub(crate) log_factor: f64,
    pub(crate) rounding: f64,
    /// The tilted mass above and below the window, at most.
    pub(crate) above: f64,
    pub(crate) below: f64,
    pub(crate) infinite: f64,
    /// What sums cost that were left out, at most: logs of a constant and the coefficient of epsilon.
    pub(crate) small: Option<(f64, f64)>,
}

/// The tilted sum of all losses in one window.
pub(crate) struct Composed {
    sum: Sum,
    /// For every grid point x of the window, the sums over losses L from x on of
    /// `e^{-tilt (L-x)} (1 - e^{x-L})` and of `e^{-(tilt+1) (L-x)}`.
    tails: Vec<(f64, f64)>,
    /// At least how far any sum over masses with the weights of a profile may be off.
    error: f64,
    /// At least how far sums may be off, relatively.
    rounding: f64,
}

impl Composed {
    /// From the masses, not yet divided by their number and in places modulo that, and the root of the sum of
    /// the squares of all their errors.
    pub(crate) fn new(sum: Sum, output: &[f64], error: f64) -> Self {
        let points = output.len();
        let (grid, tilt) = (sum.grid, sum.tilt);
        let (decay, decay_more) = ((-tilt * grid).exp(), (-(tilt + 1.0) * grid).exp());
        let gap = -libm::expm1(-grid);
        let scale = 1.0 / points as f64;
        let mut tails = Vec::with_capacity(points + 1);
        let (mut profile, mut more) = (0.0, 0.0);
        tails.push((profile, more));
        let last = sum.first + points as i64 - 1;
        let start = last.rem_euclid(points as i64) as usize;
        let (head, tail) = output.split_at((start + 1).min(points));
        for mass in head.iter().rev().chain(tail.iter().rev()) {
            // One step to the left, then the mass that is there.
            profile = decay * (profile + gap * more);
            more = decay_more * more + mass * scale;
            tails.push((profile, more));
        }
        tails.reverse();
        // The root of the sum of squared weights `e^{-tilt d} (1 - e^-d)`: an integral, and the largest.
        let weights = 1.0 / (2.0 * tilt * (2.0 * tilt + 1.0) * (tilt + 1.0) * grid)
            + 1.0 / ((tilt + 1.0) * (tilt + 1.0));
        // Terms that matter lie within 40/tilt; each step of the recurrence rounds a few times.
        let reach = (40.0 / (tilt * grid)).min(points as f64);
        let rounding = (8.0 * reach + 64.0) * UNIT;
        Self { sum, tails, error: weights.sqrt() * error * (1.0 + 1e-9), rounding }
    }

    /// Bounds of `E (1 - e^{eps - L})_+`.
    pub(crate) fn delta(&self, epsilon: f64) -> Interval {
        let Sum { grid, first, offset, tilt, log_factor, above, below, infinite, small, .. } =
            self.sum;
        let x = epsilon - offset.0;
        // The first grid point that is not below, as a place in the window.
        let next = (x / grid).ceil() - first as f64;
        let factor = |x: f64, side: f64| {
            let size = log_factor.abs() + tilt * x.abs();
            let room = self.sum.rounding
                + (tilt + 1.0) * (offset.1 + 16.0 * UNIT * x.abs())
                + 8.0 * UNIT * size;
            (log_factor - tilt * x + side * room).exp()
        };
        let place = if next < 0.0 { 0 } else { next.min(self.tails.len() as f64) as usize };
        // Before the window there is no upper bound; the lower one is that at its begin.
        let x = if next < 0.0 { first as f64 * grid } else { x };
        let gap = (first as f64 + place as f64) * grid - x;
        // As in the recurrence, by part of a step; nothing is left beyond the window.
        let value = self.tails.get(place).map_or(0.0, |(profile, more)| {
            (-tilt * gap).exp() * (profile - libm::expm1(-gap) * more)
        });
        let off = self.error + self.rounding * (value.abs() + self.error);
        let end = (first as f64 + self.tails.len() as f64 - 1.0) * grid;
        let beyond = above * (-tilt * (end - x)).exp().min(1.0);
        let left_out = small.map_or(0.0, |(constant, slope)| (constant + slope * x).exp());
        let upper = factor(x, 1.0) * (value + off + beyond) + infinite + left_out;
        let lower = factor(x, -1.0) * (value - off - above - below);
        Interval {
            lower: if lower > 0.0 { lower } else { 0.0 },
            upper: if upper.is_nan() || next < 0.0 { f64::INFINITY } else { upper },
        }
    }
}
