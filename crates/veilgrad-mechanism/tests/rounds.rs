//! Permits, samples, noise and adaptive rounds.

use std::collections::HashSet;
use std::num::NonZeroU64;

use crate::common::*;
use veilgrad_events::{
    Adjacency, FixedBatch, LedgerKind, MemoryLedger, Permits, RecordUnit, RoundPermit, Run,
    RunHeader, SampleRate, Sampling, TruncatedPoisson,
};
use veilgrad_mechanism::insecure::{no_noise, seeded_noise};
use veilgrad_mechanism::{
    AllRecords, Allocation, AllocationSampler, FixedSampler, Group, LearningRate, Noise, PlanError,
    PoissonSampler, Quantile, ReleaseError, RoundPlan, Sample, SampleError, Sampler, Selection,
    ShuffleSampler, Structure, SumError, TruncatedPoissonSampler, check_sampler,
};

/// A sampler that always selects the same records.
struct ConstantSampler(Sampling, Vec<u64>);

impl Sampler for ConstantSampler {
    fn policy(&self) -> Sampling {
        self.0
    }

    fn select(&mut self, _permit: &RoundPermit, _records: u64) -> Result<Selection, SampleError> {
        Ok(Selection::ids(self.1.clone()))
    }
}

fn poisson(ids: &[u64]) -> ConstantSampler {
    ConstantSampler(Sampling::Poisson { rate: SampleRate::new(0.5).unwrap() }, ids.to_vec())
}

fn flat() -> RoundPlan {
    plan(&[("x", 1)], Group::flat("all", "*", clip(1.0)))
}

#[test]
fn a_permit_draws_only_the_sample_that_was_charged() {
    let plan = flat();
    let mut run = Run::open(MemoryLedger::new(), header()).unwrap();
    let mut permits = run.reserve(&plan.round(&poisson(&[])).unwrap(), 2).unwrap();
    let error = Sample::draw(permits.next().unwrap(), &mut AllRecords, 9).err().unwrap();
    assert!(matches!(error, SampleError::PolicyMismatch { .. }), "{error}");
    let sample = Sample::draw(permits.next().unwrap(), &mut poisson(&[1, 4]), 9).unwrap();
    assert_eq!(sample.ids().collect::<Vec<_>>(), [1, 4]);
    assert_eq!(insecure_sample_of(&plan, 0).ids().count(), 0);
}

#[test]
fn a_release_needs_the_charge_of_its_own_groups() {
    let plan = |dimension: usize, noise_x: f64, with_y: bool| {
        let structure = Structure::new([("x", dimension), ("y", 1)]).unwrap();
        let x = if with_y { vec!["x"] } else { vec!["x", "y"] };
        let mut groups = vec![Group::new("x", x, clip(1.0)).noise(noise(noise_x))];
        if with_y {
            groups.push(Group::new("y", ["y"], clip(1.0)).noise(noise(1.0)));
        }
        RoundPlan::new(structure, groups, Allocation::Explicit).unwrap()
    };
    let (one, longer, less_noise) =
        (plan(1, 1.0, false), plan(2, 1.0, false), plan(1, 0.999, false));
    // The same group x, of the same dimension, with and without another group y.
    let two = plan(2, 1.0, true);
    for (charged, run, group) in
        [(&one, &longer, "x"), (&one, &less_noise, "x"), (&one, &two, "y"), (&two, &one, "y")]
    {
        let sample = insecure_sample(charged);
        let error = sample.begin(run).release(sample, no_noise(run)).err().unwrap();
        assert_eq!(error, ReleaseError::NotCharged(group.to_owned()));
    }
}

#[test]
fn a_release_needs_its_own_sample_and_noise() {
    let plan = flat();
    let (one, two) = (insecure_sample(&plan), insecure_sample(&plan));
    let error = one.begin(&plan).release(two, no_noise(&plan)).err().unwrap();
    assert_eq!(error, ReleaseError::ForeignSample);
    let larger = crate::common::plan(&[("x", 2)], Group::flat("all", "*", clip(1.0)));
    let error = one.begin(&plan).release(one, no_noise(&larger)).err().unwrap();
    assert_eq!(error, ReleaseError::ForeignNoise);
}

