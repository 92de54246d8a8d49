//! The Gaussian noise of one round.

use veilgrad_events::{BandedStrategy, IntegerGrid, ProcessIdentity, UnknownProcess};
use veilgrad_random::{RandomError, RoundKey, gaussian};
use zeroize::Zeroizing;

use crate::planned::PlannedGroup;
use crate::{Estimates, Released, RoundPlan};

/// Gaussian noise for all groups of one round: `floor(2^k Z)` per coordinate, exactly, independent of other rounds.
/// [`CorrelatedNoise`](crate::CorrelatedNoise) draws noise that is not.
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
    /// How it is correlated with the noise of earlier rounds.
    pub(crate) strategy: Option<BandedStrategy>,
    /// The id of the only permit that may release it; `None` for noise that is independent of other rounds, or for test noise.
    pub(crate) permit: Option<u64>,
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
    /// Independent noise was drawn for a plan whose noise is correlated between rounds, or the other way round.
    #[error("the noise of this plan is {0}; it is drawn by {1}")]
    WrongKind(&'static str, &'static str),
    /// Correlated noise was drawn out of order.
    #[error(
        "correlated noise must be drawn once for every round of a segment, in order, by one source, from its first round on"
    )]
    SegmentOrder,
    /// A segment has more rounds than its noise was prepared for.
    #[error("correlated noise was drawn for more than {0} rounds")]
    SegmentEnd(u64),
    /// The strategy amplifies noise too much for 64-bit integers.
    #[error("noise of exponent {k} with this strategy may exceed 64 bits within {rounds} rounds")]
    Unstable {
        /// The exponent of the noise.
        k: u8,
        /// The number of rounds of the segment.
        rounds: u64,
    },
    /// Noise was beyond 64 standard deviations, which has a probability below 2^-2900. Nothing is released.
    #[error("noise beyond 64 standard deviations")]
    Overflow,
    /// This process has no identity, so a forked copy of it could use the noise too.
    #[error(transparent)]
    UnknownProcess(#[from] UnknownProcess),
}

impl Noise {
    /// Draws the noise of one round, on all processors.
    ///
    /// # Errors
    /// When the operating system has no randomness, the plan has more than 65536 groups, or its noise is correlated between
    /// rounds.
    pub fn draw(plan: &RoundPlan) -> Result<Self, NoiseError> {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        Self::draw_on(plan, threads)
    }

    /// Draws the noise of one round on `threads` threads. The distribution does not depend on their number.
    ///
    /// # Errors
    /// When the operating system has no randomness, the plan has more than 65536 groups, or its noise is correlated between
    /// rounds.
    pub fn draw_on(plan: &RoundPlan, threads: usize) -> Result<Self, NoiseError> {
        independent(plan)?;
        Self::with_key(plan, &RoundKey::from_os()?, threads, Vec::new())
    }

    /// Draws the noise of one round, reusing the memory of an earlier release, which is consumed.
    ///
    /// # Errors
    /// When the operating system has no randomness, the plan has more than 65536 groups, or its noise is correlated between
    /// rounds.
    pub fn draw_over(
        plan: &RoundPlan,
        threads: usize,
        old: Released<Estimates>,
    ) -> Result<Self, NoiseError> {
        independent(plan)?;
        Self::with_key(plan, &RoundKey::from_os()?, threads, old.into_inner().sums)
    }

    /// Draws the noise with this key, reusing the memory of `old`.
    pub(crate) fn with_key(
        plan: &RoundPlan,
        key: &RoundKey,
        threads: usize,
        old: Vec<Vec<i64>>,
    ) -> Result<Self, NoiseError> {
        let groups = draw_groups(plan.inner.groups.iter().map(sized), key, threads, old)?;
        let strategy = plan.inner.strategy.clone();
        Ok(Self { groups, process: key.process(), strategy, permit: None })
    }
}

/// The grid and the number of coordinates of a group.
pub(crate) fn sized(group: &PlannedGroup) -> (IntegerGrid, usize) {
    (group.grid, group.dimension)
}

/// Draws independent noise for every group, reusing the memory of `old`.
pub(crate) fn draw_groups(
    sizes: impl ExactSizeIterator<Item = (IntegerGrid, usize)>,
    key: &RoundKey,
    threads: usize,
    old: Vec<Vec<i64>>,
) -> Result<Vec<GroupNoise>, NoiseError> {
    if sizes.len() > usize::from(u16::MAX) + 1 {
        return Err(NoiseError::TooManyGroups);
    }
    let mut old = old.into_iter();
    let mut groups = Vec::with_capacity(sizes.len());
    for (index, (grid, dimension)) in sizes.enumerate() {
        let number = u16::try_from(index).map_err(|_| NoiseError::TooManyGroups)?;
        let mut values = Zeroizing::new(old.next().unwrap_or_default());
        gaussian::fill(key, number, grid, &mut values, dimension, threads)?;
        groups.push(GroupNoise { k: grid.k(), values });
    }
    Ok(groups)
}

fn independent(plan: &RoundPlan) -> Result<(), NoiseError> {
    match plan.strategy() {
        None => Ok(()),
        Some(_) => Err(NoiseError::WrongKind("correlated between rounds", "`CorrelatedNoise`")),
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
