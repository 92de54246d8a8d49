//! Corruption: flips bits, truncates, deletes and replaces files of a ledger, and edits its rows, one change at a time.

use std::path::{Path, PathBuf};

use veilgrad_ledger::{Ledger, Options};

use crate::scratch::{Directory, Found, charged, create, open_run, round, text};

/// The number of rows of the altered ledger.
const EVENTS: u64 = 200;
/// The number of charges that are still in the WAL: more than the anchor holds.
const RECENT: u64 = 18;

#[derive(Default)]
struct Count {
    states: u64,
    refused: u64,
}

/// The unaltered files of the ledger.
struct Original {
    files: Vec<(PathBuf, Vec<u8>)>,
    ledger: PathBuf,
    rounds: u64,
    /// The anchor before the last rows.
    earlier_anchor: Vec<u8>,
}

pub(crate) fn sweep(quick: bool) -> Found {
    let directory = Directory::in_memory()?;
    let original = build(directory.path())?;
    let stride = if quick { 997 } else { 1 };
    let mut total = Count::default();
    for (path, bytes) in &original.files {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mut count = Count::default();
        for offset in (0..bytes.len()).step_by(stride) {
            // One bit, and all bits of a byte.
            for flip in [1 << (offset % 8), 0xff] {
                let mut altered = bytes.clone();
                if let Some(byte) = altered.get_mut(offset) {
                    *byte ^= flip;
                }
                original.restore(Some(path))?;
                write(path, &altered)?;
                original
                    .judge(&mut count, &format!("{name}: byte {offset} altered by {flip:#x}"))?;
            }
        }
        for length in (0..bytes.len()).step_by(stride) {
            original.restore(Some(path))?;
            write(path, bytes.get(..length).unwrap_or_default())?;
            original.judge(&mut count, &format!("{name}: cut to {length} bytes"))?;
        }
        original.restore(Some(path))?;
        // A writer in the previous state may have removed it already.
        let _ = std::fs::remove_file(path);
        original.judge(&mut count, &format!("{name}: deleted"))?;
        println!(
            "corruption: {name}: {} bytes, {} states, {} refused, {} as if nothing had happened",
            bytes.len(),
            count.states,
            count.refused,
            count.states - count.refused
        );
        total.states += count.states;
        total.refused += count.refused;
    }
    rows(&original, &mut total)?;
    older(directory.path(), &original, &mut total)?;
    println!(
        "corruption: {} states in all, {} refused, 0 with a smaller epsilon",
        total.states, total.refused
    );
    Ok(())
}

/// A ledger of EVENTS rows, the last of them still in the WAL.
fn build(directory: &Path) -> Result<Original, String> {
    let building = Directory::inside(directory)?;
    let path = building.ledger();
    let round = round(0.01, 1.0)?;
    let mut run = open_run(create(&path, 1e3)?)?;
    // The other four rows create the ledger and its budget and open two runs.
    for _ in 0..EVENTS - 4 - RECENT {
        run.reserve(&round, 1).map_err(text)?;
    }
    // Closing the last handle checkpoints the WAL into the database.
    drop(run);
    let mut run = open_run(Ledger::open(&path, Options::default()).map_err(text)?)?;
    let earlier_anchor = std::fs::read(Ledger::anchor_path(&path)).map_err(text)?;
    for _ in 0..RECENT {
        run.reserve(&round, 1).map_err(text)?;
    }
    let target = directory.join("state");
    std::fs::create_dir(&target).map_err(text)?;
    let mut files = Vec::new();
    for name in ["ledger.db", "ledger.db-wal", "ledger.db.anchor"] {
        let bytes = std::fs::read(building.path().join(name)).map_err(text)?;
        files.push((target.join(name), bytes));
    }
    drop(run);
    let original =
        Original { files, ledger: target.join("ledger.db"), rounds: EVENTS - 4, earlier_anchor };
    original.restore(None)?;
    let found = charged(&Ledger::read(&original.ledger, Options::default()).map_err(text)?);
    if found != original.rounds {
        return Err(format!("the ledger to alter holds {found} rounds"));
    }
    Ok(original)
}

fn write(path: &Path, bytes: &[u8]) -> Found {
    std::fs::write(path, bytes).map_err(text)
}

impl Original {
    /// Puts all files back as they were, except one.
    fn restore(&self, except: Option<&PathBuf>) -> Found {
        let _ = std::fs::remove_file(self.ledger.with_file_name("ledger.db-shm"));
        for (path, bytes) in &self.files {
            if Some(path) != except {
                write(path, bytes)?;
            }
        }
        Ok(())
    }

