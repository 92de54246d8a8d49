//! Random allocation: every record in one round of each epoch.
// Tables are printed with `--nocapture`.
#![allow(clippy::print_stdout)]

use std::num::NonZeroU64;

use veilgrad_accounting::{
    Accountant, Composition, Guarantee, Pld, PrivacyTarget, Tightest, advantage,
};
use veilgrad_events::{
    Adjacency, Budget, Delta, Epsilon, Folded, Mode, NoiseMultiplier, Pricing, RecordUnit,
    RunRounds, SampleRate, Sampling,
};

fn rounds(t: u64, z: f64, count: u64) -> Folded {
    let sampling = Sampling::Allocation { rounds_per_epoch: NonZeroU64::new(t).unwrap() };
    Folded { count, sampling, noise_multiplier: NoiseMultiplier::new(z).unwrap() }
}

fn epochs(t: u64, epochs: u64, z: f64, delta: f64) -> Guarantee {
    let composition = Composition::of([rounds(t, z, t * epochs)], Adjacency::AddRemove).unwrap();
    Pld.epsilon(&composition, Delta::new(delta).unwrap()).unwrap()
}

fn poisson(t: u64, epochs: u64, z: f64, delta: f64) -> f64 {
    let (rate, noise) =
        (SampleRate::new(1.0 / t as f64).unwrap(), NoiseMultiplier::new(z).unwrap());
    let composition = Composition::poisson(rate, noise, t * epochs, Adjacency::AddRemove).unwrap();
    Tightest.epsilon(&composition, Delta::new(delta).unwrap()).unwrap().epsilon
}

/// t, E, z, delta; a prototype's value; the interval of PLD-accounting 2.0; the value of Poisson samples.
type Row = ((u64, u64, f64, f64), f64, (f64, f64), f64);
const TABLE: [Row; 6] = [
    ((100, 1, 1.0, 1e-5), 0.62094, (0.6085, 0.6357), 0.718),
    ((1000, 1, 1.0, 1e-6), 0.17173, (0.1687, 0.1757), 0.186),
    ((1000, 5, 0.7, 1e-6), 1.3547, (1.331, 1.381), 1.381),
    ((14, 10, 1.441, 1e-5), 2.7756, (2.736, 2.816), 3.086),
    ((58, 5, 0.823, 1e-5), 2.7071, (2.670, 2.745), 3.018),
    ((14, 40, 2.459, 1e-5), 2.9837, (2.943, 3.025), 3.080),
];

/// Prints its table with `--nocapture`.
#[test]
fn epsilons_are_those_of_a_prototype_within_the_interval_of_a_public_package_and_below_poisson() {
    println!(
        "{:>30}  {:>9} {:>9}  prototype  public package    poisson",
        "t, E, z, delta", "lower", "epsilon"
    );
    for ((t, e, z, delta), prototype, (low, high), from_poisson) in TABLE {
        let begin = std::time::Instant::now();
        let found = epochs(t, e, z, delta);
        let seconds = begin.elapsed().as_secs_f64();
        let lower = found.epsilon_lower.unwrap();
        let of_poisson = poisson(t, e, z, delta);
        println!(
            "{:>30}  {lower:>9.5} {:>9.5}  {prototype:>9}  [{low}, {high}]  {of_poisson:.4}  {seconds:.3} s",
            format!("{t}, {e}, {z}, {delta:e}"),
            found.epsilon
        );
        assert!((found.epsilon - prototype).abs() < 1e-3, "{found:?} {prototype}");
        assert!(found.epsilon > low && found.epsilon < high && found.epsilon < of_poisson);
        assert!((of_poisson - from_poisson).abs() < 1e-3);
        assert!(lower <= found.epsilon && lower > 0.99 * found.epsilon, "{found:?}");
    }
}

fn epsilon(rounds: &[Folded], adjacency: Adjacency, delta: f64) -> f64 {
    let composition = Composition::of(rounds.iter().copied(), adjacency).unwrap();
    Tightest.epsilon(&composition, Delta::new(delta).unwrap()).unwrap().epsilon
}

#[test]
fn an_epoch_of_one_round_is_a_gaussian() {
    let found = epsilon(&[rounds(1, 1.0, 1)], Adjacency::AddRemove, 1e-5);
    assert!((found - 4.377_178_095).abs() < 1e-6, "{found}");
    let ten = epsilon(&[rounds(1, 10.0, 1000)], Adjacency::ZeroOut, 1e-5);
    assert!((ten - 17.856_586_83).abs() < 1e-5, "{ten}");
}

#[test]
fn more_noise_fewer_epochs_longer_epochs_and_a_larger_delta_cost_less() {
    let cost = |t: u64, e: u64, z: f64, delta: f64| {
        epsilon(&[rounds(t, z, t * e)], Adjacency::AddRemove, delta)
    };
    let base = cost(20, 4, 1.0, 1e-5);
    for (what, found) in [
        ("more noise", cost(20, 4, 1.1, 1e-5)),
        ("fewer epochs", cost(20, 3, 1.0, 1e-5)),
        ("longer epochs", cost(40, 4, 1.0, 1e-5)),
        ("a larger delta", cost(20, 4, 1.0, 1e-4)),
    ] {
        assert!(found < base, "{what}: {found} {base}");
    }
    // Never more than the same epochs without amplification.
    let gaussian = epsilon(&[rounds(1, 1.0, 4)], Adjacency::AddRemove, 1e-5);
    assert!(base < gaussian, "{base} {gaussian}");
}

