//! The worst-case participation of a record in the rounds of one run.

use std::collections::HashMap;
use std::num::NonZeroU64;

use veilgrad_events::{Adjacency, FixedBatch, Folded, Sampling};

use super::truncation::truncated_sample;
use crate::{Sampled, Step, Unsupported};

/// Larger groups of one person's records get no amplification by sampling.
const MOST_RECORDS: u64 = 10_000;

/// Which datasets are neighbours: those that differ in up to this many records.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Neighbours {
    pub(crate) adjacency: Adjacency,
    pub(crate) records: NonZeroU64,
}

impl Neighbours {
    /// Neighbours of which one lacks one record, and how many such changes lead to all others: a record that is replaced is
    /// removed, and another one is added.
    pub(crate) fn one_change(self) -> (Self, u64) {
        let records = self.records.get();
        let (adjacency, changes) = match self.adjacency {
            Adjacency::ReplaceOne => (Adjacency::ZeroOut, records.saturating_mul(2)),
            adjacency => (adjacency, records),
        };
        (adjacency.into(), changes)
    }
}

impl From<Adjacency> for Neighbours {
    fn from(adjacency: Adjacency) -> Self {
        Self { adjacency, records: NonZeroU64::MIN }
    }
}

/// The cost of rounds: the sampled Gaussians of the worst case.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Cost {
    Nothing,
    /// Gaussians without sampling: the sum of their 1/z^2.
    Always(f64),
    Sampled(Step, u64),
}

/// The rounds of a run so far, as far as the cost of the next ones depends on them.
#[derive(Debug, Clone, Default)]
pub(crate) struct RunSoFar {
    /// The number of rounds, of any kind.
    rounds: u64,
    /// The last shuffled epoch, for every batch size.
    epochs: HashMap<FixedBatch, Epoch>,
    /// The last epoch of random allocation, for every number of rounds per epoch.
    allocations: HashMap<NonZeroU64, AllocationEpoch>,
    /// Whether some epoch of random allocation lacks rounds, or has rounds of different noise. Its rounds then cost less than the
    /// epoch that is charged for them. An epoch that may still be completed does not count: see `unfinished`.
    has_mixed_epochs: bool,
    /// The last segment of cyclic sampling.
    segment: Option<Segment>,
}

#[derive(Debug, Clone, Copy)]
struct AllocationEpoch {
    number: u64,
    /// The noise multiplier at which the epoch is paid for.
    z: f64,
    /// If its last round so far is not the last one of the epoch: the number of the round that must follow, and the noise that all
    /// of its rounds had.
    unfinished: Option<(u64, f64)>,
}

/// Consecutive rounds of one run with the same cyclic sampling and noise.
#[derive(Debug, Clone, Copy)]
struct Segment {
    sampling: Sampling,
    z: f64,
    /// The number of its rounds so far, and of the round that follows them in the run.
    rounds: u64,
    end: u64,
}

#[derive(Debug, Clone, Copy)]
struct Epoch {
    number: u64,
    /// The largest 1/z^2 of its rounds so far.
    worst: f64,
}