    /// Checks that the ledger is refused, or has every charge and exports every row.
    fn judge(&self, count: &mut Count, what: &str) -> Found {
        count.states += 1;
        match Ledger::read(&self.ledger, Options::default()) {
            Err(_) => count.refused += 1,
            Ok(ledger) if charged(&ledger) >= self.rounds => {
                // The rest takes a while, so only some states are checked.
                if count.states.is_multiple_of(64) {
                    let rows = ledger.export().map_err(|error| format!("{what}: {error}"))?;
                    if (rows.lines().count() as u64) < EVENTS {
                        return Err(format!("{what}: rows are missing from the export"));
                    }
                    drop(ledger);
                    let ledger = Ledger::open(&self.ledger, Options::default());
                    // It may be damaged where only a writer looks, and is then refused.
                    if let Ok(ledger) = ledger
                        && charged(&ledger) < self.rounds
                    {
                        return Err(format!("{what}: {} rounds for a writer", charged(&ledger)));
                    }
                }
            }
            Ok(ledger) => {
                return Err(format!("{what}: {} of {} rounds", charged(&ledger), self.rounds));
            }
        }
        Ok(())
    }
}

/// Deletes, swaps, duplicates and changes rows with SQL, after dropping the triggers.
fn rows(original: &Original, total: &mut Count) -> Found {
    let last = EVENTS;
    let head = "UPDATE head SET sequence = (SELECT max(sequence) FROM event), \
                hash = (SELECT hash FROM event ORDER BY sequence DESC LIMIT 1)";
    for script in [
        format!("DELETE FROM event WHERE sequence = {last}"),
        format!("DELETE FROM event WHERE sequence = {last}; {head}"),
        format!("DELETE FROM event WHERE sequence >= {last} - 1; {head}"),
        format!("DELETE FROM event WHERE sequence >= {last} - 100; {head}"),
        "DELETE FROM event WHERE sequence = 50".to_owned(),
        format!(
            "INSERT INTO event SELECT {last} + 1, bytes, hash FROM event WHERE sequence = {last}; {head}"
        ),
        format!(
            "UPDATE event SET sequence = 0 - sequence WHERE sequence IN ({last}, {last} - 1); \
             UPDATE event SET sequence = {last} + {last} - 1 + sequence WHERE sequence < 0; {head}"
        ),
        "UPDATE event SET bytes = CAST(replace(CAST(bytes AS TEXT), '\"rounds\":1', '\"rounds\":0') \
         AS BLOB) WHERE sequence = 60"
            .to_owned(),
        "DELETE FROM head".to_owned(),
        "DELETE FROM event".to_owned(),
        "DROP TABLE event".to_owned(),
        "PRAGMA user_version = 2".to_owned(),
    ] {
        original.restore(None)?;
        let script = format!(
            "DROP TRIGGER event_update; DROP TRIGGER event_delete; \
             PRAGMA ignore_check_constraints = ON; {script};"
        );
        let output = std::process::Command::new("sqlite3")
            .arg(&original.ledger)
            .arg(&script)
            .output()
            .map_err(|error| format!("sqlite3: {error}"))?;
        if !output.status.success() {
            return Err(format!("{script}: {}", String::from_utf8_lossy(&output.stderr)));
        }
        original.judge(total, &script)?;
    }
    Ok(())
}

/// An older database with the newer anchor, an older anchor with the newer database, and both older.
fn older(directory: &Path, original: &Original, total: &mut Count) -> Found {
    let old = Directory::inside(directory)?;
    let (database, anchor) = (old.ledger(), Ledger::anchor_path(&old.ledger()));
    original.restore(None)?;
    // The state before the recent charges: the original without its WAL.
    let earlier = |name: &str| {
        let found = original.files.iter().find(|(path, _)| path.ends_with(name));
        found.map(|(_, bytes)| bytes.clone()).ok_or_else(|| format!("no {name}"))
    };
    write(&database, &earlier("ledger.db")?)?;
    write(&anchor, &earlier("ledger.db.anchor")?)?;
    total.states += 1;
    match Ledger::read(&database, Options::default()) {
        Err(_) => total.refused += 1,
        Ok(_) => return Err("an older database under the newer anchor was served".to_owned()),
    }
    // An older anchor with the newer database: no row is lost.
    original.restore(None)?;
    let anchor = Ledger::anchor_path(&original.ledger);
    std::fs::write(&anchor, &original.earlier_anchor).map_err(text)?;
    total.states += 1;
    let ledger = Ledger::read(&original.ledger, Options::default()).map_err(text)?;
    if charged(&ledger) != original.rounds {
        return Err("an older anchor hid rows".to_owned());
    }
    // Older versions of all files are a valid ledger; only a head kept elsewhere detects the rollback.
    let copy = Directory::inside(directory)?;
    let ledger_then = create(&copy.ledger(), 1e3)?;
    let head_then = ledger_then.head().clone();
    let mut run = open_run(ledger_then)?;
    let saved = Directory::inside(directory)?;
    for name in ["ledger.db", "ledger.db-wal", "ledger.db.anchor"] {
        let _ = std::fs::copy(copy.path().join(name), saved.path().join(name));
    }
    run.reserve(&round(0.01, 1.0)?, 3).map_err(text)?;
    let published = run.store().ledger().head().clone();
    drop(run);
    let rolled_back = Ledger::read(saved.ledger(), Options::default()).map_err(text)?;
    total.states += 1;
    if rolled_back.contains(&published).is_ok() || rolled_back.contains(&head_then).is_err() {
        return Err("a head did not tell a rolled back ledger".to_owned());
    }
    total.refused += 1;
    Ok(())
}
