//! Truncated Poisson samples, compared with the mechanism itself.
// Tables are printed with `--nocapture`.
#![allow(clippy::print_stdout)]

use veilgrad_accounting::{Accountant, Composition, Pld, Tightest};
use veilgrad_events::{
    Adjacency, Budget, Delta, Epsilon, Folded, Mode, NoiseMultiplier, Pricing, RecordUnit,
    RunRounds, SampleRate, Sampling, TruncatedPoisson,
};

fn rounds(q: f64, records: u64, most: u64, z: f64, count: u64) -> Folded {
    let policy = TruncatedPoisson::new(SampleRate::new(q).unwrap(), records, most).unwrap();
    let sampling = Sampling::TruncatedPoisson(policy);
    Folded { count, sampling, noise_multiplier: NoiseMultiplier::new(z).unwrap() }
}

fn epsilon(rounds: Folded, adjacency: Adjacency, delta: f64) -> f64 {
    let composition = Composition::of([rounds], adjacency).unwrap();
    Tightest.epsilon(&composition, Delta::new(delta).unwrap()).unwrap().epsilon
}

/// The output of one round on these records, as a mixture of normal distributions: means and weights. All subsets of the
/// records that can be drawn, and of each that is too large, all subsets that can be kept.
fn mixture(records: &[f64], q: f64, most: usize) -> Vec<(f64, f64)> {
    let n = records.len();
    let choose =
        |n: usize, k: usize| (0..k).map(|i| (n - i) as f64 / (i + 1) as f64).product::<f64>();
    let mut weights = vec![0.0; 1 << n];
    for drawn in 0..1usize << n {
        let size = drawn.count_ones() as usize;
        let chance = q.powi(size as i32) * (1.0 - q).powi((n - size) as i32);
        if size <= most {
            weights[drawn] += chance;
            continue;
        }
        for kept in (0..1usize << n).filter(|kept| kept & !drawn == 0) {
            if kept.count_ones() as usize == most {
                weights[kept] += chance / choose(size, most);
            }
        }
    }
    let sum = |set: usize| (0..n).filter(|i| set >> i & 1 == 1).map(|i| records[i]).sum::<f64>();
    (0..1 << n).map(|set| (sum(set), weights[set])).filter(|(_, w)| *w > 0.0).collect()
}

/// The hockey-stick divergence of two mixtures of normal distributions with standard deviation z, by quadrature.
fn divergence(p: &[(f64, f64)], q: &[(f64, f64)], z: f64, epsilon: f64) -> f64 {
    let step = z / 200.0;
    let density = |mixture: &[(f64, f64)], y: f64| -> f64 {
        let normal = |(mean, weight): &(f64, f64)| weight * (-0.5 * ((y - mean) / z).powi(2)).exp();
        mixture.iter().map(normal).sum::<f64>() / (z * (2.0 * std::f64::consts::PI).sqrt())
    };
    let count = (2.0 * (6.0 + 8.0 * z) / step) as i32;
    let outputs = (0..count).map(|i| -6.0 - 8.0 * z + step * f64::from(i));
    outputs.map(|y| (density(p, y) - epsilon.exp() * density(q, y)).max(0.0)).sum::<f64>() * step
}

/// 200 small mechanisms, written out: no pair of neighbours exceeds the bound.
#[test]
fn no_small_mechanism_exceeds_the_bound() {
    let (mut cases, mut closest) = (0, 0.0f64);
    for (n, most) in [(2, 1), (3, 1), (3, 2), (4, 2), (5, 2)] {
        for q in [0.1, 0.4, 0.8] {
            for z in [0.7, 1.5] {
                // The other records: all zero, all like the record, all opposite, and mixed.
                let others = [
                    vec![0.0; n - 1],
                    vec![1.0; n - 1],
                    vec![-1.0; n - 1],
                    (0..n - 1).map(|i| if i % 2 == 0 { 1.0 } else { -1.0 }).collect::<Vec<f64>>(),
                ];
                for others in others {
                    let with = |x: f64| [vec![x], others.clone()].concat();
                    let one = mixture(&with(1.0), q, most);
                    for (adjacency, neighbour) in [
                        (Adjacency::ZeroOut, mixture(&with(0.0), q, most)),
                        (Adjacency::ReplaceOne, mixture(&with(-1.0), q, most)),
                        (Adjacency::AddRemove, mixture(&others, q, most)),
                    ] {
                        let records = n as u64;
                        let composition =
                            Composition::of([rounds(q, records, most as u64, z, 1)], adjacency)
                                .unwrap();
                        for epsilon in [0.0, 0.3, 1.0] {
                            let bound =
                                Pld.delta(&composition, Epsilon::new(epsilon).unwrap()).delta;
                            for (p, q) in [(&one, &neighbour), (&neighbour, &one)] {
                                let exact = divergence(p, q, z, epsilon);
                                let what = format!("{n} {most} {q:?} {z} {adjacency} {epsilon}");
                                assert!(exact <= bound + 1e-6, "{what}: {exact} {bound}");
                                closest = closest.max(exact / bound);
                            }
                        }
                        cases += 1;
                    }
                }
            }
        }
    }
    println!("{cases} cases, exact over bound at most {closest}");
    assert!(cases >= 200 && closest > 0.8, "{cases} {closest}");
}