#[test]
fn every_epoch_that_is_touched_costs_a_whole_one() {
    let (t, z) = (50, 1.2);
    let whole = epsilon(&[rounds(t, z, t)], Adjacency::AddRemove, 1e-5);
    let two = epsilon(&[rounds(t, z, 2 * t)], Adjacency::AddRemove, 1e-5);
    assert!(whole > 0.5 && two > 1.2 * whole, "{whole} {two}");
    for count in [1, 7, t - 1] {
        assert_eq!(epsilon(&[rounds(t, z, count)], Adjacency::AddRemove, 1e-5), whole);
        assert_eq!(epsilon(&[rounds(t, z, t + count)], Adjacency::AddRemove, 1e-5), two);
    }
    // However the rounds are divided into charges.
    let parts = [rounds(t, z, 3), rounds(t, z, t - 2), rounds(t, z, 5)];
    assert_eq!(epsilon(&parts, Adjacency::AddRemove, 1e-5), two);
    // A round with less noise makes its epoch cost at least as much as if all its rounds had that noise.
    let mixed = [rounds(t, z, 3), rounds(t, 0.9, 1), rounds(t, z, t - 4)];
    let worst = epsilon(&[rounds(t, 0.9, t)], Adjacency::AddRemove, 1e-5);
    assert!(epsilon(&mixed, Adjacency::AddRemove, 1e-5) >= worst);
    // More noise later in an epoch that is paid for costs nothing.
    let quieter = [rounds(t, z, 3), rounds(t, 2.0, t - 3)];
    assert_eq!(epsilon(&quieter, Adjacency::AddRemove, 1e-5), whole);
}

/// A replaced record is bounded without amplification: one Gaussian of sensitivity 2 per epoch.
#[test]
fn replacing_a_record_costs_as_much_as_without_sampling() {
    let found = epsilon(&[rounds(100, 2.0, 300)], Adjacency::ReplaceOne, 1e-5);
    let gaussian = epsilon(&[rounds(1, 1.0, 3)], Adjacency::AddRemove, 1e-5);
    assert!((found - gaussian).abs() < 1e-9, "{found} {gaussian}");
}

#[test]
fn allocations_compose_with_other_rounds_and_budgets_price_them_the_same() {
    let poisson = Folded {
        count: 300,
        sampling: Sampling::Poisson { rate: SampleRate::new(0.02).unwrap() },
        noise_multiplier: NoiseMultiplier::new(1.0).unwrap(),
    };
    let all = [rounds(30, 1.3, 60), poisson];
    let together = epsilon(&all, Adjacency::AddRemove, 1e-5);
    let each: Vec<f64> =
        all.iter().map(|part| epsilon(&[*part], Adjacency::AddRemove, 0.5e-5)).collect();
    assert!(together > each[0] && together < each[0] + each[1], "{together} {each:?}");
    let (limit, delta) = (Epsilon::new(20.0).unwrap(), Delta::new(1e-5).unwrap());
    let budget = Budget {
        dataset: "d".to_owned(),
        unit: RecordUnit::Example,
        adjacency: Adjacency::AddRemove,
        delta,
        epsilon: limit,
        mode: Mode::Planned,
        order: Tightest.order(limit, delta),
    };
    let price = |planned| {
        Tightest.price(&budget, &[RunRounds { planned, rounds: &all, tuning: None }]).unwrap()
    };
    assert_eq!(price(true), together);
    // Rounds that may have been chosen from outputs get no amplification of epochs.
    assert!(price(false) > together);
    let mut meter = Tightest.meter(&budget).unwrap();
    all.iter().for_each(|rounds| meter.add(1, *rounds));
    assert!(meter.part() > 0.0);
}

#[test]
fn noise_is_found_for_an_epsilon_and_is_less_than_poisson_needs() {
    let target = PrivacyTarget {
        epsilon: Epsilon::new(3.0).unwrap(),
        delta: Delta::new(1e-5).unwrap(),
        accountant: &Tightest,
    };
    let (t, e) = (58, 5);
    let noise = target
        .noise_multiplier(|z| Composition::of([rounds(t, z.get(), t * e)], Adjacency::AddRemove))
        .unwrap();
    let found = epsilon(&[rounds(t, noise.get(), t * e)], Adjacency::AddRemove, 1e-5);
    assert!(found <= 3.0 && found > 2.98, "{found}");
    let rate = SampleRate::new(1.0 / t as f64).unwrap();
    let of_poisson = target
        .noise_multiplier(|z| Composition::poisson(rate, z, t * e, Adjacency::AddRemove))
        .unwrap();
    assert!(noise.get() < 0.97 * of_poisson.get(), "{noise:?} {of_poisson:?}");
    let one = Composition::of([rounds(t, noise.get(), t * e)], Adjacency::AddRemove).unwrap();
    assert!((0.1..0.9).contains(&advantage(&one)));
}

#[test]
fn extremes_have_an_answer() {
    for (t, e, z, delta) in [
        (2, 1, 0.3, 1e-5),
        (3, 2, 30.0, 1e-9),
        (100_000, 100, 0.8, 1e-6),
        (7, 1, 0.05, 1e-5),
        (1_000_000, 1, 1.0, 1e-12),
        (5, 3, 1e5, 1e-6),
    ] {
        let found = epsilon(&[rounds(t, z, t * e)], Adjacency::AddRemove, delta);
        let gaussian = epsilon(&[rounds(1, z, e)], Adjacency::AddRemove, delta);
        println!("{t} {e} {z} {delta:e}: {found} {gaussian}");
        assert!(
            found.is_finite() && found >= 0.0 && found <= gaussian,
            "{t} {e} {z}: {found} {gaussian}"
        );
    }
}