impl RunSoFar {
    /// Adds the next rounds of the run. Returns their cost, and whether some pair of neighbours attains it (if not, it is only
    /// an upper bound).
    ///
    /// # Errors
    /// When the policy has no sound analysis under the adjacency.
    pub(crate) fn add(
        &mut self,
        rounds: &Folded,
        neighbours: impl Into<Neighbours>,
    ) -> Result<(Cost, bool), Unsupported> {
        let neighbours = neighbours.into();
        let Neighbours { adjacency, records } = neighbours;
        if rounds.count == 0 {
            return Ok((Cost::Nothing, true));
        }
        let first = self.rounds;
        self.rounds = first
            .checked_add(rounds.count)
            .ok_or_else(|| Unsupported::new("a run has more than 2^64 rounds"))?;
        let z = rounds.noise_multiplier.get();
        // With cyclic sampling a record has one Poisson sample for every time that its group has its turn. That the group is
        // random is not counted as protection, so the cost is only an upper bound.
        let (sampling, count) = match rounds.sampling {
            Sampling::CyclicPoisson { rate, groups, .. } => {
                let turns = self.turns(rounds, first, groups);
                if turns == 0 {
                    return Ok((Cost::Nothing, false));
                }
                (Sampling::Poisson { rate }, turns)
            }
            sampling => (sampling, rounds.count),
        };
        let is_cyclic = sampling != rounds.sampling;
        let whole = z / f64::from(adjacency.sensitivity());
        // All records of a group may be in the same round.
        let whole = whole / records.get() as f64;
        let is_group = records.get() > 1;
        let always = |z: f64| Cost::Always(count as f64 / z / z);
        let sampled = |sampled: Sampled, z: f64| Cost::Sampled(Step { sampled, z }, count);
        let (cost, attained) = match (sampling, adjacency) {
            (Sampling::All {}, _) => (always(whole), true),
            (Sampling::Poisson { rate }, _) if rate.get() >= 1.0 => (always(whole), true),
            // Records of one person may be in different groups, whose turns overlap in the rounds that measure them.
            (Sampling::Poisson { .. }, adjacency) if is_group && is_cyclic => {
                return Err(Unsupported::new(format!(
                    "cyclic sampling under {adjacency} adjacency has no analysis of groups of records here"
                )));
            }
            (Sampling::Poisson { rate }, Adjacency::AddRemove | Adjacency::ZeroOut) if is_group => {
                let (rate, records) = (rate.get(), records.get());
                // Of so many records hardly ever is none sampled, and weights of mixtures would underflow.
                match records as f64 * libm::log1p(-rate) < -500.0 || records > MOST_RECORDS {
                    true => (always(whole), false),
                    false => (sampled(Sampled::PoissonGroup { rate, records }, z), true),
                }
            }
            (Sampling::Shuffle(batch), Adjacency::ZeroOut | Adjacency::ReplaceOne) => {
                (Cost::Always(self.shuffle(batch, first, count, whole)), false)
            }
            (Sampling::Shuffle(_), Adjacency::AddRemove) => {
                return Err(Unsupported::new(
                    "shuffled batches under add-remove adjacency: how many batches an epoch has \
                     depends on how many records there are; use zero-out or replace-one, or sampling by \
                     allocation, which also takes every record once per epoch",
                ));
            }
            (Sampling::Allocation { rounds_per_epoch }, _) => {
                self.allocation(rounds_per_epoch, first, rounds, neighbours)?
            }
            (policy, adjacency) if is_group => {
                return Err(Unsupported::new(format!(
                    "{policy:?} under {adjacency} adjacency has no analysis of groups of records here"
                )));
            }
            (Sampling::Poisson { rate }, Adjacency::AddRemove | Adjacency::ZeroOut) => {
                (sampled(Sampled::Poisson(rate.get()), z), true)
            }
            (Sampling::Poisson { rate }, Adjacency::ReplaceOne) => {
                (sampled(Sampled::PoissonReplaced(rate.get()), z), true)
            }
            // The batch is the whole dataset.
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
            // Zeroing a record out replaces it with zero.
            (Sampling::Fixed(batch), Adjacency::ZeroOut | Adjacency::ReplaceOne) => {
                match rate(batch) {
                    q if q < 1.0 => (sampled(Sampled::FixedReplaced(q), 0.5 * z), false),
                    _ => (always(whole), false),
                }
            }
            (Sampling::TruncatedPoisson(policy), adjacency) => {
                match truncated_sample(policy, adjacency, z) {
                    Some(sample) => (sampled(Sampled::Truncated(sample), z), true),
                    // Without truncation this is a Poisson sample.
                    None => {
                        let rate = policy.rate();
                        self.rounds = first;
                        let untruncated =
                            Folded { sampling: Sampling::Poisson { rate }, ..*rounds };
                        self.add(&untruncated, adjacency)?
                    }
                }
            }
            (policy, adjacency) => {
                return Err(Unsupported::new(format!(
                    "{policy:?} under {adjacency} adjacency has no analysis here"
                )));
            }
        };
        Ok((cost, attained && !is_cyclic))
    }

