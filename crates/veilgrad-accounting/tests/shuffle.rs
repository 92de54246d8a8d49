//! Shuffled epochs against the brute force: every way in which one record can take part.

use proptest::prelude::*;
use veilgrad_accounting::{Accountant, Composition, Tightest, check_accountant};
use veilgrad_accounting::{Guarantee, Pld, Rdp, Unsupported};
use veilgrad_events::{
    Adjacency, Budget, Delta, Epsilon, FixedBatch, Folded, Mode, NoiseMultiplier, Pricing,
    RecordUnit, RunRounds, Sampling,
};

/// Lists of runs that the properties try.
const CASES: u32 = 100_000;

type Runs = Vec<Vec<Folded>>;

fn rounds(sampling: Sampling, z: f64, count: u64) -> Folded {
    Folded { count, sampling, noise_multiplier: NoiseMultiplier::new(z).unwrap() }
}

fn shuffle(records: u64, batch: u64) -> Sampling {
    Sampling::Shuffle(FixedBatch::new(records, batch).unwrap())
}

/// The largest sum of 1/z^2 over the rounds in which one record can take part: for every run, every kind of batch and
/// every epoch, one of the rounds that a sampler draws from that epoch; rounds of everybody always.
///
/// Slow and obvious: rounds are written out one by one, and every choice is tried.
fn worst_participation(runs: &Runs) -> f64 {
    let mut total = 0.0;
    for run in runs {
        let mut groups: Vec<((u64, u64, u64), Vec<f64>)> = Vec::new();
        let mut number = 0;
        for entry in run {
            for _ in 0..entry.count {
                let square = entry.noise_multiplier.get().powi(-2);
                match entry.sampling {
                    Sampling::Shuffle(batch) => {
                        let length = batch.records() / batch.batch();
                        let key = (batch.records(), batch.batch(), number / length);
                        match groups.iter_mut().find(|(known, _)| *known == key) {
                            Some((_, squares)) => squares.push(square),
                            None => groups.push((key, vec![square])),
                        }
                    }
                    _ => total += square,
                }
                number += 1;
            }
        }
        total += every_choice(&groups.into_iter().map(|(_, squares)| squares).collect::<Vec<_>>());
    }
    total
}

fn every_choice(epochs: &[Vec<f64>]) -> f64 {
    let Some((first, rest)) = epochs.split_first() else { return 0.0 };
    // The rest does not depend on the choice here, but trying them all is what makes this obvious.
    let rest = every_choice(rest);
    first.iter().map(|square| square + rest).fold(0.0, f64::max)
}

/// One Gaussian of this sum of 1/z^2.
fn gaussian(squares: f64) -> Composition {
    let noise_multiplier = NoiseMultiplier::new(squares.sqrt().recip()).unwrap();
    let once = Folded { count: 1, sampling: Sampling::All {}, noise_multiplier };
    Composition::of([once], Adjacency::ZeroOut).unwrap()
}

fn any_runs() -> impl Strategy<Value = Runs> {
    let sampling = prop_oneof![
        6 => (1u64..=4, 1u64..=3).prop_map(|(length, batch)| shuffle(length * batch + batch / 2, batch)),
        1 => Just(Sampling::All {}),
    ];
    // Few kinds of batch and of noise, so that entries of one epoch meet.
    let noise = prop_oneof![Just(1.0), Just(2.0), Just(10.0), 0.5f64..20.0];
    let entry =
        (sampling, noise, 0u64..=7).prop_map(|(sampling, z, count)| rounds(sampling, z, count));
    let one_kind =
        (1u64..=5, prop::collection::vec((prop_oneof![Just(1.0), Just(10.0)], 0u64..=7), 0..5))
            .prop_map(|(length, entries)| {
                entries
                    .into_iter()
                    .map(|(z, count)| rounds(shuffle(2 * length, 2), z, count))
                    .collect()
            });
    prop::collection::vec(prop_oneof![prop::collection::vec(entry, 0..5), one_kind], 0..4)
}

fn budget(epsilon: f64) -> Budget {
    let (epsilon, delta) = (Epsilon::new(epsilon).unwrap(), Delta::new(1e-5).unwrap());
    Budget {
        dataset: "d".to_owned(),
        unit: RecordUnit::Example,
        adjacency: Adjacency::ZeroOut,
        delta,
        epsilon,
        mode: Mode::Planned,
        order: Tightest.order(epsilon, delta),
    }
}

