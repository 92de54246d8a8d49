//! Runs opened with one call, and busy ledgers.

use std::sync::Arc;
use std::time::Duration;

use crate::common::{Directory, budget, charged, create, header, round};
use veilgrad_accounting::Tightest;
use veilgrad_events::{Delta, LedgerError, Mode, Run};
use veilgrad_ledger::{Begun, Ledger, Options, StoreError};

#[test]
fn one_call_opens_a_run_and_says_whether_the_budget_is_new() {
    let directory = Directory::new();
    let path = directory.ledger();
    let open = |name: &str, epsilon| {
        let budget = budget(name, epsilon, Mode::Planned);
        let opened =
            Ledger::open_run(&path, Options::default(), &budget, header(), Arc::new(Tightest));
        opened.map(|(run, begun)| {
            run.close().unwrap();
            begun
        })
    };
    assert_eq!(open("data", 2.0).unwrap(), Begun::Ledger);
    // An existing budget is not changed.
    assert_eq!(open("data", 9.0).unwrap(), Begun::Nothing);
    assert_eq!(open("other", 1.0).unwrap(), Begun::Budget);
    let ledger = Ledger::read(&path, Options::default()).unwrap();
    let caps: Vec<f64> =
        ledger.state().datasets().values().map(|dataset| dataset.budget.epsilon.get()).collect();
    assert_eq!(caps, [2.0, 1.0]);
    let mut terms = budget("data", 2.0, Mode::Planned);
    terms.delta = Delta::new(1e-6).unwrap();
    let refused = Ledger::open_run(&path, Options::default(), &terms, header(), Arc::new(Tightest));
    let Err(StoreError::Refused(why)) = refused else { panic!("another delta was accepted") };
    assert!(why.contains("1e-5") && why.contains("1e-6"), "{why}");
}

#[test]
fn a_busy_ledger_is_waited_for_as_long_as_asked_and_the_run_goes_on_when_it_is_free() {
    let directory = Directory::new();
    let path = directory.ledger();
    drop(create(&path, 2.0));
    let options = Options { patience: Duration::from_millis(20), ..Options::default() };
    let ledger = Ledger::open(&path, options.clone()).unwrap();
    let mut run = Run::open(ledger.dataset("data", Arc::new(Tightest)).unwrap(), header()).unwrap();
    let step = round(0.001, 5.0);
    assert!(run.reserve(&step, 1).is_ok());
    let assert_busy =
        |run: &mut Run<_>| assert!(matches!(run.reserve(&step, 1), Err(LedgerError::Busy(_))));
    // Another writer locks the anchor; another program may lock the database.
    let anchor = std::fs::File::open(Ledger::anchor_path(&path)).unwrap();
    anchor.lock().unwrap();
    assert_busy(&mut run);
    assert!(matches!(Ledger::open(&path, options), Err(StoreError::Busy(_))));
    anchor.unlock().unwrap();
    assert!(run.reserve(&step, 1).is_ok());
    let database = rusqlite::Connection::open(&path).unwrap();
    database.execute_batch("BEGIN IMMEDIATE").unwrap();
    assert_busy(&mut run);
    assert_busy(&mut run);
    database.execute_batch("ROLLBACK").unwrap();
    assert!(run.reserve(&step, 1).is_ok());
    assert_eq!(charged(run.store().ledger()), 3);
}
