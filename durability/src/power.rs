//! Power failures: the states of the disk that are possible while a charge is written.
//!
//! Synced data is on the disk; of later writes, any subset of sectors may be. The sweep reads the three files
//! before and after a charge and mixes their sectors as the order of syncs allows. Most charges sync only the
//! anchor, and the WAL may be any mixture of its last synced state and its current one. A charge that writes a
//! slot without rows syncs the WAL first, and the database is written only after that. When the WAL starts
//! over, its header is synced before its frames.

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

    /// Whether the newer slot of the anchor has no rows, which means that the WAL was synced first.
    fn is_wal_synced(&self) -> Result<bool, String> {
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

/// Simulates power failures and checks the ledger after each.
struct Simulation {
    /// The WAL at its last sync.
    synced_wal: Vec<u8>,
    directory: Directory,
    states: u64,
    /// The number of states in which the unfinished charge was on disk.
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
    let mut simulation = Simulation {
        synced_wal: before.0[1].clone(),
        directory: Directory::in_memory()?,
        states: 0,
        finished: 0,
        random: Random(1),
        round: step.clone(),
    };
    let mut most_unsynced = 0;
    let mut unsynced = 0;
    // The WAL is checkpointed into the database every 4 MiB, about 480 charges.
    let charges = if quick { 600 } else { 1200 };
    for number in 0..charges {
        drop(run.reserve(&step, 1).map_err(text)?);
        let after = Files::of(directory.path())?;
        let checkpoint = before.0[0] != after.0[0];
        checkpoints += u64::from(checkpoint);
        since = if checkpoint { 0 } else { since.saturating_add(1) };
        let stride = if quick { 100 } else { 25 };
        let synced = after.is_wal_synced()?;
        // The first charges, those at a checkpoint or a sync of the WAL, and a sample of the others.
        if number < 20 || since < 3 || synced && number < 100 || number % stride == 0 {
            simulation.fail(&before, &after, count, synced)?;
        }
        unsynced = if synced { 0 } else { unsynced + 1 };
        most_unsynced = unsynced.max(most_unsynced);
        if synced {
            simulation.synced_wal.clone_from(&after.0[1]);
        }
        (before, count) = (after, count + 1);
    }
    if checkpoints == 0 {
        return Err("the WAL never went into the database".to_owned());
    }
    if most_unsynced < 2 {
        return Err("the WAL was never behind the anchor".to_owned());
    }
    long_block(&mut run, directory.path(), &mut simulation, before, count)?;
    println!(
        "power: {} states of the disk over {} checkpoints, the WAL up to {} charges behind, 0 refused, 0 \
         charges lost; the charge that was being written was on disk in {}",
        simulation.states, checkpoints, most_unsynced, simulation.finished
    );
    Ok(())
}

/// A block that is too long for the anchor: the WAL is synced first.
fn long_block(
    run: &mut Run<DatasetLedger>,
    directory: &Path,
    simulation: &mut Simulation,
    before: Files,
    count: u64,
) -> Found {
    let distinct = |i: u64| Ok(Rounds { count: 1, round: round(0.01, 1.0 + i as f64 * 1e-3)? });
    let charges = (0..150).map(distinct).collect::<Result<Vec<_>, String>>()?;
    drop(run.reserve_each(&charges).map_err(text)?);
    let after = Files::of(directory)?;
    let [database, _, anchor] = &before.0;
    for wal in simulation.wal_mixes(&after) {
        simulation.judge([database, &wal, anchor], count, count + 150)?;
    }
    for anchor in simulation.mixes(anchor, &after.0[2]) {
        simulation.judge([&after.0[0], &after.0[1], &anchor], count + 150, count + 150)?;
    }
    Ok(())
}

impl Simulation {
    /// The possible states of the WAL after `after` was written and before it was synced.
    fn wal_mixes(&mut self, after: &Files) -> Vec<Vec<u8>> {
        let synced = std::mem::take(&mut self.synced_wal);
        let mixes = self.mixes(&synced, &after.0[1]);
        self.synced_wal = synced;
        mixes
    }

    /// Simulates power failures during the charge after `count`, which syncs the WAL if `synced`.
    fn fail(&mut self, before: &Files, after: &Files, count: u64, synced: bool) -> Found {
        let anchors = self.mixes(&before.0[2], &after.0[2]);
        let wals = self.wal_mixes(after);
        // Not all pairs: some anchors with every WAL, and a sample of the rest.
        let some_anchors = [0, anchors.len() / 3, anchors.len() / 2, anchors.len() - 1];
        for (number, wal) in wals.iter().enumerate() {
            for (index, anchor) in anchors.iter().enumerate() {
                let possible = !synced || index == 0 || number + 1 == wals.len();
                let chosen = synced || some_anchors.contains(&index) || number % 7 == index % 7;
                if possible && chosen {
                    self.judge([&before.0[0], wal, anchor], count, count + 1)?;
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

    /// Mixtures of old and new sectors: growing prefixes of the new sectors, and random subsets.
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
            // The file ends after the last sector that was written.
            let mut end = old.len();
            for (_, sector) in sectors.iter().enumerate().filter(|(index, _)| chosen(*index)) {
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
            mix(&|index| index < count);
        }
        for _ in 0..6 {
            let bits = self.random.next();
            // If the first sector of a file changes, it was synced before the others.
            mix(&|index| {
                sectors.first() == Some(&0) && index == 0
                    || bits.rotate_left(u32::try_from(index % 64).unwrap_or(0)) & 1 == 1
            });
        }
        mixes.push(new.to_vec());
        mixes
    }

    /// Checks that the ledger opens, that it has `granted` or `asked` rounds, and that it can be charged again.
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
        // A charge takes a while, so only some states are charged.
        if self.states.is_multiple_of(16) {
            let mut run = open_run(ledger)?;
            drop(run.reserve(&self.round, 1).map_err(|error| format!("{what}: {error}"))?);
        }
        Ok(())
    }
}
