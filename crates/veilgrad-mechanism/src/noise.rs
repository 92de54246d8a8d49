//! The Gaussian noise of one round.

use veilgrad_events::ProcessIdentity;
use veilgrad_random::{RandomError, RoundKey, gaussian};
use zeroize::Zeroizing;

use crate::{Estimates, Released, RoundPlan};

/// Gaussian noise for all groups of one round: `floor(2^k Z)` per coordinate, exactly.
///
/// It depends only on the plan's dimensions and noise, so it can be drawn before the records are processed or on
/// another thread. The time this takes does not depend on data. [`ClippedSum`](crate::ClippedSum) has an example.
///
/// # Guarantee
/// Drawn with a fresh key from the operating system. It cannot be cloned, printed or serialised, a
/// release consumes it, and only the process that drew it can release it. So no noise is used twice, not by a
/// forked process and not by a resumed one. Noise that is not released is wiped.
pub struct Noise {
    pub(crate) groups: Vec<GroupNoise>,
    /// The process that drew it; `None` for test noise, which protects nothing.
    pub(crate) process: Option<ProcessIdentity>,
}

pub(crate) struct GroupNoise {
    pub(crate) k: u8,
    pub(crate) values: Zeroizing<Vec<i64>>,
}

/// Noise could not be drawn.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoiseError {
    /// Random words could not be drawn.
    #[error(transparent)]
    Random(#[from] RandomError),
    /// The key stream numbers groups with 16 bits.
    #[error("a round of more than 65536 groups has no noise")]
    TooManyGroups,
}

impl Noise {
    /// Draws the noise of one round, on all processors.
    ///
    /// # Errors
    /// When the operating system has no randomness, or the plan has more than 65536 groups.
    pub fn draw(plan: &RoundPlan) -> Result<Self, NoiseError> {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        Self::draw_on(plan, threads)
    }

    /// Draws the noise of one round on `threads` threads. The distribution does not depend on their number.
    ///
    /// # Errors
    /// When the operating system has no randomness, or the plan has more than 65536 groups.
    pub fn draw_on(plan: &RoundPlan, threads: usize) -> Result<Self, NoiseError> {
        Self::with_key(plan, &RoundKey::from_os()?, threads, Vec::new())
    }

    /// Draws the noise of one round, reusing the memory of an earlier release, which is consumed.
    ///
    /// # Errors
    /// When the operating system has no randomness, or the plan has more than 65536 groups.
    pub fn draw_over(
        plan: &RoundPlan,
        threads: usize,
        old: Released<Estimates>,
    ) -> Result<Self, NoiseError> {
        Self::with_key(plan, &RoundKey::from_os()?, threads, old.into_inner().sums)
    }

    /// Draws the noise with this key, reusing the memory of `old`.
    pub(crate) fn with_key(
        plan: &RoundPlan,
        key: &RoundKey,
        threads: usize,
        old: Vec<Vec<i64>>,
    ) -> Result<Self, NoiseError> {
        if plan.inner.groups.len() > usize::from(u16::MAX) + 1 {
            return Err(NoiseError::TooManyGroups);
        }
        let mut old = old.into_iter();
        let mut groups = Vec::with_capacity(plan.inner.groups.len());
        for (index, group) in plan.inner.groups.iter().enumerate() {
            let number = u16::try_from(index).map_err(|_| NoiseError::TooManyGroups)?;
            let mut values = Zeroizing::new(old.next().unwrap_or_default());
            gaussian::fill(key, number, group.grid, &mut values, group.dimension, threads)?;
            groups.push(GroupNoise { k: group.grid.k(), values });
        }
        Ok(Self { groups, process: key.process() })
    }
}

#[cfg(test)]
mod tests {
    use veilgrad_events::{ClipNorm, NoiseMultiplier};

    use super::*;
    use crate::{Allocation, Group, Structure};

    #[test]
    fn more_groups_than_the_key_stream_can_number_are_refused() {
        let names: Vec<String> = (0..=u32::from(u16::MAX) + 1).map(|i| i.to_string()).collect();
        let structure = Structure::new(names.iter().map(|name| (name.as_str(), 1))).unwrap();
        let clip = ClipNorm::new(1.0).unwrap();
        let groups = names.iter().map(|name| Group::new(name, [name], clip)).collect();
        let allocation = Allocation::Proportional(NoiseMultiplier::new(1.0).unwrap());
        let plan = RoundPlan::new(structure, groups, allocation).unwrap();
        assert_eq!(Noise::draw_on(&plan, 1).err(), Some(NoiseError::TooManyGroups));
    }
}
