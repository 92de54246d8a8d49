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
    let again = Ledger::read(&directory.ledger(), Options::default()).unwrap();
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
    assert_eq!(
        charged(&Ledger::read(&directory.ledger(), Options::default()).unwrap()),
        granted + 1
    );
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
    assert_eq!(Ledger::read(&directory.ledger(), Options::default()).unwrap().head().sequence, 3);
}

#[test]
fn a_run_that_protects_nothing_is_noted_for_ever_and_charges_nothing() {
    let directory = Directory::new();
    let store = create(&directory.ledger(), 2.0).dataset("data", Arc::new(Best)).unwrap();
    let mut insecure = Run::open_insecure(store, header(), "seeded noise").unwrap();
    let refused = insecure.reserve(&round(0.01, 1.0), 1);
    assert!(matches!(refused, Err(LedgerError::BudgetExhausted(_))));
    insecure.close().unwrap();
    let ledger = Ledger::read(&directory.ledger(), Options::default()).unwrap();
    assert_eq!(ledger.state().datasets()["data"].insecure(), Some("seeded noise"));
}

#[test]
fn a_database_behind_its_anchor_is_completed_from_both_slots_or_refused() {
    let directory = Directory::new();
    let mut first = run(create(&directory.ledger(), 8.0));
    first.reserve(&round(0.01, 1.0), 5).unwrap();
    drop(first);
    let saved = std::fs::read(directory.ledger()).unwrap();
    let mut second = run(open(&directory).unwrap());
    second.reserve(&round(0.01, 1.0), 7).unwrap();
    // The database as it was before the second run, under the anchor of after.
    let wound = Directory::new();
    let wind_back = || {
        std::fs::write(wound.ledger(), &saved).unwrap();
        let anchor = Ledger::anchor_path(&directory.ledger());
        std::fs::copy(&anchor, Ledger::anchor_path(&wound.ledger())).unwrap();
    };
    wind_back();
    // One slot holds the opening of the run, the other its charge.
    let ledger = Ledger::read(&wound.ledger(), Options::default()).unwrap();
    assert_eq!((charged(&ledger), ledger.head()), (12, second.store().ledger().head()));
    assert!(ledger.contains(second.store().ledger().head()).is_ok());
    assert_eq!(ledger.export().unwrap().lines().count() as u64, ledger.head().sequence);
    drop(ledger);
    assert_eq!(charged(&open(&wound).unwrap()), 12);
    // Three rows are more than two slots hold.
    second.reserve(&round(0.01, 1.0), 1).unwrap();
    wind_back();
    let error = Ledger::read(&wound.ledger(), Options::default()).err().unwrap().to_string();
    assert!(error.contains("rows were lost"), "{error}");
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
    assert_eq!(charged(&Ledger::read(&directory.ledger(), Options::default()).unwrap()), 12);
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
    assert_eq!(charged(&Ledger::read(&directory.ledger(), Options::default()).unwrap()), 25);
}

