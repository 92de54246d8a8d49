//! The product of the Fourier coefficients of all steps, with error bounds.

use realfft::num_complex::Complex64;

use crate::number::UNIT;

/// A product of Fourier coefficients at one frequency, in logs, with error bounds.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct SpectrumProduct {
    log_modulus: f64,
    phase: f64,
    /// An upper bound on the log of the true modulus.
    bound: f64,
    /// An upper bound on the error, relative to `e^bound`.
    relative: f64,
    /// The log of the factor by which large losses change the product, and upper bounds on its modulus and its error.
    large: Complex64,
    large_bound: f64,
    large_error: f64,
}

impl SpectrumProduct {
    /// Multiplies by `value`, whose error is at most `error`, `count` times. `rounding` bounds the rounding error of sums of
    /// logs, relative to each term.
    pub(crate) fn times(&mut self, value: Complex64, count: f64, error: f64, rounding: f64) {
        let modulus = value.norm_sqr().max(1e-300).sqrt();
        let log_modulus = modulus.ln();
        self.log_modulus += count * log_modulus;
        self.phase += count * value.arg();
        // log(modulus + error)
        let (large, small) = if modulus > error { (modulus, error) } else { (error, modulus) };
        let log_large = if modulus > error { log_modulus } else { error.ln() };
        self.bound += count * (log_large + small / large);
        self.relative += count * (error / large + rounding * (1.0 + log_modulus.abs()));
    }

    /// Multiplies by `e^exponent`; the error of the exponent is at most `error`.
    pub(crate) fn times_exponential(&mut self, exponent: Complex64, error: f64) {
        self.log_modulus += exponent.re;
        self.phase += exponent.im;
        self.bound += exponent.re + error;
        self.relative += libm::expm1(error);
    }

    /// Adds the transform of the large losses of a step whose small ones the product was multiplied by. Its error is at most
    /// `error` times the `total` mass of the large losses.
    pub(crate) fn note_large(
        &mut self,
        small: Complex64,
        large: Complex64,
        count: f64,
        (error, total): (f64, f64),
        rounding: f64,
    ) {
        let ratio = large / small;
        // log(1 + ratio), without cancellation.
        let square = 2.0 * ratio.re + ratio.norm_sqr();
        let log = Complex64::new(0.5 * libm::log1p(square), ratio.im.atan2(1.0 + ratio.re));
        self.large += log * count;
        let modulus = small.norm_sqr().sqrt() + error;
        let bound = (large.norm_sqr().sqrt() + error * total) / modulus;
        self.large_bound += count * libm::log1p(bound) * (1.0 + 1e-12);
        self.large_error += count * (error * total / modulus + 2.0 * rounding * bound);
    }

    /// The product, and an upper bound on its error, with that of the inverse transform.
    pub(crate) fn value(&self, fft_error: f64) -> (Complex64, f64) {
        let value = Complex64::from_polar(self.log_modulus.exp(), self.phase);
        (value, self.bound.exp() * (self.relative + fft_error + 64.0 * UNIT))
    }

    /// The product with large losses minus that without, and an upper bound on its error. As a polynomial in the transforms
    /// the difference has positive coefficients, so its error is at most that of the same polynomial in the moduli.
    pub(crate) fn large_only(&self, fft_error: f64) -> (Complex64, f64) {
        let without = Complex64::from_polar(self.log_modulus.exp(), self.phase);
        let Complex64 { re, im } = self.large;
        let value = if re > 1.0 {
            Complex64::from_polar((self.log_modulus + re).exp(), self.phase + im) - without
        } else {
            // e^x - 1 without cancellation: expm1(a) cos b - 2 sin^2(b/2) + i e^a sin b.
            let half = libm::sin(0.5 * im);
            let more = libm::expm1(re) * libm::cos(im) - 2.0 * half * half;
            without * Complex64::new(more, libm::exp(re) * libm::sin(im))
        };
        // e^bound may underflow where e^large_bound overflows.
        let modulus = match self.large_bound > 1.0 {
            true => (self.bound + self.large_bound).exp(),
            false => self.bound.exp() * libm::expm1(self.large_bound),
        };
        let error = modulus * (self.relative + fft_error + 64.0 * UNIT)
            + (self.bound + self.large_bound).exp() * self.large_error;
        (value, error)
    }
}
