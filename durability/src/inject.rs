//! Fault injection with strace: kills a process, or makes a call fail, at every system call that changes a file
//! of the ledger.
//!
//! strace counts calls per thread. All calls of one kind on one file are made by one thread, so counting them
//! per file reaches every call. An injection that does not happen is an error.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};

use veilgrad_ledger::{Ledger, Options};

use crate::charge::GRANTED_AFTER_FAILURE;
use crate::scratch::{Directory, Found, charged, create, open_run, released, round, text};

/// System calls that change files or make them durable.
const CALLS: &str =
    "write,pwrite64,fdatasync,fsync,ftruncate,fallocate,rename,renameat2,unlink,openat";
/// The files of a ledger, temporary ones included, and its directory.
const FILES: [&str; 7] = [
    "ledger.db",
    "ledger.db-wal",
    "ledger.db-shm",
    "ledger.db-journal",
    "ledger.db.anchor",
    "ledger.db.creating",
    "",
];
/// The number of rounds that a victim charges, and of a block.
const ROUNDS: u64 = 360;
const BLOCK: u64 = 8;

/// The task of a victim process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Task {
    Charge,
    Create,
    Import,
    /// Charge a ledger whose last writer died: the anchor is ahead of the database.
    Recover,
}

/// An injection point: the n-th system call of one kind on a file.
struct Point {
    file: &'static str,
    call: String,
    number: u64,
    /// Whether it is the last of its kind: SQLite's cleanup at the end, which may fail.
    last: bool,
}

impl Task {
    const ALL: [Self; 4] = [Self::Charge, Self::Create, Self::Import, Self::Recover];

    const fn name(self) -> &'static str {
        match self {
            Self::Charge => "charge",
            Self::Create => "create",
            Self::Import => "import",
            Self::Recover => "recover",
        }
    }

    /// Creates the files that exist before the victim starts.
    fn prepare(self, directory: &Path) -> Found {
        let ledger = directory.join("ledger.db");
        match self {
            Self::Create => return Ok(()),
            Self::Charge => drop(create(&ledger, 1e3)?),
            Self::Recover => {
                drop(create(&ledger, 1e3)?);
                let before = std::fs::read(&ledger).map_err(text)?;
                // Two rows, one in each slot of the anchor.
                let mut run = open_run(Ledger::open(&ledger, Options::default()).map_err(text)?)?;
                run.reserve(&round(0.01, 1.0)?, BLOCK).map_err(text)?;
                drop(run);
                std::fs::write(&ledger, before).map_err(text)?;
            }
            Self::Import => {
                let other = create(&directory.join("other.db"), 1e3)?;
                let mut run = open_run(other)?;
                run.reserve(&round(0.02, 1.0)?, BLOCK).map_err(text)?;
                let export = run.store().ledger().export().map_err(text)?;
                std::fs::write(directory.join("export"), export).map_err(text)?;
                drop(run);
                let mut run = open_run(create(&ledger, 1e3)?)?;
                run.reserve(&round(0.01, 1.0)?, BLOCK).map_err(text)?;
            }
        }
        Ok(())
    }

    fn command(self, directory: &Path) -> Result<Vec<String>, String> {
        let program = std::env::current_exe().map_err(text)?;
        let file = |name: &str| directory.join(name).display().to_string();
        let name = if self == Self::Recover { Self::Charge.name() } else { self.name() };
        let mut words = vec![program.display().to_string(), name.to_owned()];
        words.push(file("ledger.db"));
        match self {
            Self::Import => words.push(file("export")),
            Self::Charge | Self::Create | Self::Recover => {
                words.extend([file("out"), ROUNDS.to_string(), BLOCK.to_string()]);
            }
        }
        Ok(words)
    }

    /// Checks that the ledger verifies and has a charge for every release; returns the number of unused charges.
    fn check(self, directory: &Path, what: &str) -> Result<u64, String> {
        let path = directory.join("ledger.db");
        let released = released(&directory.join("out"));
        if self == Self::Create && !path.exists() && released == 0 {
            return Ok(0);
        }
        let ledger =
            Ledger::read(&path, Options::default()).map_err(|error| format!("{what}: {error}"))?;
        let over = charged(&ledger).checked_sub(released);
        let most = match self {
            Self::Charge | Self::Create => BLOCK,
            Self::Import | Self::Recover => 2 * BLOCK,
        };
        match over {
            Some(over) if over <= most => Ok(over),
            _ => Err(format!("{what}: {released} rounds released, {} charged", charged(&ledger))),
        }
    }

    /// Checks that the next process can do the same task.
    fn check_next_process(self, directory: &Path, what: &str) -> Found {
        let path = directory.join("ledger.db");
        let charged = || match Ledger::read(&path, Options::default()) {
            Ok(ledger) => Ok(charged(&ledger)),
            Err(_) if self == Self::Create && !path.exists() => Ok(0),
            Err(error) => Err(format!("{what}: {error}")),
        };
        let before = charged()?;
        let code = undisturbed(&self.command(directory)?)?;
        let (after, expected) = (
            charged()?,
            match self {
                Self::Charge | Self::Create | Self::Recover => before + ROUNDS,
                Self::Import => 2 * BLOCK,
            },
        );
        if code != Some(0) || after != expected {
            return Err(format!(
                "{what}: the next process ended with {code:?}; {before}, then {after} charged"
            ));
        }
        Ok(())
    }
}