#[test]
fn noise_may_come_first_and_comes_once() {
    let plan = flat();
    let released = |first: bool| {
        let sample = insecure_sample(&plan);
        let (mut sum, mut other) = (sample.begin(&plan), sample.begin(&plan));
        let noise = seeded_noise(&plan, 7).unwrap();
        other.add(&[&[0.25]]).unwrap();
        if first {
            sum.add_noise(noise).unwrap();
            assert_eq!(sum.add_noise(no_noise(&plan)), Err(ReleaseError::HasNoise));
            sum.add(&[&[0.5]]).unwrap();
            sum.merge(other).unwrap();
            return vector(&sum.release_noisy(sample).unwrap(), "x");
        }
        sum.add(&[&[0.5]]).unwrap();
        sum.merge(other).unwrap();
        vector(&sum.release(sample, noise).unwrap(), "x")
    };
    assert_eq!(released(true), released(false));
    // Without noise nothing is released, and noise is never added twice.
    let sample = insecure_sample(&plan);
    let (mut one, mut two) = (sample.begin(&plan), sample.begin(&plan));
    two.add_noise(no_noise(&plan)).unwrap();
    assert_eq!(one.merge(two), Err(SumError::HasNoise));
    let larger = crate::common::plan(&[("x", 2)], Group::flat("all", "*", clip(1.0)));
    assert_eq!(one.add_noise(no_noise(&larger)), Err(ReleaseError::ForeignNoise));
    assert_eq!(one.release_noisy(sample).err(), Some(ReleaseError::NoNoise));
}

#[test]
fn a_sum_with_noise_is_checked_when_it_is_released() {
    let plan = flat();
    let (one, two) = (insecure_sample(&plan), insecure_sample(&plan));
    let mut sum = one.begin(&plan);
    sum.add_noise(no_noise(&plan)).unwrap();
    assert_eq!(sum.release_noisy(two).err(), Some(ReleaseError::ForeignSample));
    let mut run = Run::open(MemoryLedger::new(), header()).unwrap();
    let permit = run.reserve(&plan.round(&AllRecords).unwrap(), 1).unwrap().next().unwrap();
    let sample = Sample::draw(permit, &mut AllRecords, 3).unwrap();
    let mut sum = sample.begin(&plan);
    sum.add_noise(seeded_noise(&plan, 1).unwrap()).unwrap();
    assert_eq!(sum.release_noisy(sample).err(), Some(ReleaseError::InsecureNoise));
}

#[test]
fn test_noise_is_refused_in_a_run_that_is_not_stamped() {
    let plan = flat();
    let mut run = Run::open(MemoryLedger::new(), header()).unwrap();
    for permit in run.reserve(&plan.round(&AllRecords).unwrap(), 2).unwrap() {
        let sample = Sample::draw(permit, &mut AllRecords, 3).unwrap();
        let noise = seeded_noise(&plan, 1).unwrap();
        let error = sample.begin(&plan).release(sample, noise).err().unwrap();
        assert_eq!(error, ReleaseError::InsecureNoise);
    }
}

#[test]
fn an_empty_sample_is_an_ordinary_round() {
    let plan = flat();
    let mut run = Run::open_insecure(MemoryLedger::new(), header(), "seeded").unwrap();
    let permit = run.reserve(&plan.round(&poisson(&[])).unwrap(), 1).unwrap().next().unwrap();
    let sample = Sample::draw(permit, &mut poisson(&[]), 1000).unwrap();
    assert_eq!(sample.ids().next(), None);
    let noise = seeded_noise(&plan, 1).unwrap();
    let estimates = sample.begin(&plan).release(sample, noise).unwrap();
    // Only noise, of standard deviation 1: below 1e-6 with probability 1e-6.
    assert!(vector(&estimates, "x")[0].abs() > 1e-6);
}

