//! Every sampler has the distribution of its event, and the tests detect wrong samplers.

use std::num::NonZeroU64;

use veilgrad_events::{FixedBatch, RoundPermit, SampleRate, Sampling, TruncatedPoisson};
use veilgrad_mechanism::{
    AllRecords, AllocationSampler, CyclicSampler, FixedSampler, PoissonSampler, SampleError,
    Sampler, Selection, ShuffleSampler, TruncatedPoissonSampler,
};
use veilgrad_random::{RoundKey, subset};
use veilgrad_statistics::law::{of_cyclic_sampler, of_sampler};

const ROUNDS: u64 = 20_000;
/// Segments of cyclic samples.
const SEGMENTS: u64 = 4000;

fn rate(q: f64) -> SampleRate {
    SampleRate::new(q).unwrap()
}

fn holds(mut sampler: impl Sampler, records: u64) {
    for check in of_sampler(&mut sampler, records, ROUNDS).unwrap() {
        assert!(check.holds(), "{} {:e}", check.name, check.tail);
    }
}

const RATES: [(f64, u64); 4] = [(0.01, 400), (0.1, 100), (0.5, 60), (0.9, 40)];

/// About 170 checks at 1e-9, in this test and the three after it.
#[test]
fn poisson_samples_and_all_records_are_drawn_as_their_events_say() {
    for (q, records) in RATES {
        holds(PoissonSampler::new(rate(q)), records);
    }
    holds(AllRecords, 30);
}

#[test]
fn truncated_samples_are_drawn_as_their_events_say() {
    for (q, records) in RATES {
        let most = (q * records as f64).ceil() as u64;
        let truncated = TruncatedPoisson::new(rate(q), records, most).unwrap();
        holds(TruncatedPoissonSampler::new(truncated), records);
    }
}

#[test]
fn batches_of_a_fixed_size_are_drawn_as_their_events_say() {
    for (records, batch) in [(100, 10), (60, 1), (50, 49)] {
        holds(FixedSampler::new(FixedBatch::new(records, batch).unwrap()), records);
    }
}

#[test]
fn shuffled_epochs_are_drawn_as_their_events_say() {
    for (records, batch) in [(100, 10), (50, 25), (23, 5)] {
        holds(ShuffleSampler::new(FixedBatch::new(records, batch).unwrap()), records);
    }
}

#[test]
fn allocated_epochs_are_drawn_as_their_events_say() {
    for (records, rounds) in [(100, 10), (50, 2), (23, 5)] {
        holds(AllocationSampler::new(NonZeroU64::new(rounds).unwrap()), records);
    }
}

/// 168 checks at 1e-9.
#[test]
fn cyclic_segments_are_drawn_as_their_events_say() {
    for (q, groups, turns, records) in
        [(0.3, 4, 3, 60), (1.0, 3, 2, 40), (0.5, 2, 5, 50), (0.2, 16, 2, 200)]
    {
        let groups = NonZeroU64::new(groups).unwrap();
        let sampler = |first| CyclicSampler::new(rate(q), groups, first);
        for check in of_cyclic_sampler(sampler, records, turns, SEGMENTS).unwrap() {
            assert!(check.holds(), "{} {:e}", check.name, check.tail);
        }
    }
}

/// A sampler whose samples do not have the distribution of its policy.
struct Wrong<F> {
    policy: Sampling,
    draw: F,
}

impl<F: FnMut(u64) -> Vec<u64>> Sampler for Wrong<F> {
    fn policy(&self) -> Sampling {
        self.policy
    }

    fn select(&mut self, permit: &RoundPermit, _: u64) -> Result<Selection, SampleError> {
        Ok(Selection::ids((self.draw)(permit.number())))
    }
}

fn is_noticed(what: &str, policy: Sampling, draw: impl FnMut(u64) -> Vec<u64>) {
    let checks = of_sampler(&mut Wrong { policy, draw }, RECORDS, ROUNDS).unwrap();
    assert!(checks.iter().any(|check| !check.holds()), "{what}: {checks:?}");
}

const RECORDS: u64 = 200;

