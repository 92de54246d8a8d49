//! Products of Fourier coefficients, with their errors.

use realfft::num_complex::Complex64;

use crate::number::UNIT;

/// A product of Fourier coefficients, as a log, with bounds of its error.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct SpectrumProduct {
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

impl SpectrumProduct {
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

    /// Multiplies by `e^exponent`, which is off by at most `error`.
    pub(crate) fn times_exponential(&mut self, exponent: Complex64, error: f64) {
        self.log_modulus += exponent.re;
        self.phase += exponent.im;
        self.bound += exponent.re + error;
        self.relative += libm::expm1(error);
    }

    /// Notes the large losses beside the small ones that it was multiplied by; they are off by at most their `total`
    /// times the error.
    pub(crate) fn note_large(
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
