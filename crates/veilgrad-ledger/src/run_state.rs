//! The state of one run.

use veilgrad_events::{Folded, Mode, PlanEnds, RunHeader, RunRounds, Sampling};

/// The state of a run: its header and its charges.
#[derive(Debug, Clone)]
pub struct RunState {
    /// The id of the run, drawn at random when it was opened.
    pub id: String,
    /// The id of the ledger in which it ran, if not this one.
    pub source: Option<String>,
    /// The header with which it was opened.
    pub header: RunHeader,
    /// The charged rounds, each composed to one Gaussian, identical consecutive rounds joined.
    pub rounds: Vec<Folded>,
    /// Additional charges to the run from another branch of the ledger, as rounds that cost at least as much at any position in
    /// the run, which is not known.
    pub apart: Vec<Folded>,
    /// The cumulative round counts of its plan.
    pub(crate) plan_ends: PlanEnds,
    /// The number of the next round.
    pub(crate) next_round: u64,
    /// The number of charged rounds.
    pub(crate) charged: u64,
    /// Why it protects nothing, if it is marked insecure.
    pub insecure: Option<String>,
    /// Whether it was closed.
    pub closed: bool,
}

impl RunState {
    /// The number of charged rounds.
    pub fn charged(&self) -> u64 {
        self.charged
    }

    /// Whether all rounds that it may charge were declared when it was opened, so that none can depend on outputs of
    /// the run.
    pub fn is_planned(&self) -> bool {
        self.header.mode == Mode::Planned && self.header.plan.is_some()
    }

    /// Its charges, for an accountant.
    pub fn charges(&self) -> [RunRounds<'_>; 2] {
        let (planned, tuning) = (self.is_planned(), self.header.tuning);
        [&self.rounds, &self.apart].map(|rounds| RunRounds { planned, rounds, tuning })
    }

    /// Adds charged rounds that begin at round `first`.
    pub(crate) fn charge(&mut self, first: u64, charge: Folded) -> Result<(), String> {
        self.charged = self.charged.saturating_add(charge.count);
        if first != self.next_round {
            self.apart.push(at_any_position(charge));
            return Ok(());
        }
        let too_many = "more than 2^64 rounds are charged";
        self.next_round = first.checked_add(charge.count).ok_or(too_many)?;
        let is_identical = |last: &Folded| {
            (last.sampling, last.noise_multiplier) == (charge.sampling, charge.noise_multiplier)
        };
        match self.rounds.last_mut() {
            Some(last) if is_identical(last) => {
                last.count = last.count.checked_add(charge.count).ok_or(too_many)?;
            }
            _ => self.rounds.push(charge),
        }
        Ok(())
    }
}

/// Rounds that cost at least as much as these at any position in a run, together with others of the same kind: shuffled epochs
/// and those of random allocation may begin at any of them, and a record is in one round of each epoch; cyclic rounds do not
/// continue others, so each charge has whole turns of all groups. They stay cyclic: records of one person may be in different
/// groups, and plain Poisson rounds would be priced for records that share every sample.
fn at_any_position(charge: Folded) -> Folded {
    let once_per_epoch = |length: u64| {
        let uses = charge.count.saturating_sub(1).div_ceil(length).saturating_add(1);
        Folded { count: uses.min(charge.count), sampling: Sampling::All {}, ..charge }
    };
    match charge.sampling {
        Sampling::Shuffle(batch) => once_per_epoch(batch.records() / batch.batch()),
        Sampling::Allocation { rounds_per_epoch } => once_per_epoch(rounds_per_epoch.get()),
        Sampling::CyclicPoisson { groups, .. } => {
            // Among consecutive rounds no group has more turns than this has, wherever they begin. If the number is too
            // large, the accountant refuses whatever follows it.
            let whole = charge.count.checked_next_multiple_of(groups.get());
            Folded { count: whole.unwrap_or(u64::MAX), ..charge }
        }
        _ => charge,
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use veilgrad_events::{FixedBatch, NoiseMultiplier};

    use super::*;

    /// All numbers of rounds, starting positions and lengths of epochs.
    #[test]
    fn shuffled_rounds_at_an_unknown_position_count_as_the_most_epochs_that_they_can_touch() {
        for (length, count) in (1u64..=9).flat_map(|length| (1u64..=60).map(move |n| (length, n))) {
            let shuffle = Sampling::Shuffle(FixedBatch::new(2 * length, 2).unwrap());
            let rounds_per_epoch = NonZeroU64::new(length).unwrap();
            for sampling in [shuffle, Sampling::Allocation { rounds_per_epoch }] {
                let noise_multiplier = NoiseMultiplier::new(1.0).unwrap();
                let charge = Folded { count, sampling, noise_multiplier };
                let touched = |first: u64| (first + count - 1) / length - first / length + 1;
                let most = (0..length).map(touched).max().unwrap();
                let found = at_any_position(charge);
                let expected = (most, Sampling::All {});
                assert_eq!((found.count, found.sampling), expected, "{length} {count}");
            }
        }
    }

    /// Two charges of a segment at unknown positions may give the same group a turn each, so the turns of both are added.
    #[test]
    fn cyclic_rounds_at_an_unknown_position_count_as_the_most_turns_of_a_group() {
        for (groups, count) in (1u64..=9).flat_map(|groups| (1u64..=60).map(move |n| (groups, n))) {
            let rate = veilgrad_events::SampleRate::new(0.5).unwrap();
            let cyclic = NonZeroU64::new(groups).unwrap();
            let sampling = Sampling::CyclicPoisson { rate, groups: cyclic, first_round: 3 };
            let noise_multiplier = NoiseMultiplier::new(1.0).unwrap();
            let found = at_any_position(Folded { count, sampling, noise_multiplier });
            let turns = |first: u64| (first..first + count).filter(|t| t % groups == 0).count();
            let most = (0..groups).map(turns).max().unwrap() as u64;
            assert_eq!((found.count, found.sampling), (most * groups, sampling));
        }
    }
}
