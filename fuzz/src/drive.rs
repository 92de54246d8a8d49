//! Runs targets on altered inputs: a process with two threads for every target.
//!
//! Input number `i` of a target is a function of the seed, the target, `i` and the saved corpus. So the inputs of a process
//! that died are known from the numbers that its threads were at, which are in a file.

mod input;
mod report;
mod status;
mod worker;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::reader::Target;
use crate::saved;
pub use input::input;
pub use report::{MEMORY, Report, THREADS};
use status::Status;
pub use worker::{Order, panic_of, work};

/// A process without a new input for this long is killed. Generous, because other programs may use the CPU.
const STUCK: Duration = Duration::from_secs(90);
/// The number of saved failures of each kind, and of processes that are started for a target.
const KEPT: usize = 3;
const RESTARTS: usize = 20;

/// Runs a target `count` times, or until the time is up. An input that takes more CPU time than `limit` counts as a hang.
///
/// # Errors
/// When processes cannot be started or files cannot be written.
pub fn run(
    target: &Target,
    (seed, limit): (u64, Duration),
    count: u64,
    time: Duration,
) -> std::io::Result<Report> {
    let (start, mut report) = (Instant::now(), Report::default());
    let mut first = 0;
    for _ in 0..RESTARTS {
        let left = time.saturating_sub(start.elapsed());
        let order =
            Order { target: target.name.to_owned(), seed, first, last: count, limit, time: left };
        let at = one_process(&order, &mut report)?;
        let Some(at) = at else { break };
        let before = report.failures.len();
        for number in &at {
            if let Some(failure) = alone(target, (seed, limit), *number)? {
                report.failures.push((*number, failure));
            }
        }
        // Both threads were at about the same number.
        let last = at.iter().max().copied();
        if report.failures.len() == before {
            let what = "its process died or did not end, but no input does it alone".to_owned();
            report.failures.push((last.unwrap_or(first), what));
        }
        first = last.map_or(count, |number| number + 1);
        report.executions += at.iter().min().map_or(0, |number| number.saturating_sub(order.first));
    }
    report.seconds = start.elapsed().as_secs_f64();
    keep(target, seed, &mut report)?;
    Ok(report)
}

/// Runs inputs in one process. If it died or hung, returns the input numbers that its threads were at.
fn one_process(order: &Order, report: &mut Report) -> std::io::Result<Option<Vec<u64>>> {
    let status = Status::new()?;
    let mut child = Command::new(std::env::current_exe()?)
        .args(order.words(status.path()))
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let (mut at, mut since) = (status.read(), Instant::now());
    let ended = loop {
        if let Some(ended) = child.try_wait()? {
            break ended;
        }
        std::thread::sleep(Duration::from_millis(50));
        let now = status.read();
        if now != at {
            (at, since) = (now, Instant::now());
        } else if since.elapsed() > STUCK {
            child.kill()?;
            child.wait()?;
            return Ok(Some(at));
        }
    };
    let mut text = String::new();
    if let Some(mut out) = child.stdout.take() {
        std::io::Read::read_to_string(&mut out, &mut text)?;
    }
    if !ended.success() {
        return Ok(Some(status.read()));
    }
    worker::read_report(&text, report);
    Ok(None)
}

/// Runs one input in a separate process; returns how it failed, if it did.
fn alone(
    target: &Target,
    (seed, limit): (u64, Duration),
    number: u64,
) -> std::io::Result<Option<String>> {
    let mut report = Report::default();
    let name = target.name.to_owned();
    let order = Order { target: name, seed, first: number, last: number + 1, limit, time: STUCK };
    let died = one_process(&order, &mut report)?;
    if died.is_some() {
        return Ok(Some(format!("took over {} MiB, or did not end", MEMORY >> 20)));
    }
    Ok(report.failures.pop().map(|(_, what)| what))
}

/// Writes inputs that failed to `regressions`, a few of each kind.
fn keep(target: &Target, seed: u64, report: &mut Report) -> std::io::Result<()> {
    let saved = saved::of(target.name);
    let mut kinds: BTreeMap<String, usize> = BTreeMap::new();
    for (number, what) in &report.failures {
        let count = kinds.entry(what.clone()).or_default();
        *count += 1;
        if *count > KEPT {
            continue;
        }
        let directory: PathBuf = saved::regressions(target.name);
        std::fs::create_dir_all(&directory)?;
        let bytes = input(target, &saved, seed, *number);
        std::fs::write(directory.join(format!("{seed:x}-{number}")), bytes)?;
    }
    Ok(())
}
