//! Federated rounds: cohorts, weights, denominators, hostile replies, adaptive clipping.

use crate::common::{assert_close, clip, count, vector, weight, z};
use veilgrad_events::{
    Adjacency, BudgetShare, FixedBatch, LedgerError, MemoryLedger, RecordUnit, Run, RunHeader,
    SampleRate,
};
use veilgrad_mechanism::insecure::no_noise;
use veilgrad_mechanism::{
    AllRecords, Allocation, Cohort, Estimates, FixedSampler, Group, Noise, PoissonSampler,
    Quantile, Released, RoundPlan, Sampler, Structure,
};

const ONE: &[f32] = &[1.0];

fn header(adjacency: Adjacency) -> RunHeader {
    RunHeader::new(RecordUnit::User, adjacency)
}

fn plan(groups: Vec<Group>) -> RoundPlan {
    let structure = Structure::new([("w", 2), ("b", 1)]).unwrap();
    RoundPlan::new(structure, groups, Allocation::Proportional(z(1.0))).unwrap()
}

/// A round of an INSECURE run without noise, to which all users are invited.
fn round(plan: &RoundPlan, users: u64, replies: impl FnOnce(&mut Cohort)) -> Released<Estimates> {
    let header = header(Adjacency::AddRemove);
    let mut run = Run::open_insecure(MemoryLedger::new(), header, "no noise").unwrap();
    let permit = run.reserve(&plan.round(&AllRecords).unwrap(), 1).unwrap().next().unwrap();
    let mut cohort = Cohort::invite(permit, &mut AllRecords, users, plan).unwrap();
    replies(&mut cohort);
    cohort.release(no_noise(plan)).unwrap()
}

/// Updates weighted up to 4, clipped to norm 5.
fn weighted() -> Group {
    Group::new("update", ["*"], clip(5.0)).weighted(weight(4.0))
}

#[test]
fn updates_are_clipped_weighted_summed_and_divided_by_the_expected_weight() {
    let plan = plan(vec![weighted().average(count(8.0))]);
    let released = round(&plan, 3, |cohort| {
        cohort.receive(0, &[("w", &[3.0, 4.0]), ("b", &[0.0])], 2.0);
        // Clipped to (0, 0, 5), with the largest weight.
        cohort.receive(1, &[("b", &[1e30]), ("w", &[0.0, 0.0])], 1e9);
        cohort.receive(2, &[("w", &[1.0, 0.0]), ("b", &[2.0])], 0.5);
    });
    assert_close(&vector(&released, "w"), &[(6.0 + 0.5) / 8.0, 1.0]);
    assert_close(&vector(&released, "b"), &[(20.0 + 1.0) / 8.0]);
}

#[test]
fn a_private_denominator_is_the_weight_sum_but_at_least_its_floor() {
    let plan_of = |floor: f64| {
        let update = weighted().average_over("weights", count(floor));
        plan(vec![update, Group::weight("weights", weight(4.0))])
    };
    let replies = |cohort: &mut Cohort| {
        cohort.receive(0, &[("w", &[3.0, 4.0]), ("b", &[0.0])], 2.0);
        cohort.receive(1, &[("w", &[0.0, 1.0]), ("b", &[1.0])], 9.0);
    };
    // 2 + 4, where the second weight is cut to its bound.
    for (floor, denominator) in [(1.0, 6.0), (6.0, 6.0), (10.0, 10.0)] {
        let released = round(&plan_of(floor), 5, replies);
        assert_close(&vector(&released, "w"), &[6.0 / denominator, 12.0 / denominator]);
        assert_close(&[released.scalar("weights").unwrap()], &[6.0]);
    }
    // Nobody answers: zero over the floor, not zero over zero.
    let released = round(&plan_of(1.0), 5, |_| ());
    assert_close(&vector(&released, "w"), &[0.0, 0.0]);
}

#[test]
fn weights_and_denominators_are_charged_with_their_bounds() {
    let share = BudgetShare::new(0.2).unwrap();
    let update = weighted().average_over("weights", count(1.0));
    let groups = vec![update, Group::weight("weights", weight(4.0)).share(share)];
    let round = plan(groups).round(&AllRecords).unwrap();
    let [update, weights] = round.queries() else { panic!("two groups") };
    // One user moves the sum of updates by 4 times the clip norm, and that of weights by 4.
    assert_eq!((update.clip().get(), weights.clip().get()), (20.0, 4.0));
    let squared_ratio =
        |query: &veilgrad_events::SumQuery| (query.clip().get() / query.noise().get()).powi(2);
    assert!((squared_ratio(weights) - 0.2).abs() < 1e-6);
    assert!((squared_ratio(update) + squared_ratio(weights) - 1.0).abs() < 1e-6);
}

