//! The order of system calls: what is released must have been made durable before.
//!
//! Watches one process that creates a ledger and charges, and requires, whenever it writes to the file of
//! releases, that every write to the WAL and to the anchor was followed by a sync of that file that began
//! after the write and has returned; and, when the database gets its name, that all its parts were synced.

use std::collections::HashMap;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::Found;
use crate::scratch::{Directory, text};

/// Which parts of files are not known to be on disk.
#[derive(Default)]
struct Watch {
    /// Files with writes that no sync has covered.
    dirty: HashMap<String, bool>,
    /// Syncs that have begun, by thread: their file, and whether it was written to since.
    syncing: HashMap<String, (String, bool)>,
    releases: u64,
    syncs: u64,
    renames: u64,
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
        let file = file.map_or("", |(file, _)| file.strip_prefix(directory).unwrap_or(""));
        let file = file.trim_start_matches('/').to_owned();
        match call {
            "write" | "pwrite64" if file == "out" => self.release(),
            "write" | "pwrite64" => {
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
            self.dirty.insert(file, false);
        }
    }

    fn release(&mut self) -> Found {
        self.releases += 1;
        // Written at least once, and nothing since that is not on disk.
        for file in ["ledger.db-wal", "ledger.db.anchor"] {
            if !self.dirty.contains_key(file) {
                return Err(format!("a release before anything was written to {file}"));
            }
        }
        self.clean(&["ledger.db-wal", "ledger.db.anchor"], "a release")
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
    let watch = watch(&path, if quick { "64" } else { "2048" })?;
    println!(
        "order: {} releases and {} rename, each after its writes were synced ({} syncs)",
        watch.releases, watch.renames, watch.syncs
    );
    Ok(())
}

fn watch(path: &Path, rounds: &str) -> Result<Watch, String> {
    let log = path.join("strace");
    let calls = "trace=write,pwrite64,fdatasync,fsync,rename,renameat2";
    let status = Command::new("strace")
        .args(["-f", "-y", "-qq", "-s", "0", "-e", calls, "-o"])
        .arg(&log)
        .arg(std::env::current_exe().map_err(text)?)
        .args(["create".as_ref(), path.join("ledger.db").as_os_str()])
        .arg(path.join("out"))
        .args([rounds, "8"])
        .stderr(Stdio::null())
        .status()
        .map_err(|error| format!("strace: {error}"))?;
    if !status.success() {
        return Err("an undisturbed process failed".to_owned());
    }
    let mut watch = Watch::default();
    let text_of = std::fs::read_to_string(&log).map_err(text)?;
    let directory = path.display().to_string();
    for (number, line) in (1..).zip(text_of.lines()) {
        watch.line(line, &directory).map_err(|why| format!("line {number} of the trace: {why}"))?;
    }
    let expected: u64 = rounds.parse().map_err(text)?;
    if (watch.releases, watch.renames) != (expected, 1) {
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
    const ANCHOR: &str = "1 pwrite64(6</d/ledger.db.anchor>, \"\"..., 24, 0) = 24";
    const WAL_SYNC: &str = "1 fdatasync(5</d/ledger.db-wal>)  = 0";
    const OUT: &str = "1 write(7</d/out>, \"\"..., 2) = 2";

    #[test]
    fn releases_before_a_sync_are_noticed() {
        let begin = "2 fdatasync(6</d/ledger.db.anchor> <unfinished ...>";
        let end = "2 <... fdatasync resumed>)      = 0";
        let failed = "2 <... fdatasync resumed>) = -1 EIO (Input/output error)";
        assert!(judge(&[ANCHOR, begin, WAL, WAL_SYNC, end, OUT]).is_ok());
        for wrong in [
            &[OUT][..],
            &[ANCHOR, begin, WAL, WAL_SYNC, OUT, end],
            &[ANCHOR, begin, WAL, end, OUT],
            &[ANCHOR, begin, WAL, WAL_SYNC, failed, OUT],
            &[begin, ANCHOR, WAL, WAL_SYNC, end, OUT],
            &[ANCHOR, begin, WAL_SYNC, WAL, end, OUT],
        ] {
            assert!(judge(wrong).is_err(), "{wrong:?}");
        }
    }
}
