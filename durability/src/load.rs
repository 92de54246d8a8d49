//! Size and speed of a ledger.

use std::io::Write;
use std::time::Instant;

use veilgrad_accounting::{Accountant, Composition, Tightest};
use veilgrad_events::{Delta, Rounds};
use veilgrad_ledger::{Ledger, Options};

use crate::scratch::{Directory, Found, charged, create, open_run, round, text};

/// Wall-clock time, and processor time of all threads of this process.
#[derive(Default, Clone, Copy)]
struct Seconds {
    clock: f64,
    process: f64,
}

impl Seconds {
    /// Runs `work` and adds its time.
    fn measure<T>(&mut self, work: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
        let (clock, process) = (Instant::now(), process_seconds());
        let result = work();
        self.clock += clock.elapsed().as_secs_f64();
        self.process += process_seconds() - process;
        result
    }
}

impl std::fmt::Display for Seconds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.2} s ({:.2} s of processor)", self.clock, self.process)
    }
}

/// The processor time of this process, to 10 ms; 0 if the system does not provide it.
fn process_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The program name may contain spaces; user and system time are the 14th and 15th field.
    let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace();
    fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / 100.0
}

/// Distinct rounds, each with a larger sample rate and noise than the one before.
fn schedule(rounds: std::ops::Range<u64>, all: u64) -> Result<Vec<Rounds>, String> {
    let distinct = |i| {
        let part = i as f64 / all as f64;
        Ok(Rounds { count: 1, round: round(0.001 + 0.001 * part, 1.0 + 0.5 * part)? })
    };
    rounds.map(distinct).collect()
}

/// Measures many distinct rounds, very many identical rounds, and distinct rounds in small blocks.
pub(crate) fn load(quick: bool) -> Found {
    let rounds: u64 = if quick { 20_000 } else { 1_000_000 };
    let directory = Directory::new()?;
    let mut run = open_run(create(&directory.ledger(), 1e6)?)?;
    let (mut append, mut verify, mut account) =
        (Seconds::default(), Seconds::default(), Seconds::default());
    let blocks = 20;
    for block in 0..blocks {
        let size = rounds / blocks;
        let charges = schedule(block * size..(block + 1) * size, rounds)?;
        drop(append.measure(|| run.reserve_each(&charges).map_err(text))?);
    }
    drop(run);
    let ledger =
        verify.measure(|| Ledger::read(directory.ledger(), Options::default()).map_err(text))?;
    if charged(&ledger) != rounds {
        return Err(format!("{} of {rounds} rounds", charged(&ledger)));
    }
    let epsilon = account.measure(|| {
        let dataset = ledger.state().datasets().values().next().ok_or("no dataset")?;
        let charges = dataset.charges();
        let runs = charges.iter().map(|run| run.rounds.iter().copied());
        let composition = Composition::of_runs(runs, dataset.budget.adjacency).map_err(text)?;
        let delta = Delta::new(1e-5).map_err(text)?;
        Ok(Tightest.epsilon(&composition, delta).map_err(text)?.epsilon)
    })?;
    println!(
        "load: {rounds} distinct rounds in {blocks} blocks: append {append}, verify {verify}, account {account} \
         (epsilon {epsilon:.4}), peak memory {} MB",
        peak_megabytes()
    );
    // The limits are for an idle machine and the full size.
    let slow = [append, verify, account].into_iter().any(|seconds| seconds.clock > 10.0);
    if !quick && (slow || peak_megabytes() > 300) {
        return Err("above 10 s or 300 MB".to_owned());
    }
    drop(ledger);
    identical()?;
    small_blocks(if quick { 100 } else { 1000 })
}

fn identical() -> Found {
    let directory = Directory::new()?;
    let mut run = open_run(create(&directory.ledger(), 1e6)?)?;
    let (mut append, mut verify) = (Seconds::default(), Seconds::default());
    let round = round(0.001, 1.0)?;
    drop(append.measure(|| run.reserve(&round, 10_000_000).map_err(text))?);
    drop(run);
    let ledger =
        verify.measure(|| Ledger::read(directory.ledger(), Options::default()).map_err(text))?;
    println!("load: {} identical rounds: append {append}, verify {verify}", charged(&ledger));
    Ok(())
}

/// Late charges must not take longer than early ones.
fn small_blocks(blocks: u64) -> Found {
    const BLOCK: u64 = 32;
    let directory = Directory::new()?;
    let mut run = open_run(create(&directory.ledger(), 1e6)?)?;
    let mut times = [Seconds::default(); 2];
    for block in 0..blocks {
        let charges = schedule(block * BLOCK..(block + 1) * BLOCK, blocks * BLOCK)?;
        let half = if 2 * block < blocks { &mut times[0] } else { &mut times[1] };
        drop(half.measure(|| run.reserve_each(&charges).map_err(text))?);
    }
    let [first, second] = times;
    println!(
        "load: {blocks} blocks of {BLOCK} distinct rounds: first half {first}, second half {second}"
    );
    if second.process > 2.0 * first.process + 0.5 {
        return Err("later charges take longer than earlier ones".to_owned());
    }
    Ok(())
}

/// The peak memory of this process; 0 if the system does not provide it.
fn peak_megabytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmHWM:"));
    let kilobytes =
        line.and_then(|line| line.split_whitespace().nth(1)).and_then(|n| n.parse().ok());
    kilobytes.unwrap_or(0u64) / 1024
}

/// Durable rounds per second, compared with a loop of small writes with a sync each, in turns.
pub(crate) fn rate(quick: bool) -> Found {
    let turns = if quick { 2 } else { 10 };
    let writes = 100;
    let directory = Directory::new()?;
    let mut file = std::fs::File::create(directory.path().join("bare")).map_err(text)?;
    let mut run = open_run(create(&directory.ledger(), 1e6)?)?;
    let round = round(0.001, 1.0)?;
    let (mut bare, mut one, mut many) = (0.0, 0.0, 0.0);
    for _ in 0..turns {
        let start = Instant::now();
        for _ in 0..writes {
            file.write_all(&[7; 400]).map_err(text)?;
            file.sync_data().map_err(text)?;
        }
        bare += start.elapsed().as_secs_f64();
        for (block, time) in [(1, &mut one), (32, &mut many)] {
            let start = Instant::now();
            for _ in 0..writes {
                drop(run.reserve(&round, block).map_err(text)?);
            }
            *time += start.elapsed().as_secs_f64();
        }
    }
    let all = f64::from(turns * writes);
    println!(
        "rate: bare write and sync {:.0}/s; block 1: {:.0} rounds/s ({:.2} of it); block 32: {:.0} rounds/s",
        all / bare,
        all / one,
        bare / one,
        32.0 * all / many
    );
    Ok(())
}
