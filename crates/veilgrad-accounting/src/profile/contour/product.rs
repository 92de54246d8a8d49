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
    pulp::Arch::new().dispatch(Multiply { products, spacing, nodes, n });
}

/// The arguments of [`multiply`], as a call that `pulp` compiles for the vector instructions of the machine. Products and
/// sums are not fused, and the order of sums is fixed, so that the result has the same bits with all of them.
struct Multiply<'a> {
    products: &'a mut [CharacteristicProduct],
    spacing: f64,
    nodes: &'a TiltedNodes,
    n: f64,
}

impl pulp::NullaryFnOnce for Multiply<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self { products, spacing, nodes, n } = self;
        // Sums m (e^{i t l} - 1), the characteristic function minus 1: in many rounds with tiny losses the function is
        // close to 1, and its difference from 1 needs full relative precision. Complex losses lie on the side of the real
        // line where |e^{i t l}| <= 1.
        let rotations = |t: f64| nodes.loss.iter().map(move |loss| rotation_minus_one(t, *loss));
        let to_terms = |(re, im): (Vec<f64>, Vec<f64>)| Terms { re, im };
        let one_frequency = to_terms(rotations(spacing).unzip());
        let one_block = to_terms(rotations(spacing * BLOCK as f64).unzip());
        let zeros = vec![0.0; nodes.loss.len()];
        let mut block_start = Terms { re: zeros.clone(), im: zeros.clone() };
        let mut terms = Terms { re: zeros.clone(), im: zeros.clone() };
        let mut scratch = zeros;
        let mass = to_terms(nodes.mass.iter().map(|m| (m.re, m.im)).unzip());
        for (index, product) in products.iter_mut().enumerate() {
            let t = index as f64 * spacing;
            if index % (BLOCK * BLOCK) == 0 {
                block_start = to_terms(rotations(t).unzip());
            }
            if index % BLOCK == 0 {
                terms.set_product(&mass, &block_start);
                block_start.rotate(&one_block, None);
            }
            let excess = Complex64::new(sum(&terms.re, &mut scratch), sum(&terms.im, &mut scratch));
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
    #[inline(always)]
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

    #[inline(always)]
    fn set_product(&mut self, one: &Self, other: &Self) {
        let factors = one.re.iter().zip(&one.im).zip(other.re.iter().zip(&other.im));
        for ((re, im), ((a, b), (c, d))) in self.re.iter_mut().zip(&mut self.im).zip(factors) {
            (*re, *im) = (a * c - b * d, a * d + b * c);
        }
    }
}

/// The sum, by adding the second half of the values to the first until few are left: the loops vectorise, and every value
/// is rounded at most `log2(length) + 8` times. `scratch` is as long as the values.
#[inline(always)]
fn sum(values: &[f64], scratch: &mut [f64]) -> f64 {
    const FEW: usize = 8;
    let mut length = values.len().div_ceil(2);
    let (first, second) = values.split_at(length);
    for (sum, (a, b)) in scratch.iter_mut().zip(first.iter().zip(second)) {
        *sum = a + b;
    }
    // The first half is longer by one value, if the length is odd.
    if let (Some(sum), Some(value)) = (scratch.get_mut(second.len()), first.get(second.len())) {
        *sum = *value;
    }
    while length > FEW {
        let half = length.div_ceil(2);
        let (first, second) = scratch.split_at_mut(half);
        for (sum, value) in first.iter_mut().zip(second.iter().take(length - half)) {
            *sum += value;
        }
        length = half;
    }
    scratch.iter().take(length).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_those_of_all_values_whatever_their_number() {
        for length in 0..200_u32 {
            let values: Vec<f64> = (0..length).map(|i| f64::from(i * i)).collect();
            let mut scratch = vec![f64::NAN; values.len()];
            assert_eq!(sum(&values, &mut scratch), values.iter().sum::<f64>(), "{length}");
        }
    }
}
