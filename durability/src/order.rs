//! The order of system calls: what is released must have been made durable before.
//!
//! Watches one process that creates a ledger and charges, and requires, whenever it writes to the file of
//! releases, that every write to the anchor was followed by a sync of it that began after the write and has
//! returned; that the same holds for the WAL before the anchor is written without the rows it names, and
//! before the WAL goes into the database; and, when the database gets its name, that all its parts were synced.
//!
//! Then watches one that goes on where another was killed: before it writes behind what that one wrote, all of
//! it must have been synced again, because the first sync may have failed.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::scratch::{Directory, Found, create, text};

const LOG: &str = "ledger.db-wal";
const ANCHOR: &str = "ledger.db.anchor";
/// What a process that was killed may have left unsynced.
const DURABLE: [&str; 2] = [LOG, ANCHOR];
/// The size of a slot without rows.
const EMPTY_SLOT: &str = "256";

/// The directory itself.
const HERE: &str = ".";

/// Which parts of files are not known to be on disk.
#[derive(Default)]
struct Watch {
    /// Files with writes that no sync has covered.
    dirty: HashMap<String, bool>,
    /// Syncs that have begun, by thread: their file, and whether it was written to since.
    syncing: HashMap<String, (String, bool)>,
    /// Files as somebody who was killed left them, which this process has not synced.
    left: HashSet<String>,
    releases: u64,
    syncs: u64,
    renames: u64,
    /// How often the WAL had to be on disk, and was.
    logs: u64,
}

impl Watch {
    /// Takes in a line of strace's log.
    fn line(&mut self, line: &str, directory: &str) -> Found {
        let mut words = line.splitn(2, char::is_whitespace);
        let (thread, rest) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let rest = rest.trim_start();
        if let Some(call) = rest.strip_prefix("<... ") {
            if call.starts_with("fdatasync") || call.starts_with("fsync") {
                self.synced(thread, call);
            }
            return Ok(());
        }
        let Some((call, arguments)) = rest.split_once('(') else { return Ok(()) };
        let file = arguments.split_once('<').and_then(|(_, rest)| rest.split_once('>'));
        let file = match file.and_then(|(file, _)| file.strip_prefix(directory)) {
            Some("") => HERE,
            Some(file) => file.trim_start_matches('/'),
            None => "elsewhere",
        };
        let file = file.to_owned();
        match call {
            "write" | "pwrite64" if file == "out" => self.release(),
            "write" | "pwrite64" if !self.left.is_empty() && DURABLE.contains(&file.as_str()) => {
                Err(format!("{file} was written before {:?} were synced", self.left))
            }
            "pwrite64" if file == "ledger.db" => self.clean(&[LOG], "a write to the database"),
            "write" | "pwrite64" => {
                // The last arguments are the length and the place.
                if file == ANCHOR && arguments.rsplit(", ").nth(1) == Some(EMPTY_SLOT) {
                    self.logs += 1;
                    self.clean(&[LOG], "an anchor without rows")?;
                }
                for (of, written) in self.syncing.values_mut() {
                    *written |= *of == file;
                }
                self.dirty.insert(file, true);
                Ok(())
            }
            "fdatasync" | "fsync" => {
                self.syncing.insert(thread.to_owned(), (file, false));
                if !arguments.contains("<unfinished") {
                    self.synced(thread, arguments);
                }
                Ok(())
            }
            "rename" | "renameat2" => {
                self.renames += 1;
                self.clean(&["ledger.db.creating", "ledger.db.anchor"], "the rename")
            }
            _ => Ok(()),
        }
    }

    fn synced(&mut self, thread: &str, result: &str) {
        if let Some((file, written)) = self.syncing.remove(thread)
            && result.trim_end().ends_with("= 0")
            && !written
        {
            self.syncs += 1;
            self.left.remove(&file);
            self.dirty.insert(file, false);
        }
    }

    fn release(&mut self) -> Found {
        self.releases += 1;
        // Written at least once, and nothing since that is not on disk.
        for file in DURABLE {
            if !self.dirty.contains_key(file) {
                return Err(format!("a release before anything was written to {file}"));
            }
        }
        self.clean(&[ANCHOR], "a release")
    }