/// Kills a victim at every such system call.
pub(crate) fn kill(quick: bool) -> Found {
    for task in Task::ALL {
        let points = points(task, quick)?;
        let mut over = 0;
        for point in &points {
            let directory = Directory::new()?;
            task.prepare(directory.path())?;
            let (code, _) = inject(task, directory.path(), point, "signal=KILL")?;
            let what = point.describe(task, "killed");
            if code.is_some() {
                return Err(format!("{what}: it was not, and ended with {code:?}"));
            }
            over = over.max(task.check(directory.path(), &what)?);
            task.check_next_process(directory.path(), &what)?;
        }
        let over = match task {
            Task::Charge | Task::Create => {
                format!(", over-charge at most {over} rounds (a block is {BLOCK})")
            }
            Task::Import | Task::Recover => String::new(),
        };
        println!(
            "kill: {}: {} points, all fired; 0 ledgers refused, 0 rounds released without a charge{over}; \
             every process after it did its work",
            task.name(),
            points.len()
        );
    }
    Ok(())
}

/// Makes every such system call fail with a disk error.
pub(crate) fn errors(quick: bool) -> Found {
    for task in Task::ALL {
        let points = points(task, quick)?;
        let (mut tried, mut failed) = (0, 0);
        for error in ["EIO", "ENOSPC"] {
            for point in &points {
                let directory = Directory::new()?;
                task.prepare(directory.path())?;
                let (code, fired) =
                    inject(task, directory.path(), point, &format!("error={error}"))?;
                let what = point.describe(task, error);
                if !fired {
                    return Err(format!("{what}: it did not fail"));
                }
                if code == Some(i32::from(GRANTED_AFTER_FAILURE)) {
                    return Err(format!("{what}: a round was granted after a failed charge"));
                }
                tried += 1;
                if code == Some(0) && point.matters() {
                    return Err(format!("{what}: not detected"));
                }
                if code == Some(0) {
                    // The call did not matter, so everything must have been done.
                    let out = directory.path().join("out");
                    if task != Task::Import && released(&out) != ROUNDS {
                        return Err(format!("{what}: exit 0 without all releases"));
                    }
                } else {
                    failed += 1;
                }
                task.check(directory.path(), &what)?;
                task.check_next_process(directory.path(), &what)?;
            }
        }
        println!(
            "errors: {}: {tried} failing calls, all fired; {failed} processes ended with an error, {} \
             where the call did not matter, 0 rounds released without a charge or after a failed one, \
             0 ledgers damaged",
            task.name(),
            tried - failed
        );
    }
    Ok(())
}