    /// How many more turns a group has at most by these rounds of cyclic sampling, the first of which has number `first`.
    ///
    /// Among `n` consecutive rounds every group has at most `ceil(n / groups)` turns. Rounds that do not follow the last ones, or
    /// have another segment, rate, number of groups or noise, are counted from their own beginning.
    fn turns(&mut self, rounds: &Folded, first: u64, groups: NonZeroU64) -> u64 {
        let (sampling, z) = (rounds.sampling, rounds.noise_multiplier.get());
        let is_same = |s: &Segment| s.sampling == sampling && s.z == z && s.end == first;
        let before = self.segment.filter(is_same).map_or(0, |segment| segment.rounds);
        // Both are at most the number of rounds of the run, which fits.
        let (rounds, end) = (before + rounds.count, first + rounds.count);
        self.segment = Some(Segment { sampling, z, rounds, end });
        rounds.div_ceil(groups.get()) - before.div_ceil(groups.get())
    }

    /// The cost of rounds of random allocation from round number `first` on: all epochs of this `length` that they touch and that
    /// are not paid for, each whole. Rounds of an epoch that have less noise than it was paid at pay for a further epoch.
    fn allocation(
        &mut self,
        length: NonZeroU64,
        first: u64,
        rounds: &Folded,
        Neighbours { adjacency, records }: Neighbours,
    ) -> Result<(Cost, bool), Unsupported> {
        let (count, z) = (rounds.count, rounds.noise_multiplier.get());
        let (first_epoch, last_epoch) = (first / length, (first + (count - 1)) / length);
        let paid = self.allocations.get(&length);
        let is_paid = paid.is_some_and(|epoch| epoch.number == first_epoch && epoch.z <= z);
        let z_of_last = match (is_paid && first_epoch == last_epoch, paid) {
            (true, Some(epoch)) => epoch.z,
            _ => z,
        };
        let continues = match paid.and_then(|epoch| epoch.unfinished) {
            Some(expected) => expected == (first, z),
            None => first % length == 0,
        };
        self.has_mixed_epochs |= !continues;
        let end = first + count;
        let unfinished = (end % length != 0).then_some((end, z));
        let epoch = AllocationEpoch { number: last_epoch, z: z_of_last, unfinished };
        self.allocations.insert(length, epoch);
        let epochs = (last_epoch - first_epoch).saturating_add(u64::from(!is_paid));
        if epochs == 0 {
            return Ok((Cost::Nothing, true));
        }
        let whole = z / f64::from(adjacency.sensitivity()) / records.get() as f64;
        let unsampled = Cost::Always(epochs as f64 / whole / whole);
        Ok(match adjacency {
            _ if length.get() == 1 => (unsampled, true),
            Adjacency::AddRemove | Adjacency::ZeroOut if records.get() == 1 => {
                let sampled = Sampled::Allocated(length.get());
                (Cost::Sampled(Step { sampled, z }, epochs), true)
            }
            // Whatever the allocation, the records are in one round each, at worst all in the same.
            Adjacency::AddRemove | Adjacency::ZeroOut | Adjacency::ReplaceOne => (unsampled, false),
            other => {
                let why = format!("random allocation under {other} adjacency has no analysis here");
                return Err(Unsupported::new(why));
            }
        })
    }

    /// Whether the cost of all rounds that were added is that of the rounds themselves: false if an epoch of random allocation, of
    /// which only some rounds took place or whose rounds have different noise, is charged as a whole one.
    pub(crate) fn has_whole_epochs(&self) -> bool {
        let is_finished = |epoch: &AllocationEpoch| epoch.unfinished.is_none();
        !self.has_mixed_epochs && self.allocations.values().all(is_finished)
    }

    /// The increase of the sum of 1/z^2 by `count` shuffled rounds from round number `first` on.
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

/// The probability that a record is in a batch, rounded up.
fn rate(batch: FixedBatch) -> f64 {
    (batch.batch() as f64 / batch.records() as f64 * (1.0 + 2.0 * f64::EPSILON)).min(1.0)
}

#[cfg(test)]
mod tests {
    use veilgrad_events::NoiseMultiplier;

    use super::*;

    /// A block of rounds: its shuffled batches (`None` for rounds on all records), their number and their noise.
    type Block = (Option<FixedBatch>, u64, f64);

