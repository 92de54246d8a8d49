//! Charges, budgets, recovery, exchange.

mod common;

use std::sync::Arc;

use common::{Directory, budget, charged, create, header, round, run};
use veilgrad_accounting::{Accountant, Best, Composition};
use veilgrad_events::{
    Adjacency, Epsilon, LedgerError, Mode, RecordUnit, Rounds, Run, check_ledger_store,
};
use veilgrad_ledger::{Head, Ledger, Options, StoreError};

fn open(directory: &Directory) -> Result<Ledger, StoreError> {
    Ledger::open(&directory.ledger(), Options::default())
}

fn copy_files(from: &Directory, to: &Directory) {
    for file in std::fs::read_dir(from.path()).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), to.path().join(file.file_name())).unwrap();
    }
}

#[test]
fn charges_survive_and_permits_are_as_many_as_charged() {
    let directory = Directory::new();
    let mut run = run(create(&directory.ledger(), 8.0));
    assert_eq!(run.reserve(&round(0.01, 1.0), 32).unwrap().count(), 32);
    assert_eq!(run.reserve(&round(0.01, 1.0), 32).unwrap().count(), 32);
    let block = [
        Rounds { count: 1, round: round(0.01, 1.1) },
        Rounds { count: 3, round: round(0.01, 1.2) },
    ];
    let permits: Vec<u64> = run
        .reserve_each(&block)
        .unwrap()
        .into_iter()
        .flat_map(|permits| permits.map(|permit| permit.number()))
        .collect();
    assert_eq!(permits, [64, 65, 66, 67]);
    let head = run.close().unwrap().into_ledger().head().clone();
    let again = Ledger::read(&directory.ledger()).unwrap();
    assert_eq!((again.head(), charged(&again)), (&head, 68));
    let dataset = &again.state().datasets()["data"];
    let state = dataset.runs.values().next().unwrap();
    // Identical neighbours are one entry.
    assert_eq!((state.rounds.len(), state.closed), (3, true));
    #[cfg(unix)]
    for file in [directory.ledger(), Ledger::anchor_path(&directory.ledger())] {
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(std::fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o600);
    }
}

#[test]
fn the_store_keeps_the_contract_of_stores() {
    let directory = Directory::new();
    let mut run = run(create(&directory.ledger(), 1e6));
    run.reserve(&round(0.01, 1.0), 1).unwrap();
    let mut store = run.close().unwrap();
    // A closed run takes nothing more, so the check gets a run of its own.
    Run::open(&mut store, header()).unwrap().reserve(&round(0.01, 1.0), 1).unwrap();
    check_ledger_store(&mut store, &round(0.01, 1.0)).unwrap();
}

#[test]
fn a_budget_is_kept_to_the_last_round_and_not_beyond() {
    let directory = Directory::new();
    let step = round(0.05, 1.0);
    let cost = |count: u64| {
        let rounds = [Rounds { count, round: step.clone() }];
        let composition = Composition::fold(&rounds, Adjacency::AddRemove).unwrap();
        Best.epsilon(&composition, budget("data", 2.0, Mode::Planned).delta).unwrap().epsilon
    };
    let mut run = run(create(&directory.ledger(), 2.0));
    let mut granted = 0;
    loop {
        match run.reserve(&step, 1) {
            Ok(_) => granted += 1,
            Err(LedgerError::BudgetExhausted(why)) => {
                assert!(why.contains("epsilon would be") && why.contains("2 is allowed"), "{why}");
                break;
            }
            Err(other) => panic!("{other}"),
        }
    }
    assert!(cost(granted) <= 2.0 && cost(granted + 1) > 2.0, "{granted}");
    // The refusal changed nothing, and cheaper rounds still fit.
    assert_eq!(charged(run.store().ledger()), granted);
    assert!(run.reserve(&round(0.0001, 50.0), 1).is_ok());
    assert_eq!(charged(&Ledger::read(&directory.ledger()).unwrap()), granted + 1);
}

