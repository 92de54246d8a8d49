//! Problems that opening tolerates and an audit reports.

use std::os::unix::fs::symlink;

use crate::common::{Directory, charged, create, open, round, run};
use veilgrad_ledger::{Ledger, Options};

fn read(directory: &Directory) -> Ledger {
    Ledger::read(directory.ledger(), Options::default()).unwrap()
}

#[test]
fn a_creation_follows_no_link_and_takes_no_file_with_another_name() {
    let foreign = Directory::new();
    let database = foreign.path().join("foreign.db");
    let made = rusqlite::Connection::open(&database).unwrap();
    made.execute_batch("CREATE TABLE t (x); INSERT INTO t VALUES (1)").unwrap();
    drop(made);
    let ledger = foreign.path().join("ledger.db");
    drop(create(&ledger, 1.0));
    for target in [&database, &ledger] {
        let before = std::fs::read(target).unwrap();
        for linked in [true, false] {
            let directory = Directory::new();
            let building = directory.path().join("ledger.db.creating");
            if linked {
                symlink(target, &building).unwrap();
            } else {
                std::fs::hard_link(target, &building).unwrap();
            }
            let error = Ledger::create(directory.ledger(), Options::default()).err().unwrap();
            let why = if linked { "symbolic link" } else { "another name" };
            assert!(error.to_string().contains(why), "{error}");
            assert!(std::fs::read(target).unwrap() == before);
            assert!(building.symlink_metadata().is_ok() && !directory.ledger().exists());
        }
    }
    // The database of another program is not an unfinished ledger, even under that name.
    let directory = Directory::new();
    let building = directory.path().join("ledger.db.creating");
    std::fs::copy(&database, &building).unwrap();
    assert!(Ledger::create(directory.ledger(), Options::default()).is_err());
    assert!(std::fs::read(&building).unwrap() == std::fs::read(&database).unwrap());
}

#[test]
fn an_anchor_that_is_a_link_is_neither_followed_nor_cleared_away() {
    let (directory, elsewhere) = (Directory::new(), Directory::new());
    drop(create(&directory.ledger(), 1.0));
    let anchor = Ledger::anchor_path(&directory.ledger());
    let moved = elsewhere.path().join("anchor");
    std::fs::rename(&anchor, &moved).unwrap();
    symlink(&moved, &anchor).unwrap();
    let error = open(&directory).err().unwrap().to_string();
    assert!(error.contains("symbolic link"), "{error}");
    // Next to an unfinished creation, too.
    let unfinished = Directory::new();
    std::fs::write(unfinished.path().join("ledger.db.creating"), "").unwrap();
    let target = elsewhere.path().join("empty");
    std::fs::write(&target, "").unwrap();
    let link = Ledger::anchor_path(&unfinished.ledger());
    symlink(&target, &link).unwrap();
    assert!(Ledger::create(unfinished.ledger(), Options::default()).is_err());
    assert!(link.symlink_metadata().is_ok() && target.exists());
}

#[test]
fn missing_altered_and_additional_triggers_are_noticed() {
    for (change, why) in [
        ("DROP TRIGGER event_delete", "trigger event_delete is missing"),
        (
            "DROP TRIGGER event_update; CREATE TRIGGER event_update BEFORE UPDATE ON event \
             BEGIN SELECT 1; END",
            "trigger event_update was altered",
        ),
        (
            "CREATE TRIGGER more BEFORE INSERT ON event BEGIN SELECT RAISE(IGNORE); END",
            "a trigger more",
        ),
        ("CREATE TABLE more (x)", "a table more"),
    ] {
        let directory = Directory::new();
        drop(create(&directory.ledger(), 1.0));
        assert_eq!(read(&directory).audit().unwrap(), [""; 0]);
        let database = rusqlite::Connection::open(directory.ledger()).unwrap();
        database.execute_batch(change).unwrap();
        drop(database);
        let error = read(&directory).audit().unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
}

#[test]
fn a_spoiled_slot_is_reported_and_the_ledger_still_opens() {
    let directory = Directory::new();
    let mut run = run(create(&directory.ledger(), 8.0));
    let anchor = Ledger::anchor_path(&directory.ledger());
    for charges in 1..=2u64 {
        run.reserve(&round(0.01, 1.0), 1).unwrap();
        let good = std::fs::read(&anchor).unwrap();
        for slot in 0..2 {
            let mut bytes = good.clone();
            bytes[slot * (1 << 15) + 100] ^= 1;
            std::fs::write(&anchor, &bytes).unwrap();
            let warnings = read(&directory).audit().unwrap();
            assert_eq!(warnings.len(), 1, "{warnings:?}");
            assert!(warnings[0].contains("which the ledger has"), "{warnings:?}");
            assert_eq!(charged(&read(&directory)), charges);
            // A slot of zeros within the file was written, too.
            let end = good.len().min((slot + 1) << 15);
            bytes[slot << 15..end].fill(0);
            std::fs::write(&anchor, &bytes).unwrap();
            let warnings = read(&directory).audit().unwrap();
            assert!(warnings.len() == 1 && warnings[0].contains("cannot be read"), "{warnings:?}");
        }
        std::fs::write(&anchor, good).unwrap();
    }
}

#[test]
fn a_spoiled_newer_slot_over_an_older_database_is_reported() {
    let (directory, left) = (Directory::new(), Directory::new());
    let mut run = run(create(&directory.ledger(), 8.0));
    run.reserve(&round(0.01, 1.0), 1).unwrap();
    crate::common::copy_files(&directory, &left);
    run.reserve(&round(0.01, 1.0), 1).unwrap();
    let end = run.store().ledger().head().sequence;
    // The older database, and the newer anchor with its newer slot spoiled.
    let mut bytes = std::fs::read(Ledger::anchor_path(&directory.ledger())).unwrap();
    let text = |slot: usize| String::from_utf8_lossy(&bytes[slot << 15..][..256]).into_owned();
    let newer = usize::from(text(1).contains(&format!("{end:020}")));
    assert!(text(newer).contains(&format!("{end:020}")));
    bytes[(newer << 15) + 120] ^= 1;
    std::fs::write(Ledger::anchor_path(&left.ledger()), &bytes).unwrap();
    let ledger = read(&left);
    assert_eq!(charged(&ledger), 1);
    let warnings = ledger.audit().unwrap();
    assert!(
        warnings[0].contains(&format!("to name row {end}, and the ledger ends")),
        "{warnings:?}"
    );
    drop(ledger);
    // An ordinary crash may look the same: the ledger opens, and the next charge rewrites the slot.
    let mut run = crate::common::run(open(&left).unwrap());
    run.reserve(&round(0.01, 1.0), 1).unwrap();
    drop(run);
    assert_eq!(read(&left).audit().unwrap(), [""; 0]);
}