/// Noise has the standard deviation that the ledger records, per group. With 40,000 samples the
/// relative error of a standard deviation is 0.0035; 0.02 is 5.6 of those: false alarm below 3e-8.
#[test]
fn released_noise_has_the_recorded_standard_deviation() {
    let groups = vec![
        Group::new("a", ["a"], clip(1.5)).noise(noise(2.7)),
        Group::new("b", ["b"], clip(0.5)).noise(noise(2.7)).average(count(3.0)),
    ];
    let structure = Structure::new([("a", 40_000), ("b", 40_000)]).unwrap();
    let plan = RoundPlan::new(structure, groups, Allocation::Explicit).unwrap();
    let (sample, sum) = begin(&plan);
    let estimates = sum.release(sample, seeded_noise(&plan, 7).unwrap()).unwrap();
    for (name, expected) in [("a", 2.7), ("b", 0.9)] {
        let values = vector(&estimates, name);
        let std = (values.iter().map(|v| v * v).sum::<f64>() / values.len() as f64).sqrt();
        assert!((std / expected - 1.0).abs() < 0.02, "{name}: {std}");
    }
    for (query, expected) in plan.round(&AllRecords).unwrap().queries().iter().zip([2.7, 2.7]) {
        assert!((query.noise().get() / expected - 1.0).abs() < 1e-7);
        assert!(query.grid().unwrap().noise_multiplier() * query.clip().get() >= expected);
    }
}

fn adaptive(initial: f64, target: f64, floor: f64) -> RoundPlan {
    let quantile = Quantile::of_norm("x", target, count(2.0), clip(floor))
        .unwrap()
        .learning_rate(LearningRate::constant(1.0).unwrap())
        .arithmetic();
    let groups = vec![Group::new("x", ["x"], clip(initial)), Group::quantile("bit", quantile)];
    plan(&[("x", 1)], groups)
}

#[test]
fn the_clip_norm_follows_the_quantile_while_the_ratio_of_noise_stays() {
    let mut plan = adaptive(10.0, 0.0, 0.5);
    let grids = [plan.grid("x"), plan.grid("bit")];
    let mut clips = Vec::new();
    for _ in 0..5 {
        let estimates = release_of(&plan, &[&[&[8.5]], &[&[-7.25]]]);
        plan.adapt(&estimates).unwrap();
        clips.push(plan.clip_norm("x").unwrap().get());
        assert_eq!(plan.quantile("bit"), clips.last().copied());
    }
    assert_close(&clips, &[9.0, 8.0, 7.5, 7.0, 7.0]);
    assert_eq!(grids, [plan.grid("x"), plan.grid("bit")]);
}

#[test]
fn a_block_of_permits_covers_rounds_with_other_clip_norms_at_the_same_ratio() {
    let mut plan = adaptive(10.0, 0.0, 0.5);
    let mut run = Run::open_insecure(MemoryLedger::new(), header(), "no noise").unwrap();
    for permit in run.reserve(&plan.round(&AllRecords).unwrap(), 3).unwrap() {
        let sample = Sample::draw(permit, &mut AllRecords, 2).unwrap();
        let mut sum = sample.begin(&plan);
        sum.add(&[&[8.5]]).unwrap();
        sum.add(&[&[-7.25]]).unwrap();
        let estimates = sum.release(sample, no_noise(&plan)).unwrap();
        plan.adapt(&estimates).unwrap();
    }
    assert_close(&[plan.clip_norm("x").unwrap().get()], &[7.5]);
    let rounds = run.store().rounds();
    assert_eq!((rounds.len(), rounds[0].count), (1, 3));
}

#[test]
fn the_clip_norm_never_falls_below_its_floor() {
    let mut plan = adaptive(1.0, 0.0, 0.25);
    for _ in 0..5 {
        let estimates = release_of(&plan, &[&[&[0.0]], &[&[0.0]]]);
        plan.adapt(&estimates).unwrap();
    }
    assert_eq!(plan.clip_norm("x").unwrap().get(), 0.25);
}

#[test]
fn estimates_of_another_plan_do_not_adapt_this_one() {
    let mut plan = adaptive(1.0, 0.0, 0.25);
    let estimates = release_of(&flat(), &[]);
    assert_eq!(plan.adapt(&estimates), Err(PlanError::ForeignEstimates));
}

#[test]
fn a_quantile_of_a_value_follows_negative_numbers_too() {
    let quantile = Quantile::of_value("v", 0.5, count(4.0), 3.0)
        .unwrap()
        .learning_rate(LearningRate::inverse_sqrt(2.0).unwrap())
        .arithmetic();
    let mut plan = plan(&[("v", 1)], vec![Group::quantile("median", quantile)]);
    for _ in 0..200 {
        let records: [&[&[f32]]; 4] = [&[&[-5.0]], &[&[-4.0]], &[&[-3.0]], &[&[9.0]]];
        let estimates = release_of(&plan, &records);
        plan.adapt(&estimates).unwrap();
    }
    let median = plan.quantile("median").unwrap();
    assert!((-4.1..=-2.9).contains(&median), "{median}");
}

