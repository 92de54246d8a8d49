//! What a price depends on besides the rounds: adjacency, mode, record units, and whether there is an analysis.

use veilgrad_accounting::{Composition, Tightest, of_ledger, profile, rdp};
use veilgrad_events::{
    Adjacency, Budget, ClipNorm, Delta, Epsilon, FixedBatch, Folded, MemoryLedger, Mode,
    NoiseMultiplier, NoiseStd, Pricing, RecordUnit, Round, Run, RunHeader, RunRounds, SampleRate,
    Sampling, SumQuery,
};

fn delta() -> Delta {
    Delta::new(1e-5).unwrap()
}

fn rounds(sampling: Sampling, noise: f64, count: u64) -> Folded {
    Folded { count, sampling, noise_multiplier: NoiseMultiplier::new(noise).unwrap() }
}

fn poisson(rate: f64) -> Sampling {
    Sampling::Poisson { rate: SampleRate::new(rate).unwrap() }
}

fn budget(mode: Mode, adjacency: Adjacency) -> Budget {
    let epsilon = Epsilon::new(3.0).unwrap();
    Budget {
        dataset: "d".to_owned(),
        unit: RecordUnit::Example,
        adjacency,
        delta: delta(),
        epsilon,
        mode,
        order: Tightest.order(epsilon, delta()),
    }
}

#[test]
fn a_record_that_is_replaced_moves_a_sum_twice_as_far_as_one_that_is_removed() {
    for (adjacency, mu) in
        [(Adjacency::AddRemove, 0.5), (Adjacency::ZeroOut, 0.5), (Adjacency::ReplaceOne, 1.0)]
    {
        let all = rounds(Sampling::All {}, 2.0, 1);
        let found = Composition::of([all], adjacency).unwrap().mu().unwrap();
        assert!((found / mu - 1.0).abs() < 1e-12, "{adjacency}: {found}");
    }
}

/// With the record, outputs are `(1 - q) N(0, z^2) + q N(1, z^2)`; with another in its place, at worst,
/// `(1 - q) N(0, z^2) + q N(-1, z^2)`. The test that says "above t" bounds delta from below.
#[test]
fn poisson_samples_under_replacement_cost_no_less_than_a_test_shows() {
    let (q, z, epsilon) = (0.2, 1.0, 0.5);
    let composition = Composition::of([rounds(poisson(q), z, 1)], Adjacency::ReplaceOne).unwrap();
    let above = |t: f64| 0.5 * libm::erfc(t / z / std::f64::consts::SQRT_2);
    let shown = |t: f64| {
        let with = (1.0 - q) * above(t) + q * above(t - 1.0);
        let replaced = (1.0 - q) * above(t) + q * above(t + 1.0);
        with - f64::exp(epsilon) * replaced
    };
    let shown = (-400..800).map(|t| shown(f64::from(t) / 100.0)).fold(0.0, f64::max);
    let bounds = profile::delta(&composition, Epsilon::new(epsilon).unwrap()).bounds;
    assert!(bounds.upper >= shown && shown > 1e-3, "{bounds:?} {shown}");
    // Removing the record costs less: the two are not the same question.
    let removed = Composition::of([rounds(poisson(q), z, 1)], Adjacency::AddRemove).unwrap();
    let removed = profile::delta(&removed, Epsilon::new(epsilon).unwrap()).bounds;
    assert!(removed.upper < shown, "{removed:?} {shown}");
}

#[test]
fn a_renyi_delta_of_something_is_above_0_at_any_epsilon() {
    let composition = Composition::of([rounds(poisson(0.01), 10.0, 1)], Adjacency::AddRemove);
    let composition = composition.unwrap();
    for epsilon in [1.0, 1e3, 1e6] {
        assert!(rdp::delta(&composition, Epsilon::new(epsilon).unwrap()) > 0.0, "{epsilon}");
    }
}

#[test]
fn an_adaptive_budget_prices_a_declared_plan_like_rounds_without_one() {
    let charged = [rounds(poisson(0.01), 1.0, 1000)];
    let price = |mode, planned| {
        let runs = [RunRounds { planned, rounds: &charged, tuning: None }];
        Tightest.price(&budget(mode, Adjacency::AddRemove), &runs).unwrap()
    };
    assert_eq!(price(Mode::Adaptive, true), price(Mode::Adaptive, false));
    assert!(price(Mode::Adaptive, true) > price(Mode::Planned, true));
}

#[test]
fn runs_for_different_records_or_neighbours_have_no_claim_together() {
    let query = SumQuery::new("g", ClipNorm::new(1.0).unwrap(), NoiseStd::new(9.0).unwrap());
    let round = Round::new(poisson(0.01), vec![query]).unwrap();
    let (example, user) = (RecordUnit::Example, RecordUnit::User);
    for (unit, adjacency, is_claimed) in [
        (example, Adjacency::AddRemove, true),
        (user, Adjacency::AddRemove, false),
        (example, Adjacency::ZeroOut, false),
    ] {
        let mut ledger = MemoryLedger::new();
        for (unit, adjacency) in [(example, Adjacency::AddRemove), (unit, adjacency)] {
            let mut run = Run::open(&mut ledger, RunHeader::new(unit, adjacency)).unwrap();
            drop(run.reserve(&round, 1).unwrap());
            run.close().unwrap();
        }
        assert_eq!(of_ledger(&ledger, delta()).is_ok(), is_claimed, "{unit:?} {adjacency}");
    }
}

#[test]
fn rounds_without_an_analysis_fit_no_part_of_a_budget() {
    let shuffle = Sampling::Shuffle(FixedBatch::new(60, 10).unwrap());
    for (adjacency, is_known) in [(Adjacency::ZeroOut, true), (Adjacency::AddRemove, false)] {
        let mut meter = Tightest.meter(&budget(Mode::Planned, adjacency)).unwrap();
        meter.add(0, rounds(shuffle, 100.0, 1));
        assert_eq!(meter.part() <= 1.0, is_known, "{adjacency}: {}", meter.part());
    }
}
