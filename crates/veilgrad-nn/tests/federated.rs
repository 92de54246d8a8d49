//! Rounds of users: weights, denominators, dropouts, adaptive clipping.

use std::num::NonZeroU32;

use crate::common::{bits, examples, plan, train_exactly, trainer};
use veilgrad_events::{
    Adjacency, BudgetShare, ClipNorm, MemoryLedger, PublicCount, RecordUnit, Rounds, Run,
    SampleRate, SumQuery, WeightBound,
};
use veilgrad_mechanism::{AllRecords, Group, PoissonSampler, Quantile};
use veilgrad_nn::{Contribution, Denominator, Performance, Records, TrainingPlan, Unit};

const ONE_THREAD: Performance = Performance { threads: 1, tile: 4 };
const BIAS: &str = "linear2.bias";

type User = (Vec<(Vec<f32>, f32)>, f64);

/// Users with several examples and a weight each. A negative weight panics.
struct Users(Vec<User>);

impl Records for Users {
    fn count(&self) -> u64 {
        self.0.len() as u64
    }

    fn examples(&self, record: u64) -> usize {
        self.0[record as usize].0.len()
    }

    fn weight(&self, record: u64) -> f64 {
        let weight = self.0[record as usize].1;
        assert!(weight != -7.0, "cannot be read");
        weight
    }

    fn read(&self, record: u64, example: usize, input: &mut [f32], target: &mut [f32]) {
        let (x, y) = &self.0[record as usize].0[example];
        input.copy_from_slice(x);
        target[0] = *y;
    }
}

fn number(n: u32) -> NonZeroU32 {
    NonZeroU32::new(n).unwrap()
}

fn count(value: f64) -> PublicCount {
    PublicCount::new(value).unwrap()
}

fn share(value: f64) -> BudgetShare {
    BudgetShare::new(value).unwrap()
}

fn user(examples_of_user: usize, seed: u64, weight: f64) -> User {
    (examples(examples_of_user, seed), weight)
}

/// Users who train locally, clipped far above their norms.
fn local(expected: f64) -> TrainingPlan {
    let (batch, epochs) = (number(2), number(2));
    let contribution = Contribution::LocalSgd { rate: 0.1, batch, epochs };
    plan(100.0, expected).unit(Unit::User { examples: number(8), contribution })
}

/// What one round releases for the last bias, without noise.
fn released(plan: TrainingPlan, users: &Users) -> Vec<f64> {
    let mut trainer = trainer(plan, ONE_THREAD);
    train_exactly(&mut trainer, users, 1).unwrap();
    trainer.estimates().unwrap().vector(BIAS).unwrap().to_vec()
}

fn assert_close(found: &[f64], expected: &[f64]) {
    for (found, expected) in found.iter().zip(expected) {
        assert!((found - expected).abs() < 1e-4 * (1.0 + expected.abs()), "{found} {expected}");
    }
}

#[test]
fn updates_are_weighted_up_to_the_bound_and_divided_by_the_denominator() {
    let weights = [1.0, 2.5, 9.0];
    let users = Users((0..3).map(|seed| user(5, seed, weights[seed as usize])).collect());
    let alone = |index: usize| {
        let user = Users(vec![users.0[index].clone()]);
        released(local(1.0), &user)
    };
    let (bound, clamped) = (WeightBound::new(4.0).unwrap(), [1.0, 2.5, 4.0]);
    let updates: Vec<Vec<f64>> = (0..3).map(alone).collect();
    let average = |denominator: f64| -> Vec<f64> {
        let coordinate = |j: usize| -> f64 {
            updates.iter().zip(clamped).map(|(update, weight)| weight * update[j]).sum()
        };
        (0..updates[0].len()).map(|j| coordinate(j) / denominator).collect()
    };
    let weighted = || local(3.0).weighted(bound);
    let expected = Denominator::Expected(count(10.0));
    assert_close(&released(weighted().denominator(expected), &users), &average(10.0));
    for (floor, denominator) in [(1.0, 7.5), (20.0, 20.0)] {
        let private = Denominator::Private { floor: count(floor), share: share(0.1) };
        assert_close(&released(weighted().denominator(private), &users), &average(denominator));
    }
    // Without weights, a private denominator is the number of users, whatever their weights.
    let private = Denominator::Private { floor: count(1.0), share: share(0.1) };
    let unweighted = released(local(100.0).denominator(private), &users);
    assert_close(&unweighted, &released(local(3.0), &users));
}

#[test]
fn users_with_a_bad_weight_contribute_zero() {
    let bound = WeightBound::new(4.0).unwrap();
    let private = Denominator::Private { floor: count(0.1), share: share(0.1) };
    let run = |users: &Users| released(local(3.0).weighted(bound).denominator(private), users);
    let mut users = Users(vec![user(5, 1, 2.0), user(3, 2, 1.0)]);
    let sound = run(&users);
    users.0.extend([f64::NAN, f64::INFINITY, -1.0, -7.0].map(|bad| user(4, 3, bad)));
    assert_eq!(run(&users), sound);
}