#[test]
fn a_vector_may_be_observed_and_summed_in_any_order_of_groups() {
    let quantile = || {
        let quantile = Quantile::of_value("v", 0.5, count(4.0), 3.0).unwrap();
        Group::quantile("median", quantile)
    };
    let sum = || Group::new("v", ["v"], clip(1.0));
    for groups in [vec![quantile(), sum()], vec![sum(), quantile()]] {
        let plan = plan(&[("v", 1)], groups);
        let estimates = release_of(&plan, &[&[&[0.5]], &[&[-0.25]]]);
        assert_close(&vector(&estimates, "v"), &[0.25]);
        assert_close(&[estimates.scalar("median").unwrap()], &[0.75]);
    }
}

#[test]
fn quantiles_that_refer_to_nothing_are_refused() {
    let of_norm = |group: &str| Quantile::of_norm(group, 0.5, count(1.0), clip(1.0)).unwrap();
    let of_value = |v: &str| Quantile::of_value(v, 0.5, count(1.0), 1.0).unwrap();
    let structure = Structure::new([("x", 2), ("s", 1)]).unwrap();
    for (extra, message) in [
        (
            vec![Group::quantile("q", of_norm("y"))],
            "group 'q' refers to 'y', which is not a group of vectors",
        ),
        (
            vec![Group::quantile("q", of_norm("q"))],
            "group 'q' refers to 'q', which is not a group of vectors",
        ),
        (
            vec![Group::quantile("q", of_value("x"))],
            "group 'q' refers to 'x', which is not a scalar",
        ),
        (
            vec![Group::quantile("q", of_value("t"))],
            "group 'q' refers to 't', which is not a vector",
        ),
        (
            vec![Group::quantile("q", of_norm("all")), Group::quantile("r", of_norm("all"))],
            "the clip norm of group 'all' is adapted twice",
        ),
    ] {
        let mut groups = Group::flat("all", "*", clip(1.0));
        groups.extend(extra);
        let error = RoundPlan::new(structure.clone(), groups, Allocation::Proportional(z(1.0)));
        assert_eq!(error.unwrap_err().to_string(), message);
    }
}

#[test]
fn a_norm_equal_to_the_clip_norm_counts_as_below() {
    let mut plan = adaptive(5.0, 1.0, 0.25);
    let estimates = release_of(&plan, &[&[&[5.0]], &[&[-5.0]]]);
    assert_close(&[estimates.scalar("bit").unwrap()], &[1.0]);
    plan.adapt(&estimates).unwrap();
    assert_eq!(plan.clip_norm("x").unwrap().get(), 5.0);
}

#[test]
fn one_record_moves_a_quantile_by_half_of_one_record_either_way() {
    let quantile = Quantile::of_norm("x", 0.5, count(10.0), clip(1.0)).unwrap();
    let groups = vec![Group::new("x", ["x"], clip(5.0)), Group::quantile("bit", quantile)];
    let plan = plan(&[("x", 1)], groups);
    for (record, fraction) in [(1.0, 0.55), (9.0, 0.45)] {
        let estimates = release_of(&plan, &[&[&[record]]]);
        assert_close(&[estimates.scalar("bit").unwrap()], &[fraction]);
        assert_eq!(estimates.charged_to(), LedgerKind::Memory);
    }
}

#[test]
fn a_clip_norm_that_starts_below_its_floor_is_refused() {
    let quantile = Quantile::of_norm("x", 0.5, count(2.0), clip(2.0)).unwrap();
    let groups = vec![Group::new("x", ["x"], clip(1.0)), Group::quantile("bit", quantile)];
    let structure = Structure::new([("x", 1)]).unwrap();
    let error = RoundPlan::new(structure, groups, Allocation::Proportional(z(1.0))).unwrap_err();
    assert_eq!(error.to_string(), "the clip norm of group 'x' starts at 1, below its floor 2");
}

