//! Power that fails: every state in which the disk can be while a charge is written.
//!
//! What was synced is on the disk; of what was written since, any sectors may be. The three files are
//! taken before and after a charge, and sectors of one and of the other are mixed as the order of syncs
//! allows. Mostly only the anchor's slot is synced, and the WAL may be anything between what it was when it
//! was last synced and what it is now. A charge after which the slot holds no rows synced the WAL before it
//! wrote the slot, and the database is written only after that. The WAL's header is synced before its frames
//! when it starts over.

use std::path::Path;

use veilgrad_events::{Round, Rounds, Run};
use veilgrad_ledger::{DatasetLedger, Ledger, Options};

use crate::scratch::{Directory, Found, Random, charged, create, open_run, round, text};

const SECTOR: usize = 512;
/// The size of a slot of the anchor.
const SLOT: usize = 1 << 15;
const NAMES: [&str; 3] = ["ledger.db", "ledger.db-wal", "ledger.db.anchor"];

/// The files of a ledger at one time: database, WAL, anchor.
#[derive(Clone)]
struct Files([Vec<u8>; 3]);

impl Files {
    fn of(directory: &Path) -> Result<Self, String> {
        let mut files = [Vec::new(), Vec::new(), Vec::new()];
        for (bytes, name) in files.iter_mut().zip(NAMES) {
            *bytes = std::fs::read(directory.join(name)).map_err(text)?;
        }
        Ok(Self(files))
    }

    /// Whether the newer slot of the anchor holds no rows: its writer synced the WAL first.
    fn log_is_synced(&self) -> Result<bool, String> {
        let [_, _, anchor] = &self.0;
        // A line is: name, version, id, sequence, hash, length of the rows.
        let slots = [anchor.get(..SLOT), anchor.get(SLOT..)].map(|slot| {
            let line = slot.and_then(|slot| slot.get(..256))?;
            let mut words = std::str::from_utf8(line).ok()?.split_ascii_whitespace().skip(3);
            let sequence: u64 = words.next()?.parse().ok()?;
            let length: usize = words.nth(1)?.parse().ok()?;
            Some((sequence, length))
        });
        let newer = slots.into_iter().flatten().max().ok_or("the anchor has no slot")?;
        Ok(newer.1 == 0)
    }
}

/// Where the power fails, over and over.
struct Bench {
    /// The WAL as it was last synced.
    synced_log: Vec<u8>,
    directory: Directory,
    states: u64,
    finished: u64,
    random: Random,
    round: Round,
}

pub(crate) fn sweep(quick: bool) -> Found {
    let directory = Directory::in_memory()?;
    let step = round(0.01, 1.0)?;
    let mut run = open_run(create(&directory.ledger(), 1e3)?)?;
    let (mut before, mut count, mut checkpoints, mut since) =
        (Files::of(directory.path())?, 0, 0, u64::MAX);
    let mut bench = Bench {
        synced_log: before.0[1].clone(),
        directory: Directory::in_memory()?,
        states: 0,
        finished: 0,
        random: Random(1),
        round: step.clone(),
    };
    let mut most_lagging = 0;
    let mut lagging = 0;
    // The WAL goes into the database every thousand pages: some hundred charges.
    let charges = if quick { 600 } else { 1200 };
    for number in 0..charges {
        drop(run.reserve(&step, 1).map_err(text)?);
        let after = Files::of(directory.path())?;
        let checkpoint = before.0[0] != after.0[0];
        checkpoints += u64::from(checkpoint);
        since = if checkpoint { 0 } else { since.saturating_add(1) };
        let stride = if quick { 100 } else { 25 };
        let synced = after.log_is_synced()?;
        // Before, while and after the WAL is synced, and now and then.
        if number < 20 || since < 3 || synced && number < 100 || number % stride == 0 {
            bench.fail(&before, &after, count, synced)?;
        }
        lagging = if synced { 0 } else { lagging + 1 };
        most_lagging = lagging.max(most_lagging);
        if synced {
            bench.synced_log.clone_from(&after.0[1]);
        }
        (before, count) = (after, count + 1);
    }
    if checkpoints == 0 {
        return Err("the WAL never went into the database".to_owned());
    }
    if most_lagging < 2 {
        return Err("the WAL was never behind the anchor".to_owned());
    }
    long_block(&mut run, directory.path(), &mut bench, before, count)?;
    println!(
        "power: {} states of the disk over {} checkpoints, the WAL up to {} charges behind, 0 refused, 0 \
         charges lost; the charge that was being written was on disk in {}",
        bench.states, checkpoints, most_lagging, bench.finished
    );
    Ok(())
}