    /// The sum of 1/z^2 that the shuffled rounds add.
    fn added(blocks: &[Block], adjacency: Adjacency) -> f64 {
        let mut run = RunSoFar::default();
        let costs = blocks.iter().map(|(batch, count, z)| {
            let sampling = batch.map_or(Sampling::All {}, Sampling::Shuffle);
            let noise_multiplier = NoiseMultiplier::new(*z).unwrap();
            let rounds = Folded { count: *count, sampling, noise_multiplier };
            match (run.add(&rounds, adjacency).unwrap().0, batch) {
                (Cost::Always(squares), Some(_)) => squares,
                _ => 0.0,
            }
        });
        costs.sum()
    }

    /// The same round by round: an epoch costs the largest 1/z^2 among its rounds.
    fn expected(blocks: &[Block], adjacency: Adjacency) -> f64 {
        let mut worst: HashMap<(FixedBatch, u64), f64> = HashMap::new();
        let mut number = 0;
        for (batch, count, z) in blocks {
            for _ in 0..*count {
                if let Some(batch) = batch {
                    let epoch = number / (batch.records() / batch.batch());
                    let square = (f64::from(adjacency.sensitivity()) / z).powi(2);
                    let known = worst.entry((*batch, epoch)).or_default();
                    *known = known.max(square);
                }
                number += 1;
            }
        }
        worst.values().sum()
    }

    /// All runs of three blocks, of up to two kinds of batches whose epochs have 1 to 4 rounds, with other rounds in
    /// between. Noise is a power of two, so that sums are exact.
    #[test]
    fn every_epoch_that_is_touched_costs_its_worst_round_and_no_other_is_counted() {
        let mut runs = 0u64;
        for length in 1..=4 {
            let (one, other) =
                (FixedBatch::new(length, 1).unwrap(), FixedBatch::new(7, 3).unwrap());
            let blocks: Vec<Block> = [Some(one), Some(other), None]
                .into_iter()
                .flat_map(|batch| [1, 2, 3, 4, 5, 9].map(|count| (batch, count)))
                .flat_map(|(batch, count)| [0.5, 1.0, 2.0].map(|z| (batch, count, z)))
                .collect();
            for (a, b) in blocks.iter().flat_map(|a| blocks.iter().map(move |b| (*a, *b))) {
                for c in blocks.iter().step_by(2) {
                    let run = [a, b, *c];
                    for adjacency in [Adjacency::ZeroOut, Adjacency::ReplaceOne] {
                        assert_eq!(added(&run, adjacency), expected(&run, adjacency), "{run:?}");
                    }
                    runs += 1;
                }
            }
        }
        assert_eq!(runs, 4 * 54 * 54 * 27);
    }

    /// A block of cyclic rounds: rate, groups, first round of its segment, number and noise. `None` for rounds on all records.
    type CyclicBlock = (Option<(f64, u64, u64)>, u64, f64);

    fn cyclic(block: &CyclicBlock) -> Folded {
        let sampling = block.0.map_or(Sampling::All {}, |(rate, groups, first_round)| {
            let rate = veilgrad_events::SampleRate::new(rate).unwrap();
            let groups = NonZeroU64::new(groups).unwrap();
            Sampling::CyclicPoisson { rate, groups, first_round }
        });
        let noise_multiplier = NoiseMultiplier::new(block.2).unwrap();
        Folded { count: block.1, sampling, noise_multiplier }
    }

    /// The number of steps with noise z that cyclic rounds add up to.
    fn steps(blocks: &[CyclicBlock], z: f64, adjacency: Adjacency) -> u64 {
        let mut run = RunSoFar::default();
        let costs = blocks.iter().map(|block| run.add(&cyclic(block), adjacency).unwrap().0);
        let count = costs.map(|cost| match cost {
            Cost::Sampled(step, count) if step.z == z => count,
            _ => 0,
        });
        count.sum()
    }

