//! The cost of cyclic sampling, and when correlated noise is better than plain noise.
#![allow(clippy::print_stdout)]

use std::num::NonZeroU64;

use veilgrad_accounting::{
    Accountant, Composition, NoiseChoice, PrivacyTarget, Rdp, Tightest, Workload, cyclic,
};
use veilgrad_events::{Adjacency, Delta, Epsilon, Folded, NoiseMultiplier, SampleRate, Sampling};

fn rounds(sampling: Sampling, z: f64, count: u64) -> Folded {
    Folded { count, sampling, noise_multiplier: NoiseMultiplier::new(z).unwrap() }
}

fn cyclic_rounds(rate: f64, groups: u64, first_round: u64, z: f64, count: u64) -> Folded {
    let (rate, groups) = (SampleRate::new(rate).unwrap(), NonZeroU64::new(groups).unwrap());
    rounds(Sampling::CyclicPoisson { rate, groups, first_round }, z, count)
}

/// The epsilon of cyclic Poisson sampling is that of Poisson sampling at the same rate over `ceil(T/b)` rounds, in every bit.
#[test]
fn cyclic_sampling_costs_as_many_poisson_rounds_as_a_group_has_turns() {
    let delta = Delta::new(1e-5).unwrap();
    for adjacency in [Adjacency::AddRemove, Adjacency::ZeroOut, Adjacency::ReplaceOne] {
        for (rate, groups, z, count) in [
            (16.0 * 256.0 / 60_000.0, 16, 0.9, 1172),
            (0.5, 64, 1.3, 500),
            (0.01, 3, 2.0, 10_000),
            (1.0, 8, 3.0, 100),
            (0.3, 16, 1.0, 16),
            (0.3, 16, 1.0, 17),
            (0.3, 16, 1.0, 1),
        ] {
            let cyclic = Composition::of([cyclic_rounds(rate, groups, 0, z, count)], adjacency);
            let turns = count.div_ceil(groups);
            let poisson = Sampling::Poisson { rate: SampleRate::new(rate).unwrap() };
            let poisson = Composition::of([rounds(poisson, z, turns)], adjacency);
            let (cyclic, poisson) = (cyclic.unwrap(), poisson.unwrap());
            let epsilon = |composition| Tightest.epsilon(composition, delta).unwrap().epsilon;
            let (found, expected) = (epsilon(&cyclic), epsilon(&poisson));
            assert_eq!(found.to_bits(), expected.to_bits(), "{adjacency} {rate} {groups} {count}");
            let rdp = |composition| Rdp.epsilon(composition, delta).unwrap().epsilon;
            assert_eq!(rdp(&cyclic).to_bits(), rdp(&poisson).to_bits());
        }
    }
}

/// The event `amplified_bandmf_event` of JAX Privacy 2.0.0, by the accountant of dp_accounting 0.6.0: lower and upper bounds on a
/// grid of 1e-5, at delta 1e-5.
#[test]
fn epsilons_are_those_of_jax_privacys_event() {
    let delta = Delta::new(1e-5).unwrap();
    for (rate, bands, z, count, low, high) in [
        (16.0 * 256.0 / 60_000.0, 16, 0.9, 1172, 5.219274097, 5.219644099),
        (0.5, 64, 1.3, 500, 6.379317335, 6.379357336),
        (0.01, 3, 2.0, 10_000, 1.168643940, 1.185314171),
        (0.3, 16, 1.0, 17, 3.700731807, 3.700741807),
        (1.0, 8, 3.0, 100, 5.423219363, 5.423284363),
    ] {
        let rounds = cyclic_rounds(rate, bands, 0, z, count);
        let composition = Composition::of([rounds], Adjacency::AddRemove).unwrap();
        let found = Tightest.epsilon(&composition, delta).unwrap().epsilon;
        println!("{rate} {bands} {z} {count}: {low} <= {found} <= {high}");
        // The certified bound is never below the truth, and at most 1e-5 of it above.
        assert!(found > low && found < high * (1.0 + 1e-5), "{low} {found} {high}");
    }
}

/// p_s = 1: a group is used whole, and the rounds are `mu = sqrt(ceil(T/b)) / z` Gaussian.
#[test]
fn a_whole_group_has_the_mu_of_its_turns() {
    let all = Composition::of([cyclic_rounds(1.0, 8, 0, 3.0, 100)], Adjacency::AddRemove).unwrap();
    let mu = all.mu().unwrap();
    assert!((mu - 13f64.sqrt() / 3.0).abs() < 1e-12 && mu >= 13f64.sqrt() / 3.0, "{mu}");
}