#[test]
fn all_runs_of_a_dataset_share_its_budget() {
    let directory = Directory::new();
    let mut first = run(create(&directory.ledger(), 2.0));
    while first.reserve(&round(0.05, 1.0), 1).is_ok() {}
    drop(first);
    let mut second = run(open(&directory).unwrap());
    let refused = second.reserve(&round(0.05, 1.0), 1);
    assert!(matches!(refused, Err(LedgerError::BudgetExhausted(_))));
    // Another dataset has its own.
    let mut ledger = open(&directory).unwrap();
    ledger.create_budget(budget("other", 2.0, Mode::Planned)).unwrap();
    let other = ledger.dataset("other", Arc::new(Best)).unwrap();
    assert!(Run::open(other, header()).unwrap().reserve(&round(0.05, 1.0), 1).is_ok());
}

#[test]
fn adaptive_budgets_are_kept_by_a_filter() {
    let directory = Directory::new();
    let mut ledger = Ledger::create(&directory.ledger(), Options::default()).unwrap();
    ledger.create_budget(budget("data", 3.0, Mode::Adaptive)).unwrap();
    let store = ledger.dataset("data", Arc::new(Best)).unwrap();
    let mut adaptive = header();
    adaptive.mode = Mode::Adaptive;
    let mut run = Run::open(store, adaptive).unwrap();
    // Rates and noise that change as if outputs had chosen them.
    let mut granted = 0;
    while let Ok(permits) = run.reserve(&round(0.01, 1.0 + f64::from(granted % 7) * 0.1), 10) {
        granted += 1;
        drop(permits);
        assert!(granted < 10_000);
    }
    assert!(granted > 10, "{granted}");
    // Adaptive runs are not for planned budgets.
    let mut ledger = open(&directory).unwrap();
    ledger.create_budget(budget("planned", 3.0, Mode::Planned)).unwrap();
    let store = ledger.dataset("planned", Arc::new(Best)).unwrap();
    let mut adaptive = header();
    adaptive.mode = Mode::Adaptive;
    let error = Run::open(store, adaptive).err().unwrap().to_string();
    assert!(error.contains("planned runs only"), "{error}");
}

#[test]
fn budgets_are_lowered_never_raised_and_terms_hold() {
    let directory = Directory::new();
    let mut ledger = create(&directory.ledger(), 2.0);
    ledger.tighten("data", Epsilon::new(1.0).unwrap()).unwrap();
    assert!(ledger.tighten("data", Epsilon::new(1.5).unwrap()).is_err());
    assert!(ledger.tighten("none", Epsilon::new(0.5).unwrap()).is_err());
    assert!(ledger.create_budget(budget("data", 9.0, Mode::Planned)).is_err());
    assert!(ledger.create_budget(budget("", 9.0, Mode::Planned)).is_err());
    assert_eq!(ledger.state().datasets()["data"].budget.epsilon.get(), 1.0);
    let store = ledger.dataset("data", Arc::new(Best)).unwrap();
    let mut other = header();
    other.unit = RecordUnit::User;
    let error = Run::open(store, other).err().unwrap().to_string();
    assert!(error.contains("another unit"), "{error}");
    assert_eq!(Ledger::read(&directory.ledger()).unwrap().head().sequence, 3);
}

#[test]
fn a_run_that_protects_nothing_is_noted_for_ever_and_charges_nothing() {
    let directory = Directory::new();
    let store = create(&directory.ledger(), 2.0).dataset("data", Arc::new(Best)).unwrap();
    let mut insecure = Run::open_insecure(store, header(), "seeded noise").unwrap();
    let refused = insecure.reserve(&round(0.01, 1.0), 1);
    assert!(matches!(refused, Err(LedgerError::BudgetExhausted(_))));
    insecure.close().unwrap();
    let ledger = Ledger::read(&directory.ledger()).unwrap();
    assert_eq!(ledger.state().datasets()["data"].insecure(), Some("seeded noise"));
}

