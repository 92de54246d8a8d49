//! Noise that protects nothing, for tests. It exists only behind the feature `insecure-testing`, and
//! [`ClippedSum::release`](crate::ClippedSum::release) takes it only in a run whose ledger is stamped
//! INSECURE, so that its epsilon is infinite.

use veilgrad_random::{Cipher, RoundKey};
use zeroize::Zeroizing;

use crate::noise::GroupNoise;
use crate::{
    ClippedSum, Estimates, Noise, NoiseError, OuterProducts, PartialSum, RoundPlan, SumError,
};

/// Gaussian noise that a seed repeats.
///
/// # Errors
/// When the plan has too many groups.
pub fn seeded_noise(plan: &RoundPlan, seed: u64) -> Result<Noise, NoiseError> {
    Noise::with_key(plan, &RoundKey::from_seed(seed, Cipher::default()), 1, Vec::new())
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

/// Sums without their noise, and what led to them.
#[derive(Debug, Clone, PartialEq)]
pub struct Inside {
    /// The integers of each group.
    pub sums: Vec<Vec<i64>>,
    /// The norm that each group of vectors had in the last record, before clipping.
    pub norms: Vec<f64>,
    /// How many records were certified in each group of vectors.
    pub certified: Vec<u64>,
}

/// An empty part of no round at all.
pub fn begin_part(
    plan: &RoundPlan,
    outer: impl FnMut(&str) -> Option<Box<dyn OuterProducts>>,
) -> PartialSum {
    PartialSum::new(&plan.inner, 0, outer)
}

/// Looks into the part of a sum.
///
/// # Errors
/// As for [`ClippedSum::absorb`].
pub fn look_inside(part: PartialSum) -> Result<Inside, SumError> {
    let norms = part.measures.iter().map(|measure| measure.sqrt()).collect();
    let certified = part.groups.iter().map(|group| group.certified).collect();
    let mut total = ClippedSum::new(&part.plan, part.permit);
    total.absorb(part)?;
    Ok(Inside { sums: total.into_integers(), norms, certified })
}

/// The integers that a round released, of each group in the plan's order: sums with their noise, modulo 2^64.
#[must_use]
pub fn released_integers(estimates: &Estimates) -> &[Vec<i64>] {
    &estimates.sums
}
