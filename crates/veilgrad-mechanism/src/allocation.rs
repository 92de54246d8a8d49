//! Noise allocation: how the noise of a round is divided among its groups (paper, section 4).

use veilgrad_events::{BudgetShare, ClipNorm, NoiseMultiplier, NoiseStd};

/// The noise allocation of a round: how much noise each group gets.
///
/// A group with clip norm `S_g` and noise `sigma_g` uses `(S_g/sigma_g)^2` of the `1/z^2` of a round with noise
/// multiplier `z`. Groups that set their noise come first, groups with a share get that part of `1/z^2`, and the
/// strategy divides the rest.
///
/// # Example
/// ```
/// use veilgrad_events::{ClipNorm, NoiseMultiplier};
/// use veilgrad_mechanism::{Allocation, GroupSize};
///
/// // Two groups share a noise multiplier of 1: each gets sqrt(2) times its clip norm.
/// let groups = [GroupSize::new(ClipNorm::new(1.0)?, 90), GroupSize::new(ClipNorm::new(2.0)?, 10)];
/// let noise = Allocation::Proportional(NoiseMultiplier::new(1.0)?).noise(&groups)?;
/// assert!((noise[1].get() - 2.0 * 2f64.sqrt()).abs() < 1e-9);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Allocation {
    /// Every group sets its own noise.
    Explicit,
    /// An equal part of `1/z^2` for every group: `sigma_g = z sqrt(G) S_g`.
    Proportional(NoiseMultiplier),
    /// Parts of `1/z^2` in proportion to dimension: `sigma_g = z sqrt(D/d_g) S_g`.
    DimensionAdjusted(NoiseMultiplier),
}

/// The parameters of a group that an allocation needs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GroupSize {
    /// The clip norm `S_g`.
    pub clip: ClipNorm,
    /// The dimension `d_g`.
    pub dimension: usize,
    /// The noise, if the group sets its own.
    pub noise: Option<NoiseStd>,
    /// The share of `1/z^2`, if the group sets its own.
    pub share: Option<BudgetShare>,
}

impl GroupSize {
    /// A group whose noise the strategy chooses.
    #[must_use]
    pub const fn new(clip: ClipNorm, dimension: usize) -> Self {
        Self { clip, dimension, noise: None, share: None }
    }
}

/// The noise cannot be allocated.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum AllocationError {
    /// A group sets no noise, and the allocation is explicit.
    #[error("group {0} sets no noise, and the allocation is explicit")]
    NoNoise(usize),
    /// A group sets both noise and share, or a share although the allocation is explicit.
    #[error("group {0} sets a share that does not apply")]
    Share(usize),
    /// Groups that set their noise or share leave nothing for the others, or exceed `1/z^2`.
    #[error("the noise and shares that groups set leave no budget for noise multiplier {0}")]
    Overdrawn(NoiseMultiplier),
    /// The noise would not be finite and positive.
    #[error("group {0}: {1}")]
    Noise(usize, veilgrad_events::UnitError),
}

impl Allocation {
    /// The noise of each group.
    ///
    /// # Guarantee
    /// If the strategy chooses the noise of at least one group, the groups compose to at least the requested noise
    /// multiplier: rounding adds noise. Noise that groups set is used unchanged.
    ///
    /// # Errors
    /// When a group has no noise, or groups that set their noise or share leave no budget.
    pub fn noise(self, groups: &[GroupSize]) -> Result<Vec<NoiseStd>, AllocationError> {
        let z = match self {
            Self::Explicit => return explicit(groups),
            Self::Proportional(z) | Self::DimensionAdjusted(z) => z,
        };
        if let Some(both) = groups.iter().position(|g| g.noise.is_some() && g.share.is_some()) {
            return Err(AllocationError::Share(both));
        }
        // Losses are in units of 1/z^2.
        let fixed: f64 = groups
            .iter()
            .map(|g| match (g.noise, g.share) {
                (Some(noise), _) => (z.get() * (g.clip.get() / noise.get())).powi(2),
                (None, Some(share)) => share.get(),
                (None, None) => 0.0,
            })
            .sum();
        let is_free = |g: &&GroupSize| g.noise.is_none() && g.share.is_none();
        let portions: f64 = groups.iter().filter(is_free).map(|g| self.portion(g)).sum();
        // Covers a few roundings of 2^-53 per group, and the slack of `Round::noise_multiplier`.
        let round_up = 1.0 + (groups.len() as f64 + 16.0) * 2f64.powi(-48);
        let remaining = 1.0 - fixed * round_up;
        let is_enough = if portions > 0.0 { remaining > 0.0 } else { fixed <= 1.0 };
        if !is_enough {
            return Err(AllocationError::Overdrawn(z));
        }
        groups
            .iter()
            .enumerate()
            .map(|(index, g)| {
                if let Some(noise) = g.noise {
                    return Ok(noise);
                }
                let free = || remaining * self.portion(g) / portions;
                let loss = g.share.map_or_else(free, |share| share.get());
                NoiseStd::new(z.get() * g.clip.get() / loss.sqrt() * round_up)
                    .map_err(|error| AllocationError::Noise(index, error))
            })
            .collect()
    }

