//! How a record can take part in the rounds of one run, in the worst case.

use std::collections::HashMap;

use veilgrad_events::{Adjacency, FixedBatch, Folded, Sampling};

use crate::{Sampled, Step, Unsupported};

/// What rounds add to a run's worst case.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Cost {
    Nothing,
    /// Gaussians without sampling: what they add to the sum of 1/z^2.
    Always(f64),
    Sampled(Step, u64),
}

#[derive(Debug, Clone, Default)]
pub(crate) struct RunSoFar {
    /// How many rounds it has had, of whatever kind.
    rounds: u64,
    /// The shuffled epoch that was reached, for every kind of batch.
    epochs: HashMap<FixedBatch, Epoch>,
}

#[derive(Debug, Clone, Copy)]
struct Epoch {
    number: u64,
    /// The largest 1/z^2 of its rounds so far.
    worst: f64,
}

impl RunSoFar {
    /// Adds the next rounds of the run: what they cost, and whether some pair of neighbours attains that (if not, it is
    /// only an upper bound).
    ///
    /// # Errors
    /// When the policy has no sound analysis under the adjacency.
    pub(crate) fn add(
        &mut self,
        rounds: &Folded,
        adjacency: Adjacency,
    ) -> Result<(Cost, bool), Unsupported> {
        if rounds.count == 0 {
            return Ok((Cost::Nothing, true));
        }
        let first = self.rounds;
        self.rounds = first
            .checked_add(rounds.count)
            .ok_or_else(|| Unsupported::new("a run has more than 2^64 rounds"))?;
        let (z, count) = (rounds.noise_multiplier.get(), rounds.count);
        let whole = z / f64::from(adjacency.sensitivity());
        let always = |z: f64| Cost::Always(count as f64 / z / z);
        let sampled = |sampled: Sampled, z: f64| Cost::Sampled(Step { sampled, z }, count);
        Ok(match (rounds.sampling, adjacency) {
            (Sampling::All {}, _) => (always(whole), true),
            (Sampling::Poisson { rate }, _) if rate.get() >= 1.0 => (always(whole), true),
            (Sampling::Poisson { rate }, Adjacency::AddRemove | Adjacency::ZeroOut) => {
                (sampled(Sampled::Poisson(rate.get()), z), true)
            }
            (Sampling::Poisson { rate }, Adjacency::ReplaceOne) => {
                (sampled(Sampled::PoissonReplaced(rate.get()), z), true)
            }
            // A sample with everybody is everybody.
            (Sampling::Fixed(batch), Adjacency::ZeroOut | Adjacency::ReplaceOne)
                if batch.batch() == batch.records() =>
            {
                (always(whole), true)
            }
            // Without the record another one takes its place in the batch, so that sums differ by at most 2.
            (Sampling::Fixed(batch), Adjacency::AddRemove) => match rate(batch) {
                q if q < 1.0 => (sampled(Sampled::Poisson(q), 0.5 * z), true),
                // The batch is the whole dataset, so a smaller neighbour cannot fill it: only an upper bound.
                _ => (always(0.5 * z), false),
            },
            // To put zero in a record's place is to replace it.
            (Sampling::Fixed(batch), Adjacency::ZeroOut | Adjacency::ReplaceOne) => {
                match rate(batch) {
                    q if q < 1.0 => (sampled(Sampled::FixedReplaced(q), 0.5 * z), false),
                    _ => (always(whole), false),
                }
            }
            (Sampling::Shuffle(batch), Adjacency::ZeroOut | Adjacency::ReplaceOne) => {
                (Cost::Always(self.shuffle(batch, first, count, whole)), false)
            }
            (Sampling::Shuffle(_), Adjacency::AddRemove) => {
                return Err(Unsupported::new(
                    "shuffled batches under add-remove adjacency: how many batches an epoch has \
                     depends on how many records there are; use zero-out or replace-one",
                ));
            }
            (policy, adjacency) => {
                return Err(Unsupported::new(format!(
                    "{policy:?} under {adjacency} adjacency has no analysis here"
                )));
            }
        })
    }

    /// What shuffled rounds from number `first` on add to the sum of 1/z^2.
    ///
    /// A record is in at most one batch of each epoch, and epochs begin at multiples of their length, counted from
    /// the first round of the run (as `ShuffleSampler` draws them). In the worst case that batch is the one with
    /// the least noise, so an epoch adds the largest 1/z^2 of its rounds.
    fn shuffle(&mut self, batch: FixedBatch, first: u64, count: u64, z: f64) -> f64 {
        let length = batch.records() / batch.batch();
        let (begin, end) = (first / length, (first + (count - 1)) / length);
        let square = 1.0 / z / z;
        let before = self.epochs.get(&batch).filter(|epoch| epoch.number == begin);
        let before = before.map_or(0.0, |epoch| epoch.worst);
        let in_first = (square - before).max(0.0);
        let worst = if begin == end { square.max(before) } else { square };
        self.epochs.insert(batch, Epoch { number: end, worst });
        in_first + (end - begin) as f64 * square
    }
}

/// The chance of a record to be in a batch, rounded up.
fn rate(batch: FixedBatch) -> f64 {
    (batch.batch() as f64 / batch.records() as f64 * (1.0 + 2.0 * f64::EPSILON)).min(1.0)
}
