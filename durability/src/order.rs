//! The order of system calls: everything must be synced before a release depends on it.
//!
//! Traces a process that creates a ledger and charges. Whenever it writes to the file of releases, every write
//! to the anchor must have been followed by a sync that began after the write and has returned. The same must
//! hold for the WAL before the anchor is written without rows, and before the database is written; and for the
//! new database and its anchor before the database is renamed.
//!
//! Then traces a process that continues after another was killed: before it writes, it must sync again what
//! the killed process wrote, because the first sync may have failed.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::scratch::{Directory, Found, create, text};

const WAL_FILE: &str = "ledger.db-wal";
const ANCHOR_FILE: &str = "ledger.db.anchor";
/// The files that a killed process may have left unsynced.
const DURABLE: [&str; 2] = [WAL_FILE, ANCHOR_FILE];
/// The size of a slot without rows.
const EMPTY_SLOT: &str = "256";

/// The directory of the ledger itself.
const DIRECTORY: &str = ".";

/// Tracks which files have writes that are not known to be on disk.
#[derive(Default)]
struct SyncTracker {
    /// Written files, and whether a write is not covered by a sync.
    dirty: HashMap<String, bool>,
    /// Running syncs by thread: their file, and whether it was written since the sync began.
    syncing: HashMap<String, (String, bool)>,
    /// Files left by a killed process that this process has not synced.
    left_unsynced: HashSet<String>,
    releases: u64,
    syncs: u64,
    renames: u64,
    /// The number of slots without rows, before which the WAL must be on disk.
    empty_slots: u64,
}

impl SyncTracker {
    /// Processes a line of strace's output.
    fn process_line(&mut self, line: &str, directory: &str) -> Found {
        let mut words = line.splitn(2, char::is_whitespace);
        let (thread, rest) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let rest = rest.trim_start();
        if let Some(call) = rest.strip_prefix("<... ") {
            if call.starts_with("fdatasync") || call.starts_with("fsync") {
                self.end_sync(thread, call);
            }
            return Ok(());
        }
        let Some((call, arguments)) = rest.split_once('(') else { return Ok(()) };
        let file = arguments.split_once('<').and_then(|(_, rest)| rest.split_once('>'));
        let file = match file.and_then(|(file, _)| file.strip_prefix(directory)) {
            Some("") => DIRECTORY,
            Some(file) => file.trim_start_matches('/'),
            None => "elsewhere",
        };
        let file = file.to_owned();
        match call {
            "write" | "pwrite64" if file == "out" => self.release(),
            "write" | "pwrite64"
                if !self.left_unsynced.is_empty() && DURABLE.contains(&file.as_str()) =>
            {
                Err(format!("{file} was written before {:?} were synced", self.left_unsynced))
            }
            "pwrite64" if file == "ledger.db" => {
                self.check_synced(&[WAL_FILE], "a write to the database")
            }
            "write" | "pwrite64" => {
                // The last arguments are the length and the offset.
                if file == ANCHOR_FILE && arguments.rsplit(", ").nth(1) == Some(EMPTY_SLOT) {
                    self.empty_slots += 1;
                    self.check_synced(&[WAL_FILE], "an anchor without rows")?;
                }
                for (synced_file, written) in self.syncing.values_mut() {
                    *written |= *synced_file == file;
                }
                self.dirty.insert(file, true);
                Ok(())
            }
            "fdatasync" | "fsync" => {
                self.syncing.insert(thread.to_owned(), (file, false));
                if !arguments.contains("<unfinished") {
                    self.end_sync(thread, arguments);
                }
                Ok(())
            }
            "rename" | "renameat2" => {
                self.renames += 1;
                self.check_synced(&["ledger.db.creating", "ledger.db.anchor"], "the rename")
            }
            _ => Ok(()),
        }
    }