#[test]
fn wrong_samplers_are_noticed() {
    let draw = |q: f64| subset::Poisson::new(rate(q)).draw(&RoundKey::from_os().unwrap(), RECORDS);
    let poisson = Sampling::Poisson { rate: rate(0.1) };
    is_noticed("a higher rate", poisson, |_| draw(0.11).unwrap());
    is_noticed("a rate of 1.03 q", poisson, |_| draw(0.103).unwrap());
    let mut last = Vec::new();
    is_noticed("one sample for two rounds", poisson, |round| {
        if round % 2 == 0 {
            last = draw(0.1).unwrap();
        }
        last.clone()
    });
    let mut older = std::collections::VecDeque::from(vec![Vec::new(); 7]);
    is_noticed("a sample again after seven rounds", poisson, |round| {
        let again = older.pop_front().unwrap();
        let next = if round % 14 < 7 { draw(0.1).unwrap() } else { again };
        older.push_back(next.clone());
        next
    });
    is_noticed("never the last record", poisson, |_| {
        let mut ids = draw(0.1).unwrap();
        ids.retain(|id| *id != RECORDS - 1);
        ids
    });
    let batch = FixedBatch::new(RECORDS, 20).unwrap();
    let fixed = || subset::without_replacement(&RoundKey::from_os().unwrap(), batch).unwrap();
    is_noticed("a fixed size that is called Poisson", poisson, |_| fixed());
    is_noticed("neighbours together", poisson, |_| {
        let ids = draw(0.05).unwrap();
        let mut both: Vec<u64> = ids.iter().flat_map(|id| [id & !1, id | 1]).collect();
        both.sort_unstable();
        both.dedup();
        both
    });
    is_noticed("a batch from the first half", Sampling::Fixed(batch), |_| {
        let half = FixedBatch::new(RECORDS / 2, 20).unwrap();
        subset::without_replacement(&RoundKey::from_os().unwrap(), half).unwrap()
    });
    let shuffle = Sampling::Shuffle(batch);
    let mut wrong = Wrong { policy: shuffle, draw: |_| fixed() };
    let error = of_sampler(&mut wrong, RECORDS, ROUNDS).unwrap_err().to_string();
    assert!(error.contains("two batches of one epoch"), "{error}");
    is_noticed("one order for all epochs", shuffle, |round| {
        let first = round % (RECORDS / 20) * 20;
        (first..first + 20).collect()
    });
    let length = NonZeroU64::new(10).unwrap();
    let allocation = Sampling::Allocation { rounds_per_epoch: length };
    let mut wrong = Wrong { policy: allocation, draw: |_| draw(0.1).unwrap() };
    let error = of_sampler(&mut wrong, RECORDS, ROUNDS).unwrap_err().to_string();
    assert!(error.contains("of one epoch") || error.contains("of an epoch"), "{error}");
    let epoch = || {
        let key = RoundKey::from_os().unwrap();
        subset::Partition::draw(&key, RECORDS, length).unwrap()
    };
    let once = epoch();
    is_noticed("one allocation for all epochs", allocation, |round| {
        once.group(round % 10).to_vec()
    });
    let mut order = Vec::new();
    is_noticed("a shuffle that is called an allocation", allocation, |round| {
        if round % 10 == 0 {
            order = subset::permutation(&RoundKey::from_os().unwrap(), RECORDS).unwrap();
        }
        let mut ids = order[(round % 10 * 20) as usize..][..20].to_vec();
        ids.sort_unstable();
        ids
    });
}

/// What a wrong cyclic sampler of 4 groups at rate 0.3 draws in 3 turns: `groups` are the groups of a segment, and `sample`
/// draws from the group whose turn it is.
fn wrong_cyclic(
    mut groups: impl FnMut() -> Vec<Vec<u64>>,
    mut sample: impl FnMut(u64, &[u64]) -> Vec<u64>,
) -> Result<Vec<veilgrad_statistics::Check>, Box<dyn std::error::Error>> {
    let mut rounds = std::collections::HashMap::new();
    for segment in 0..SEGMENTS {
        let groups = groups();
        for t in 0..12 {
            rounds.insert(12 * segment + t, sample(t, &groups[t as usize % 4]));
        }
    }
    let groups = NonZeroU64::new(4).unwrap();
    let wrong = |first_round| Wrong {
        policy: Sampling::CyclicPoisson { rate: rate(0.3), groups, first_round },
        draw: |round| rounds[&round].clone(),
    };
    of_cyclic_sampler(wrong, RECORDS, 3, SEGMENTS)
}

