//! Altered rows, hashes and anchors that only one check detects.

use crate::common::{Directory, create, open, round, run};
use veilgrad_events::{Event, LedgerStore};
use veilgrad_ledger::Ledger;

/// Runs SQL on a closed ledger, after dropping the triggers that protect its rows.
fn alter(directory: &Directory, statements: &str) {
    let database = rusqlite::Connection::open(directory.ledger()).unwrap();
    database.execute_batch("DROP TRIGGER event_update; DROP TRIGGER event_delete").unwrap();
    database.execute_batch(statements).unwrap();
}

/// Published heads are compared with the stored hash, so a wrong one could match a head that this ledger never had.
#[test]
fn a_row_with_the_hash_of_another_row_is_refused() {
    let directory = Directory::new();
    let mut charging = run(create(&directory.ledger(), 8.0));
    charging.reserve(&round(0.01, 1.0), 5).unwrap();
    drop(charging);
    alter(
        &directory,
        "UPDATE event SET hash = (SELECT hash FROM event WHERE sequence = 2) WHERE sequence = 3",
    );
    let error = open(&directory).err().unwrap().to_string();
    assert!(error.contains("row 3 does not have its hash"), "{error}");
}

/// The last row is not anchored yet, so its hash and the head in the database still match.
#[test]
fn rows_with_a_gap_in_their_numbers_are_refused_even_if_every_hash_fits() {
    let directory = Directory::new();
    let mut charging = run(create(&directory.ledger(), 8.0));
    let anchor = Ledger::anchor_path(&directory.ledger());
    let before = std::fs::read(&anchor).unwrap();
    charging.reserve(&round(0.01, 1.0), 5).unwrap();
    let last = charging.store().ledger().head().sequence;
    drop(charging);
    std::fs::write(&anchor, before).unwrap();
    alter(&directory, &format!("UPDATE event SET sequence = {last} + 1 WHERE sequence = {last}"));
    let error = open(&directory).err().unwrap().to_string();
    assert!(error.contains(&format!("row {last} is missing")), "{error}");
}

/// No row is new to the open handle, so none is compared with the anchor.
#[test]
fn an_open_handle_refuses_the_anchor_of_another_ledger() {
    let (here, there) = (Directory::new(), Directory::new());
    let mut charging = run(create(&here.ledger(), 8.0));
    charging.reserve(&round(0.01, 1.0), 5).unwrap();
    drop(create(&there.ledger(), 8.0));
    let foreign = std::fs::read(Ledger::anchor_path(&there.ledger())).unwrap();
    // Written into the open file: a replaced file would be detected by its inode.
    std::fs::write(Ledger::anchor_path(&here.ledger()), foreign).unwrap();
    let error = charging.reserve(&round(0.01, 1.0), 5).err().unwrap().to_string();
    assert!(error.contains("another ledger's"), "{error}");
}

/// A closed run returns its store; appending to that store directly is refused.
#[test]
fn a_closed_run_is_charged_no_more() {
    let directory = Directory::new();
    let mut charging = run(create(&directory.ledger(), 8.0));
    charging.reserve(&round(0.01, 1.0), 5).unwrap();
    let mut store = charging.close().unwrap();
    let mut charges = Vec::new();
    store
        .visit(&mut |event| {
            charges.extend(matches!(event, Event::Reserve(_)).then(|| event.clone()))
        })
        .unwrap();
    assert_eq!(charges.len(), 1);
    let error = store.append(&charges).err().unwrap().to_string();
    assert!(error.contains("is closed"), "{error}");
    assert_eq!(crate::common::charged(store.ledger()), 5);
}