    fn clean(&self, files: &[&str], what: &str) -> Found {
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
    let watch = watch(&path, "create", rounds, Watch::default())?;
    println!(
        "order: {} releases and {} rename, each after its writes were synced ({} syncs); the WAL before {} \
         slots without rows",
        watch.releases, watch.renames, watch.syncs, watch.logs
    );
    // The first slot is written when there is no WAL yet.
    if !quick && watch.logs < 2 {
        return Err("the WAL was never synced".to_owned());
    }
    let kills = if quick { 2 } else { 12 };
    for number in 1..=kills {
        after_a_kill(number)?;
    }
    println!("order: {kills} processes synced what one that was killed had left before they wrote");
    Ok(())
}

/// Kills a process before a sync, and watches the next.
fn after_a_kill(number: u64) -> Found {
    let directory = Directory::new()?;
    let path = std::fs::canonicalize(directory.path()).map_err(text)?;
    drop(create(&directory.ledger(), 1e3)?);
    // Of the anchor's syncs and the WAL's, in turn.
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
    let left = DURABLE.into_iter().chain([HERE]).map(str::to_owned).collect();
    let watched = watch(&path, "charge", 64, Watch { left, ..Watch::default() });
    watched.map(drop).map_err(|why| format!("after a kill at sync {number} of {file}: {why}"))
}

fn victim(path: &Path, task: &str, rounds: u64) -> Result<Vec<String>, String> {
    let file = |name: &str| path.join(name).display().to_string();
    let program = std::env::current_exe().map_err(text)?.display().to_string();
    let (rounds, block) = (rounds.to_string(), "8".to_owned());
    Ok(vec![program, task.to_owned(), file("ledger.db"), file("out"), rounds, block])
}

fn watch(path: &Path, task: &str, rounds: u64, mut watch: Watch) -> Result<Watch, String> {
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
    let text_of = std::fs::read_to_string(&log).map_err(text)?;
    let directory = path.display().to_string();
    for (number, line) in (1..).zip(text_of.lines()) {
        watch.line(line, &directory).map_err(|why| format!("line {number} of the trace: {why}"))?;
    }
    let renames = u64::from(task == "create");
    if (watch.releases, watch.renames) != (rounds, renames) {
        return Err(format!("{} releases and {} renames were seen", watch.releases, watch.renames));
    }
    Ok(watch)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(lines: &[&str]) -> Found {
        let mut watch = Watch::default();
        lines.iter().try_for_each(|line| watch.line(line, "/d"))
    }

    const WAL: &str = "1 pwrite64(5</d/ledger.db-wal>, \"\"..., 24, 0) = 24";
    const ROWS: &str = "1 pwrite64(6</d/ledger.db.anchor>, \"\"..., 612, 32768) = 612";
    const NO_ROWS: &str = "1 pwrite64(6</d/ledger.db.anchor>, \"\"..., 256, 0) = 256";
    const DATABASE: &str = "1 pwrite64(4</d/ledger.db>, \"\"..., 4096, 0) = 4096";
    const WAL_SYNC: &str = "1 fdatasync(5</d/ledger.db-wal>)  = 0";
    const SYNC: &str = "1 fdatasync(6</d/ledger.db.anchor>)  = 0";
    const OUT: &str = "1 write(7</d/out>, \"\"..., 2) = 2";

    #[test]
    fn releases_before_a_sync_are_noticed() {
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
    fn writes_behind_what_was_left_unsynced_are_noticed() {
        let judge = |lines: &[&str]| {
            let left = [DURABLE[0].to_owned(), HERE.to_owned()].into();
            let mut watch = Watch { left, ..Watch::default() };
            lines.iter().try_for_each(|line| watch.line(line, "/d"))
        };
        let here = "1 fsync(9</d>) = 0";
        let failed = "1 fsync(9</d>) = -1 EIO (Input/output error)";
        let elsewhere = "1 fsync(9</>) = 0";
        assert!(judge(&[WAL_SYNC, here, ROWS, WAL]).is_ok());
        for wrong in [&[WAL][..], &[WAL_SYNC, ROWS], &[here, WAL], &[WAL_SYNC, failed, WAL]] {
            assert!(judge(wrong).is_err(), "{wrong:?}");
        }
        assert!(judge(&[WAL_SYNC, elsewhere, WAL]).is_err());
    }
}