    fn end_sync(&mut self, thread: &str, result: &str) {
        if let Some((file, written)) = self.syncing.remove(thread)
            && result.trim_end().ends_with("= 0")
            && !written
        {
            self.syncs += 1;
            self.left_unsynced.remove(&file);
            self.dirty.insert(file, false);
        }
    }

    fn release(&mut self) -> Found {
        self.releases += 1;
        // Both files were written, and every write to the anchor is on disk.
        for file in DURABLE {
            if !self.dirty.contains_key(file) {
                return Err(format!("a release before anything was written to {file}"));
            }
        }
        self.check_synced(&[ANCHOR_FILE], "a release")
    }

    /// Checks that all writes to these files are on disk.
    fn check_synced(&self, files: &[&str], what: &str) -> Found {
        for file in files {
            if self.dirty.get(*file) == Some(&true) {
                return Err(format!("{what} came before {file} was on disk"));
            }
        }
        Ok(())
    }
}

pub(crate) fn sweep(quick: bool) -> Found {
    let directory = Directory::new()?;
    let path = std::fs::canonicalize(directory.path()).map_err(text)?;
    let rounds = if quick { 64 } else { 2048 };
    let tracker = trace(&path, "create", rounds, SyncTracker::default())?;
    println!(
        "order: {} releases and {} rename, each after its writes were synced ({} syncs); the WAL before {} \
         slots without rows",
        tracker.releases, tracker.renames, tracker.syncs, tracker.empty_slots
    );
    // The first empty slot is written by the creation, before there is a WAL.
    if !quick && tracker.empty_slots < 2 {
        return Err("the WAL was never synced".to_owned());
    }
    let kills = if quick { 2 } else { 12 };
    for number in 1..=kills {
        after_a_kill(number)?;
    }
    println!("order: {kills} processes synced what one that was killed had left before they wrote");
    Ok(())
}

/// Kills a process at a sync, and traces the next process.
fn after_a_kill(number: u64) -> Found {
    let directory = Directory::new()?;
    let path = std::fs::canonicalize(directory.path()).map_err(text)?;
    drop(create(&directory.ledger(), 1e3)?);
    // Alternates between syncs of the anchor and of the WAL.
    let file = DURABLE[number as usize % 2];
    let status = Command::new("strace")
        .args(["-f", "-qq", "-o", "/dev/null", "-P"])
        .arg(path.join(file))
        .args(["-e", "trace=fsync,fdatasync", "-e"])
        .arg(format!("inject=fsync,fdatasync:signal=KILL:when={}", 2 + number))
        .args(victim(&path, "charge", 2048)?)
        .stderr(Stdio::null())
        .status()
        .map_err(|error| format!("strace: {error}"))?;
    if status.code().is_some() {
        return Err(format!("the process was not killed at sync {number} of {file}"));
    }
    let _ = std::fs::remove_file(path.join("out"));
    let left_unsynced = DURABLE.into_iter().chain([DIRECTORY]).map(str::to_owned).collect();
    let traced =
        trace(&path, "charge", 64, SyncTracker { left_unsynced, ..SyncTracker::default() });
    traced.map(drop).map_err(|why| format!("after a kill at sync {number} of {file}: {why}"))
}

fn victim(path: &Path, task: &str, rounds: u64) -> Result<Vec<String>, String> {
    let file = |name: &str| path.join(name).display().to_string();
    let program = std::env::current_exe().map_err(text)?.display().to_string();
    let (rounds, block) = (rounds.to_string(), "8".to_owned());
    Ok(vec![program, task.to_owned(), file("ledger.db"), file("out"), rounds, block])
}

