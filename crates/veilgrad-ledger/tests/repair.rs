//! Repairs of damaged ledgers never lower a charge.

use crate::common::{Directory, budget, charged, copy_files, create, header, open, round, run};
use veilgrad_accounting::Tightest;
use veilgrad_events::{Mode, Run};
use veilgrad_ledger::{Ledger, Options};

const NAMES: [&str; 3] = ["ledger.db", "ledger.db-wal", "ledger.db.anchor"];

fn files(directory: &Directory) -> Vec<Vec<u8>> {
    NAMES.map(|name| std::fs::read(directory.path().join(name)).unwrap_or_default()).into()
}

fn repair(directory: &Directory) -> (Ledger, veilgrad_ledger::Repaired) {
    let new = directory.path().join("new.db");
    let before = files(directory);
    let repaired = Ledger::repair(&directory.ledger(), &new, &Options::default()).unwrap();
    assert!(files(directory) == before, "the damaged files were changed");
    let ledger = Ledger::read(&new, Options::default()).unwrap();
    assert_eq!(ledger.head(), &repaired.head);
    assert_eq!(ledger.audit().unwrap(), [""; 0]);
    (ledger, repaired)
}

#[test]
fn old_and_new_files_in_any_mixture_never_lose_a_charge_by_repair() {
    let source = Directory::new();
    let mut charging = run(create(&source.ledger(), 1e3));
    let mut versions = vec![files(&source)];
    for _ in 0..40 {
        charging.reserve(&round(0.01, 1.0), 1).unwrap();
        versions.push(files(&source));
    }
    let (mut refused, mut complete, mut marked) = (0, 0, 0);
    let moments = [0, 1, 5, 15, 16, 17, 18, 33, 40];
    for anchor in moments {
        for log in moments {
            let directory = Directory::new();
            let state = [&versions[0][0], &versions[log][1], &versions[anchor][2]];
            for (name, bytes) in NAMES.iter().zip(state) {
                std::fs::write(directory.path().join(name), bytes).unwrap();
            }
            if Ledger::read(directory.ledger(), Options::default()).is_ok() {
                let new = directory.path().join("new.db");
                assert!(Ledger::repair(&directory.ledger(), &new, &Options::default()).is_err());
                continue;
            }
            refused += 1;
            let (ledger, repaired) = repair(&directory);
            let dataset = &ledger.state().datasets()["data"];
            match repaired.lost {
                // Everything granted when the anchor was written is there.
                None => assert!(charged(&ledger) >= anchor as u64, "{anchor} {log}"),
                Some(_) => assert!(dataset.insecure().is_some(), "{anchor} {log}"),
            }
            complete += u32::from(dataset.insecure().is_none());
            marked += u32::from(dataset.insecure().is_some());
        }
    }
    assert!(refused > 0 && marked > 0, "{refused} {complete} {marked}");
}

/// Breaks the checksum of the fifth frame of a WAL: SQLite ignores all frames from there on.
fn break_fifth_frame(log: &mut [u8]) {
    log[32 + 4 * (24 + 4096) + 16] ^= 1;
}

#[test]
fn rows_behind_a_broken_frame_of_the_log_are_salvaged() {
    let (source, directory) = (Directory::new(), Directory::new());
    let mut charging = run(create(&source.ledger(), 1e3));
    (0..24).for_each(|_| drop(charging.reserve(&round(0.01, 1.0), 1).unwrap()));
    copy_files(&source, &directory);
    let _ = std::fs::remove_file(directory.path().join("ledger.db-shm"));
    let log = directory.path().join("ledger.db-wal");
    let mut bytes = std::fs::read(&log).unwrap();
    break_fifth_frame(&mut bytes);
    std::fs::write(&log, bytes).unwrap();
    let error = Ledger::read(directory.ledger(), Options::default()).err().unwrap().to_string();
    assert!(error.contains("rows were lost"), "{error}");
    let (ledger, repaired) = repair(&directory);
    assert_eq!((repaired.lost, charged(&ledger)), (None, 24));
    assert!(repaired.salvaged > 0);
    assert_eq!(ledger.head(), charging.store().ledger().head());
}

