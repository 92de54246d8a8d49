//! Forked processes. One test, so that no other thread holds a lock of SQLite during a fork.

mod common;

use common::{Directory, begin, charged, create, holding, open, planned, round, run};
use veilgrad_events::{Epsilon, LedgerError};
use veilgrad_ledger::{Ledger, Options};

#[test]
fn forked_processes_have_no_rights_and_end_no_hold() {
    a_forked_child_has_nothing_of_its_parents_rights();
    a_killed_holder_holds_nothing();
    a_forked_copy_ends_no_hold();
}

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
            // Exits without running the destructors of the parent's handles.
            std::process::exit(code);
        }
        fork::Fork::Parent(child) => {
            assert_eq!(fork::waitpid(child).unwrap(), 0);
        }
    }
    assert!(permits.next().unwrap().is_of_this_process());
    run.reserve(&round(0.01, 1.0), 1).unwrap();
    assert_eq!(charged(&Ledger::read(directory.ledger(), Options::default()).unwrap()), 3);
}

fn a_killed_holder_holds_nothing() {
    let directory = Directory::new();
    begin(&directory, 20);
    let opened = directory.path().join("opened");
    match fork::fork().unwrap() {
        fork::Fork::Child => {
            let mut run = planned(open(&directory).unwrap(), 20).unwrap();
            run.reserve(&round(0.05, 1.0), 3).unwrap();
            std::fs::write(&opened, "").unwrap();
            loop {
                std::thread::sleep(std::time::Duration::from_secs(1));
            }
        }
        fork::Fork::Parent(child) => {
            while !opened.exists() {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            assert_eq!(holding(&directory), 1);
            assert!(planned(open(&directory).unwrap(), 1).is_err());
            let kill = std::process::Command::new("kill").args(["-9", &child.to_string()]).status();
            assert!(kill.unwrap().success());
            fork::waitpid(child).unwrap();
        }
    }
    assert_eq!((holding(&directory), charged(&open(&directory).unwrap())), (0, 3));
}

fn a_forked_copy_ends_no_hold() {
    let directory = Directory::new();
    begin(&directory, 20);
    let run = planned(open(&directory).unwrap(), 17).unwrap();
    // A forked copy must not remove the file of the hold when it is dropped.
    match fork::fork().unwrap() {
        fork::Fork::Child => {
            drop(run);
            std::process::exit(0);
        }
        fork::Fork::Parent(child) => {
            fork::waitpid(child).unwrap();
            assert_eq!(holding(&directory), 1);
            drop(run);
        }
    }
    assert_eq!(holding(&directory), 0);
}
