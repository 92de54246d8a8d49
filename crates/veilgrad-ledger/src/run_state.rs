//! What one run charged.

use veilgrad_events::{Folded, Mode, PlanEnds, RunHeader, RunRounds, Sampling};

/// What a run did.
#[derive(Debug, Clone)]
pub struct RunState {
    /// Drawn at random when it was opened.
    pub id: String,
    /// The ledger in which it ran, if not in this one.
    pub source: Option<String>,
    /// Its public facts.
    pub header: RunHeader,
    /// What it charged, each round folded to one Gaussian, neighbours that are alike joined.
    pub rounds: Vec<Folded>,
    /// What another branch of the ledger charged to it besides, as rounds whose place in the run is not known.
    pub apart: Vec<Folded>,
    /// Where the parts of its plan end.
    pub(crate) plan_ends: PlanEnds,
    /// The number of the round that comes next.
    pub(crate) next_round: u64,
    /// Why it protects nothing, if that is so.
    pub insecure: Option<String>,
    /// Whether it ended in order.
    pub closed: bool,
}

impl RunState {
    /// The number of rounds that are charged.
    pub fn charged(&self) -> u64 {
        let all = self.rounds.iter().chain(&self.apart);
        all.fold(0, |sum, rounds| sum.saturating_add(rounds.count))
    }

    /// Whether all rounds that it may charge were declared when it was opened, so that none can have been chosen from
    /// outputs of the run.
    pub fn is_planned(&self) -> bool {
        self.header.mode == Mode::Planned && self.header.plan.is_some()
    }

    /// What it charged, for accountants.
    pub fn charges(&self) -> [RunRounds<'_>; 2] {
        let planned = self.is_planned();
        [&self.rounds, &self.apart].map(|rounds| RunRounds { planned, rounds })
    }

    /// Takes rounds in that begin at this one of the run.
    pub(crate) fn charge(&mut self, first: u64, charge: Folded) -> Result<(), String> {
        if first != self.next_round {
            self.apart.push(anywhere(charge));
            return Ok(());
        }
        let too_many = "more than 2^64 rounds are charged";
        self.next_round = first.checked_add(charge.count).ok_or(too_many)?;
        let alike = |last: &Folded| {
            (last.sampling, last.noise_multiplier) == (charge.sampling, charge.noise_multiplier)
        };
        match self.rounds.last_mut() {
            Some(last) if alike(last) => {
                last.count = last.count.checked_add(charge.count).ok_or(too_many)?;
            }
            _ => self.rounds.push(charge),
        }
        Ok(())
    }
}

/// The same rounds at a cost that holds wherever in a run they are: shuffled epochs may begin anywhere among them,
/// and a record is in one round of each.
fn anywhere(charge: Folded) -> Folded {
    match charge.sampling {
        Sampling::Shuffle(batch) => {
            let length = batch.records() / batch.batch();
            let uses = charge.count.saturating_sub(1).div_ceil(length).saturating_add(1);
            Folded { count: uses.min(charge.count), sampling: Sampling::All {}, ..charge }
        }
        _ => charge,
    }
}

#[cfg(test)]
mod tests {
    use veilgrad_events::{FixedBatch, NoiseMultiplier};

    use super::*;

    /// Every number of rounds, wherever it begins, against every length of epochs.
    #[test]
    fn shuffled_rounds_of_unknown_place_count_as_the_most_epochs_that_they_can_touch() {
        for (length, count) in (1u64..=9).flat_map(|length| (1u64..=60).map(move |n| (length, n))) {
            let sampling = Sampling::Shuffle(FixedBatch::new(2 * length, 2).unwrap());
            let noise_multiplier = NoiseMultiplier::new(1.0).unwrap();
            let charge = Folded { count, sampling, noise_multiplier };
            let touched = |first: u64| (first + count - 1) / length - first / length + 1;
            let most = (0..length).map(touched).max().unwrap();
            let found = anywhere(charge);
            assert_eq!((found.count, found.sampling), (most, Sampling::All {}), "{length} {count}");
        }
    }
}