#[test]
fn exports_import_with_equal_meaning_and_only_once() {
    let (here, there) = (Directory::new(), Directory::new());
    let mut first = run(create(&here.ledger(), 8.0));
    first.reserve(&round(0.01, 1.0), 5).unwrap();
    drop(first);
    let export = Ledger::read(&here.ledger(), Options::default()).unwrap().export().unwrap();
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
    assert_eq!(charged(&Ledger::read(&there.ledger(), Options::default()).unwrap()), 8);
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
    let export = Ledger::read(&there.ledger(), Options::default()).unwrap().export().unwrap();
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
    second.reserve(&round(0.01, 1.0), 5).unwrap();
    let published = second.store().ledger().head().clone();
    drop(second);
    let ledger = Ledger::read(&directory.ledger(), Options::default()).unwrap();
    assert!(ledger.contains(&old).is_ok() && ledger.contains(&published).is_ok());
    let rolled_back = Ledger::read(&backup.ledger(), Options::default()).unwrap();
    let error = rolled_back.contains(&published).unwrap_err().to_string();
    assert!(error.contains("rolled back"), "{error}");
    // Charged past the head that was published, it is another branch.
    let forked = Directory::new();
    copy_files(&backup, &forked);
    let mut other = run(open(&forked).unwrap());
    (0..4).for_each(|_| drop(other.reserve(&round(0.01, 1.0), 1).unwrap()));
    let error = other.store().ledger().contains(&published).unwrap_err().to_string();
    assert!(error.contains("another branch"), "{error}");
    // An older database under a newer anchor is refused outright.
    drop(rolled_back);
    std::fs::copy(Ledger::anchor_path(&directory.ledger()), Ledger::anchor_path(&backup.ledger()))
        .unwrap();
    let error = Ledger::read(&backup.ledger(), Options::default()).err().unwrap().to_string();
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
    refuse("is empty", &path);
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

#[test]
fn files_that_are_no_ledgers_get_no_company() {
    let directory = Directory::new();
    let foreign = directory.path().join("foreign.db");
    let made = rusqlite::Connection::open(&foreign).unwrap();
    made.execute_batch("CREATE TABLE t (x); INSERT INTO t VALUES (1)").unwrap();
    drop(made);
    let empty = directory.path().join("empty.db");
    std::fs::write(&empty, "").unwrap();
    let future = directory.path().join("future.db");
    let made = rusqlite::Connection::open(&future).unwrap();
    made.execute_batch(
        "PRAGMA application_id = 0x5665694c; PRAGMA user_version = 2; CREATE TABLE t (x)",
    )
    .unwrap();
    drop(made);
    for (path, why) in
        [(foreign, "another program's"), (empty, "is empty"), (future, "has schema 2")]
    {
        let before = std::fs::read(&path).unwrap();
        for result in
            [Ledger::open(&path, Options::default()), Ledger::read(&path, Options::default())]
        {
            let error = result.err().unwrap().to_string();
            assert!(error.contains(why), "{error}");
        }
        assert_eq!(std::fs::read(&path).unwrap(), before);
    }
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 3);
}

#[test]
fn a_creation_that_was_cut_short_is_done_again() {
    let directory = Directory::new();
    let (path, anchor) = (directory.ledger(), Ledger::anchor_path(&directory.ledger()));
    let building = directory.path().join("ledger.db.creating");
    std::fs::write(&building, "SQLite format 3\0 and so on").unwrap();
    std::fs::write(&anchor, "veilgrad-anch").unwrap();
    let error = open(&directory).err().unwrap().to_string();
    assert!(error.contains("No such file"), "{error}");
    drop(create(&path, 1.0));
    assert!(!building.exists());
    assert_eq!(Ledger::read(&path, Options::default()).unwrap().head().sequence, 2);
    // A database that is gone is not one that never was.
    std::fs::remove_file(&path).unwrap();
    let error = Ledger::create(&path, Options::default()).err().unwrap().to_string();
    assert!(error.contains("without its database"), "{error}");
    assert!(anchor.exists());
}

#[test]
fn a_creation_takes_nothing_that_may_be_somebody_elses() {
    // What lies there, and under which ends of the name.
    let charged = {
        let directory = Directory::new();
        run(create(&directory.ledger(), 8.0)).reserve(&round(0.01, 1.0), 5).unwrap();
        std::fs::read(Ledger::anchor_path(&directory.ledger())).unwrap()
    };
    let half = b"SQLite format 3\0".to_vec();
    for files in [
        vec![(".creating", b"a letter to a friend".to_vec())],
        vec![(".creating", half.clone()), (".anchor", b"a letter".to_vec())],
        vec![(".creating", half), (".anchor", charged)],
        vec![("-wal", vec![0; 40])],
        vec![("-journal", vec![0; 40])],
    ] {
        let directory = Directory::new();
        let name = |end: &str| directory.path().join(format!("ledger.db{end}"));
        files.iter().for_each(|(end, bytes)| std::fs::write(name(end), bytes).unwrap());
        assert!(Ledger::create(&directory.ledger(), Options::default()).is_err());
        for (end, bytes) in &files {
            assert!(std::fs::read(name(end)).unwrap() == *bytes, "{end}");
        }
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), files.len());
    }
    let directory = Directory::new();
    std::os::unix::fs::symlink("nowhere", directory.ledger()).unwrap();
    assert!(Ledger::create(&directory.ledger(), Options::default()).is_err());
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
}