impl Point {
    /// Whether a charge depends on this call, so that its failure must be detected.
    fn matters(&self) -> bool {
        let durable = ["ledger.db-wal", "ledger.db.anchor", "ledger.db.creating"];
        let writes = ["write", "pwrite64", "fdatasync", "fsync", "rename", "renameat2"];
        let written =
            durable.contains(&self.file) && writes.contains(&self.call.as_str()) && !self.last;
        // The first sync of the directory is the ledger's; SQLite ignores failures of its own.
        written || self.file.is_empty() && self.call == "fsync" && self.number == 1
    }

    fn describe(&self, task: Task, what: &str) -> String {
        let file = if self.file.is_empty() { "the directory" } else { self.file };
        format!("{}: {what} at {} number {} on {file}", task.name(), self.call, self.number)
    }
}

/// All injection points, from a trace of an undisturbed victim.
fn points(task: Task, quick: bool) -> Result<Vec<Point>, String> {
    let mut points = Vec::new();
    for file in FILES {
        let directory = Directory::new()?;
        task.prepare(directory.path())?;
        let log = directory.path().join("strace");
        let status = strace(directory.path(), file, CALLS, &log)
            .args(task.command(directory.path())?)
            .status()
            .map_err(|error| format!("strace: {error}"))?;
        if !status.success() {
            return Err(format!("{}: an undisturbed process failed", task.name()));
        }
        // A line starts with the thread and the call, followed by an opening parenthesis.
        let mut counts: BTreeMap<String, BTreeMap<String, u64>> = BTreeMap::new();
        for line in std::fs::read_to_string(&log).map_err(text)?.lines() {
            let mut words = line.split_whitespace();
            let (Some(thread), Some(rest)) = (words.next(), words.next()) else { continue };
            if let Some((call, _)) = rest.split_once('(')
                && CALLS.split(',').any(|known| known == call)
            {
                let threads = counts.entry(call.to_owned()).or_default();
                *threads.entry(thread.to_owned()).or_default() += 1;
            }
        }
        for (call, threads) in counts {
            if threads.len() != 1 {
                return Err(format!("{call} on {file:?} is called by {} threads", threads.len()));
            }
            let count = threads.values().sum::<u64>();
            let stride = if quick { 17 } else { 1 };
            points.extend((1..=count).step_by(stride).map(|number| {
                let (call, last) = (call.clone(), number == count);
                Point { file, call, number, last }
            }));
        }
    }
    Ok(points)
}

fn strace(directory: &Path, file: &str, calls: &str, log: &Path) -> Command {
    let mut command = Command::new("strace");
    command.args(["-f", "-qq", "-e", &format!("trace={calls}"), "-P"]);
    // Joining an empty name would append a slash.
    command.arg(if file.is_empty() { directory.to_owned() } else { directory.join(file) });
    command.arg("-o").arg(log);
    command
}

/// Runs a victim with an injection. Returns its exit code (`None` if it was killed) and whether the injection happened.
fn inject(
    task: Task,
    directory: &Path,
    point: &Point,
    what: &str,
) -> Result<(Option<i32>, bool), String> {
    let log = directory.join("strace");
    let inject = format!("inject={}:{what}:when={}", point.call, point.number);
    let status = strace(directory, point.file, &point.call, &log)
        .args(["-e", &inject])
        .args(task.command(directory)?)
        .stderr(Stdio::null())
        .status()
        .map_err(text)?;
    let fired = std::fs::read_to_string(&log).map_err(text)?.contains("INJECTED");
    Ok((status.code(), fired))
}

fn undisturbed(command: &[String]) -> Result<Option<i32>, String> {
    let (program, arguments) = command.split_first().ok_or("no command")?;
    let status = Command::new(program).args(arguments).stderr(Stdio::null()).status();
    Ok(status.map_err(text)?.code())
}