fn trace(
    path: &Path,
    task: &str,
    rounds: u64,
    mut tracker: SyncTracker,
) -> Result<SyncTracker, String> {
    let log = path.join("strace");
    let calls = "trace=write,pwrite64,fdatasync,fsync,rename,renameat2";
    let status = Command::new("strace")
        .args(["-f", "-y", "-qq", "-s", "0", "-e", calls, "-o"])
        .arg(&log)
        .args(victim(path, task, rounds)?)
        .stderr(Stdio::null())
        .status()
        .map_err(|error| format!("strace: {error}"))?;
    if !status.success() {
        return Err("an undisturbed process failed".to_owned());
    }
    let trace_text = std::fs::read_to_string(&log).map_err(text)?;
    let directory = path.display().to_string();
    for (number, line) in (1..).zip(trace_text.lines()) {
        tracker
            .process_line(line, &directory)
            .map_err(|why| format!("line {number} of the trace: {why}"))?;
    }
    let renames = u64::from(task == "create");
    if (tracker.releases, tracker.renames) != (rounds, renames) {
        return Err(format!(
            "{} releases and {} renames were seen",
            tracker.releases, tracker.renames
        ));
    }
    Ok(tracker)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(lines: &[&str]) -> Found {
        let mut tracker = SyncTracker::default();
        lines.iter().try_for_each(|line| tracker.process_line(line, "/d"))
    }

    const WAL: &str = "1 pwrite64(5</d/ledger.db-wal>, \"\"..., 24, 0) = 24";
    const ROWS: &str = "1 pwrite64(6</d/ledger.db.anchor>, \"\"..., 612, 32768) = 612";
    const NO_ROWS: &str = "1 pwrite64(6</d/ledger.db.anchor>, \"\"..., 256, 0) = 256";
    const DATABASE: &str = "1 pwrite64(4</d/ledger.db>, \"\"..., 4096, 0) = 4096";
    const WAL_SYNC: &str = "1 fdatasync(5</d/ledger.db-wal>)  = 0";
    const SYNC: &str = "1 fdatasync(6</d/ledger.db.anchor>)  = 0";
    const OUT: &str = "1 write(7</d/out>, \"\"..., 2) = 2";

    #[test]
    fn releases_before_a_sync_are_detected() {
        let begin = "2 fdatasync(6</d/ledger.db.anchor> <unfinished ...>";
        let end = "2 <... fdatasync resumed>)      = 0";
        let failed = "2 <... fdatasync resumed>) = -1 EIO (Input/output error)";
        assert!(
            judge(&[WAL, ROWS, SYNC, OUT, WAL, WAL_SYNC, NO_ROWS, SYNC, OUT, DATABASE]).is_ok()
        );
        assert!(judge(&[WAL, ROWS, begin, end, OUT]).is_ok());
        for wrong in [
            &[OUT][..],
            &[WAL, ROWS, OUT],
            &[WAL, ROWS, begin, OUT, end],
            &[WAL, ROWS, begin, failed, OUT],
            &[WAL, begin, ROWS, end, OUT],
            &[WAL, NO_ROWS, SYNC, OUT],
            &[WAL, NO_ROWS, WAL_SYNC, SYNC, OUT],
            &[WAL, ROWS, SYNC, OUT, DATABASE],
        ] {
            assert!(judge(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn writes_before_leftovers_are_synced_are_detected() {
        let judge = |lines: &[&str]| {
            let left_unsynced = [DURABLE[0].to_owned(), DIRECTORY.to_owned()].into();
            let mut tracker = SyncTracker { left_unsynced, ..SyncTracker::default() };
            lines.iter().try_for_each(|line| tracker.process_line(line, "/d"))
        };
        let directory_sync = "1 fsync(9</d>) = 0";
        let failed = "1 fsync(9</d>) = -1 EIO (Input/output error)";
        let elsewhere = "1 fsync(9</>) = 0";
        assert!(judge(&[WAL_SYNC, directory_sync, ROWS, WAL]).is_ok());
        for wrong in
            [&[WAL][..], &[WAL_SYNC, ROWS], &[directory_sync, WAL], &[WAL_SYNC, failed, WAL]]
        {
            assert!(judge(wrong).is_err(), "{wrong:?}");
        }
        assert!(judge(&[WAL_SYNC, elsewhere, WAL]).is_err());
    }
}