#[test]
fn the_sampler_contract_is_checked() {
    check_sampler(&mut AllRecords, 100).unwrap();
    check_sampler(&mut poisson(&[]), 100).unwrap();
    check_sampler(&mut poisson(&[3, 99]), 100).unwrap();
    assert!(check_sampler(&mut poisson(&[3, 100]), 100).is_err());
    assert!(check_sampler(&mut poisson(&[3, 3]), 100).is_err());
    assert!(check_sampler(&mut ConstantSampler(Sampling::All {}, vec![1]), 2).is_err());
    let batch = FixedBatch::new(100, 3).unwrap();
    for policy in [Sampling::Fixed(batch), Sampling::Shuffle(batch)] {
        assert!(check_sampler(&mut ConstantSampler(policy, vec![1, 2]), 100).is_err());
        assert!(check_sampler(&mut ConstantSampler(policy, vec![1, 2, 3]), 100).is_ok());
    }
    check_sampler(&mut PoissonSampler::new(SampleRate::new(0.1).unwrap()), 1000).unwrap();
    check_sampler(&mut FixedSampler::new(batch), 100).unwrap();
    check_sampler(&mut ShuffleSampler::new(batch), 100).unwrap();
    let truncated = TruncatedPoisson::new(SampleRate::new(0.5).unwrap(), 100, 10).unwrap();
    check_sampler(&mut TruncatedPoissonSampler::new(truncated), 100).unwrap();
}

/// Permits of a run under zero-out adjacency, where the number of records may be public.
fn public_count_permits(sampler: &impl Sampler, rounds: u64) -> Permits {
    let header = RunHeader::new(RecordUnit::Example, Adjacency::ZeroOut);
    let mut run = Run::open(MemoryLedger::new(), header).unwrap();
    run.reserve(&flat().round(sampler).unwrap(), rounds).unwrap()
}

#[test]
fn a_sample_that_breaks_its_policy_is_refused() {
    let batch = FixedBatch::new(60_000, 2).unwrap();
    for (ids, records, error) in [
        (vec![7, 7], 60_000, "the selected ids do not ascend"),
        (vec![7, 60_000], 60_000, "a selected id is not that of a record"),
        (vec![7], 60_000, "the selection does not have the size of its policy"),
        (vec![1, 2], 3, "the policy was charged for another number of records than there are"),
    ] {
        let mut sampler = ConstantSampler(Sampling::Fixed(batch), ids);
        let permit = public_count_permits(&sampler, 1).next().unwrap();
        let found = Sample::draw(permit, &mut sampler, records).err().unwrap().to_string();
        assert!(found.ends_with(error), "{found}");
    }
}

#[test]
fn batches_of_a_shuffled_epoch_are_disjoint_and_cover_it() {
    let batch = FixedBatch::new(10, 3).unwrap();
    let mut sampler = ShuffleSampler::new(batch);
    let mut permits = public_count_permits(&sampler, 100);
    for _epoch in 0..20 {
        let mut seen = HashSet::new();
        for _round in 0..3 {
            let sample = Sample::draw(permits.next().unwrap(), &mut sampler, 10).unwrap();
            assert_eq!(sample.slots().unwrap().flatten().count(), 3);
            assert!(sample.ids().all(|id| seen.insert(id)));
        }
        assert_eq!(seen.len(), 9);
    }
}

#[test]
fn an_allocated_epoch_has_every_record_once_and_is_drawn_afresh() {
    let mut sampler = AllocationSampler::new(NonZeroU64::new(3).unwrap());
    let mut permits = public_count_permits(&sampler, 60);
    let mut epochs = HashSet::new();
    for _epoch in 0..20 {
        let rounds: Vec<Vec<u64>> = (0..3)
            .map(|_| {
                let sample = Sample::draw(permits.next().unwrap(), &mut sampler, 40).unwrap();
                // The size of a round is private.
                assert!(sample.slots().is_none());
                sample.ids().collect()
            })
            .collect();
        let mut all = rounds.concat();
        all.sort_unstable();
        assert_eq!(all, (0..40).collect::<Vec<_>>());
        epochs.insert(rounds);
    }
    // Two equal ones by chance once in 10^16 runs.
    assert_eq!(epochs.len(), 20);
    check_sampler(&mut AllocationSampler::new(NonZeroU64::new(7).unwrap()), 100).unwrap();
}

