//! Runs that hold budget for their whole plans.

use std::sync::Arc;

use crate::common::{Directory, begin, charged, header, holding, open, planned, round};
use veilgrad_accounting::Tightest;
use veilgrad_events::{LedgerError, Rounds, Run};

#[test]
fn the_second_of_two_plans_that_do_not_fit_together_is_refused_before_it_starts() {
    let directory = Directory::new();
    begin(&directory, 30);
    let mut first = planned(open(&directory).unwrap(), 20).unwrap();
    let error = planned(open(&directory).unwrap(), 20).err().unwrap();
    assert!(matches!(&error, LedgerError::BudgetExhausted(_)), "{error}");
    assert!(error.to_string().contains("running plan"), "{error}");
    // A plan that fits next to it runs to its end, and so does the first.
    let mut second = planned(open(&directory).unwrap(), 10).unwrap();
    assert_eq!(holding(&directory), 2);
    for _ in 0..10 {
        first.reserve(&round(0.05, 1.0), 2).unwrap();
        second.reserve(&round(0.05, 1.0), 1).unwrap();
    }
    assert_eq!(charged(first.store().ledger()), 29);
    first.close().unwrap();
    second.close().unwrap();
    assert_eq!(holding(&directory), 0);
    // No files are left next to the ledger.
    assert!(!directory.path().join("ledger.db.holds").exists());
}

#[test]
fn a_run_without_a_plan_leaves_the_room_of_running_plans() {
    let directory = Directory::new();
    begin(&directory, 20);
    let mut first = planned(open(&directory).unwrap(), 20).unwrap();
    let mut free = crate::common::run(open(&directory).unwrap());
    assert!(matches!(
        free.reserve(&round(0.05, 1.0), 1).err().unwrap(),
        LedgerError::BudgetExhausted(_)
    ));
    first.reserve(&round(0.05, 1.0), 20).unwrap();
}

#[test]
fn a_hold_ends_with_its_run_and_charges_stay() {
    for close in [true, false] {
        let directory = Directory::new();
        begin(&directory, 20);
        let mut first = planned(open(&directory).unwrap(), 20).unwrap();
        first.reserve(&round(0.05, 1.0), 4).unwrap();
        assert!(planned(open(&directory).unwrap(), 1).is_err());
        if close {
            first.close().unwrap();
        } else {
            drop(first);
        }
        assert_eq!((holding(&directory), charged(&open(&directory).unwrap())), (0, 4));
        assert!(planned(open(&directory).unwrap(), 17).is_err());
        // The rest of the plan can run, as in a resumed run.
        let mut rest = planned(open(&directory).unwrap(), 16).unwrap();
        rest.reserve(&round(0.05, 1.0), 16).unwrap();
    }
}

#[test]
fn a_store_that_opens_another_run_holds_for_that_one() {
    let directory = Directory::new();
    begin(&directory, 20);
    let mut store = open(&directory).unwrap().dataset("data", Arc::new(Tightest)).unwrap();
    for rounds in [20, 5] {
        let mut header = header();
        header.plan = Some(vec![Rounds { count: rounds, round: round(0.05, 1.0) }]);
        let error = Run::open(&mut store, header).err();
        // The store still holds the first plan, so the second must fit in addition.
        assert_eq!(error.is_some(), rounds == 5, "{rounds}");
    }
    drop(store);
    assert_eq!(holding(&directory), 0);
}

#[test]
fn a_run_whose_hold_was_deleted_leaves_the_room_that_others_hold() {
    let directory = Directory::new();
    begin(&directory, 30);
    let mut first = planned(open(&directory).unwrap(), 20).unwrap();
    first.reserve(&round(0.05, 1.0), 5).unwrap();
    std::fs::remove_dir_all(directory.path().join("ledger.db.holds")).unwrap();
    let mut second = planned(open(&directory).unwrap(), 20).unwrap();
    let refused = first.reserve(&round(0.05, 1.0), 10);
    assert!(matches!(refused, Err(LedgerError::BudgetExhausted(_))));
    second.reserve(&round(0.05, 1.0), 20).unwrap();
    assert_eq!(charged(second.store().ledger()), 25);
}
