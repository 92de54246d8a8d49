//! Tunings: one run in the ledger, priced as the best of a secret number of runs.

use std::sync::Arc;

use crate::common::{Directory, charged, cost, create, header, open, planned, round, run};
use veilgrad_accounting::{Accountant, Composition, Tightest, Tuned, Tuning};
use veilgrad_events::{
    Adjacency, Delta, LedgerError, LedgerKind, Rounds, Run, RunHeader, TuningRun,
};
use veilgrad_ledger::{DatasetLedger, Ledger};

fn tuning() -> Tuning {
    Tuning::geometric(5.0).unwrap()
}

fn plan(count: u64) -> Vec<Rounds> {
    vec![Rounds { count, round: round(0.05, 1.0) }]
}

fn tuned_header(count: u64) -> RunHeader {
    header().with_plan(plan(count)).with_tuning(tuning().run_count().unwrap())
}

fn charge(ledger: Ledger, count: u64) -> Result<TuningRun<DatasetLedger>, LedgerError> {
    let store = ledger.dataset("data", Arc::new(Tightest)).unwrap();
    TuningRun::charge(store, tuned_header(count))
}

/// The epsilon of a tuning whose runs have `count` rounds.
fn tuned_cost(count: u64) -> f64 {
    let composition = Composition::fold(&plan(count), Adjacency::AddRemove).unwrap();
    let tuned = Tuned { inner: &Tightest, tuning: tuning() };
    tuned.epsilon(&composition, Delta::new(1e-5).unwrap()).unwrap().epsilon
}

fn price(ledger: &Ledger) -> Result<f64, String> {
    ledger.state().datasets()["data"].price(&Tightest)
}

#[test]
fn a_tuning_is_charged_once_whatever_its_number_of_runs_and_read_back_with_its_price() {
    let directory = Directory::new();
    let tuning = charge(create(&directory.ledger(), 8.0), 20).unwrap();
    // On disk before the first run.
    assert_eq!(charged(&open(&directory).unwrap()), 20);
    let (kinds, run) = tuning
        .best(
            |_| Ok::<_, LedgerError>(7),
            |run| {
                let permits = run.reserve(&round(0.05, 1.0), 20)?;
                Ok((0.0, permits.map(|permit| permit.charged_to()).collect::<Vec<_>>()))
            },
        )
        .unwrap();
    assert_eq!(kinds.unwrap(), vec![LedgerKind::Durable; 20]);
    drop(run.close().unwrap());
    let ledger = open(&directory).unwrap();
    assert_eq!(charged(&ledger), 20);
    assert_eq!(price(&ledger).unwrap(), tuned_cost(20));
    let stored = ledger.state().datasets()["data"].runs.values().next().unwrap();
    assert_eq!(stored.header.tuning, Some(count_of_runs()));
    // Without it, the row is what it was before there were tunings.
    let without = serde_json::to_string(&header()).unwrap();
    assert!(!without.contains("tuning"), "{without}");
}

fn count_of_runs() -> veilgrad_events::RunCount {
    tuning().run_count().unwrap()
}

#[test]
fn a_budget_that_covers_one_run_but_not_the_choice_refuses_the_tuning() {
    let directory = Directory::new();
    let (one, all) = (cost(20), tuned_cost(20));
    assert!(all > 1.1 * one);
    let refused = charge(create(&directory.ledger(), 0.5 * (one + all)), 20).err();
    assert!(matches!(refused, Some(LedgerError::BudgetExhausted(_))), "{refused:?}");
    assert_eq!(charged(&open(&directory).unwrap()), 0);
    // The run itself fits.
    assert!(planned(open(&directory).unwrap(), 20).is_ok());
}

#[test]
fn a_tuning_and_planned_runs_share_a_budget_and_runs_without_a_plan_are_refused_beside_it() {
    let directory = Directory::new();
    let sum = cost(20) + tuned_cost(20);
    let tuning = charge(create(&directory.ledger(), 1.2 * sum), 20).unwrap();
    drop(tuning);
    let mut beside = planned(open(&directory).unwrap(), 20).unwrap();
    drop(beside.reserve(&round(0.05, 1.0), 20).unwrap());
    drop(beside);
    let both = price(&open(&directory).unwrap()).unwrap();
    assert!(both >= sum && both <= 1.2 * sum, "{both} {sum}");
    // Another tuning does not fit, and a round that may depend on the output of the first has no price.
    assert!(matches!(charge(open(&directory).unwrap(), 20), Err(LedgerError::BudgetExhausted(_))));
    let mut unplanned: Run<DatasetLedger> = run(open(&directory).unwrap());
    let refused = unplanned.reserve(&round(0.001, 100.0), 1).err();
    assert!(
        matches!(&refused, Some(LedgerError::BudgetExhausted(why)) if why.contains("tuning")),
        "{refused:?}"
    );
}