#[test]
fn an_allocated_epoch_cannot_be_entered_in_the_middle() {
    let length = NonZeroU64::new(3).unwrap();
    let mut sampler = AllocationSampler::new(length);
    let mut permits = public_count_permits(&sampler, 100);
    Sample::draw(permits.next().unwrap(), &mut sampler, 10).unwrap();
    // A new sampler, as after a crash, would allocate records of the first round again.
    let mut fresh = AllocationSampler::new(length);
    let error = Sample::draw(permits.next().unwrap(), &mut fresh, 10).err().unwrap();
    assert_eq!(error, SampleError::EpochOrder);
    let error = Sample::draw(permits.next().unwrap(), &mut sampler, 10).err().unwrap();
    assert_eq!(error, SampleError::EpochOrder);
    // It may begin the next epoch, and no epoch of another run continues it.
    assert!(Sample::draw(permits.next().unwrap(), &mut fresh, 10).is_ok());
    let mut others = public_count_permits(&sampler, 5);
    let late = others.nth(4).unwrap();
    let error = Sample::draw(late, &mut fresh, 10).err().unwrap();
    assert_eq!(error, SampleError::EpochOrder);
}

#[test]
fn a_shuffled_epoch_cannot_be_entered_in_the_middle_or_drawn_twice() {
    let batch = FixedBatch::new(10, 3).unwrap();
    let mut sampler = ShuffleSampler::new(batch);
    let mut permits = public_count_permits(&sampler, 100);
    Sample::draw(permits.next().unwrap(), &mut sampler, 10).unwrap();
    // A new sampler would repeat records of the first batch.
    let mut fresh = ShuffleSampler::new(batch);
    let error = Sample::draw(permits.next().unwrap(), &mut fresh, 10).err().unwrap();
    assert_eq!(error, SampleError::EpochOrder);
    // The old sampler is out of order, because the refused permit is used up.
    let error = Sample::draw(permits.next().unwrap(), &mut sampler, 10).err().unwrap();
    assert_eq!(error, SampleError::EpochOrder);
    // Both may start the next epoch, but not continue the epoch of another run.
    assert!(Sample::draw(permits.next().unwrap(), &mut fresh, 10).is_ok());
    let mut others = public_count_permits(&sampler, 100);
    let (_, _, _, second) = (others.next(), others.next(), others.next(), others.next());
    let mut late = others.next().unwrap();
    assert_eq!(late.number(), 4);
    let error = Sample::draw(late, &mut fresh, 10).err().unwrap();
    assert_eq!(error, SampleError::EpochOrder);
    late = second.unwrap();
    assert_eq!(late.number(), 3);
    assert!(Sample::draw(late, &mut fresh, 10).is_ok());
}

#[test]
fn truncated_samples_are_padded_to_their_public_size() {
    let truncated = TruncatedPoisson::new(SampleRate::new(0.3).unwrap(), 20, 5).unwrap();
    let mut sampler = TruncatedPoissonSampler::new(truncated);
    let (mut full, mut padded) = (false, false);
    for permit in public_count_permits(&sampler, 200) {
        let sample = Sample::draw(permit, &mut sampler, 20).unwrap();
        let slots: Vec<Option<u64>> = sample.slots().unwrap().collect();
        assert_eq!(slots.len(), 5);
        assert!(slots.iter().flatten().copied().eq(sample.ids()));
        full |= slots.iter().all(Option::is_some);
        padded |= slots.iter().any(Option::is_none);
    }
    assert!(full && padded);
    assert!(insecure_sample(&flat()).slots().is_none());
}

#[test]
fn production_noise_is_fresh_for_every_round() {
    let plan = crate::common::plan(&[("x", 5000)], Group::flat("all", "*", clip(1.0)));
    let mut run = Run::open(MemoryLedger::new(), header()).unwrap();
    let mut seen = Vec::new();
    for permit in run.reserve(&plan.round(&AllRecords).unwrap(), 3).unwrap() {
        let sample = Sample::draw(permit, &mut AllRecords, 0).unwrap();
        let noise = Noise::draw(&plan).unwrap();
        let estimates = sample.begin(&plan).release(sample, noise).unwrap();
        assert!(!estimates.is_insecure());
        seen.push(vector(&estimates, "x"));
    }
    for (i, one) in seen.iter().enumerate() {
        for other in &seen[..i] {
            // Two values of a 2^27 grid agree by chance with probability 2^-28 or so.
            assert!(one.iter().zip(other).filter(|(a, b)| a == b).count() < 3);
        }
    }
}
