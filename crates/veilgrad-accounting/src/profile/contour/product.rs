//! Products of characteristic functions of steps, at equally spaced frequencies.

use realfft::num_complex::Complex64;

use super::step::{BLOCK, TiltedNodes};
use crate::number::UNIT;
use crate::work;

/// A product of characteristic functions at one frequency, as a log, with bounds of its error.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct CharacteristicProduct {
    pub(crate) log_modulus: f64,
    pub(crate) phase: f64,
    /// At least the log of the modulus, errors included.
    pub(crate) bound: f64,
    /// At least the error, relative to `bound`.
    pub(crate) relative: f64,
    /// The size of all that was added up, and in how many terms.
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
    // The characteristic function minus 1, a sum of m (e^{i t l} - 1): with many rounds of tiny losses each is close to
    // 1, and its difference from 1 needs full relative precision. Off the real line losses are complex, on the side
    // where |e^{i t l}| <= 1.
    let turns = |t: f64| nodes.loss.iter().map(move |loss| rotation_minus_one(t, *loss));
    let split = |(re, im): (Vec<f64>, Vec<f64>)| Terms { re, im };
    let (step, leap) =
        (split(turns(spacing).unzip()), split(turns(spacing * BLOCK as f64).unzip()));
    let mut base = Terms { re: vec![0.0; nodes.loss.len()], im: vec![0.0; nodes.loss.len()] };
    let mut here = Terms { re: base.re.clone(), im: base.im.clone() };
    let (mass_re, mass_im): (Vec<f64>, Vec<f64>) = nodes.mass.iter().map(|m| (m.re, m.im)).unzip();
    let mass = Terms { re: mass_re, im: mass_im };
    for (index, product) in products.iter_mut().enumerate() {
        let t = index as f64 * spacing;
        if index % (BLOCK * BLOCK) == 0 {
            base = split(turns(t).unzip());
        }
        if index % BLOCK == 0 {
            here.product(&mass, &base);
            base.turn(&leap, None);
        }
        let beyond = Complex64::new(lane_sum(&here.re), lane_sum(&here.im));
        let error = nodes.error.min(nodes.growth * t + nodes.quadrature);
        let log_modulus = 0.5 * libm::log1p(2.0 * beyond.re + beyond.norm_sqr());
        let log_modulus = if log_modulus > -690.0 { log_modulus } else { -690.0 };
        let phase = libm::atan2(beyond.im, 1.0 + beyond.re);
        // Errors of the last two, relative to the modulus.
        let off = error / log_modulus.exp();
        product.log_modulus += n * log_modulus;
        product.phase += n * phase;
        product.bound += n * (log_modulus + libm::log1p(off));
        product.size += n * (log_modulus.abs() + phase.abs());
        product.terms += 1.0;
        product.relative += n
            * (off / (1.0 + off) + 8.0 * UNIT * (log_modulus.abs() + phase.abs() + beyond.norm()));
        here.turn(&step, Some(&mass));
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

/// A vector of complex numbers, real and imaginary parts apart, so that loops vectorise.
struct Terms {
    re: Vec<f64>,
    im: Vec<f64>,
}

impl Terms {
    /// Turns what is `m (w - 1)` into `m (w r - 1)`, given `r - 1`: m is 1 if there are no masses.
    fn turn(&mut self, by: &Self, masses: Option<&Self>) {
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

    fn product(&mut self, one: &Self, other: &Self) {
        let factors = one.re.iter().zip(&one.im).zip(other.re.iter().zip(&other.im));
        for ((re, im), ((a, b), (c, d))) in self.re.iter_mut().zip(&mut self.im).zip(factors) {
            (*re, *im) = (a * c - b * d, a * d + b * c);
        }
    }
}

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
