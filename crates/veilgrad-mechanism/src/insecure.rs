//! Noise that protects nothing, for tests. It exists only behind the feature `insecure-testing`, and
//! [`ClippedSum::release`](crate::ClippedSum::release) takes it only in a run whose ledger is stamped
//! INSECURE, so that its epsilon is infinite.

use veilgrad_random::{Cipher, RoundKey};
use zeroize::Zeroizing;

use crate::noise::GroupNoise;
use crate::{Noise, NoiseError, RoundPlan};

/// Gaussian noise that a seed repeats.
///
/// # Errors
/// When the plan has too many groups.
pub fn seeded_noise(plan: &RoundPlan, seed: u64) -> Result<Noise, NoiseError> {
    Noise::with_key(plan, &RoundKey::from_seed(seed, Cipher::default()), 1)
}

/// No noise at all.
#[must_use]
pub fn no_noise(plan: &RoundPlan) -> Noise {
    let zeros = plan.inner.groups.iter().map(|group| GroupNoise {
        k: group.grid.k(),
        values: Zeroizing::new(vec![0; group.dimension]),
    });
    Noise { groups: zeros.collect(), process: None }
}
