//! Bounds, drawn at random over the whole range of rates, noises, rounds and deltas.
//!
//! The long sweep prints what it found:
//! `cargo test --release -p veilgrad-accounting --test all sweep -- --ignored --nocapture`.

// The long sweep is there to be read.
#![allow(clippy::print_stdout)]

use veilgrad_accounting::{
    Accountant, Composition, Interval, PrivacyTarget, Tightest, profile, rdp,
};
use veilgrad_events::{
    Adjacency, Delta, Epsilon, FixedBatch, Folded, NoiseMultiplier, SampleRate, Sampling,
};

/// Numbers that are the same in every run.
struct Draws(u64);

impl Draws {
    fn next(&mut self) -> f64 {
        // splitmix64
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x ^ (x >> 31)) as f64 / u64::MAX as f64
    }

    /// Between both, uniform in the log.
    fn between(&mut self, low: f64, high: f64) -> f64 {
        low * (high / low).powf(self.next())
    }
}

fn poisson(q: f64, z: f64, rounds: u64) -> Composition {
    let (rate, noise) = (SampleRate::new(q).unwrap(), NoiseMultiplier::new(z).unwrap());
    Composition::poisson(rate, noise, rounds, Adjacency::AddRemove).unwrap()
}

fn epsilon(composition: &Composition, delta: f64) -> Interval {
    profile::epsilon(composition, Delta::new(delta).unwrap()).unwrap().bounds
}

/// What must hold of any draw; returns how far the bounds are apart, relatively.
fn check(q: f64, z: f64, rounds: u64, delta: f64) -> f64 {
    let what = format!("q {q:e} z {z} T {rounds} delta {delta:e}");
    let composition = poisson(q, z, rounds);
    let found = epsilon(&composition, delta);
    assert!(found.lower <= found.upper, "{what}: {found:?}");
    let renyi = rdp::epsilon(&composition, Delta::new(delta).unwrap()).unwrap().epsilon.get();
    assert!(found.lower <= renyi, "{what}: {found:?} {renyi}");
    // The profile, asked the other way round and from other transforms, agrees.
    let at = |epsilon: f64| profile::delta(&composition, Epsilon::new(epsilon).unwrap()).bounds;
    let above = at(found.upper);
    assert!(above.lower <= delta * (1.0 + 1e-9), "{what}: {found:?} {above:?}");
    if found.lower > 0.0 {
        let below = at(found.lower * (1.0 - 1e-9));
        assert!(below.upper >= delta * (1.0 - 1e-9), "{what}: {found:?} {below:?}");
    }
    // More of anything costs no less.
    for more in [
        poisson((q * 1.01).min(1.0), z, rounds),
        poisson(q, z * 0.99, rounds),
        poisson(q, z, rounds + rounds / 50 + 1),
    ] {
        let more = epsilon(&more, delta);
        assert!(more.upper >= found.lower, "{what}: {found:?} {more:?}");
    }
    (found.upper - found.lower) / found.upper.max(1e-6)
}

#[test]
fn bounds_of_random_rounds_hold_together() {
    let mut draws = Draws(1);
    for _ in 0..12 {
        let (q, z) = (draws.between(1e-3, 1.0), draws.between(0.4, 10.0));
        let (rounds, delta) = (draws.between(2.0, 1e5) as u64, draws.between(1e-15, 1e-3));
        check(q, z, rounds, delta);
    }
}

/// Noise that is 1e-4 smaller than the answer provably breaks the budget.
#[test]
fn calibrated_noise_is_optimal_also_for_few_rounds() {
    for (q, rounds, budget, delta) in
        [(0.004, 2, 0.5, 1e-6), (0.1, 3, 2.0, 1e-5), (0.02, 20, 0.1, 1e-9), (1e-4, 300, 1.0, 1e-8)]
    {
        let sampling = Sampling::Poisson { rate: SampleRate::new(q).unwrap() };
        optimal(sampling, Adjacency::AddRemove, rounds, budget, delta);
    }
}

/// The same for other ways to sample and other neighbours, drawn at random.
#[test]
fn calibrated_noise_is_optimal_however_it_is_sampled() {
    let mut draws = Draws(5);
    for _ in 0..4 {
        let (budget, delta) = (draws.between(0.2, 8.0), draws.between(1e-9, 1e-4));
        let (rounds, q) = (draws.between(20.0, 2e4) as u64, draws.between(1e-3, 0.2));
        let batch = FixedBatch::new(10_000, (q * 1e4) as u64).unwrap();
        let rate = SampleRate::new(q).unwrap();
        for sampling in [
            Sampling::Poisson { rate },
            Sampling::Fixed(batch),
            Sampling::Shuffle(batch),
            Sampling::All {},
        ] {
            optimal(sampling, Adjacency::ReplaceOne, rounds, budget, delta);
        }
        optimal(Sampling::Fixed(batch), Adjacency::AddRemove, rounds, budget, delta);
    }
}

fn optimal(sampling: Sampling, adjacency: Adjacency, count: u64, budget: f64, delta: f64) {
    let target = PrivacyTarget {
        epsilon: Epsilon::new(budget).unwrap(),
        delta: Delta::new(delta).unwrap(),
        accountant: &Tightest,
    };
    let with = |noise_multiplier| {
        Composition::of([Folded { count, sampling, noise_multiplier }], adjacency)
    };
    let what = format!("{sampling:?} {adjacency} T {count} eps {budget} delta {delta:e}");
    let z = target.noise_multiplier(with).unwrap();
    let again = Tightest.epsilon(&with(z).unwrap(), target.delta).unwrap().epsilon;
    assert!(again <= budget, "{what}: {z:?} costs {again}");
    let less = with(NoiseMultiplier::new(z.get() * (1.0 - 1e-4)).unwrap()).unwrap();
    let less = epsilon(&less, delta);
    assert!(less.lower > budget, "{what}: {z:?} {less:?}");
}

#[test]
#[ignore = "takes minutes; prints the distribution of gaps"]
fn sweep_the_whole_range() {
    let mut draws = Draws(7);
    let mut gaps = Vec::new();
    for _ in 0..60 {
        let (q, z) = (draws.between(1e-7, 1.0), draws.between(0.3, 10.0));
        let (rounds, delta) = (draws.between(2.0, 1e7) as u64, draws.between(1e-15, 1e-2));
        let begin = std::time::Instant::now();
        let found = epsilon(&poisson(q, z, rounds), delta);
        let time = begin.elapsed();
        let gap = (found.upper - found.lower) / found.upper.max(1e-6);
        check(q, z, rounds, delta);
        let rest = format!("q {q:e} z {z} T {rounds} delta {delta:e}: {found:?} in {time:?}");
        gaps.push((gap, time, rest));
    }
    gaps.sort_by(|a, b| a.0.total_cmp(&b.0));
    for (gap, _, rest) in gaps.iter().rev().take(40) {
        println!("gap {gap:.1e}: {rest}");
    }
    gaps.sort_by_key(|(_, time, _)| *time);
    for (gap, time, rest) in gaps.iter().rev().take(20) {
        println!("slow {time:?}, gap {gap:.1e}: {rest}");
    }
    for part in [50, 75, 90, 95, 99] {
        println!("{part} % take at most {:?}", gaps[gaps.len() * part / 100].1);
    }
}