#[test]
fn wrong_cyclic_samplers_are_noticed() {
    let key = || RoundKey::from_os().unwrap();
    let (four, five) = (NonZeroU64::new(4).unwrap(), NonZeroU64::new(5).unwrap());
    let groups = || {
        let partition = subset::Partition::draw(&key(), RECORDS, four).unwrap();
        (0..4).map(|group| partition.group(group).to_vec()).collect::<Vec<_>>()
    };
    let draw = |q: f64, group: &[u64]| -> Vec<u64> {
        let positions = subset::Poisson::new(rate(q)).draw(&key(), group.len() as u64).unwrap();
        positions.into_iter().map(|position| group[position as usize]).collect()
    };
    let right = |_, group: &[u64]| draw(0.3, group);
    let sorted = |mut ids: Vec<u64>| {
        ids.sort_unstable();
        ids
    };
    let all_hold = |checks: &[veilgrad_statistics::Check]| checks.iter().all(|c| c.holds());
    assert!(all_hold(&wrong_cyclic(groups, right).unwrap()), "the right one is not noticed");

    let is_noticed = |what: &str, checks: Result<Vec<_>, _>| {
        assert!(!all_hold(&checks.unwrap()), "{what}");
    };
    is_noticed("a rate of 1.05 q", wrong_cyclic(groups, |_, group| draw(0.315, group)));
    let mut first_turn = vec![Vec::new(); 4];
    let repeated = |t, group: &[u64]| {
        if t < 4 {
            first_turn[t as usize] = draw(0.3, group);
        }
        first_turn[t as usize % 4].clone()
    };
    is_noticed("one sample for every turn", wrong_cyclic(groups, repeated));
    let mut left = Vec::new();
    let without_repetition = |t, group: &[u64]| {
        if t < 4 {
            left.push(draw(0.3, group));
            return left[left.len() - 1].clone();
        }
        // As many as there would be, of those who were not in the first turn.
        let before = &left[left.len() - 4 + t as usize % 4];
        let fresh: Vec<u64> = group.iter().filter(|id| !before.contains(id)).copied().collect();
        draw(0.3 / 0.7, &fresh)
    };
    is_noticed("no record in two turns in a row", wrong_cyclic(groups, without_repetition));
    let once = groups();
    is_noticed("one division into groups for all segments", wrong_cyclic(|| once.clone(), right));
    let by_number = || (0..4).map(|g| (g..RECORDS).step_by(4).collect()).collect();
    is_noticed("groups by the number of the record", wrong_cyclic(by_number, right));
    let equal = || {
        let order = subset::permutation(&key(), RECORDS).unwrap();
        order.chunks(RECORDS as usize / 4).map(|ids| sorted(ids.to_vec())).collect()
    };
    is_noticed("groups of equal sizes", wrong_cyclic(equal, right));
    let in_pairs = || {
        let pairs = subset::Partition::draw(&key(), RECORDS / 2, four).unwrap();
        let both = |group| pairs.group(group).iter().flat_map(|id| [2 * id, 2 * id + 1]).collect();
        (0..4).map(both).collect()
    };
    is_noticed("neighbours in one group", wrong_cyclic(in_pairs, right));
    let uneven = || {
        let partition = subset::Partition::draw(&key(), RECORDS, five).unwrap();
        let mut groups: Vec<Vec<u64>> = (0..5).map(|g| partition.group(g).to_vec()).collect();
        let fifth = groups.remove(4);
        groups[0] = sorted([&groups[0][..], &fifth].concat());
        groups
    };
    is_noticed("a group that is likelier than the others", wrong_cyclic(uneven, right));

    let every = || vec![(0..RECORDS).collect(); 4];
    let error = wrong_cyclic(every, right).unwrap_err().to_string();
    assert!(error.contains("two groups of a segment"), "{error}");
}