#[test]
fn where_rows_are_lost_every_dataset_is_without_protection_and_none_begins() {
    let directory = Directory::new();
    run(create(&directory.ledger(), 8.0)).reserve(&round(0.01, 1.0), 5).unwrap();
    std::fs::remove_file(Ledger::anchor_path(&directory.ledger())).unwrap();
    let (ledger, repaired) = repair(&directory);
    assert!(repaired.lost.unwrap().contains("no anchor"));
    assert_eq!(charged(&ledger), 5);
    drop(ledger);
    let new = directory.path().join("new.db");
    let mut ledger = Ledger::open(&new, Options::default()).unwrap();
    let error = ledger.create_budget(budget("other", 1.0, Mode::Planned)).unwrap_err().to_string();
    assert!(error.contains("rows"), "{error}");
    assert!(run(ledger).reserve(&round(0.01, 1.0), 1).is_err());
    // A ledger that verifies is not repaired.
    let sound = Directory::new();
    drop(create(&sound.ledger(), 1.0));
    let again = sound.path().join("again.db");
    let error = Ledger::repair(&sound.ledger(), &again, &Options::default()).unwrap_err();
    assert!(error.to_string().contains("nothing to repair") && open(&sound).is_ok());
}

#[test]
fn a_spoiled_slot_proves_nothing_whatever_row_it_seems_to_name() {
    let source = Directory::new();
    let mut charging = run(create(&source.ledger(), 1e3));
    (0..24).for_each(|_| drop(charging.reserve(&round(0.01, 1.0), 1).unwrap()));
    let [database, mut log, anchor] = <[_; 3]>::try_from(files(&source)).unwrap();
    break_fifth_frame(&mut log);
    let end = format!("{:020}", charging.store().ledger().head().sequence);
    let place = anchor.windows(20).position(|text| text == end.as_bytes()).unwrap();
    let (mut lowered, mut blank) = (anchor.clone(), anchor.clone());
    lowered[place..place + 20].copy_from_slice(format!("{:020}", 1).as_bytes());
    let slot = place >> 15 << 15;
    blank[slot..anchor.len().min(slot + (1 << 15))].fill(0);
    for (anchor, complete) in [(anchor, true), (lowered, false), (blank, false)] {
        let directory = Directory::new();
        for (name, bytes) in NAMES.iter().zip([&database, &log, &anchor]) {
            std::fs::write(directory.path().join(name), bytes).unwrap();
        }
        let (ledger, repaired) = repair(&directory);
        assert_eq!(repaired.lost.is_none(), complete);
        assert_eq!(ledger.state().datasets()["data"].insecure().is_none(), complete);
    }
}

#[test]
fn a_damaged_backup_is_not_made_a_ledger_that_forgets_what_was_charged_since() {
    let directory = Directory::new();
    run(create(&directory.ledger(), 8.0)).reserve(&round(0.01, 1.0), 5).unwrap();
    let copy = directory.path().join("copy.db");
    let ledger = Ledger::read(directory.ledger(), Options::default()).unwrap();
    ledger.backup(&copy, &Options::default()).unwrap();
    std::fs::remove_file(Ledger::anchor_path(&copy)).unwrap();
    let new = directory.path().join("new.db");
    let error = Ledger::repair(&copy, &new, &Options::default()).unwrap_err().to_string();
    assert!(error.contains("is a backup") && !new.exists(), "{error}");
}

#[test]
fn a_stamp_of_lost_rows_counts_beside_other_stamps() {
    let directory = Directory::new();
    let store =
        create(&directory.ledger(), 8.0).dataset("data", std::sync::Arc::new(Tightest)).unwrap();
    drop(Run::open_insecure(store, header(), "seeded noise").unwrap());
    std::fs::remove_file(Ledger::anchor_path(&directory.ledger())).unwrap();
    drop(repair(&directory));
    let mut ledger = Ledger::open(directory.path().join("new.db"), Options::default()).unwrap();
    assert!(ledger.create_budget(budget("other", 1.0, Mode::Planned)).is_err());
    // An import cannot create a dataset either.
    let other = Directory::new();
    let mut source = create(&other.ledger(), 1.0);
    source.create_budget(budget("new", 1.0, Mode::Planned)).unwrap();
    assert!(ledger.import(&source.export().unwrap()).is_err());
}