/// Nine interruptions: each leaves a segment behind, and every segment pays for all turns that it began.
#[test]
fn interrupted_runs_pay_for_the_turns_of_every_segment() {
    let segments = [100, 37, 1, 16, 17, 250, 33, 64, 5, 649];
    let runs = segments.map(|count| vec![cyclic_rounds(0.07, 16, 0, 0.9, count)]);
    let all = Composition::of_runs(runs, Adjacency::AddRemove).unwrap();
    let turns: u64 = segments.iter().map(|count| count.div_ceil(16)).sum();
    assert_eq!(all.steps().iter().map(|(_, count)| count).sum::<u64>(), turns);
    assert!(turns > segments.iter().sum::<u64>().div_ceil(16));
    // The same segments in one run.
    let mut first = 0;
    let in_one_run = segments.map(|count| {
        first += count;
        cyclic_rounds(0.07, 16, first - count, 0.9, count)
    });
    let one = Composition::of(in_one_run, Adjacency::AddRemove).unwrap();
    assert_eq!(one, all);
}

/// The numbers of bands that `plan` and `bands = "auto"` try.
const TRIED: [usize; 6] = [2, 4, 8, 16, 32, 64];

/// Ratios of errors at equal epsilon, with the best number of bands: the table of docs/correlated-noise.md.
#[test]
fn correlated_noise_helps_with_few_epochs_and_small_batches_and_not_with_large_ones() {
    for (records, batch, rounds, delta, expected) in [
        (60_000.0, 8192.0, 500, 1e-5, [1.0, 1.0, 0.975]),
        (60_000.0, 1024.0, 293, 1e-5, [0.946, 0.731, 0.563]),
        (60_000.0, 256.0, 1172, 1e-5, [0.748, 0.502, 0.372]),
        (1e6, 1024.0, 977, 1e-7, [0.421, 0.324, 0.282]),
    ] {
        for (epsilon, expected) in [1.0, 3.0, 8.0].into_iter().zip(expected) {
            let rate = SampleRate::new(batch / records).unwrap();
            let (epsilon, delta) = (Epsilon::new(epsilon).unwrap(), Delta::new(delta).unwrap());
            let target = PrivacyTarget { epsilon, delta, accountant: &Tightest };
            let with = |sampling, noise_multiplier| {
                let count = rounds as u64;
                let folded = Folded { count, sampling, noise_multiplier };
                Composition::of([folded], Adjacency::AddRemove)
            };
            let workload = Workload::prefix_sums(rounds);
            let choices = workload.choices(&target, rate, TRIED, with).unwrap();
            let best = NoiseChoice::best(&choices).unwrap();
            println!(
                "{records} {batch} {epsilon:?}: {:.4}, {} bands",
                best.error_ratio,
                best.bands()
            );
            let off = (best.error_ratio - expected).abs();
            assert!(off < 0.001, "{batch} {epsilon:?}: {} for {expected}", best.error_ratio);
            assert_eq!(best.bands() == 1, expected == 1.0, "{batch} {epsilon:?}: {}", best.bands());
            // What was chosen keeps the target.
            let cost = Tightest.epsilon(&with(best.sampling, best.noise).unwrap(), delta).unwrap();
            assert!(cost.epsilon <= epsilon.get());
        }
    }
}

#[test]
fn groups_of_less_than_a_batch_are_left_out() {
    let rate = SampleRate::new(0.3).unwrap();
    assert!(cyclic(rate, 4, 0).is_none() && cyclic(rate, 3, 0).is_some());
    let (epsilon, delta) = (Epsilon::new(2.0).unwrap(), Delta::new(1e-5).unwrap());
    let target = PrivacyTarget { epsilon, delta, accountant: &Rdp };
    let choices = Workload::prefix_sums(10).choices(&target, rate, [0, 1, 2, 3, 4, 99], |s, z| {
        Composition::of(
            [Folded { count: 10, sampling: s, noise_multiplier: z }],
            Adjacency::AddRemove,
        )
    });
    let bands: Vec<usize> = choices.unwrap().iter().map(NoiseChoice::bands).collect();
    assert_eq!(bands, [1, 2, 3]);
}