#[test]
fn what_is_not_the_first_sound_reply_of_an_invited_user_counts_as_zero() {
    let update = weighted().average_over("weights", count(1e-9));
    let plan = plan(vec![update, Group::weight("weights", weight(4.0))]);
    let sound: &[(&str, &[f32])] = &[("w", &[3.0, 0.0]), ("b", ONE)];
    let honest = |cohort: &mut Cohort| {
        cohort.receive(0, sound, 1.0);
        cohort.receive(1, &[("b", &[-2.0]), ("w", &[0.5, 0.5])], 3.0);
    };
    let expected = round(&plan, 20, honest);
    let hostile = round(&plan, 20, |cohort| {
        let invited: Vec<u64> = cohort.invited().collect();
        assert_eq!(invited, (0..20).collect::<Vec<_>>());
        cohort.receive(20, sound, 4.0);
        cohort.receive(u64::MAX, sound, 4.0);
        honest(cohort);
        // Each user once, whatever the reply is.
        honest(cohort);
        for (user, bad) in (2..).zip([f32::NAN, f32::INFINITY, f32::NEG_INFINITY]) {
            cohort.receive(user, &[("w", &[bad, 0.0]), ("b", ONE)], 1.0);
            cohort.receive(user, sound, 1.0);
        }
        let malformed: [&[(&str, &[f32])]; 7] = [
            &[],
            &[("w", &[1.0, 1.0])],
            &[("w", &[1.0]), ("b", ONE)],
            &[("w", &[1.0, 1.0, 1.0]), ("b", ONE)],
            &[("w", &[]), ("b", ONE)],
            &[("w", &[1.0, 1.0]), ("c", ONE)],
            &[("w", &[1.0, 1.0]), ("b", ONE), ("b", ONE)],
        ];
        for (user, update) in (5..).zip(malformed) {
            cohort.receive(user, update, 1.0);
        }
        for (user, bad) in (12..).zip([f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0, 0.0]) {
            cohort.receive(user, sound, bad);
        }
    });
    for name in ["w", "b"] {
        let bits = |estimates: &Estimates| -> Vec<u64> {
            vector(estimates, name).into_iter().map(f64::to_bits).collect()
        };
        assert_eq!(bits(&expected), bits(&hostile), "{name}");
    }
}

#[test]
fn a_huge_reply_moves_an_average_by_its_clip_norm_at_most() {
    let plan = plan(vec![weighted().average(count(10.0))]);
    let released = round(&plan, 2, |cohort| {
        cohort.receive(0, &[("w", &[f32::MAX, -f32::MAX]), ("b", &[f32::MAX])], f64::MAX);
    });
    let all = [vector(&released, "w"), vector(&released, "b")].concat();
    let norm = all.iter().map(|x| x * x).sum::<f64>().sqrt();
    assert!(norm <= 4.0 * 5.0 / 10.0 + 1e-6 && norm > 1.99, "{norm}");
}

#[test]
fn fixed_cohorts_are_refused_under_add_remove_with_the_reason_and_invite_exactly_as_many_elsewhere()
{
    let plan = plan(vec![weighted().average(count(10.0))]);
    let mut sampler = FixedSampler::new(FixedBatch::new(100, 10).unwrap());
    let round = plan.round(&sampler).unwrap();
    let mut run = Run::open(MemoryLedger::new(), header(Adjacency::AddRemove)).unwrap();
    let refused = run.reserve(&round, 1).err().unwrap();
    assert_eq!(refused, LedgerError::PrivateCount);
    let reason = refused.to_string();
    assert!(reason.contains("the number of records public") && reason.contains("replace-one"));
    for adjacency in [Adjacency::ReplaceOne, Adjacency::ZeroOut] {
        let mut run = Run::open(MemoryLedger::new(), header(adjacency)).unwrap();
        for permit in run.reserve(&round, 3).unwrap() {
            assert_eq!(permit.round().sampling(), sampler.policy());
            let cohort = Cohort::invite(permit, &mut sampler, 100, &plan).unwrap();
            assert_eq!(cohort.invited().count(), 10);
            cohort.release(Noise::draw(&plan).unwrap()).unwrap();
        }
    }
}

/// The clip norm after 200 rounds of about 1000 of 10,000 users with real noise. The norms of their updates are log-normal
/// with median 1.
fn adapted_clip(initial: f64) -> f64 {
    let share = BudgetShare::new(0.02).unwrap();
    let expected = count(1000.0);
    let median = Quantile::of_norm("update", 0.5, expected, clip(1e-3)).unwrap();
    let groups = vec![
        Group::new("update", ["*"], clip(initial)).average(expected),
        Group::quantile("norms", median).share(share),
    ];
    let mut plan = plan(groups);
    // Quantiles of a normal distribution, by the logistic approximation: the median is exact by symmetry.
    let norms: Vec<f32> = (0..10_000)
        .map(|user| {
            let p = (f64::from(user) + 0.5) / 10_000.0;
            ((p / (1.0 - p)).ln() / 1.702).exp() as f32
        })
        .collect();
    let mut sampler = PoissonSampler::new(SampleRate::new(0.1).unwrap());
    let mut run = Run::open(MemoryLedger::new(), header(Adjacency::AddRemove)).unwrap();
    for _ in 0..200 {
        let event = plan.round(&sampler).unwrap();
        let permit = run.reserve(&event, 1).unwrap().next().unwrap();
        let mut cohort = Cohort::invite(permit, &mut sampler, 10_000, &plan).unwrap();
        let invited: Vec<u64> = cohort.invited().collect();
        for user in invited {
            let norm = norms[user as usize];
            cohort.receive(user, &[("w", &[0.6 * norm, 0.0]), ("b", &[-0.8 * norm])], 1.0);
        }
        plan.adapt(&cohort.release(Noise::draw(&plan).unwrap()).unwrap()).unwrap();
    }
    plan.clip_norm("update").unwrap().get()
}

/// The noise on the fraction below the clip norm has a standard deviation of 0.0035 in a round, and the sample about 0.016.
/// A step moves the logarithm of the clip norm by 0.2 of that, towards the median by about 1/13 of the distance: it ends
/// within 0.01 of it (one standard deviation), so that 20 % is 18 standard deviations.
#[test]
fn an_adaptive_clip_norm_finds_the_median_from_far_below_and_far_above() {
    for initial in [0.1, 10.0] {
        let found = adapted_clip(initial);
        assert!((found - 1.0).abs() < 0.2, "from {initial}: {found}");
    }
}
