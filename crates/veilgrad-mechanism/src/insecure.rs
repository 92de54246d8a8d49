//! Noise for tests, which protects nothing. It exists only with the feature `insecure-testing`, and
//! [`ClippedSum::release`](crate::ClippedSum::release) accepts it only in a run that is marked INSECURE in its
//! ledger, so that its epsilon is infinite.

use veilgrad_random::{Cipher, RoundKey};
use zeroize::Zeroizing;

use crate::noise::GroupNoise;
use crate::sample_tag::SampleId;
use crate::{
    ClippedSum, Estimates, Noise, NoiseError, OuterProducts, PartialSum, RoundPlan, SumError,
};

/// Reproducible Gaussian noise from a seed.
///
/// # Errors
/// When the plan has too many groups.
pub fn seeded_noise(plan: &RoundPlan, seed: u64) -> Result<Noise, NoiseError> {
    Noise::with_key(plan, &RoundKey::from_seed(seed, Cipher::default()), 1, Vec::new())
}

/// Zero noise.
#[must_use]
pub fn no_noise(plan: &RoundPlan) -> Noise {
    let zeros = plan.inner.groups.iter().map(|group| GroupNoise {
        k: group.grid.k(),
        values: Zeroizing::new(vec![0; group.dimension]),
    });
    let strategy = plan.inner.strategy.clone();
    Noise { groups: zeros.collect(), process: None, strategy, permit: None }
}

/// The contents of a partial sum, without noise.
#[derive(Debug, Clone, PartialEq)]
pub struct Inside {
    /// The integer sums of each group.
    pub sums: Vec<Vec<i64>>,
    /// The norm of each group of vectors in the last record, before clipping.
    pub norms: Vec<f64>,
    /// The number of certified records in each group.
    pub certified: Vec<u64>,
}

/// An empty partial sum that belongs to no round.
pub fn begin_part(
    plan: &RoundPlan,
    outer: impl FnMut(&str) -> Option<Box<dyn OuterProducts>>,
) -> PartialSum {
    PartialSum::new(&plan.inner, SampleId::NONE, outer)
}

/// The contents of a partial sum.
///
/// # Errors
/// As for [`ClippedSum::absorb`].
pub fn look_inside(part: PartialSum) -> Result<Inside, SumError> {
    let norms = part.measures.iter().map(|measure| measure.sqrt()).collect();
    let certified = part.groups.iter().map(|group| group.certified).collect();
    let mut total = ClippedSum::new(&part.plan, part.sample);
    total.absorb(part)?;
    Ok(Inside { sums: total.into_integers(), norms, certified })
}

/// The released integers of each group, in the plan's order: sums plus noise, modulo 2^64.
#[must_use]
pub fn released_integers(estimates: &Estimates) -> &[Vec<i64>] {
    &estimates.sums
}
