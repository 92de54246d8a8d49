//! The product of the characteristic functions of all steps, at equally spaced frequencies.

use realfft::num_complex::Complex64;

use super::step::{BLOCK, TiltedNodes};
use crate::number::UNIT;
use crate::work;

/// A product of characteristic functions at one frequency, in logs, with error bounds.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct CharacteristicProduct {
    pub(crate) log_modulus: f64,
    pub(crate) phase: f64,
    /// An upper bound on the log of the true modulus.
    pub(crate) bound: f64,
    /// An upper bound on the error, relative to `e^bound`.
    pub(crate) relative: f64,
    /// The sum of the absolute values of all terms of `log_modulus` and `phase`, and the number of terms: they bound the
    /// rounding errors.
    pub(crate) size: f64,
    pub(crate) terms: f64,
}

/// Multiplies the products at frequencies 0, spacing, 2 spacing, ... by the tilted characteristic
/// function of a step with these nodes, `n` times.
pub(crate) fn multiply(
    products: &mut [CharacteristicProduct],
    spacing: f64,
    nodes: &TiltedNodes,
    n: f64,
) {
    work::spend(products.len() as u64 * (nodes.loss.len() as u64 / work::PRODUCTS + work::NODE));
    // Sums m (e^{i t l} - 1), the characteristic function minus 1: in many rounds with tiny losses the function is close to
    // 1, and its difference from 1 needs full relative precision. Complex losses lie on the side of the real line where
    // |e^{i t l}| <= 1.
    let rotations = |t: f64| nodes.loss.iter().map(move |loss| rotation_minus_one(t, *loss));
    let to_terms = |(re, im): (Vec<f64>, Vec<f64>)| Terms { re, im };
    let one_frequency = to_terms(rotations(spacing).unzip());
    let one_block = to_terms(rotations(spacing * BLOCK as f64).unzip());
    let mut block_start =
        Terms { re: vec![0.0; nodes.loss.len()], im: vec![0.0; nodes.loss.len()] };
    let mut terms = Terms { re: block_start.re.clone(), im: block_start.im.clone() };
    let (mass_re, mass_im): (Vec<f64>, Vec<f64>) = nodes.mass.iter().map(|m| (m.re, m.im)).unzip();
    let mass = Terms { re: mass_re, im: mass_im };
    for (index, product) in products.iter_mut().enumerate() {
        let t = index as f64 * spacing;
        if index % (BLOCK * BLOCK) == 0 {
            block_start = to_terms(rotations(t).unzip());
        }
        if index % BLOCK == 0 {
            terms.set_product(&mass, &block_start);
            block_start.rotate(&one_block, None);
        }
        let excess = Complex64::new(lane_sum(&terms.re), lane_sum(&terms.im));
        let error = nodes.error.min(nodes.error_slope * t + nodes.quadrature_error);
        let log_modulus = 0.5 * libm::log1p(2.0 * excess.re + excess.norm_sqr());
        let log_modulus = if log_modulus > -690.0 { log_modulus } else { -690.0 };
        let phase = libm::atan2(excess.im, 1.0 + excess.re);
        let relative_error = error / log_modulus.exp();
        product.log_modulus += n * log_modulus;
        product.phase += n * phase;
        product.bound += n * (log_modulus + libm::log1p(relative_error));
        product.size += n * (log_modulus.abs() + phase.abs());
        product.terms += 1.0;
        let rounding = 8.0 * UNIT * (log_modulus.abs() + phase.abs() + excess.norm());
        product.relative += n * (relative_error / (1.0 + relative_error) + rounding);
        terms.rotate(&one_frequency, Some(&mass));
    }
}

/// `e^{i t loss} - 1`.
fn rotation_minus_one(t: f64, loss: Complex64) -> (f64, f64) {
    let (exponent, angle) = (-t * loss.im, t * loss.re);
    let half = libm::sin(0.5 * angle);
    (
        libm::expm1(exponent) * libm::cos(angle) - 2.0 * half * half,
        libm::exp(exponent) * libm::sin(angle),
    )
}

/// A vector of complex numbers, stored as real and imaginary parts so that loops vectorise.
struct Terms {
    re: Vec<f64>,
    im: Vec<f64>,
}

impl Terms {
    /// Replaces `m (w - 1)` with `m (w r - 1)`, given `r - 1`. Without masses, m is 1.
    fn rotate(&mut self, by: &Self, masses: Option<&Self>) {
        let terms = self.re.iter_mut().zip(&mut self.im).zip(by.re.iter().zip(&by.im));
        match masses {
            None => {
                for ((re, im), (a, b)) in terms {
                    (*re, *im) = (*re + *re * a - *im * b + a, *im + *re * b + *im * a + b);
                }
            }
            Some(masses) => {
                for (((re, im), (a, b)), (m, n)) in terms.zip(masses.re.iter().zip(&masses.im)) {
                    let (x, y) = (*re + m, *im + n);
                    (*re, *im) = (*re + x * a - y * b, *im + x * b + y * a);
                }
            }
        }
    }

    fn set_product(&mut self, one: &Self, other: &Self) {
        let factors = one.re.iter().zip(&one.im).zip(other.re.iter().zip(&other.im));
        for ((re, im), ((a, b), (c, d))) in self.re.iter_mut().zip(&mut self.im).zip(factors) {
            (*re, *im) = (a * c - b * d, a * d + b * c);
        }
    }
}

/// The sum, in eight lanes so that the loop vectorises.
fn lane_sum(values: &[f64]) -> f64 {
    let mut lanes = [0.0; 8];
    let chunks = values.chunks_exact(8);
    let rest: f64 = chunks.remainder().iter().sum();
    for chunk in chunks {
        for (lane, value) in lanes.iter_mut().zip(chunk) {
            *lane += value;
        }
    }
    lanes.iter().sum::<f64>() + rest
}