#[test]
fn weights_and_a_private_denominator_are_in_the_charge() {
    let private = Denominator::Private { floor: count(1.0), share: share(0.25) };
    let plan = plan(0.5, 10.0).unit(local(10.0).record());
    let plan = plan.weighted(WeightBound::new(8.0).unwrap()).denominator(private);
    let trainer = trainer(plan, ONE_THREAD);
    assert_eq!(trainer.header(Adjacency::AddRemove).unit, RecordUnit::User);
    let event = trainer.event(&AllRecords).unwrap();
    let query = |name: &str| -> &SumQuery {
        event.queries().iter().find(|query| query.group() == name).unwrap()
    };
    // One user moves the sum of updates by 8 times the clip norm, and the denominator by 8.
    let (update, denominator) = (query("gradient"), query("denominator"));
    assert_eq!((update.clip().get(), denominator.clip().get()), (4.0, 8.0));
    let ratio = |query: &SumQuery| (1.1 * query.clip().get() / query.noise().get()).powi(2);
    assert!((ratio(denominator) - 0.25).abs() < 1e-6 && (ratio(update) - 0.75).abs() < 1e-6);
}

/// Equal users who answer with probability 1/2: the average is that of all of them, times the fraction that answered.
#[test]
fn dropouts_contribute_zero_and_change_neither_charge_nor_denominator() {
    let users = Users(vec![user(4, 1, 1.0); 400]);
    let half = SampleRate::new(0.5).unwrap();
    let all = released(local(400.0), &users);
    let mut trainer = trainer(local(400.0).answering(half), ONE_THREAD);
    let full = crate::common::trainer(local(400.0), ONE_THREAD).event(&AllRecords).unwrap();
    assert_eq!(trainer.event(&AllRecords).unwrap(), full);
    train_exactly(&mut trainer, &users, 1).unwrap();
    let found = trainer.estimates().unwrap().vector(BIAS).unwrap().to_vec();
    let fraction = found[0] / all[0];
    // The fraction has a standard deviation of 0.025; 0.2 is eight of them: once in 10^15 runs.
    assert!((fraction - 0.5).abs() < 0.2, "{fraction}");
    let scaled: Vec<f64> = all.iter().map(|x| x * fraction).collect();
    assert_close(&found, &scaled);
    // Whole users drop out.
    assert!((400.0 * fraction - (400.0 * fraction).round()).abs() < 0.01, "{fraction}");
}

#[test]
fn a_private_denominator_counts_those_who_answer() {
    let users = Users(vec![user(4, 1, 1.0); 400]);
    let private = Denominator::Private { floor: count(10.0), share: share(0.1) };
    let plan = local(400.0).denominator(private).answering(SampleRate::new(0.5).unwrap());
    assert_close(&released(plan, &users), &released(local(400.0), &users));
}

#[test]
fn any_number_of_threads_gives_the_same_weighted_updates() {
    let users =
        Users((0..37).map(|seed| user(1 + seed as usize % 7, seed, seed as f64 / 5.0)).collect());
    let run = |threads: usize| {
        let private = Denominator::Private { floor: count(3.0), share: share(0.1) };
        let plan = local(37.0).weighted(WeightBound::new(5.0).unwrap()).denominator(private);
        let mut trainer = trainer(plan, Performance { threads, tile: 4 });
        train_exactly(&mut trainer, &users, 3);
        bits(trainer.model())
    };
    let one = run(1);
    assert!(run(2) == one && run(3) == one);
}

#[test]
fn a_user_without_a_sound_example_contributes_zero_to_every_group() {
    let private = Denominator::Private { floor: count(0.1), share: share(0.1) };
    let run = |users: &Users| released(local(3.0).denominator(private), users);
    let mut users = Users(vec![user(5, 1, 1.0), user(3, 2, 1.0)]);
    let sound = run(&users);
    let mut bad = user(2, 3, 1.0);
    bad.0.iter_mut().for_each(|(x, _)| x[0] = f32::NAN);
    users.0.extend([bad, user(0, 4, 1.0)]);
    assert_eq!(run(&users), sound);
}

/// A planned run goes on while its clip norm adapts: the plan fixes noise over clip norm, not the clip norm.
#[test]
fn adaptive_rounds_follow_their_plan() {
    let expected = count(10.0);
    let median = Quantile::of_norm("gradient", 0.5, expected, ClipNorm::new(1e-3).unwrap());
    let plan = plan(0.3, 10.0)
        .unit(local(10.0).record())
        .group(Group::quantile("norms", median.unwrap()).share(share(0.1)));
    let mut trainer = trainer(plan, ONE_THREAD);
    let mut sampler = PoissonSampler::new(SampleRate::new(0.5).unwrap());
    let round = trainer.event(&sampler).unwrap();
    let planned = vec![Rounds { count: 6, round: round.clone() }];
    let header = trainer.header(Adjacency::AddRemove).with_plan(planned);
    let mut run = Run::open(MemoryLedger::new(), header).unwrap();
    let users = Users((0..20).map(|seed| user(3, seed, 1.0)).collect());
    trainer.train(&mut run, &mut sampler, &users, 6, 2, |_, _| ()).unwrap();
    let last = trainer.event(&sampler).unwrap();
    assert_ne!(last, round);
    assert_eq!(last.noise_multiplier(), round.noise_multiplier());
    // Another noise is not planned.
    let other =
        crate::common::trainer(crate::common::plan(0.3, 10.0), ONE_THREAD).event(&sampler).unwrap();
    assert!(run.reserve(&other, 1).is_err());
}