#[test]
fn a_ledger_that_is_refused_keeps_its_log() {
    let (directory, left) = (Directory::new(), Directory::new());
    let mut run = run(create(&directory.ledger(), 80.0));
    (0..40).for_each(|_| drop(run.reserve(&round(0.01, 1.0), 1).unwrap()));
    // As a writer that was killed leaves it, with one byte of the log altered.
    copy_files(&directory, &left);
    drop(run);
    let log = left.path().join("ledger.db-wal");
    let mut bytes = std::fs::read(&log).unwrap();
    bytes[20_000] ^= 1;
    std::fs::write(&log, &bytes).unwrap();
    let before = std::fs::read(left.ledger()).unwrap();
    assert!(open(&left).is_err());
    assert!(
        std::fs::read(&log).unwrap() == bytes && std::fs::read(left.ledger()).unwrap() == before
    );
}

#[test]
fn a_handle_that_failed_to_write_writes_nothing_more() {
    let directory = Directory::new();
    let mut ledger = create(&directory.ledger(), 8.0);
    let other = rusqlite::Connection::open(directory.ledger()).unwrap();
    other
        .execute_batch(
            "CREATE TRIGGER broken BEFORE INSERT ON event BEGIN SELECT RAISE(ABORT, 'broken'); END",
        )
        .unwrap();
    let lower = |ledger: &mut Ledger, epsilon| {
        ledger.tighten("data", Epsilon::new(epsilon).unwrap()).map_err(|error| error.to_string())
    };
    assert!(lower(&mut ledger, 5.0).unwrap_err().contains("broken"));
    other.execute_batch("DROP TRIGGER broken").unwrap();
    assert!(lower(&mut ledger, 4.0).unwrap_err().contains("open the ledger again"));
    // The anchor had the row: it counts.
    drop((ledger, other));
    assert_eq!(open(&directory).unwrap().state().datasets()["data"].budget.epsilon.get(), 5.0);
}

#[test]
fn links_lead_to_the_ledger_and_not_around_its_checks() {
    let (directory, elsewhere) = (Directory::new(), Directory::new());
    drop(create(&directory.ledger(), 8.0));
    std::os::unix::fs::symlink(directory.ledger(), elsewhere.ledger()).unwrap();
    let mut run = run(open(&elsewhere).unwrap());
    run.reserve(&round(0.01, 1.0), 5).unwrap();
    std::fs::remove_file(directory.path().join("ledger.db-wal")).unwrap();
    let error = run.reserve(&round(0.01, 1.0), 5).err().unwrap().to_string();
    assert!(error.contains("replaced"), "{error}");
}

#[test]
fn a_head_that_does_not_fit_its_rows_is_refused() {
    let directory = Directory::new();
    run(create(&directory.ledger(), 8.0)).reserve(&round(0.01, 1.0), 5).unwrap();
    let database = rusqlite::Connection::open(directory.ledger()).unwrap();
    database
        .execute_batch(
            "UPDATE head SET sequence = 2, hash = (SELECT hash FROM event WHERE sequence = 2)",
        )
        .unwrap();
    drop(database);
    let error = open(&directory).err().unwrap().to_string();
    assert!(error.contains("its head is row 2"), "{error}");
}

/// The export of a ledger of these rows.
fn export_of(rows: &[String]) -> String {
    let mut hash = veilgrad_ledger::Hash::default();
    let mut text = String::new();
    for (sequence, bytes) in (1..).zip(rows) {
        hash = hash.after(bytes.as_bytes());
        let line = veilgrad_ledger::Line { sequence, hash: hash.to_string(), bytes: bytes.clone() };
        text.push_str(&serde_json::to_string(&line).unwrap());
        text.push('\n');
    }
    text
}