fn runs_of(runs: &Runs) -> Vec<RunRounds<'_>> {
    runs.iter().map(|rounds| RunRounds { planned: true, rounds, tuning: None }).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: CASES, ..ProptestConfig::default() })]

    #[test]
    fn a_composition_counts_the_worst_participation(runs in any_runs()) {
        let squares = worst_participation(&runs);
        let composition = Composition::of_runs(runs, Adjacency::ZeroOut).unwrap();
        match composition.steps() {
            [] => prop_assert_eq!(squares, 0.0),
            [(step, 1)] => {
                let counted = step.z.powi(-2);
                prop_assert!(counted >= squares, "{} of {}", counted, squares);
                prop_assert!(counted <= squares * (1.0 + 1e-12), "{} of {}", counted, squares);
            }
            other => prop_assert!(false, "{:?}", other),
        }
    }

    #[test]
    fn what_a_meter_lets_through_keeps_the_budget_by_brute_force(
        runs in any_runs(),
        cap in 1.0f64..30.0,
        cuts in prop::collection::vec(1u64..4, 1..8),
    ) {
        let budget = budget(cap);
        let Some(mut meter) = Tightest.meter(&budget) else { return Ok(()) };
        // Blocks of runs that take turns, as they come from several processes.
        let mut left: Runs = runs.clone();
        let mut granted: Runs = vec![Vec::new(); runs.len()];
        let mut cuts = cuts.into_iter().cycle();
        'all: while left.iter().flatten().any(|entry| entry.count > 0) {
            for run in 0..left.len() {
                let Some(entry) = left[run].iter_mut().find(|entry| entry.count > 0) else { continue };
                let count = cuts.next().unwrap().min(entry.count);
                entry.count -= count;
                let block = Folded { count, ..*entry };
                meter.add(run as u64, block);
                if meter.part() > 1.0 {
                    break 'all;
                }
                granted[run].push(block);
            }
        }
        let squares = worst_participation(&granted);
        if squares > 0.0 {
            let true_epsilon = Tightest.epsilon(&gaussian(squares), budget.delta).unwrap();
            let true_epsilon = true_epsilon.epsilon_lower.unwrap_or(0.0);
            prop_assert!(true_epsilon <= cap, "{} of {}: {:?}", true_epsilon, cap, granted);
        }
    }

    #[test]
    fn what_a_check_lets_through_keeps_the_budget_by_brute_force(
        runs in any_runs(),
        cap in 1.0f64..30.0,
    ) {
        let budget = budget(cap);
        let squares = worst_participation(&runs);
        if squares > 0.0 {
            let exact = Tightest.epsilon(&gaussian(squares), budget.delta).unwrap();
            let (lower, upper) = (exact.epsilon_lower.unwrap_or(0.0), exact.epsilon);
            let granted = Tightest.check(&budget, &runs_of(&runs)).is_ok();
            prop_assert!(!granted || lower <= cap, "{} of {}", lower, cap);
            prop_assert!(granted || upper > cap * (1.0 - 1e-9), "{} of {}", upper, cap);
            let price = Tightest.price(&budget, &runs_of(&runs)).unwrap();
            prop_assert!(price >= lower, "{} below {}", price, lower);
        }
    }
}

#[test]
fn less_noise_in_the_middle_of_an_epoch_counts_in_both_epochs_that_it_touches() {
    // Five rounds at z 10 and ten at z 1 in epochs of ten: a record may be in a round at z 1 twice.
    let run = vec![rounds(shuffle(20, 2), 10.0, 5), rounds(shuffle(20, 2), 1.0, 10)];
    let budget = budget(6.0);
    let runs = [RunRounds { planned: true, rounds: &run, tuning: None }];
    let price = Tightest.price(&budget, &runs).unwrap();
    assert!((price - 6.59).abs() < 0.3, "{price}");
    assert!(Tightest.check(&budget, &runs).is_err());
    let mut meter = Tightest.meter(&budget).unwrap();
    run.iter().for_each(|rounds| meter.add(0, *rounds));
    assert!(meter.part() > 1.0);
}

#[test]
fn epochs_begin_with_each_run() {
    let batches = shuffle(4, 2);
    let runs =
        [vec![rounds(batches, 10.0, 1)], vec![rounds(batches, 10.0, 1), rounds(batches, 1.0, 2)]];
    let composition = Composition::of_runs(runs, Adjacency::ZeroOut).unwrap();
    let epsilon = Tightest.epsilon(&composition, Delta::new(1e-5).unwrap()).unwrap().epsilon;
    // A record may be in the round of run 1, and in both rounds at z 1 of run 2.
    let exact = Tightest.epsilon(&gaussian(2.01), Delta::new(1e-5).unwrap()).unwrap();
    assert!(epsilon >= exact.epsilon_lower.unwrap() && epsilon >= 4.854, "{epsilon}");
    assert!(epsilon <= exact.epsilon * (1.0 + 1e-9), "{epsilon}");
}

/// Halves what shuffled rounds cost.
struct Forgetful<A>(A);

impl<A: Accountant> Accountant for Forgetful<A> {
    fn name(&self) -> &'static str {
        "forgetful"
    }

    fn epsilon(&self, composition: &Composition, delta: Delta) -> Result<Guarantee, Unsupported> {
        let found = self.0.epsilon(composition, delta)?;
        // 1/z^2 = 2.01.
        let shuffled = matches!(composition.steps(), [(step, 1)] if (0.7..0.71).contains(&step.z));
        Ok(Guarantee {
            epsilon: if shuffled { 0.5 * found.epsilon } else { found.epsilon },
            ..found
        })
    }

    fn delta(&self, composition: &Composition, epsilon: Epsilon) -> Guarantee {
        self.0.delta(composition, epsilon)
    }
}

#[test]
fn the_check_of_accountants_tries_shuffled_runs() {
    for accountant in [&Tightest as &dyn Accountant, &Pld, &Rdp] {
        check_accountant(accountant).unwrap();
    }
    let error = check_accountant(&Forgetful(Tightest)).unwrap_err();
    assert!(error.contains("shuffled"), "{error}");
}
