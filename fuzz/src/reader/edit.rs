//! Alters the files of a ledger on disk, then reads, opens or repairs it.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use veilgrad_ledger::{Ledger, Options, State, StoreError};

use super::ledger::rounds;
use crate::scratch;

/// The database, its WAL and its anchor.
pub(crate) const FILES: [&str; 3] = ["ledger.db", "ledger.db-wal", "ledger.db.anchor"];

/// These files in one gzip archive, each after its length in four bytes.
static PACKED: &[u8] = include_bytes!("../../base/ledger.gz");

struct Base {
    files: Vec<Vec<u8>>,
    rounds: BTreeMap<String, u64>,
}

fn base() -> &'static Base {
    static BASE: OnceLock<Base> = OnceLock::new();
    BASE.get_or_init(|| {
        let mut bytes = Vec::new();
        flate2::read::GzDecoder::new(PACKED).read_to_end(&mut bytes).expect("a packed ledger");
        let (mut files, mut rest) = (Vec::new(), bytes.as_slice());
        while let Some((length, after)) = rest.split_first_chunk::<4>() {
            let (file, others) = after.split_at(u32::from_le_bytes(*length) as usize);
            files.push(file.to_vec());
            rest = others;
        }
        put(&files.iter().map(|file| Some(file.clone())).collect::<Vec<_>>());
        let ledger = Ledger::read(place(), options()).expect("the ledger before it is altered");
        Base { files, rounds: rounds(ledger.state()) }
    })
}

fn options() -> Options {
    Options { patience: Duration::from_millis(200), ..Options::default() }
}

fn place() -> PathBuf {
    scratch::path(FILES[0])
}

/// Writes these files, and removes the others.
fn put(files: &[Option<Vec<u8>>]) {
    let _ = std::fs::remove_file(scratch::path("ledger.db-shm"));
    for (name, file) in FILES.iter().zip(files) {
        match file {
            Some(bytes) => drop(scratch::file(name, bytes)),
            None => drop(std::fs::remove_file(scratch::path(name))),
        }
    }
}

/// Applies a list of edits of eight bytes each to the files of a ledger, and opens it.
///
/// If one file was altered, a ledger that opens still has every charge. If several were altered, the newest charges may be
/// gone from all of them, as after a rollback; then an audit reports the damaged slot of the anchor. A repaired ledger has
/// every charge, or all of its datasets count as unprotected.
pub(crate) fn ledger(edits: &[u8]) {
    let base = base();
    let mut files: Vec<Option<Vec<u8>>> = base.files.iter().cloned().map(Some).collect();
    for edit in edits.as_chunks::<8>().0.iter().take(16) {
        let file = usize::from(edit[0]) % files.len();
        if edit[1] % 16 == 15 {
            files[file] = None;
        }
        if let Some(bytes) = &mut files[file] {
            alter(bytes, *edit);
        }
    }
    put(&files);
    let before = base.files.iter().map(Some);
    let altered = files.iter().map(Option::as_ref).zip(before).filter(|(now, then)| now != then);
    let altered = altered.count();
    match Ledger::read(place(), options()) {
        Ok(ledger) => {
            let remarks = ledger.audit();
            if altered > 1 && remarks.is_ok_and(|remarks| !remarks.is_empty()) {
                return;
            }
            assert_whole(ledger.state());
            let export = ledger.export().expect("a ledger that is served is exported");
            assert_whole(&State::from_export(&export).expect("an export verifies"));
            drop(ledger);
            if let Ok(ledger) = Ledger::open(place(), options()) {
                assert_whole(ledger.state());
            }
        }
        Err(StoreError::Damaged(_)) => repair(),
        Err(_) => {}
    }
}

fn assert_whole(state: &State) {
    let found = rounds(state);
    for (name, charged) in &base().rounds {
        assert!(found.get(name) >= Some(charged), "{found:?} of {:?}", base().rounds);
    }
}

fn repair() {
    let new = scratch::path("repaired.db");
    for end in ["", "-wal", "-shm", ".anchor", ".creating"] {
        let _ = std::fs::remove_file(scratch::path(&format!("repaired.db{end}")));
    }
    let Ok(repaired) = Ledger::repair(&place(), &new, &options()) else { return };
    let ledger = Ledger::read(&new, options()).expect("what a repair made is a ledger");
    assert_eq!(*ledger.head(), repaired.head);
    match repaired.lost {
        None => assert_whole(ledger.state()),
        Some(_) => {
            let mut datasets = ledger.state().datasets().values();
            assert!(datasets.all(|dataset| dataset.insecure().is_some()), "lost rows cost nothing");
        }
    }
}

/// One edit: which file, what, where (three bytes), how (three bytes).
fn alter(bytes: &mut Vec<u8>, [_, what, at @ ..]: [u8; 8]) {
    let number = |bytes: &[u8]| bytes.iter().rev().fold(0, |sum, byte| sum << 8 | *byte as usize);
    let (place, value) = (number(&at[..3]), number(&at[3..]));
    let length = bytes.len().max(1);
    let place = place % length;
    let mut set = |place: usize, values: &[u8]| {
        let to = bytes.get_mut(place..).unwrap_or_default();
        to.iter_mut().zip(values).for_each(|(to, value)| *to = *value);
    };
    let extremes = [0u32, 1, 0x7fff_ffff, 0x8000_0000, u32::MAX, value as u32];
    let extreme = extremes[value % extremes.len()].to_be_bytes();
    match what % 16 {
        0..=2 => bytes.iter_mut().skip(place).take(1).for_each(|byte| *byte ^= 1 << (value % 8)),
        3 | 4 => set(place, &[value as u8]),
        5 => set(place, &extreme[2..]),
        6 => set(place, &extreme),
        7 => bytes.truncate(place),
        8 => set(place & !511, &[0; 512]),
        9 => set(place & !4095, &[0; 4096]),
        10 | 11 => {
            // Copies a block to another place: of rows, or of pages.
            let size = if what & 16 == 0 { 64 } else { 4096 };
            let from = value * size % length;
            let block: Vec<u8> = bytes.iter().skip(from).take(size).copied().collect();
            let to = bytes.get_mut(place / size * size..).unwrap_or_default();
            to.iter_mut().zip(block).for_each(|(to, from)| *to = from);
        }
        12 => bytes.extend(std::iter::repeat_n(0, value % 5000)),
        13 => {
            bytes.drain(place..(place + value % 128).min(length).max(place));
        }
        // In the header of the database.
        _ => set(place % 100, &extreme[..1 + value % 4]),
    }
}