    /// Whatever a record's group in each segment is, it has no more turns with noise z than are charged. By brute force: all runs
    /// of three blocks, in which blocks of the same segment may follow each other, stop or be interrupted. A record's group in
    /// a segment is fixed, so the turns are counted for every choice of groups.
    #[test]
    fn no_choice_of_groups_has_more_turns_than_are_charged() {
        let groups = 3;
        let blocks: Vec<CyclicBlock> = [Some((0.5, groups, 0)), Some((0.5, groups, 1)), None]
            .into_iter()
            .flat_map(|policy| [1, 2, 3, 4, 7].map(|count| (policy, count)))
            .flat_map(|(policy, count)| [1.0, 2.0].map(|z| (policy, count, z)))
            .collect();
        for (a, b) in blocks.iter().flat_map(|a| blocks.iter().map(move |b| (*a, *b))) {
            for c in &blocks {
                let run = [a, b, *c];
                // The numbers of the rounds of each segment and noise.
                let mut turns: HashMap<(u64, u64), Vec<u64>> = HashMap::new();
                let mut number = 0;
                for (policy, count, z) in &run {
                    for _ in 0..*count {
                        if let Some((_, _, first)) = policy {
                            turns.entry((*first, z.to_bits())).or_default().push(number);
                        }
                        number += 1;
                    }
                }
                for z in [1.0f64, 2.0] {
                    let most_turns = |rounds: &Vec<u64>| {
                        let of_group = |g| rounds.iter().filter(|t| *t % groups == g).count();
                        (0..groups).map(of_group).max().unwrap_or(0) as u64
                    };
                    let of_noise = turns.iter().filter(|((_, bits), _)| *bits == z.to_bits());
                    let most: u64 = of_noise.map(|(_, rounds)| most_turns(rounds)).sum();
                    let charged = steps(&run, z, Adjacency::AddRemove);
                    assert!(charged >= most, "{run:?}: {charged} {most}");
                }
            }
        }
    }

    #[test]
    fn a_segment_costs_its_turns_however_it_is_divided_and_every_further_segment_its_own() {
        let block = |count, first| (Some((0.25, 4, first)), count, 1.0);
        let add_remove = Adjacency::AddRemove;
        for (first, second) in (0..20).flat_map(|a| (0..20).map(move |b| (a, b))) {
            let whole = steps(&[block(first + second, 0)], 1.0, add_remove);
            assert_eq!(whole, (first + second).div_ceil(4));
            assert_eq!(steps(&[block(first, 0), block(second, 0)], 1.0, add_remove), whole);
            // The second one has other groups of records.
            let two = steps(&[block(first, 0), block(second, first)], 1.0, add_remove);
            assert_eq!(
                two,
                if first == 0 { whole } else { first.div_ceil(4) + second.div_ceil(4) }
            );
        }
        let mut run = RunSoFar::default();
        let (cost, attained) = run.add(&cyclic(&block(9, 0)), Adjacency::ReplaceOne).unwrap();
        assert!(
            !attained
                && matches!(cost, Cost::Sampled(Step { sampled: Sampled::PoissonReplaced(q), .. }, 3) if q == 0.25)
        );
        let everyone = (Some((1.0, 4, 0)), 9, 2.0);
        let (cost, _) = RunSoFar::default().add(&cyclic(&everyone), add_remove).unwrap();
        assert!(matches!(cost, Cost::Always(squares) if squares == 0.75));
        assert_eq!(steps(&[block(u64::MAX, 0)], 1.0, add_remove), 1 << 62);
    }

    #[test]
    fn round_numbers_near_the_limit_of_u64_do_not_wrap() {
        let whole = |count| (None, count, 1.0);
        for length in [1, 2, 3, u64::MAX - 1, u64::MAX] {
            let batch = FixedBatch::new(length, 1).unwrap();
            let shuffled = |count| (Some(batch), count, 1.0);
            let epochs = |first: u64, count: u64| {
                ((first + (count - 1)) / length - first / length) as f64 + 1.0
            };
            for (first, count) in [(u64::MAX - 1, 1), (u64::MAX - 3, 3), (u64::MAX - 5, 4)] {
                let run = [whole(first), shuffled(count)];
                assert_eq!(
                    added(&run, Adjacency::ZeroOut),
                    epochs(first, count),
                    "{length} {first}"
                );
            }
            assert_eq!(added(&[shuffled(u64::MAX)], Adjacency::ZeroOut), epochs(0, u64::MAX));
            let mut run = RunSoFar::default();
            let rounds = |count| Folded {
                count,
                sampling: Sampling::Shuffle(batch),
                noise_multiplier: NoiseMultiplier::new(1.0).unwrap(),
            };
            assert!(run.add(&rounds(u64::MAX), Adjacency::ZeroOut).is_ok());
            assert!(run.add(&rounds(1), Adjacency::ZeroOut).is_err(), "2^64 rounds");
        }
    }
}