#[test]
fn a_database_two_rows_behind_its_anchor_is_refused() {
    let directory = Directory::new();
    let mut first = run(create(&directory.ledger(), 8.0));
    first.reserve(&round(0.01, 1.0), 5).unwrap();
    drop(first);
    let saved = std::fs::read(directory.ledger()).unwrap();
    let mut second = run(open(&directory).unwrap());
    second.reserve(&round(0.01, 1.0), 7).unwrap();
    drop(second);
    // The database as it was before the second run, under the anchor of after.
    let wound = Directory::new();
    std::fs::write(wound.ledger(), saved).unwrap();
    let anchor = Ledger::anchor_path(&directory.ledger());
    std::fs::copy(&anchor, Ledger::anchor_path(&wound.ledger())).unwrap();
    // Only the last row is in a slot.
    assert!(Ledger::read(&wound.ledger()).is_err());
    let ledger = Ledger::read(&directory.ledger()).unwrap();
    assert!(ledger.contains(ledger.head()).is_ok());
    assert_eq!(ledger.export().unwrap().lines().count() as u64, ledger.head().sequence);
}

#[test]
fn imported_budgets_stay_as_tight_as_they_were() {
    let (here, there) = (Directory::new(), Directory::new());
    let mut tight = create(&here.ledger(), 3.0);
    tight.tighten("data", Epsilon::new(1.0).unwrap()).unwrap();
    let export = tight.export().unwrap();
    let mut other = Ledger::create(&there.ledger(), Options::default()).unwrap();
    other.import(&export).unwrap();
    assert_eq!(other.state().datasets()["data"].budget.epsilon.get(), 1.0);
}

#[test]
fn a_database_ahead_of_its_anchor_is_recovered_and_stays_charged() {
    let directory = Directory::new();
    let mut run = run(create(&directory.ledger(), 8.0));
    run.reserve(&round(0.01, 1.0), 5).unwrap();
    let anchor = Ledger::anchor_path(&directory.ledger());
    let before = std::fs::read(&anchor).unwrap();
    run.reserve(&round(0.01, 1.0), 7).unwrap();
    drop(run);
    std::fs::write(&anchor, before).unwrap();
    // Reading says what there is; writing notes that it recovered.
    assert_eq!(charged(&Ledger::read(&directory.ledger()).unwrap()), 12);
    let ledger = open(&directory).unwrap();
    assert_eq!((charged(&ledger), ledger.head().sequence), (12, 6));
    let sequence = ledger.head().sequence;
    drop(ledger);
    assert_eq!(open(&directory).unwrap().head().sequence, sequence);
}

#[test]
fn two_handles_see_each_others_charges() {
    let directory = Directory::new();
    drop(create(&directory.ledger(), 1e6));
    let mut one = run(open(&directory).unwrap());
    let mut two = run(open(&directory).unwrap());
    for _ in 0..5 {
        one.reserve(&round(0.01, 1.0), 2).unwrap();
        two.reserve(&round(0.02, 1.0), 3).unwrap();
    }
    assert_eq!(charged(two.store().ledger()), 25);
    assert_eq!(charged(&Ledger::read(&directory.ledger()).unwrap()), 25);
}

#[test]
fn exports_import_with_equal_meaning_and_only_once() {
    let (here, there) = (Directory::new(), Directory::new());
    let mut first = run(create(&here.ledger(), 8.0));
    first.reserve(&round(0.01, 1.0), 5).unwrap();
    drop(first);
    let export = Ledger::read(&here.ledger()).unwrap().export().unwrap();
    // Into itself: nothing.
    let mut ledger = open(&here).unwrap();
    let sequence = ledger.head().sequence;
    assert_eq!(ledger.import(&export).unwrap().charged, 0);
    assert_eq!(ledger.head().sequence, sequence);
    drop(ledger);
    // Into another ledger: charged there, once.
    let mut other = run(create(&there.ledger(), 8.0));
    other.reserve(&round(0.02, 1.0), 3).unwrap();
    drop(other);
    let mut ledger = open(&there).unwrap();
    assert!(ledger.import(&export).unwrap().charged > 0);
    assert_eq!(ledger.import(&export).unwrap().charged, 0);
    assert_eq!(charged(&ledger), 8);
    drop(ledger);
    assert_eq!(charged(&Ledger::read(&there.ledger()).unwrap()), 8);
    // A changed line is refused, and nothing happens.
    let forged = export.replace("\\\"count\\\"", "\\\"count\\\" ").replacen('5', "4", 1);
    assert!(open(&there).unwrap().import(&forged).is_err());
    assert!(open(&there).unwrap().import("").is_err());
}