#[test]
fn a_maximum_of_all_records_is_poisson() {
    let z = NoiseMultiplier::new(1.0).unwrap();
    let rate = SampleRate::new(0.05).unwrap();
    for adjacency in [Adjacency::ZeroOut, Adjacency::ReplaceOne, Adjacency::AddRemove] {
        let found = epsilon(rounds(0.05, 200, 200, 1.0, 100), adjacency, 1e-5);
        let poisson = Composition::poisson(rate, z, 100, adjacency).unwrap();
        let exact = Tightest.epsilon(&poisson, Delta::new(1e-5).unwrap()).unwrap().epsilon;
        assert!((found / exact - 1.0).abs() < 1e-3, "{adjacency}: {found} {exact}");
    }
}

/// The values of a prototype (of the better of two mixtures), whose grid of 1e-3 adds about 0.009. Prints its table with
/// `--nocapture`.
#[test]
fn epsilons_are_those_of_a_prototype() {
    let delta = Delta::new(1e-5).unwrap();
    let mut last = f64::INFINITY;
    for (most, prototype) in [(319, 2.422), (335, 2.3890), (351, 2.3885), (60_000, 2.3885)] {
        let composition = Composition::of(
            [rounds(256.0 / 60000.0, 60_000, most, 1.1, 14040)],
            Adjacency::ZeroOut,
        );
        let found = Pld.epsilon(&composition.unwrap(), delta).unwrap();
        println!("maximum {most}: {found:?}, prototype {prototype}");
        assert!(found.epsilon >= 2.379_554_5 && found.epsilon <= prototype + 1e-3, "{found:?}");
        assert!(found.epsilon > prototype - 0.012, "{most}: {found:?}");
        assert!(found.epsilon <= last && found.epsilon_lower.unwrap() <= found.epsilon);
        last = found.epsilon;
    }
}

#[test]
fn less_room_less_noise_and_more_rounds_cost_more() {
    for adjacency in [Adjacency::ZeroOut, Adjacency::ReplaceOne, Adjacency::AddRemove] {
        let base = epsilon(rounds(0.02, 1000, 40, 1.0, 200), adjacency, 1e-5);
        for (what, found) in [
            ("less room", epsilon(rounds(0.02, 1000, 30, 1.0, 200), adjacency, 1e-5)),
            ("less noise", epsilon(rounds(0.02, 1000, 40, 0.95, 200), adjacency, 1e-5)),
            ("more rounds", epsilon(rounds(0.02, 1000, 40, 1.0, 210), adjacency, 1e-5)),
            ("a smaller delta", epsilon(rounds(0.02, 1000, 40, 1.0, 200), adjacency, 1e-6)),
        ] {
            assert!(found > base, "{adjacency} {what}: {found} {base}");
        }
    }
}

/// However the rounds are divided into charges, a budget asks for what the accountant says.
#[test]
fn budgets_price_truncated_samples_as_the_accountant_does() {
    let (limit, delta) = (Epsilon::new(20.0).unwrap(), Delta::new(1e-5).unwrap());
    for adjacency in [Adjacency::ZeroOut, Adjacency::ReplaceOne] {
        let budget = Budget {
            dataset: "d".to_owned(),
            unit: RecordUnit::Example,
            adjacency,
            delta,
            epsilon: limit,
            mode: Mode::Planned,
            order: Tightest.order(limit, delta),
        };
        let expected = epsilon(rounds(0.02, 1000, 35, 1.0, 200), adjacency, 1e-5);
        for parts in [vec![200], vec![1, 199], vec![50, 50, 100]] {
            let parts: Vec<Folded> =
                parts.into_iter().map(|count| rounds(0.02, 1000, 35, 1.0, count)).collect();
            let run = RunRounds { planned: true, rounds: &parts, tuning: None };
            assert_eq!(Tightest.price(&budget, &[run]).unwrap(), expected, "{adjacency}");
            let mut meter = Tightest.meter(&budget).unwrap();
            parts.iter().for_each(|rounds| meter.add(1, *rounds));
            // What the quick check lets through keeps the budget.
            assert!(meter.part() > 0.0 && (meter.part() > 1.0 || expected <= 20.0));
        }
    }
}
