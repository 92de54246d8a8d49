//! Permits, samples, noise and adaptive rounds.

mod common;

use common::*;
use veilgrad_events::{MemoryLedger, Run, SampleRate, Sampling};
use veilgrad_mechanism::insecure::{NoNoise, SeededNoise};
use veilgrad_mechanism::{
    AllRecords, Allocation, Group, LearningRate, PlanError, Quantile, ReleaseError, RoundPlan,
    Sample, SampleError, Sampler, Selection, Structure, check_sampler,
};

/// A sampler with a policy and a selection of its own.
struct Chosen(Sampling, Vec<u64>);

impl Sampler for Chosen {
    fn policy(&self) -> Sampling {
        self.0
    }

    fn select(&mut self, _records: u64) -> Result<Selection, SampleError> {
        Ok(Selection::ids(self.1.clone()))
    }
}

fn poisson(ids: &[u64]) -> Chosen {
    Chosen(Sampling::Poisson { rate: SampleRate::new(0.5).unwrap() }, ids.to_vec())
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
    assert_eq!(insecure_sample(&plan).ids().count(), 0);
}

#[test]
fn a_release_needs_the_charge_of_its_own_groups() {
    let (small, large) = (flat(), plan(&[("x", 2)], Group::flat("all", "*", clip(1.0))));
    let error = large.begin().release(insecure_sample(&small), &mut NoNoise).err().unwrap();
    assert_eq!(error, ReleaseError::NotCharged("all".to_owned()));
    let two = plan(
        &[("x", 1), ("y", 1)],
        vec![Group::new("all", ["x"], clip(1.0)), Group::new("y", ["y"], clip(1.0))],
    );
    assert!(two.begin().release(insecure_sample(&small), &mut NoNoise).is_err());
    assert!(small.begin().release(insecure_sample(&two), &mut NoNoise).is_err());
    let structure = Structure::new([("x", 1)]).unwrap();
    let less_noise = Allocation::Proportional(z(0.999));
    let loud = RoundPlan::new(structure, Group::flat("all", "*", clip(1.0)), less_noise).unwrap();
    assert!(loud.begin().release(insecure_sample(&small), &mut NoNoise).is_err());
}

#[test]
fn test_noise_is_refused_in_a_run_that_is_not_stamped() {
    let plan = flat();
    let mut run = Run::open(MemoryLedger::new(), header()).unwrap();
    for permit in run.reserve(&plan.round(&AllRecords).unwrap(), 2).unwrap() {
        let sample = Sample::draw(permit, &mut AllRecords, 3).unwrap();
        let error = plan.begin().release(sample, &mut SeededNoise::new(1)).err().unwrap();
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
    let estimates = plan.begin().release(sample, &mut SeededNoise::new(1)).unwrap();
    assert_ne!(vector(&estimates, "x")[0].abs(), 0.0);
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
    let estimates = plan.begin().release(insecure_sample(&plan), &mut SeededNoise::new(7)).unwrap();
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
        let estimates = release(&plan, sum_of(&plan, &[&[&[8.5]], &[&[-7.25]]]));
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
        let estimates =
            sum_of(&plan, &[&[&[8.5]], &[&[-7.25]]]).release(sample, &mut NoNoise).unwrap();
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
        let estimates = release(&plan, sum_of(&plan, &[&[&[0.0]], &[&[0.0]]]));
        plan.adapt(&estimates).unwrap();
    }
    assert_eq!(plan.clip_norm("x").unwrap().get(), 0.25);
}

#[test]
fn estimates_of_another_plan_do_not_adapt_this_one() {
    let mut plan = adaptive(1.0, 0.0, 0.25);
    let estimates = release(&flat(), flat().begin());
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
        let estimates = release(&plan, sum_of(&plan, &records));
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
        let estimates = release(&plan, sum_of(&plan, &[&[&[0.5]], &[&[-0.25]]]));
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
fn the_sampler_contract_is_checked() {
    check_sampler(&mut AllRecords, 100).unwrap();
    check_sampler(&mut poisson(&[]), 100).unwrap();
    check_sampler(&mut poisson(&[3, 99]), 100).unwrap();
    assert!(check_sampler(&mut poisson(&[3, 100]), 100).is_err());
    assert!(check_sampler(&mut poisson(&[3, 3]), 100).is_err());
    assert!(check_sampler(&mut Chosen(Sampling::All {}, vec![1]), 2).is_err());
}
