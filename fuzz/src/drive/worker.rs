//! The worker process that runs a target: limits memory, catches panics, measures the CPU time of every input.

use std::cell::RefCell;
use std::ffi::OsString;
use std::fmt::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Once;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};

use super::input::input;
use super::report::{MEMORY, Report, THREADS};
use super::status::Status;
use crate::reader::{TARGETS, Target};
use crate::saved;

/// The work of a worker process.
#[derive(Debug, Clone)]
pub struct Order {
    /// The name of the target.
    pub target: String,
    /// The seed of the inputs.
    pub seed: u64,
    /// The number of the first input.
    pub first: u64,
    /// The number after that of the last input.
    pub last: u64,
    /// CPU time after which an input counts as a hang.
    pub limit: Duration,
    /// How long to run at most.
    pub time: Duration,
}

impl Order {
    /// The order as command-line arguments.
    pub(super) fn words(&self, status: &Path) -> Vec<OsString> {
        let Self { target, seed, first, last, limit, time } = self;
        let [limit, time] = [limit, time].map(|time| time.as_millis() as u64);
        let numbers = [*seed, *first, *last, limit, time];
        let mut words = vec!["--worker".into(), target.into(), status.as_os_str().to_owned()];
        words.extend(numbers.iter().map(|number| number.to_string().into()));
        words
    }

    fn read(words: &[String]) -> Option<(Self, &Path)> {
        let [target, status, numbers @ ..] = words else { return None };
        let numbers: Vec<u64> = numbers.iter().map_while(|word| word.parse().ok()).collect();
        let [seed, first, last, limit, time] = numbers[..] else { return None };
        let (target, [limit, time]) = (target.clone(), [limit, time].map(Duration::from_millis));
        Some((Self { target, seed, first, last, limit, time }, Path::new(status)))
    }
}

/// Runs the order in the arguments after `--worker`, and returns the results as text for the parent process.
///
/// # Errors
/// When the arguments are not an order, or the status file cannot be written.
pub fn work(words: &[String]) -> Result<String, Box<dyn std::error::Error>> {
    let (order, status) = Order::read(words).ok_or("not an order")?;
    let target = TARGETS.iter().find(|target| target.name == order.target);
    let target = target.ok_or("not a target")?;
    let status = Status::open(status)?;
    let limit = Some(MEMORY);
    setrlimit(Resource::As, Rlimit { current: limit, maximum: limit })?;
    setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })?;
    let saved = saved::of(target.name);
    let start = Instant::now();
    let mut text = String::new();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (order, status, saved) = (&order, &status, &saved);
                scope.spawn(move || one_thread(thread, target, order, saved, status, start))
            })
            .collect();
        for thread in threads {
            let report = thread.join().map_err(|_| "a thread ended early")??;
            let (slowest, number) = report.slowest;
            writeln!(text, "{} {} {number}", report.executions, slowest.as_nanos())?;
            for (number, what) in report.failures {
                writeln!(text, "failure {number} {}", what.replace('\n', " "))?;
            }
        }
        Ok::<_, Box<dyn std::error::Error>>(())
    })?;
    writeln!(text, "memory {}", peak_memory())?;
    Ok(text)
}

/// Adds the results of [`work`] to a report.
pub(super) fn read_report(text: &str, report: &mut Report) {
    for line in text.lines() {
        let words: Vec<&str> = line.splitn(3, ' ').collect();
        match words[..] {
            ["memory", bytes] => report.memory = report.memory.max(bytes.parse().unwrap_or(0)),
            ["failure", number, what] => {
                report.failures.push((number.parse().unwrap_or(0), what.to_owned()));
            }
            [executions, slowest, number] => {
                report.executions += executions.parse::<u64>().unwrap_or(0);
                let slowest = Duration::from_nanos(slowest.parse().unwrap_or(0));
                let slowest = (slowest, number.parse().unwrap_or(0));
                report.slowest = report.slowest.max(slowest);
            }
            _ => {}
        }
    }
}

/// The peak memory of this process in bytes.
fn peak_memory() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kibibytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kibibytes.unwrap_or(0) << 10
}

fn one_thread(
    thread: usize,
    target: &Target,
    order: &Order,
    saved: &[Vec<u8>],
    status: &Status,
    start: Instant,
) -> std::io::Result<Report> {
    let mut report = Report::default();
    let mut before = cpu_time();
    for number in (order.first..order.last).skip(thread).step_by(THREADS) {
        if start.elapsed() >= order.time {
            break;
        }
        status.write(thread, number)?;
        let bytes = input(target, saved, order.seed, number);
        let panic = panic_of(|| (target.run)(&bytes));
        let now = cpu_time();
        let took = now.saturating_sub(before);
        before = now;
        report.executions += 1;
        report.slowest = report.slowest.max((took, number));
        if let Some(what) = panic {
            report.failures.push((number, what));
        } else if took > order.limit {
            report.failures.push((number, format!("took more than {:?}", order.limit)));
        }
    }
    Ok(report)
}

/// The CPU time of this thread, which does not depend on other programs.
fn cpu_time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

thread_local! {
    static MESSAGE: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// The panic message of a function with its place, if it panicked. Nothing is printed.
pub fn panic_of(run: impl FnOnce()) -> Option<String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        std::panic::set_hook(Box::new(|panic| {
            let text = panic.to_string();
            MESSAGE.with_borrow_mut(|message| *message = Some(text.chars().take(400).collect()));
        }));
    });
    catch_unwind(AssertUnwindSafe(run)).err().map(|_| {
        let message = MESSAGE.with_borrow_mut(Option::take);
        message.unwrap_or_else(|| "panicked in another thread".to_owned())
    })
}