/// A block that is too long for the anchor: the database goes first.
fn long_block(
    run: &mut Run<DatasetLedger>,
    directory: &Path,
    bench: &mut Bench,
    before: Files,
    count: u64,
) -> Found {
    let distinct = |i: u64| Ok(Rounds { count: 1, round: round(0.01, 1.0 + i as f64 * 1e-3)? });
    let charges = (0..150).map(distinct).collect::<Result<Vec<_>, String>>()?;
    drop(run.reserve_each(&charges).map_err(text)?);
    let after = Files::of(directory)?;
    let [database, _, anchor] = &before.0;
    for log in bench.log_mixes(&after) {
        bench.judge([database, &log, anchor], count, count + 150)?;
    }
    for anchor in bench.mixes(anchor, &after.0[2]) {
        bench.judge([&after.0[0], &after.0[1], &anchor], count + 150, count + 150)?;
    }
    Ok(())
}

impl Bench {
    /// What the WAL may be when `after` was written and it was not synced.
    fn log_mixes(&mut self, after: &Files) -> Vec<Vec<u8>> {
        let synced = std::mem::take(&mut self.synced_log);
        let mixes = self.mixes(&synced, &after.0[1]);
        self.synced_log = synced;
        mixes
    }

    /// The power fails while a charge after `count` is written, which syncs the WAL or not.
    fn fail(&mut self, before: &Files, after: &Files, count: u64, synced: bool) -> Found {
        let anchors = self.mixes(&before.0[2], &after.0[2]);
        let logs = self.log_mixes(after);
        // Few of the one with all of the other.
        let few = [0, anchors.len() / 3, anchors.len() / 2, anchors.len() - 1];
        for (number, log) in logs.iter().enumerate() {
            for (place, anchor) in anchors.iter().enumerate() {
                let possible = !synced || place == 0 || number + 1 == logs.len();
                let chosen = synced || few.contains(&place) || number % 7 == place % 7;
                if possible && chosen {
                    self.judge([&before.0[0], log, anchor], count, count + 1)?;
                }
            }
        }
        if before.0[0] != after.0[0] {
            if !synced {
                return Err("the database was written before the WAL was synced".to_owned());
            }
            for database in self.mixes(&before.0[0], &after.0[0]) {
                self.judge([&database, &after.0[1], &after.0[2]], count + 1, count + 1)?;
            }
        }
        Ok(())
    }

    /// Old bytes with some of the new sectors: the first of them, one more each time, and random ones.
    fn mixes(&mut self, old: &[u8], new: &[u8]) -> Vec<Vec<u8>> {
        let length = old.len().max(new.len());
        let padded = |bytes: &[u8]| {
            let mut bytes = bytes.to_vec();
            bytes.resize(length, 0);
            bytes
        };
        let (old_bytes, new_bytes) = (padded(old), padded(new));
        let sectors: Vec<usize> = (0..length.div_ceil(SECTOR))
            .filter(|sector| {
                let range = sector * SECTOR..((sector + 1) * SECTOR).min(length);
                old_bytes.get(range.clone()) != new_bytes.get(range)
            })
            .collect();
        let mut mixes = vec![old.to_vec()];
        let mut mix = |chosen: &dyn Fn(usize) -> bool| {
            let mut bytes = old_bytes.clone();
            // A file is as long as its last sector that arrived.
            let mut end = old.len();
            for (_, sector) in sectors.iter().enumerate().filter(|(place, _)| chosen(*place)) {
                let range = sector * SECTOR..((sector + 1) * SECTOR).min(length);
                if let (Some(to), Some(from)) =
                    (bytes.get_mut(range.clone()), new_bytes.get(range.clone()))
                {
                    to.copy_from_slice(from);
                }
                end = end.max(range.end);
            }
            bytes.truncate(end);
            mixes.push(bytes);
        };
        let stride = sectors.len().div_ceil(64).max(1);
        for count in (1..sectors.len()).step_by(stride) {
            mix(&|place| place < count);
        }
        for _ in 0..6 {
            let bits = self.random.next();
            // The first sector of a file was synced before the others, where it changes.
            mix(&|place| {
                sectors.first() == Some(&0) && place == 0
                    || bits.rotate_left(u32::try_from(place % 64).unwrap_or(0)) & 1 == 1
            });
        }
        mixes.push(new.to_vec());
        mixes
    }

    /// The ledger opens, holds what was granted and at most what was asked for, and goes on.
    fn judge(&mut self, files: [&[u8]; 3], granted: u64, asked: u64) -> Found {
        self.states += 1;
        let path = self.directory.ledger();
        let _ = std::fs::remove_file(path.with_file_name("ledger.db-shm"));
        for (name, bytes) in NAMES.iter().zip(files) {
            std::fs::write(path.with_file_name(name), bytes).map_err(text)?;
        }
        let what = format!("state {}, {granted} rounds granted", self.states);
        let ledger =
            Ledger::open(&path, Options::default()).map_err(|error| format!("{what}: {error}"))?;
        let found = charged(&ledger);
        if found != granted && found != asked {
            return Err(format!("{what}: {found} charged"));
        }
        self.finished += u64::from(found == asked);
        // Going on takes a while; some will do.
        if self.states.is_multiple_of(16) {
            let mut run = open_run(ledger)?;
            drop(run.reserve(&self.round, 1).map_err(|error| format!("{what}: {error}"))?);
        }
        Ok(())
    }
}
