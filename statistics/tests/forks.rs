//! A forked child cannot use what its parent drew and charged, whatever its process id is.
#![cfg(target_os = "linux")]
#![allow(clippy::print_stdout)]

use std::io::{Read, Write, pipe};
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::Arc;

use fork::Fork;
use veilgrad::accounting::Tightest;
use veilgrad::events::{Budget, IntegerGrid, LedgerError, Mode, ProcessIdentity};
use veilgrad::ledger::{Ledger, Options};
use veilgrad::mechanism::{NoiseError, ReleaseError, SampleError};
use veilgrad::prelude::*;
use veilgrad::random::{RandomError, RoundKey, gaussian, subset};

/// Set if a test runs as the first process of a pid namespace.
const FIRST: &str = "VEILGRAD_FIRST_PROCESS";
/// Set if a test runs without /proc.
const NO_PROC: &str = "VEILGRAD_NO_PROC";

struct Directory(PathBuf);

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn directory(name: &str) -> Directory {
    // Not named after the process id, because several processes here have id 1.
    let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos();
    let path = std::env::temp_dir().join(format!("veilgrad-{name}-{now}"));
    std::fs::create_dir(&path).unwrap();
    Directory(path)
}

fn plan() -> RoundPlan {
    let structure = Structure::new([("x", 2)]).unwrap();
    let groups = Group::flat("x", "x", ClipNorm::new(1.0).unwrap());
    let allocation = Allocation::Proportional(NoiseMultiplier::new(1.0).unwrap());
    RoundPlan::new(structure, groups, allocation).unwrap()
}

fn header() -> RunHeader {
    RunHeader::new(RecordUnit::Example, Adjacency::AddRemove)
}

fn sample(run: &mut Run<MemoryLedger>, plan: &RoundPlan) -> Sample {
    let permit = run.reserve(&plan.round(&AllRecords).unwrap(), 1).unwrap().next().unwrap();
    Sample::draw(permit, &mut AllRecords, 0).unwrap()
}

fn release(plan: &RoundPlan, sample: Sample, noise: Noise) -> Option<ReleaseError> {
    sample.begin(plan).release(sample, noise).err()
}

fn ledger(directory: &Directory) -> Ledger {
    let budget = Budget {
        dataset: "data".to_owned(),
        epsilon: Epsilon::new(8.0).unwrap(),
        delta: Delta::new(1e-5).unwrap(),
        adjacency: Adjacency::AddRemove,
        unit: RecordUnit::Example,
        mode: Mode::Planned,
        order: None,
    };
    let mut ledger = Ledger::create(directory.0.join("ledger.db"), Options::default()).unwrap();
    ledger.create_budget(budget).unwrap();
    ledger
}

/// Makes the next child of this thread the first process of a new pid namespace.
#[expect(
    deprecated,
    reason = "a new pid namespace closes no file, which is what makes others unsafe"
)]
fn unshare_pids() {
    rustix::thread::unshare(rustix::thread::UnshareFlags::NEWPID).unwrap();
}

/// Runs one test of this file in new namespaces. `None` if this system does not allow that; CI must allow it.
fn in_namespaces(namespaces: &[&str], command: &str, variable: &str) -> Option<Output> {
    let unshare = |command: &str| {
        let mut unshare = Command::new("unshare");
        unshare.args(["--user", "--map-root-user"]).args(namespaces);
        unshare.args(["sh", "-c", command]).env("TEST", std::env::current_exe().unwrap());
        unshare.env(variable, "1").output()
    };
    if !unshare("exit 0").is_ok_and(|output| output.status.success()) {
        assert!(std::env::var_os("CI").is_none(), "unshare {namespaces:?} is needed");
        println!("left out: unshare {namespaces:?} is not allowed here");
        return None;
    }
    Some(unshare(command).unwrap())
}