    /// The weight of a group among those whose noise the strategy chooses.
    fn portion(self, group: &GroupSize) -> f64 {
        match self {
            Self::Explicit | Self::Proportional(_) => 1.0,
            Self::DimensionAdjusted(_) => group.dimension as f64,
        }
    }
}

fn explicit(groups: &[GroupSize]) -> Result<Vec<NoiseStd>, AllocationError> {
    groups
        .iter()
        .enumerate()
        .map(|(index, group)| match (group.noise, group.share) {
            (Some(noise), None) => Ok(noise),
            (None, None) => Err(AllocationError::NoNoise(index)),
            (_, Some(_)) => Err(AllocationError::Share(index)),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use veilgrad_events::{Round, Sampling, SumQuery};

    use super::*;

    fn size(clip: f64, dimension: usize) -> GroupSize {
        GroupSize::new(ClipNorm::new(clip).unwrap(), dimension)
    }

    fn z(value: f64) -> NoiseMultiplier {
        NoiseMultiplier::new(value).unwrap()
    }

    fn composed_multiplier(groups: &[GroupSize], noise: &[NoiseStd]) -> f64 {
        let queries =
            groups.iter().zip(noise).map(|(g, n)| SumQuery::new("g", g.clip, *n)).collect();
        Round::new(Sampling::All {}, queries).unwrap().noise_multiplier().unwrap().get()
    }

    #[test]
    fn the_papers_formulas_hold() {
        let groups = [size(1.0, 90), size(2.0, 10)];
        let noise = Allocation::Proportional(z(3.0)).noise(&groups).unwrap();
        for (noise, clip) in noise.iter().zip([1.0, 2.0]) {
            assert!((noise.get() / (3.0 * 2f64.sqrt() * clip) - 1.0).abs() < 1e-12);
        }
        let noise = Allocation::DimensionAdjusted(z(3.0)).noise(&groups).unwrap();
        assert!((noise[0].get() / (3.0 * (100f64 / 90.0).sqrt()) - 1.0).abs() < 1e-12);
        assert!((noise[1].get() / (3.0 * (100f64 / 10.0).sqrt() * 2.0) - 1.0).abs() < 1e-12);
    }

    #[test]
    fn quantile_noise_is_split_off_as_andrew_et_al_do() {
        // z_grad = (z^-2 - (2 sigma_b)^-2)^(-1/2) for a bit of sensitivity 1/2.
        let (total, sigma_b) = (1.1, 12.8);
        let bit = GroupSize { noise: Some(NoiseStd::new(sigma_b).unwrap()), ..size(0.5, 1) };
        let groups = [size(1.0, 1000), bit];
        let noise = Allocation::Proportional(z(total)).noise(&groups).unwrap();
        let z_grad = (total.powi(-2) - (2.0 * sigma_b).powi(-2)).powf(-0.5);
        assert!((noise[0].get() / z_grad - 1.0).abs() < 1e-12);
        assert_eq!(noise[1].get(), sigma_b);
    }

    #[test]
    fn impossible_divisions_are_refused() {
        let too_little_noise =
            GroupSize { noise: Some(NoiseStd::new(0.5).unwrap()), ..size(1.0, 1) };
        assert!(matches!(
            Allocation::Proportional(z(1.0)).noise(&[too_little_noise, size(1.0, 1)]),
            Err(AllocationError::Overdrawn(_))
        ));
        assert_eq!(
            Allocation::Explicit.noise(&[too_little_noise, size(1.0, 1)]),
            Err(AllocationError::NoNoise(1))
        );
        let both = GroupSize { share: Some(BudgetShare::new(0.1).unwrap()), ..too_little_noise };
        assert_eq!(Allocation::Proportional(z(0.1)).noise(&[both]), Err(AllocationError::Share(0)));
        assert_eq!(Allocation::Explicit.noise(&[both]), Err(AllocationError::Share(0)));
        let share = GroupSize { share: Some(BudgetShare::new(0.6).unwrap()), ..size(1.0, 1) };
        assert!(Allocation::Proportional(z(1.0)).noise(&[share, share]).is_err());
    }

    proptest! {
        #[test]
        fn every_division_folds_to_at_least_the_multiplier_asked_for(
            sizes in prop::collection::vec((1e-3f64..1e3, 1usize..10_000, 0u8..3), 1..12),
            target in 1e-3f64..1e3, by_dimension: bool,
        ) {
            let share = BudgetShare::new(0.5 / sizes.len() as f64).unwrap();
            let groups: Vec<GroupSize> = sizes.iter().map(|&(clip, dimension, kind)| {
                let enough_noise = NoiseStd::new(clip * target * (4.0 * sizes.len() as f64).sqrt()).unwrap();
                GroupSize {
                    noise: (kind == 1).then_some(enough_noise),
                    share: (kind == 2).then_some(share),
                    ..size(clip, dimension)
                }
            }).collect();
            let allocation = if by_dimension { Allocation::DimensionAdjusted(z(target)) } else { Allocation::Proportional(z(target)) };
            let noise = allocation.noise(&groups).unwrap();
            let z = composed_multiplier(&groups, &noise);
            prop_assert!(z >= target * (1.0 - 1e-13), "{z} {target}");
            if sizes.iter().any(|s| s.2 == 0) {
                prop_assert!(z >= target && z <= target * (1.0 + 1e-11), "{z} {target}");
            }
        }
    }
}
