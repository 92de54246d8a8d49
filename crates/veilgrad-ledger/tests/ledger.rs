//! Charges, recovery, refusals.

use crate::common::{Directory, charged, copy_files, create, header, open, round, run};
use veilgrad_events::{Epsilon, LedgerError, Rounds, Run, check_ledger_store};
use veilgrad_ledger::{Head, Ledger, Options};

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
    let again = Ledger::read(directory.ledger(), Options::default()).unwrap();
    assert_eq!((again.head(), charged(&again)), (&head, 68));
    let dataset = &again.state().datasets()["data"];
    let state = dataset.runs.values().next().unwrap();
    // Identical consecutive rounds are one entry.
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
    // A closed run accepts nothing more, so the check gets another run.
    Run::open(&mut store, header()).unwrap().reserve(&round(0.01, 1.0), 1).unwrap();
    check_ledger_store(&mut store, &round(0.01, 1.0)).unwrap();
}

#[test]
fn a_database_behind_its_anchor_is_completed_from_it_or_refused() {
    let directory = Directory::new();
    let mut first = run(create(&directory.ledger(), 8.0));
    first.reserve(&round(0.01, 1.0), 5).unwrap();
    drop(first);
    let saved = std::fs::read(directory.ledger()).unwrap();
    let mut second = run(open(&directory).unwrap());
    second.reserve(&round(0.01, 1.0), 7).unwrap();
    // The database from before the second run, with the anchor from after it.
    let wound = Directory::new();
    let wind_back = || {
        std::fs::write(wound.ledger(), &saved).unwrap();
        let anchor = Ledger::anchor_path(&directory.ledger());
        std::fs::copy(&anchor, Ledger::anchor_path(&wound.ledger())).unwrap();
    };
    wind_back();
    // The anchor holds the opening of the run and its charge.
    let ledger = Ledger::read(wound.ledger(), Options::default()).unwrap();
    assert_eq!((charged(&ledger), ledger.head()), (12, second.store().ledger().head()));
    assert!(ledger.contains(second.store().ledger().head()).is_ok());
    assert_eq!(ledger.export().unwrap().lines().count() as u64, ledger.head().sequence + 1);
    drop(ledger);
    assert_eq!(charged(&open(&wound).unwrap()), 12);
    // More rows than the anchor holds.
    (0..20).for_each(|_| drop(second.reserve(&round(0.01, 1.0), 1).unwrap()));
    wind_back();
    let error = Ledger::read(wound.ledger(), Options::default()).err().unwrap().to_string();
    assert!(error.contains("rows were lost"), "{error}");
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
    // Reading shows all rows; writing adds a `recovered` row.
    assert_eq!(charged(&Ledger::read(directory.ledger(), Options::default()).unwrap()), 12);
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
    assert_eq!(charged(&Ledger::read(directory.ledger(), Options::default()).unwrap()), 25);
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
    (0..20).for_each(|_| drop(second.reserve(&round(0.01, 1.0), 5).unwrap()));
    let published = second.store().ledger().head().clone();
    drop(second);
    let ledger = Ledger::read(directory.ledger(), Options::default()).unwrap();
    assert!(ledger.contains(&old).is_ok() && ledger.contains(&published).is_ok());
    let rolled_back = Ledger::read(backup.ledger(), Options::default()).unwrap();
    let error = rolled_back.contains(&published).unwrap_err().to_string();
    assert!(error.contains("rolled back"), "{error}");
    // Charged beyond the published head, it is another branch.
    let forked = Directory::new();
    copy_files(&backup, &forked);
    let mut other = run(open(&forked).unwrap());
    (0..21).for_each(|_| drop(other.reserve(&round(0.01, 1.0), 1).unwrap()));
    let error = other.store().ledger().contains(&published).unwrap_err().to_string();
    assert!(error.contains("another branch"), "{error}");
    // An older database under a newer anchor that cannot complete it is refused outright.
    drop(rolled_back);
    std::fs::copy(Ledger::anchor_path(&directory.ledger()), Ledger::anchor_path(&backup.ledger()))
        .unwrap();
    let error = Ledger::read(backup.ledger(), Options::default()).err().unwrap().to_string();
    assert!(error.contains("rows were lost"), "{error}");
}

#[test]
fn files_that_are_not_ledgers_are_refused_with_a_reason_and_not_changed() {
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
    refuse("is not a ledger", &path);
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
fn no_file_is_created_next_to_files_that_are_not_ledgers() {
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
fn an_interrupted_creation_is_started_over() {
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
    // A removed database is not mistaken for one that never existed.
    std::fs::remove_file(&path).unwrap();
    let error = Ledger::create(&path, Options::default()).err().unwrap().to_string();
    assert!(error.contains("without its database"), "{error}");
    assert!(anchor.exists());
}

#[test]
fn a_creation_never_overwrites_files_of_others() {
    // The existing file, and the suffixes under which it is tried.
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
        assert!(Ledger::create(directory.ledger(), Options::default()).is_err());
        for (end, bytes) in &files {
            assert!(std::fs::read(name(end)).unwrap() == *bytes, "{end}");
        }
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), files.len());
    }
    let directory = Directory::new();
    std::os::unix::fs::symlink("nowhere", directory.ledger()).unwrap();
    assert!(Ledger::create(directory.ledger(), Options::default()).is_err());
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
}

#[test]
fn a_ledger_that_is_refused_keeps_its_log() {
    let (directory, left) = (Directory::new(), Directory::new());
    let mut run = run(create(&directory.ledger(), 80.0));
    (0..40).for_each(|_| drop(run.reserve(&round(0.01, 1.0), 1).unwrap()));
    // As a killed writer leaves it, with one byte of the WAL altered.
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
    // The database refused the row, so the anchor was not written.
    drop((ledger, other));
    assert_eq!(open(&directory).unwrap().state().datasets()["data"].budget.epsilon.get(), 8.0);
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
                // The old file stays open, so that the new one has another inode.
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