#[track_caller]
fn assert_passed(output: Option<Output>) {
    let Some(output) = output else { return };
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

/// An ordinary fork; if started by the test below, parent and child both have process id 1.
#[test]
fn a_forked_child_has_nothing_of_its_parents() {
    let first = std::env::var_os(FIRST).is_some();
    let (plan, directory) = (plan(), directory("forks"));
    let ledger_round = plan.round(&AllRecords).unwrap();
    let store = ledger(&directory).dataset("data", Arc::new(Tightest)).unwrap();
    let mut durable = Run::open(store, header()).unwrap();
    let mut handle = Ledger::open(directory.0.join("ledger.db"), Options::default()).unwrap();
    let mut run = Run::open(MemoryLedger::new(), header()).unwrap();
    let mut permits = run.reserve(&ledger_round, 2).unwrap();
    let permit = permits.next().unwrap();
    let (held, other, covered) =
        (sample(&mut run, &plan), sample(&mut run, &plan), sample(&mut run, &plan));
    let draw = || Noise::draw_on(&plan, 1).unwrap();
    let (drawn, spare) = (draw(), draw());
    let mut sum = covered.begin(&plan);
    sum.add_noise(draw()).unwrap();
    let key = RoundKey::from_os().unwrap();
    let grid = IntegerGrid::new(1, 8).unwrap();
    let batch = veilgrad::events::FixedBatch::new(10, 2).unwrap();

    // A segment of correlated noise in its second round, and one with noise that was drawn ahead.
    let strategy = veilgrad::events::BandedStrategy::new(1, vec![2, 1]).unwrap();
    let correlated = plan.correlated(strategy).unwrap();
    let (half, two) = (SampleRate::new(0.5).unwrap(), std::num::NonZeroU64::new(2).unwrap());
    let mut cyclic = veilgrad::mechanism::CyclicSampler::new(half, two, 0);
    let mut segment_run = Run::open(MemoryLedger::new(), header()).unwrap();
    let turns = segment_run.reserve(&correlated.round(&cyclic).unwrap(), 2).unwrap();
    let turns: Vec<Sample> =
        turns.map(|permit| Sample::draw(permit, &mut cyclic, 0).unwrap()).collect();
    let source = || veilgrad::mechanism::CorrelatedNoise::new(&correlated, 9).unwrap();
    let (mut segment, mut prepared) = (source(), source());
    let first_noise = segment.draw(&turns[0], 1).unwrap();
    prepared.prepare(1).unwrap();

    if first {
        assert_eq!(std::process::id(), 1);
        unshare_pids();
    }
    match fork::fork().unwrap() {
        Fork::Child => {
            let mut own = Run::open(MemoryLedger::new(), header()).unwrap();
            let foreign = Some(RandomError::OtherProcess);
            let poisson = subset::Poisson::new(SampleRate::new(0.5).unwrap());
            let last = permits.next().unwrap();
            let refused = [
                (std::process::id() == 1) == first,
                run.reserve(&ledger_round, 1).err() == Some(LedgerError::Forked),
                durable.reserve(&ledger_round, 1).err() == Some(LedgerError::Forked),
                handle
                    .tighten("data", Epsilon::new(1.0).unwrap())
                    .is_err_and(|error| error.to_string().contains("forked")),
                !permit.is_of_this_process() && !last.is_of_this_process(),
                Sample::draw(permit, &mut AllRecords, 0).err() == Some(SampleError::OtherProcess),
                release(&plan, held, drawn) == Some(ReleaseError::OtherProcess),
                release(&plan, other, draw()) == Some(ReleaseError::OtherProcess),
                release(&plan, sample(&mut own, &plan), spare) == Some(ReleaseError::OtherProcess),
                sum.release_noisy(covered).err() == Some(ReleaseError::OtherProcess),
                gaussian::fill(&key, 0, grid, &mut Vec::new(), 2, 1).err() == foreign,
                gaussian::add(&key, 0, grid, &mut [0], 1).err() == foreign,
                poisson.draw(&key, 10).err() == foreign,
                poisson.draw_truncated(&key, 10, 5).err() == foreign,
                subset::without_replacement(&key, batch).err() == foreign,
                subset::permutation(&key, 10).err() == foreign,
                release(&plan, sample(&mut own, &plan), draw()).is_none(),
                segment.draw(&turns[1], 1).err()
                    == Some(NoiseError::Random(RandomError::OtherProcess)),
                prepared.prepare(1).err() == Some(NoiseError::Random(RandomError::OtherProcess)),
            ];
            let wrong = refused.iter().position(|refused| !refused);
            // Does not run the destructors of the parent's handles.
            std::process::exit(wrong.map_or(0, |index| 1 + index as i32));
        }
        Fork::Parent(child) => {
            let status = fork::waitpid(child).unwrap();
            assert_eq!(status >> 8, 0, "number of the first check that failed in the child");
            assert_eq!(status, 0);
        }
    }
    assert!(Sample::draw(permit, &mut AllRecords, 0).is_ok());
    assert_eq!(release(&plan, held, drawn), None);
    assert_eq!(release(&plan, other, spare), None);
    assert!(sum.release_noisy(covered).is_ok());
    drop(first_noise);
    assert!(segment.draw(&turns[1], 1).is_ok() && prepared.prepare(1).is_ok());
    assert!(gaussian::fill(&key, 0, grid, &mut Vec::new(), 2, 1).is_ok());
    durable.reserve(&ledger_round, 1).unwrap();
    handle.tighten("data", Epsilon::new(7.0).unwrap()).unwrap();
}

#[test]
fn parent_and_child_that_are_both_process_1_share_nothing() {
    let command = "exec \"$TEST\" --exact a_forked_child_has_nothing_of_its_parents";
    assert_passed(in_namespaces(&["--pid", "--fork"], command, FIRST));
}

/// A process (id 2) reads its identity, forks a child (id 3) and dies; the child's child gets id 2 again. The test starts
/// itself as process 1 of a new pid namespace.
#[test]
fn a_number_that_is_used_again_is_another_process() {
    if std::env::var_os(FIRST).is_none() {
        let command = "exec \"$TEST\" --exact a_number_that_is_used_again_is_another_process";
        return assert_passed(in_namespaces(&["--pid", "--fork"], command, FIRST));
    }
    let (mut is_reaped, mut reaped) = pipe().unwrap();
    let (mut answer, mut answers) = pipe().unwrap();
    let first = match fork::fork().unwrap() {
        Fork::Parent(first) => first,
        Fork::Child => {
            let (id, identity) = (std::process::id(), ProcessIdentity::current().unwrap());
            if let Fork::Parent(_) = fork::fork().unwrap() {
                std::process::exit(0);
            }
            is_reaped.read_exact(&mut [0]).unwrap();
            // The next process id in this namespace is the one after ns_last_pid.
            std::fs::write("/proc/sys/kernel/ns_last_pid", (id - 1).to_string()).unwrap();
            if let Fork::Child = fork::fork().unwrap() {
                let same_number = std::process::id() == id;
                answers
                    .write_all(&[u8::from(same_number), u8::from(identity.is_current())])
                    .unwrap();
            }
            std::process::exit(0);
        }
    };
    drop(answers);
    assert_eq!(fork::waitpid(first).unwrap(), 0);
    reaped.write_all(&[1]).unwrap();
    let mut found = [0; 2];
    answer.read_exact(&mut found).unwrap();
    assert_eq!(found, [1, 0], "the same number, and another process");
}

/// Starts itself again without /proc.
#[test]
fn without_a_start_time_nothing_is_charged_or_drawn() {
    if std::env::var_os(NO_PROC).is_none() {
        let command = "mount -t tmpfs none /proc && \
                       exec \"$TEST\" --exact without_a_start_time_nothing_is_charged_or_drawn";
        return assert_passed(in_namespaces(&["--mount"], command, NO_PROC));
    }
    assert!(ProcessIdentity::current().is_err());
    let charged = Run::open(MemoryLedger::new(), header()).err().unwrap();
    assert!(charged.to_string().contains("/proc/self/stat"), "{charged}");
    let drawn = RoundKey::from_os().err().unwrap();
    assert!(drawn.to_string().contains("/proc/self/stat"), "{drawn}");
    assert!(Noise::draw_on(&plan(), 1).is_err());
    let directory = directory("no-proc");
    let opened = Ledger::create(directory.0.join("ledger.db"), Options::default()).err().unwrap();
    assert!(opened.to_string().contains("/proc/self/stat"), "{opened}");
}
