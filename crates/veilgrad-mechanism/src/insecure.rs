//! Noise sources that protect nothing, for tests: they exist only behind the feature
//! `insecure-testing`, and [`ClippedSum::release`](crate::ClippedSum::release) takes them only in a
//! run whose ledger is stamped INSECURE, so that its epsilon is infinite.

use rand_chacha::ChaCha12Rng;
use rand_chacha::rand_core::SeedableRng;
use rand_distr::{Distribution, StandardNormal};

use crate::noise::{NoiseError, sealed::Noise};

/// Approximate Gaussian noise that a seed repeats.
pub struct SeededNoise(ChaCha12Rng);

impl SeededNoise {
    /// A source that always gives the same noise for the same seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(ChaCha12Rng::seed_from_u64(seed))
    }
}

impl Noise for SeededNoise {
    fn add_noise(&mut self, _group: usize, k: u8, sums: &mut [i64]) -> Result<(), NoiseError> {
        let scale = f64::from(k).exp2();
        for sum in sums {
            let normal: f64 = StandardNormal.sample(&mut self.0);
            *sum = sum.wrapping_add((normal * scale).floor() as i64);
        }
        Ok(())
    }

    fn is_insecure(&self) -> bool {
        true
    }
}

/// No noise at all.
#[derive(Default)]
pub struct NoNoise;

impl Noise for NoNoise {
    fn add_noise(&mut self, _group: usize, _k: u8, _sums: &mut [i64]) -> Result<(), NoiseError> {
        Ok(())
    }

    fn is_insecure(&self) -> bool {
        true
    }
}
