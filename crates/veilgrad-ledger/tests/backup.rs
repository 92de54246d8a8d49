//! Backups, and witnesses of the head.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::{Directory, charged, create, open, round, run};
use veilgrad_ledger::{Ledger, Options, Witness};

fn read(path: &std::path::Path) -> Ledger {
    Ledger::read(path, Options::default()).unwrap()
}

#[test]
fn a_backup_verifies_is_never_overwritten_and_never_charged() {
    let directory = Directory::new();
    let copy = directory.path().join("copy.db");
    let mut charging = run(create(&directory.ledger(), 80.0));
    (0..20).for_each(|_| drop(charging.reserve(&round(0.01, 1.0), 2).unwrap()));
    let head = read(&directory.ledger()).backup(&copy, &Options::default()).unwrap();
    assert_eq!(&head, charging.store().ledger().head());
    let backup = read(&copy);
    assert_eq!((backup.head(), charged(&backup)), (&head, 40));
    assert_eq!(backup.audit().unwrap(), [""; 0]);
    for result in [Ledger::open(&copy, Options::default()), {
        Ledger::open_or_create(&copy, Options::default())
    }] {
        let error = result.err().unwrap().to_string();
        assert!(error.contains("is a backup"), "{error}");
    }
    let before = std::fs::read(&copy).unwrap();
    assert!(read(&directory.ledger()).backup(&copy, &Options::default()).is_err());
    assert!(std::fs::read(&copy).unwrap() == before);
    // It can be imported as a new ledger, or into one that has more rows.
    charging.reserve(&round(0.01, 1.0), 2).unwrap();
    let newer = charging.store().ledger().head().clone();
    drop(charging);
    let new = Directory::new();
    let restored = Ledger::restore(new.ledger(), &backup.export().unwrap(), Options::default());
    assert!(restored.unwrap().contains(&newer).is_err());
    let mut ledger = open(&directory).unwrap();
    assert_eq!(ledger.import(&backup.export().unwrap()).unwrap().charged, 0);
    assert_eq!(charged(&ledger), 42);
}

#[test]
fn backups_verify_while_others_charge() {
    let directory = Directory::new();
    drop(create(&directory.ledger(), 1e3));
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut charging = run(open(&directory).unwrap());
            while !done.load(Ordering::Relaxed) {
                charging.reserve(&round(0.01, 1.0), 1).unwrap();
            }
        });
        let mut last = 0;
        for number in 0..10 {
            let copy = directory.path().join(format!("copy-{number}.db"));
            let head = read(&directory.ledger()).backup(&copy, &Options::default()).unwrap();
            assert!(head.sequence >= last && read(&copy).head() == &head);
            last = head.sequence;
        }
        done.store(true, Ordering::Relaxed);
    });
}

fn witnessed(witness: Witness) -> Options {
    Options { witness: Some(witness), ..Options::default() }
}

#[test]
fn a_witness_has_the_head_of_every_charge_before_its_permits() {
    for command in [false, true] {
        let directory = Directory::new();
        drop(create(&directory.ledger(), 80.0));
        let heads = directory.path().join("heads");
        let witness = match command {
            true => Witness::Command(format!("cat >> '{}'", heads.display())),
            false => Witness::File(heads.clone()),
        };
        let mut charging = run(Ledger::open(directory.ledger(), witnessed(witness)).unwrap());
        for _ in 0..3 {
            charging.reserve(&round(0.01, 1.0), 1).unwrap();
            let text = std::fs::read_to_string(&heads).unwrap();
            let last = text.lines().last().unwrap().to_owned();
            assert_eq!(last, charging.store().ledger().head().to_string());
        }
        // Opening the run, and three charges.
        assert_eq!(std::fs::read_to_string(&heads).unwrap().lines().count(), 4);
    }
}

#[test]
fn without_its_witness_a_charge_stands_and_no_permit_is_given() {
    let directory = Directory::new();
    drop(create(&directory.ledger(), 80.0));
    let heads = directory.path().join("heads");
    let options = witnessed(Witness::Command(format!("test ! -e '{}'", heads.display())));
    let mut charging = run(Ledger::open(directory.ledger(), options).unwrap());
    charging.reserve(&round(0.01, 1.0), 1).unwrap();
    std::fs::write(&heads, "").unwrap();
    let error = charging.reserve(&round(0.01, 1.0), 5).err().unwrap().to_string();
    assert!(error.contains("row 5 stands") && error.contains("witness"), "{error}");
    // The charge stands, and the run grants nothing more.
    std::fs::remove_file(&heads).unwrap();
    assert!(charging.reserve(&round(0.01, 1.0), 1).is_err());
    assert_eq!(charged(&read(&directory.ledger())), 6);
    // A symbolic link is not followed.
    let link = directory.path().join("link");
    std::os::unix::fs::symlink(directory.path().join("nowhere"), &link).unwrap();
    let mut ledger = Ledger::open(directory.ledger(), witnessed(Witness::File(link))).unwrap();
    let epsilon = veilgrad_events::Epsilon::new(70.0).unwrap();
    assert!(ledger.tighten("data", epsilon).is_err());
    assert!(!directory.path().join("nowhere").exists());
}