fn rows_of(export: &str) -> Vec<veilgrad_ledger::Line> {
    export.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn what_somebody_claims_to_have_imported_does_not_keep_the_real_rows_out() {
    let (here, there) = (Directory::new(), Directory::new());
    run(create(&there.ledger(), 8.0)).reserve(&round(0.01, 1.0), 5).unwrap();
    let real = Ledger::read(&there.ledger(), Options::default()).unwrap();
    let (id, export) = (real.head().id.clone(), real.export().unwrap());
    let mut forged = vec![format!(r#"{{"kind":"create","id":"{}"}}"#, "a".repeat(32))];
    for line in rows_of(&export) {
        let entry = r#"{"kind":"recovered","anchored":0}"#;
        let hash = line.hash;
        forged.push(format!(
            r#"{{"kind":"import","source":"{id}","hash":"{hash}","entry":{entry}}}"#
        ));
    }
    let mut ledger = create(&here.ledger(), 8.0);
    ledger.import(&export_of(&forged)).unwrap();
    ledger.import(&export).unwrap();
    assert_eq!(charged(&ledger), 5);
    assert_eq!(ledger.import(&export).unwrap().charged, 0);
    // An accountant that reads the store sees them, too.
    let store = ledger.dataset("data", Arc::new(Best)).unwrap();
    let mut seen = 0;
    veilgrad_events::LedgerStore::visit(&store, &mut |event| {
        if let veilgrad_events::Event::Reserve(reservation) = event {
            seen += reservation.charge.count;
        }
    })
    .unwrap();
    assert_eq!(seen, 5);
}

#[test]
fn the_smaller_of_two_budgets_is_kept_and_another_unit_refused() {
    let directories = [Directory::new(), Directory::new(), Directory::new()];
    let [large, small, user] = &directories;
    let mut ledger = create(&large.ledger(), 8.0);
    ledger.import(&create(&small.ledger(), 1.0).export().unwrap()).unwrap();
    assert_eq!(ledger.state().datasets()["data"].budget.epsilon.get(), 1.0);
    let mut users = Ledger::create(&user.ledger(), Options::default()).unwrap();
    let mut terms = budget("data", 1.0, Mode::Planned);
    terms.unit = RecordUnit::User;
    users.create_budget(terms).unwrap();
    let error = ledger.import(&users.export().unwrap()).err().unwrap().to_string();
    assert!(error.contains("another unit"), "{error}");
}

#[test]
fn a_branch_that_ended_a_run_does_not_end_it_here() {
    let (here, there) = (Directory::new(), Directory::new());
    let mut going = run(create(&here.ledger(), 8.0));
    going.reserve(&round(0.01, 1.0), 3).unwrap();
    copy_files(&here, &there);
    let rows =
        rows_of(&Ledger::read(&there.ledger(), Options::default()).unwrap().export().unwrap());
    let mut branch: Vec<String> = rows.into_iter().map(|line| line.bytes).collect();
    let opening = branch[branch.len() - 2].clone();
    let end = opening.find(r#""event":{"#).unwrap();
    branch.push(format!("{}\"event\":{{\"event\":\"close\"}}}}", &opening[..end]));
    open(&here).unwrap().import(&export_of(&branch)).unwrap();
    going.reserve(&round(0.01, 1.0), 3).unwrap();
    going.close().unwrap();
}

#[test]
fn rows_that_break_the_rules_are_refused_wherever_they_come_from() {
    let directory = Directory::new();
    let mut ledger = create(&directory.ledger(), 8.0);
    let mut planned = header();
    planned.plan = Some(vec![Rounds { count: 1, round: round(0.01, 9.0) }]);
    let store = open(&directory).unwrap().dataset("data", Arc::new(Best)).unwrap();
    let mut run = Run::open(store, planned).unwrap();
    run.reserve(&round(0.01, 9.0), 1).unwrap();
    let rows = rows_of(&run.store().ledger().export().unwrap());
    let rows: Vec<String> = rows.into_iter().map(|line| line.bytes).collect();
    let last = rows.len() - 1;
    let fixed = r#""sampling":{"policy":"fixed","records":100,"batch":10}"#;
    let sampling = rows[last].find(r#""sampling":"#).unwrap();
    let queries = rows[last].find(r#","queries""#).unwrap();
    let counting = format!("{}{fixed}{}", &rows[last][..sampling], &rows[last][queries..]);
    let id = rows[0].clone();
    for (place, row, why) in [
        (last, rows[last].replace(r#""rounds":1"#, r#""rounds":7"#), "plan"),
        (last, counting, "private"),
        (0, id.replace(r#""id":""#, r#""id":"x"#), "32 hexadecimal"),
        (last, id.clone(), "the first row, and no other"),
        (2, rows[2].replace(r#""code_version":""#, r#""code_version":"\u001b"#), "control"),
    ] {
        let mut broken = rows.clone();
        broken[place] = row;
        let new = Directory::new();
        let error = Ledger::restore(&new.ledger(), &export_of(&broken), Options::default());
        let error = error.err().unwrap().to_string();
        assert!(error.contains(why), "{why}: {error}");
        assert_eq!(std::fs::read_dir(new.path()).unwrap().count(), 0);
    }
    assert!(ledger.import(&export_of(&rows)).is_ok());
}

#[test]
fn a_handle_whose_files_were_replaced_charges_nothing() {
    for name in ["ledger.db", "ledger.db-wal", "ledger.db.anchor"] {
        for keep in [true, false] {
            let directory = Directory::new();
            let mut run = run(create(&directory.ledger(), 8.0));
            run.reserve(&round(0.01, 1.0), 5).unwrap();
            let file = directory.path().join(name);
            let bytes = std::fs::read(&file).unwrap();
            std::fs::remove_file(&file).unwrap();
            if keep {
                // The old file stays open, so that this is another one.
                std::fs::write(&file, bytes).unwrap();
            }
            let error = run.reserve(&round(0.01, 1.0), 5).err().unwrap().to_string();
            assert!(error.contains("replaced"), "{name}: {error}");
            assert_eq!(run.reserve(&round(0.01, 1.0), 5).err(), Some(LedgerError::Poisoned));
        }
    }
}

#[test]
fn an_anchor_of_another_branch_is_refused() {
    let (here, there) = (Directory::new(), Directory::new());
    drop(create(&here.ledger(), 8.0));
    copy_files(&here, &there);
    for (directory, count) in [(&here, 2), (&there, 1)] {
        let mut run = run(open(directory).unwrap());
        (0..count).for_each(|_| drop(run.reserve(&round(0.01, 1.0), 5).unwrap()));
    }
    let (one, two) = (Ledger::anchor_path(&here.ledger()), Ledger::anchor_path(&there.ledger()));
    std::fs::copy(one, two).unwrap();
    let before = std::fs::read(there.ledger()).unwrap();
    let error = open(&there).err().unwrap().to_string();
    assert!(error.contains("is not the one that was anchored"), "{error}");
    assert_eq!(std::fs::read(there.ledger()).unwrap(), before);
}

#[test]
fn merges_are_merged_again_and_every_run_is_charged_once() {
    let branches = [Directory::new(), Directory::new(), Directory::new()];
    let [one, two, three] = &branches;
    // A run that all branches have and go on with, one that each opens for itself.
    drop(create(&one.ledger(), 80.0));
    copy_files(one, two);
    copy_files(one, three);
    for (directory, rounds) in branches.iter().zip([1, 10, 100]) {
        let mut run = run(open(directory).unwrap());
        run.reserve(&round(0.01, 1.0), rounds).unwrap();
        run.close().unwrap();
    }
    let export = |directory: &Directory| {
        Ledger::read(&directory.ledger(), Options::default()).unwrap().export().unwrap()
    };
    open(one).unwrap().import(&export(two)).unwrap();
    assert_eq!(charged(&open(one).unwrap()), 11);
    // The merge into the third, and the second once more by itself.
    open(three).unwrap().import(&export(one)).unwrap();
    assert_eq!(charged(&open(three).unwrap()), 111);
    assert_eq!(open(three).unwrap().import(&export(two)).unwrap().charged, 0);
    // And back to where it began.
    open(one).unwrap().import(&export(three)).unwrap();
    assert_eq!(charged(&open(one).unwrap()), 111);
    let ledger = open(one).unwrap();
    assert_eq!(ledger.state().datasets()["data"].runs.len(), 3);
}

#[test]
fn what_a_branch_charged_to_a_run_that_is_closed_here_is_charged_here() {
    let (here, there) = (Directory::new(), Directory::new());
    let mut both = run(create(&here.ledger(), 8.0));
    both.reserve(&round(0.01, 1.0), 3).unwrap();
    // The same run goes on in a copy, as after a crash, and ends here.
    copy_files(&here, &there);
    both.close().unwrap();
    let other = rusqlite::Connection::open(there.ledger()).unwrap();
    append_by_hand(&other);
    let text = export_by_hand(&other);
    let mut ledger = open(&here).unwrap();
    assert_eq!(ledger.import(&text).unwrap().charged, 1);
    assert_eq!(charged(&ledger), 6);
}

/// Repeats the last row, a charge, with another nonce.
fn append_by_hand(database: &rusqlite::Connection) {
    let (sequence, bytes, hash): (i64, Vec<u8>, Vec<u8>) = database
        .query_row("SELECT * FROM event ORDER BY sequence DESC LIMIT 1", [], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?))
        })
        .unwrap();
    let text = String::from_utf8(bytes).unwrap();
    let nonce = text.find("\"nonce\":\"").unwrap() + 9;
    let text = format!("{}{}{}", &text[..nonce], "f".repeat(32), &text[nonce + 32..]);
    let previous: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    let next = previous.parse::<veilgrad_ledger::Hash>().unwrap().after(text.as_bytes());
    let next: Vec<u8> = (0..32)
        .map(|i| u8::from_str_radix(&next.to_string()[2 * i..2 * i + 2], 16).unwrap())
        .collect();
    database
        .execute(
            "INSERT INTO event VALUES (?1, ?2, ?3)",
            rusqlite::params![sequence + 1, text.into_bytes(), next],
        )
        .unwrap();
}

fn export_by_hand(database: &rusqlite::Connection) -> String {
    let mut statement = database.prepare("SELECT * FROM event ORDER BY sequence").unwrap();
    let rows = statement.query_map([], |row| {
        let hash: Vec<u8> = row.get(2)?;
        let line = veilgrad_ledger::Line {
            sequence: row.get::<_, i64>(0)? as u64,
            hash: hash.iter().map(|byte| format!("{byte:02x}")).collect(),
            bytes: String::from_utf8(row.get(1)?).unwrap(),
        };
        Ok(serde_json::to_string(&line).unwrap() + "\n")
    });
    rows.unwrap().map(Result::unwrap).collect()
}

#[test]
fn a_forked_child_has_nothing_of_its_parents_rights() {
    let directory = Directory::new();
    let mut run = run(create(&directory.ledger(), 8.0));
    let mut permits = run.reserve(&round(0.01, 1.0), 2).unwrap();
    let mut ledger = open(&directory).unwrap();
    match fork::fork().unwrap() {
        fork::Fork::Child => {
            let charged = run.reserve(&round(0.01, 1.0), 1).err() == Some(LedgerError::Forked);
            let permit = permits.next().is_some_and(|permit| !permit.is_of_this_process());
            let lowered = ledger.tighten("data", Epsilon::new(1.0).unwrap());
            let lowered = lowered.is_err_and(|error| error.to_string().contains("forked"));
            let code = if charged && permit && lowered { 0 } else { 1 };
            // Without the destructors of its parent's handles.
            std::process::exit(code);
        }
        fork::Fork::Parent(child) => {
            assert_eq!(fork::waitpid(child).unwrap(), 0);
        }
    }
    assert!(permits.next().unwrap().is_of_this_process());
    run.reserve(&round(0.01, 1.0), 1).unwrap();
    assert_eq!(charged(&Ledger::read(&directory.ledger(), Options::default()).unwrap()), 3);
}

#[test]
fn a_run_whose_plan_does_not_fit_is_not_opened() {
    let directory = Directory::new();
    drop(create(&directory.ledger(), 2.0));
    let planned = |plan: Vec<Rounds>| {
        let store = open(&directory).unwrap().dataset("data", Arc::new(Best)).unwrap();
        let mut header = header();
        header.plan = Some(plan);
        Run::open(store, header)
    };
    let rounds = |count, q| Rounds { count, round: round(q, 1.0) };
    let refused = planned(vec![rounds(1_000_000, 0.05)]);
    assert!(matches!(refused, Err(LedgerError::BudgetExhausted(_))));
    assert_eq!(open(&directory).unwrap().state().datasets()["data"].runs.len(), 0);
    // What was declared is charged in its order, in any blocks, and nothing else.
    let mut run = planned(vec![rounds(3, 0.01), rounds(2, 0.02)]).unwrap();
    assert_eq!(run.reserve(&round(0.02, 1.0), 1).err(), Some(LedgerError::NotPlanned(0)));
    assert_eq!(run.reserve(&round(0.01, 1.0), 4).err(), Some(LedgerError::NotPlanned(0)));
    run.reserve(&round(0.01, 1.0), 2).unwrap();
    run.reserve_each(&[rounds(1, 0.01), rounds(1, 0.02)]).unwrap();
    assert_eq!(run.reserve(&round(0.02, 1.0), 2).err(), Some(LedgerError::NotPlanned(4)));
    run.reserve(&round(0.02, 1.0), 1).unwrap();
    assert_eq!(run.reserve(&round(0.02, 1.0), 1).err(), Some(LedgerError::NotPlanned(5)));
    run.close().unwrap();
    assert_eq!(charged(&open(&directory).unwrap()), 5);
}
