//! Random allocation: every record in one round of each epoch.
// Tables are printed with `--nocapture`.
#![allow(clippy::print_stdout)]

use std::num::NonZeroU64;

use veilgrad_accounting::{
    Accountant, Composition, Guarantee, Pld, PrivacyTarget, Tightest, advantage,
};
use veilgrad_events::{
    Adjacency, Budget, Delta, Epsilon, Folded, Mode, NoiseMultiplier, Pricing, RecordUnit,
    RunRounds, SampleRate, Sampling, TruncatedPoisson,
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

/// An epoch of which only some rounds took place costs less than what is charged for it (a single round is one Poisson round), so
/// nothing is known below the bound; nor where rounds of an epoch have different noise.
#[test]
fn only_whole_epochs_of_one_noise_have_a_lower_bound() {
    let (t, z) = (50, 1.2);
    let poisson = Folded {
        count: 5,
        sampling: Sampling::Poisson { rate: SampleRate::new(0.02).unwrap() },
        noise_multiplier: NoiseMultiplier::new(1.0).unwrap(),
    };
    let lower = |rounds: &[Folded]| {
        let composition = Composition::of(rounds.iter().copied(), Adjacency::AddRemove).unwrap();
        let found = Tightest.epsilon(&composition, Delta::new(1e-5).unwrap()).unwrap();
        let group = [rounds.iter().copied()];
        let same = Composition::of_group(group, Adjacency::ZeroOut, NonZeroU64::MIN).unwrap();
        let other = Pld.epsilon(&same, Delta::new(1e-5).unwrap()).unwrap();
        assert_eq!(other.epsilon_lower, found.epsilon_lower);
        found.epsilon_lower
    };
    for none in [
        vec![rounds(t, z, 1)],
        vec![rounds(t, z, t - 1)],
        vec![rounds(t, z, t + 1)],
        vec![rounds(t, z, 3), rounds(t, z, t)],
        // Different noise in one epoch, more or less of it later.
        vec![rounds(t, z, 3), rounds(t, 2.0, t - 3)],
        vec![rounds(t, z, 3), rounds(t, 0.9, 1), rounds(t, z, t - 4)],
        // Epochs that begin in the middle, or are interrupted.
        vec![poisson, rounds(t, z, t - 5)],
        vec![poisson, rounds(t, z, t)],
        vec![rounds(t, z, t - 5), poisson],
        vec![rounds(t, z, 3), rounds(10, z, 7), rounds(t, z, t - 10)],
        // Whole epochs before or after do not help.
        vec![rounds(t, z, t), rounds(t, z, 1)],
        vec![rounds(t, z, 3), rounds(t, 2.0, t - 3), rounds(t, z, t)],
    ] {
        assert_eq!(lower(&none), None, "{none:?}");
    }
    for some in [
        vec![rounds(t, z, t)],
        vec![rounds(t, z, 3), rounds(t, z, t - 3)],
        vec![rounds(t, z, t), rounds(t, 2.0, t)],
        vec![rounds(t, z, t - 1), rounds(t, z, t + 1)],
        vec![rounds(10, z, 50), rounds(t, z, t)],
        vec![rounds(1, 3.0, 5)],
    ] {
        assert!(lower(&some).unwrap() > 0.3, "{some:?}");
    }
}

/// Epochs whose noise all differs keep their amplification, however many there are.
#[test]
fn many_epochs_of_different_noise_cost_about_what_their_noise_says() {
    for (t, e) in [(14, 100), (100_000, 30)] {
        // Noise between 3 and 6.
        let z = |i: u64| 3.0 * (1.0 + i as f64 / e as f64);
        let all: Vec<Folded> = (0..e).map(|i| rounds(t, z(i), t)).collect();
        let begin = std::time::Instant::now();
        let found = epsilon(&all, Adjacency::AddRemove, 1e-5);
        let seconds = begin.elapsed().as_secs_f64();
        let equal = |z: f64| epsilon(&[rounds(t, z, t * e)], Adjacency::AddRemove, 1e-5);
        let (most, least) = (equal(3.0), equal(6.0));
        // The mean of 1/z^2 is 1/18.
        let typical = equal(18f64.sqrt());
        println!("{t} {e}: {least} {typical} {found} {most}, {seconds:.2} s");
        assert!(found > least && found <= most, "{t} {e}: {least} {found} {most}");
        assert!(found > typical && found < 1.25 * typical, "{t} {e}: {typical} {found} {most}");
    }
}

/// Epochs of more different lengths than are computed apart cost at most as much as shorter ones, and keep their amplification.
#[test]
fn epochs_of_many_lengths_cost_less_than_as_many_short_ones() {
    let all: Vec<Folded> = (10..40).map(|t| rounds(t, 3.0, t)).collect();
    let found = epsilon(&all, Adjacency::AddRemove, 1e-5);
    let equal = |t: u64| epsilon(&[rounds(t, 3.0, 30 * t)], Adjacency::AddRemove, 1e-5);
    let (shortest, longest, gaussian) = (equal(10), equal(40), equal(1));
    assert!(longest < found && found < shortest, "{longest} {found} {shortest}");
    assert!(shortest < 0.6 * gaussian, "{shortest} {gaussian}");
}

/// A replaced record costs as much as one that is removed and another that is added: far less than without amplification,
/// which is one Gaussian of sensitivity 2 per epoch. Prints its table with `--nocapture`.
#[test]
fn replacing_a_record_costs_less_than_without_sampling_and_more_than_removing_it() {
    for ((t, e, z, delta), ..) in TABLE {
        let begin = std::time::Instant::now();
        let found = epsilon(&[rounds(t, z, t * e)], Adjacency::ReplaceOne, delta);
        let seconds = begin.elapsed().as_secs_f64();
        let removed = epochs(t, e, z, delta).epsilon;
        let gaussian = epsilon(&[rounds(1, z / 2.0, e)], Adjacency::AddRemove, delta);
        let (rate, noise) =
            (SampleRate::new(1.0 / t as f64).unwrap(), NoiseMultiplier::new(z).unwrap());
        let poisson = Composition::poisson(rate, noise, t * e, Adjacency::ReplaceOne).unwrap();
        let poisson = Tightest.epsilon(&poisson, Delta::new(delta).unwrap()).unwrap().epsilon;
        println!(
            "{t}, {e}, {z}, {delta:e}: removed {removed:.4}, replaced {found:.4}, poisson replaced {poisson:.4}, \
             without amplification {gaussian:.4}, {seconds:.3} s"
        );
        assert!(found > 1.5 * removed && found < 0.5 * gaussian, "{found} {removed} {gaussian}");
    }
    // An epoch of one round is a Gaussian of sensitivity 2.
    let found = epsilon(&[rounds(1, 2.0, 3)], Adjacency::ReplaceOne, 1e-5);
    let gaussian = epsilon(&[rounds(1, 1.0, 3)], Adjacency::AddRemove, 1e-5);
    assert!((found - gaussian).abs() < 1e-9, "{found} {gaussian}");
}

/// The density of independent normal numbers with these means and standard deviation z.
fn density(y: &[f64], means: &[f64], z: f64) -> f64 {
    let square: f64 = y.iter().zip(means).map(|(y, mean)| (y - mean) * (y - mean)).sum();
    (-square / (2.0 * z * z)).exp() / (z * std::f64::consts::TAU.sqrt()).powi(y.len() as i32)
}

/// The losses of one epoch and their probabilities, written out on a grid of outputs: the record adds `signs[i]` to round i if it
/// is there, the replaced one `others[i]`. Losses are rounded down to multiples of `STEP`.
fn losses_of_an_epoch(signs: &[f64], others: &[f64], z: f64) -> Vec<f64> {
    let (t, cell) = (signs.len(), z / if signs.len() == 2 { 16.0 } else { 6.0 });
    let reach = ((1.0 + 6.5 * z) / cell).ceil() as i32;
    let side = 2 * reach as usize;
    let mut losses = vec![0.0; 2 * CENTRE + 1];
    for index in 0..side.pow(t as u32) {
        let digits = (0..t as u32).map(|axis| index / side.pow(axis) % side);
        let y: Vec<f64> =
            digits.map(|digit| (digit as f64 - f64::from(reach) + 0.5) * cell).collect();
        let mean_of = |vectors: &[f64]| -> f64 {
            let of_round = |round: usize| {
                let mut means = vec![0.0; t];
                means[round] = vectors[round];
                density(&y, &means, z)
            };
            (0..t).map(of_round).sum::<f64>() / t as f64
        };
        let (p, q) = (mean_of(signs), mean_of(others));
        let place = ((p / q).ln() / STEP).floor() + CENTRE as f64;
        losses[place.clamp(0.0, 2.0 * CENTRE as f64) as usize] += p * cell.powi(t as i32);
    }
    losses
}

const STEP: f64 = 0.02;
/// The index of loss 0.
const CENTRE: usize = 1000;

/// No epochs of replaced records, written out, cost more than the bound says at any epsilon: one and three epochs of two rounds,
/// one of three, and records that are opposite, shorter, absent or the same in some rounds.
#[test]
fn no_replaced_record_that_is_written_out_exceeds_the_bound() {
    let mut checked = 0;
    for z in [0.6, 1.0, 2.5] {
        for (signs, others, epochs) in [
            (vec![1.0, 1.0], vec![-1.0, -1.0], 1),
            (vec![1.0, 1.0], vec![-1.0, -1.0], 3),
            (vec![1.0, -1.0], vec![-1.0, 1.0], 1),
            (vec![1.0, 1.0], vec![-1.0, 1.0], 2),
            (vec![1.0, 0.5], vec![-0.5, -1.0], 1),
            (vec![1.0, 1.0], vec![0.0, 0.0], 2),
            (vec![1.0, 1.0, 1.0], vec![-1.0, -1.0, -1.0], 1),
        ] {
            let t = signs.len() as u64;
            let one = losses_of_an_epoch(&signs, &others, z);
            let mut all = one.clone();
            for _ in 1..epochs {
                all = convolved(&all, &one);
            }
            let composition =
                Composition::of([rounds(t, z, t * epochs)], Adjacency::ReplaceOne).unwrap();
            for epsilon in [0.0, 0.1, 0.5, 1.0, 2.0, 4.0] {
                let loss = |index: usize| (index as f64 - CENTRE as f64) * STEP;
                let terms = all.iter().enumerate().filter(|(index, _)| loss(*index) > epsilon);
                let exact: f64 =
                    terms.map(|(index, mass)| mass * -(epsilon - loss(index)).exp_m1()).sum();
                let bound = Pld.delta(&composition, Epsilon::new(epsilon).unwrap()).delta;
                assert!(
                    exact <= bound,
                    "{z} {signs:?} {others:?} {epochs} {epsilon}: {exact} {bound}"
                );
                checked += 1;
            }
        }
    }
    assert_eq!(checked, 126);
}

/// The distribution of the sum of two losses; those beyond the ends are put there.
fn convolved(one: &[f64], other: &[f64]) -> Vec<f64> {
    let mut sums = vec![0.0; one.len()];
    for (i, a) in one.iter().enumerate().filter(|(_, a)| **a > 0.0) {
        for (j, b) in other.iter().enumerate() {
            sums[(i + j).saturating_sub(CENTRE).min(2 * CENTRE)] += a * b;
        }
    }
    sums
}

/// The triangle inequality is exact for Gaussians, whose distances add up: two of them in a row are one of twice the distance.
#[test]
fn long_epochs_of_replaced_records_cost_about_two_gaussians_in_a_row() {
    let (t, e, z) = (1000, 100, 2.0f64);
    let found = epsilon(&[rounds(t, z, t * e)], Adjacency::ReplaceOne, 1e-5);
    // With so much noise and so many rounds an epoch is nearly a Gaussian with this variance of losses.
    let mu = (e as f64 * (1.0 / (z * z)).exp_m1() / t as f64).sqrt();
    let gaussian = epsilon(&[rounds(1, 1.0 / (2.0 * mu), 1)], Adjacency::AddRemove, 1e-5);
    println!("replaced {found}, Gaussian {gaussian}");
    assert!((found / gaussian - 1.0).abs() < 0.015, "{found} {gaussian}");
}

#[test]
fn a_person_with_several_records_is_protected_by_allocation_as_well() {
    let of_group = |records: u64, adjacency| {
        let records = NonZeroU64::new(records).unwrap();
        let composition =
            Composition::of_group([[rounds(100, 1.0, 100)]], adjacency, records).unwrap();
        assert!(composition.mu().is_none());
        Tightest.epsilon(&composition, Delta::new(1e-5).unwrap()).unwrap().epsilon
    };
    let one = epochs(100, 1, 1.0, 1e-5).epsilon;
    let (two, three) = (of_group(2, Adjacency::ZeroOut), of_group(3, Adjacency::ZeroOut));
    println!("one record {one}, two {two}, three {three}");
    assert!(two > 1.5 * one && three > 1.2 * two && three < 8.0, "{one} {two} {three}");
    // Replacing a record is as far as two records of a person.
    assert_eq!(two, of_group(1, Adjacency::ReplaceOne));
    // No worse than all records in the same round.
    let gaussian = epsilon(&[rounds(1, 1.0 / 3.0, 1)], Adjacency::AddRemove, 1e-5);
    assert!(three < gaussian);
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
    // The same for replaced records.
    let budget = Budget { adjacency: Adjacency::ReplaceOne, ..budget };
    let run = RunRounds { planned: true, rounds: &all, tuning: None };
    let replaced = epsilon(&all, Adjacency::ReplaceOne, 1e-5);
    assert_eq!(Tightest.price(&budget, &[run]).unwrap(), replaced);
    assert!(replaced > 1.5 * together, "{replaced} {together}");
    // With truncated samples as well, for which other compositions stand in.
    let truncated = TruncatedPoisson::new(SampleRate::new(0.02).unwrap(), 1000, 30).unwrap();
    let sampling = Sampling::TruncatedPoisson(truncated);
    let noise_multiplier = NoiseMultiplier::new(2.0).unwrap();
    let mixed = [rounds(30, 3.0, 60), Folded { count: 100, sampling, noise_multiplier }];
    for adjacency in [Adjacency::AddRemove, Adjacency::ReplaceOne] {
        let budget = Budget { adjacency, ..budget.clone() };
        let run = RunRounds { planned: true, rounds: &mixed, tuning: None };
        let cost = epsilon(&mixed, adjacency, 1e-5);
        assert_eq!(Tightest.price(&budget, &[run]).unwrap(), cost, "{adjacency}");
        if adjacency == Adjacency::ReplaceOne {
            // Less than with epochs that do not count as protection.
            let gaussian = [rounds(1, 3.0, 2), mixed[1]];
            assert!(cost < 0.8 * epsilon(&gaussian, adjacency, 1e-5), "{cost}");
        }
    }
}

#[test]
fn noise_is_found_for_replaced_records() {
    let target = PrivacyTarget {
        epsilon: Epsilon::new(3.0).unwrap(),
        delta: Delta::new(1e-5).unwrap(),
        accountant: &Tightest,
    };
    let with =
        |z: NoiseMultiplier| Composition::of([rounds(58, z.get(), 5 * 58)], Adjacency::ReplaceOne);
    let noise = target.noise_multiplier(with).unwrap();
    let found = epsilon(&[rounds(58, noise.get(), 5 * 58)], Adjacency::ReplaceOne, 1e-5);
    println!("noise {noise:?} for epsilon {found}");
    assert!(found <= 3.0 && found > 2.97, "{found}");
    assert!((0.05..0.9).contains(&advantage(&with(noise).unwrap())));
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