#[test]
fn branches_of_one_ledger_are_merged_by_charging_both() {
    let (here, there) = (Directory::new(), Directory::new());
    drop(create(&here.ledger(), 8.0));
    // Copy the ledger while nobody writes, then go on with both.
    copy_files(&here, &there);
    let mut one = run(open(&here).unwrap());
    one.reserve(&round(0.01, 1.0), 5).unwrap();
    let mut two = run(open(&there).unwrap());
    two.reserve(&round(0.01, 1.0), 7).unwrap();
    drop((one, two));
    let export = Ledger::read(&there.ledger()).unwrap().export().unwrap();
    let mut ledger = open(&here).unwrap();
    assert_eq!(ledger.import(&export).unwrap().charged, 2);
    assert_eq!(charged(&ledger), 12);
    assert_eq!(ledger.import(&export).unwrap().charged, 0);
}

#[test]
fn rollback_of_the_whole_directory_is_caught_by_a_published_head() {
    let (directory, backup) = (Directory::new(), Directory::new());
    let mut first = run(create(&directory.ledger(), 8.0));
    first.reserve(&round(0.01, 1.0), 5).unwrap();
    drop(first);
    let old: Head = open(&directory).unwrap().head().clone();
    copy_files(&directory, &backup);
    let mut second = run(open(&directory).unwrap());
    second.reserve(&round(0.01, 1.0), 5).unwrap();
    let published = second.store().ledger().head().clone();
    drop(second);
    let ledger = Ledger::read(&directory.ledger()).unwrap();
    assert!(ledger.contains(&old).is_ok() && ledger.contains(&published).is_ok());
    let rolled_back = Ledger::read(&backup.ledger()).unwrap();
    let error = rolled_back.contains(&published).unwrap_err().to_string();
    assert!(error.contains("rolled back"), "{error}");
    // An older database under a newer anchor is refused outright.
    std::fs::copy(Ledger::anchor_path(&directory.ledger()), Ledger::anchor_path(&backup.ledger()))
        .unwrap();
    let error = Ledger::read(&backup.ledger()).err().unwrap().to_string();
    assert!(error.contains("rows were lost"), "{error}");
}

#[test]
fn what_is_no_ledger_is_refused_with_a_reason_and_left_alone() {
    let directory = Directory::new();
    let path = directory.ledger();
    let refuse = |what: &str, path: &std::path::Path| {
        let error = Ledger::open(path, Options::default()).err().unwrap().to_string();
        assert!(error.contains(what), "{what}: {error}");
    };
    refuse("No such file", &path);
    refuse("is not a file", directory.path());
    std::fs::write(&path, "not a database, but long enough to be read as one".repeat(40)).unwrap();
    let before = std::fs::read(&path).unwrap();
    refuse("is no ledger", &path);
    assert_eq!(std::fs::read(&path).unwrap(), before);
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, "").unwrap();
    refuse("another program's", &path);
    std::fs::remove_file(&path).unwrap();
    drop(create(&path, 1.0));
    assert!(Ledger::create(&path, Options::default()).is_err());
    let anchor = Ledger::anchor_path(&path);
    let saved = std::fs::read(&anchor).unwrap();
    std::fs::remove_file(&anchor).unwrap();
    refuse("is missing", &path);
    std::fs::write(&anchor, vec![b' '; 1024]).unwrap();
    refuse("no slot", &path);
    std::fs::write(&anchor, saved).unwrap();
    assert!(Ledger::open(&path, Options::default()).is_ok());
}
