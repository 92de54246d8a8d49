//! Several records of one person, attackers' rates as targets, and the bound by the triangle inequality.
// Tables are printed with `--nocapture`.
#![allow(clippy::print_stdout)]

use std::num::NonZeroU64;

use veilgrad_accounting::{
    Accountant, ByTriangle, Composition, Pld, RiskTarget, advantage, true_positive_rate,
};
use veilgrad_events::{Adjacency, Delta, Folded, NoiseMultiplier, SampleRate, Sampling};

fn poisson(q: f64, z: f64, count: u64) -> Folded {
    let sampling = Sampling::Poisson { rate: SampleRate::new(q).unwrap() };
    Folded { count, sampling, noise_multiplier: NoiseMultiplier::new(z).unwrap() }
}

fn of_group(rounds: Folded, records: u64) -> Composition {
    let records = NonZeroU64::new(records).unwrap();
    Composition::of_group([[rounds]], Adjacency::AddRemove, records).unwrap()
}

#[test]
fn a_group_costs_more_than_one_record_and_less_than_the_triangle_inequality_says() {
    let delta = Delta::new(1e-5).unwrap();
    let rounds = poisson(0.01, 1.0, 1000);
    let one = Pld.epsilon(&of_group(rounds, 1), delta).unwrap();
    let mut last = one.epsilon;
    for records in [2, 3, 5] {
        let group = Pld.epsilon(&of_group(rounds, records), delta).unwrap();
        let by_triangle = ByTriangle { inner: &Pld, records: NonZeroU64::new(records).unwrap() };
        let hops = by_triangle.epsilon(&of_group(rounds, 1), delta).unwrap();
        println!("{records} records: {group:?}, by the triangle inequality {}", hops.epsilon);
        assert!(group.epsilon > last && group.epsilon < hops.epsilon, "{group:?} {hops:?}");
        assert!(group.epsilon_lower.unwrap() > 0.99 * group.epsilon, "{group:?}");
        last = group.epsilon;
    }
}

#[test]
fn less_noise_more_rounds_a_higher_rate_and_a_smaller_delta_cost_a_group_more() {
    let cost = |q: f64, z: f64, count: u64, delta: f64| {
        let group = of_group(poisson(q, z, count), 3);
        Pld.epsilon(&group, Delta::new(delta).unwrap()).unwrap().epsilon
    };
    let base = cost(0.01, 1.5, 300, 1e-5);
    for (what, found) in [
        ("less noise", cost(0.01, 1.4, 300, 1e-5)),
        ("more rounds", cost(0.01, 1.5, 330, 1e-5)),
        ("a higher rate", cost(0.011, 1.5, 300, 1e-5)),
        ("a smaller delta", cost(0.01, 1.5, 300, 0.8e-5)),
    ] {
        assert!(found > base, "{what}: {found} {base}");
    }
}

/// Without sampling, k records are one Gaussian of sensitivity k; at rate 1/2 they cost less, and more than k records that are
/// sampled together, which are one of sensitivity k at the same rate.
#[test]
fn groups_without_sampling_are_gaussians() {
    let delta = Delta::new(1e-5).unwrap();
    let all = Folded { sampling: Sampling::All {}, ..poisson(0.5, 6.0, 3) };
    let gaussian = |z: f64| {
        let all = Folded { noise_multiplier: NoiseMultiplier::new(z).unwrap(), ..all };
        Pld.epsilon(&of_group(all, 1), delta).unwrap().epsilon
    };
    let found = Pld.epsilon(&of_group(all, 3), delta).unwrap().epsilon;
    assert!((found - gaussian(2.0)).abs() < 1e-9, "{found}");
    let sampled = Pld.epsilon(&of_group(poisson(0.5, 6.0, 3), 3), delta).unwrap().epsilon;
    assert!(sampled < found, "{sampled} {found}");
}

/// Two sampled records, one round: the closed form of the mixture.
#[test]
fn rdp_is_never_below_the_profile_for_groups() {
    let delta = Delta::new(1e-6).unwrap();
    for (q, z, count, records) in [(0.01, 1.0, 100, 2), (0.3, 4.0, 10, 4), (0.001, 0.7, 1000, 3)] {
        let composition = of_group(poisson(q, z, count), records);
        let exact = Pld.epsilon(&composition, delta).unwrap().epsilon;
        let rdp = veilgrad_accounting::Rdp.epsilon(&composition, delta).unwrap().epsilon;
        assert!(rdp >= exact, "{rdp} {exact}");
    }
}

#[test]
fn noise_for_a_risk_keeps_it_and_little_less_does_not() {
    let rate = SampleRate::new(0.01).unwrap();
    let rounds = |z| Composition::poisson(rate, z, 1000, Adjacency::AddRemove);
    let by_advantage = RiskTarget::advantage(0.1).unwrap().noise_multiplier(rounds).unwrap();
    let found = advantage(&rounds(by_advantage).unwrap());
    assert!(found <= 0.1 && found > 0.0995, "{found}");
    let target = RiskTarget::true_positive_rate(0.05, 0.01).unwrap();
    let by_rate = target.noise_multiplier(rounds).unwrap();
    let found = true_positive_rate(&rounds(by_rate).unwrap(), 0.01);
    assert!(found <= 0.05 && found > 0.0495, "{found}");
    let steps = RiskTarget::advantage(0.1)
        .unwrap()
        .rounds(|n| Composition::poisson(rate, NoiseMultiplier::new(1.0)?, n, Adjacency::AddRemove))
        .unwrap();
    let of_steps = |n| {
        let one = NoiseMultiplier::new(1.0).unwrap();
        advantage(&Composition::poisson(rate, one, n, Adjacency::AddRemove).unwrap())
    };
    assert!(of_steps(steps) <= 0.1 && of_steps(steps + steps / 50 + 1) > 0.1, "{steps}");
    for refused in [
        RiskTarget::advantage(0.0),
        RiskTarget::advantage(f64::NAN),
        RiskTarget::true_positive_rate(0.01, 0.05),
    ] {
        assert!(refused.is_err());
    }
}
