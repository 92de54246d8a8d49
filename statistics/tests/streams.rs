//! Forked processes, threads, new processes and resumed runs never draw the same noise.

#![allow(clippy::print_stdout)]

use std::collections::HashSet;
use std::process::Command;

use fork::Fork;
use veilgrad::mechanism::ReleaseError;
use veilgrad::prelude::*;

const COORDINATES: usize = 32;

/// A plan whose noise has exponent 50: two values are equal by chance with probability of about 2^-51.
fn plan() -> RoundPlan {
    let structure = Structure::new([("x", COORDINATES)]).unwrap();
    let groups = Group::flat("x", "x", ClipNorm::new(1.0).unwrap());
    let allocation = Allocation::Proportional(NoiseMultiplier::new(1e7).unwrap());
    let plan = RoundPlan::new(structure, groups, allocation).unwrap();
    assert_eq!(plan.grid("x").unwrap().k(), 50);
    plan
}

fn sample(plan: &RoundPlan) -> Sample {
    let header = RunHeader::new(RecordUnit::Example, Adjacency::AddRemove);
    let mut run = Run::open(MemoryLedger::new(), header).unwrap();
    let permit = run.reserve(&plan.round(&AllRecords).unwrap(), 1).unwrap().next().unwrap();
    Sample::draw(permit, &mut AllRecords, 0).unwrap()
}

/// The release of a round without records: noise alone.
fn noise() -> Vec<i64> {
    let plan = plan();
    let (sample, noise) = (sample(&plan), Noise::draw(&plan).unwrap());
    let released = sample.begin(&plan).release(sample, noise).unwrap();
    let unit = 1.0 / f64::from(plan.grid("x").unwrap().s_int());
    released.vector("x").unwrap().iter().map(|value| (value / unit - 0.5).round() as i64).collect()
}

#[track_caller]
fn assert_all_distinct(rounds: impl IntoIterator<Item = Vec<i64>>) {
    let (mut seen, mut count) = (HashSet::new(), 0);
    for value in rounds.into_iter().flatten() {
        count += 1;
        assert!(seen.insert(value), "a value occurred twice");
    }
    assert!(count >= 2 * COORDINATES);
    println!("{count} values of {} streams, all distinct", count / COORDINATES);
}

fn parse(text: &str) -> Vec<i64> {
    text.split_whitespace().map(|number| number.parse().unwrap()).collect()
}

fn print(values: &[i64]) -> String {
    values.iter().map(i64::to_string).collect::<Vec<_>>().join(" ")
}

#[test]
fn a_forked_child_does_not_repeat_its_parent() {
    // Draws noise before the fork: a generator with a buffer would copy it to the child.
    let before = noise();
    let path = std::env::temp_dir().join(format!("veilgrad-fork-{}", std::process::id()));
    let mut children = Vec::new();
    for child in 0..3 {
        match fork::fork().unwrap() {
            Fork::Child => {
                let done = std::fs::write(path.with_extension(child.to_string()), print(&noise()));
                std::process::exit(i32::from(done.is_err()));
            }
            Fork::Parent(pid) => children.push(pid),
        }
    }
    let mut rounds = vec![before, noise()];
    for (child, pid) in children.into_iter().enumerate() {
        fork::waitpid(pid).unwrap();
        let path = path.with_extension(child.to_string());
        rounds.push(parse(&std::fs::read_to_string(&path).unwrap()));
        std::fs::remove_file(path).unwrap();
    }
    assert_eq!(rounds.len(), 5);
    assert_all_distinct(rounds);
}

/// Noise that was drawn before a fork exists in both processes; only the parent may release it.
#[test]
fn a_forked_child_cannot_release_what_its_parent_drew() {
    let plan = plan();
    let (held, drawn) = (sample(&plan), Noise::draw(&plan).unwrap());
    match fork::fork().unwrap() {
        Fork::Child => {
            let refused = held.begin(&plan).release(held, drawn).err();
            std::process::exit(i32::from(refused != Some(ReleaseError::OtherProcess)));
        }
        Fork::Parent(pid) => {
            let status = fork::waitpid(pid).unwrap();
            assert_eq!(status, 0, "the child released its parent's noise");
            assert!(held.begin(&plan).release(held, drawn).is_ok());
        }
    }
}

#[test]
fn threads_do_not_repeat_each_other() {
    let rounds: Vec<Vec<i64>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..16).map(|_| scope.spawn(noise)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_all_distinct(rounds);
}

/// The tests below start this in new processes; it writes its noise to the file they name.
#[test]
fn a_process_of_its_own() {
    let (first, second) = (noise(), noise());
    if let Some(path) = std::env::var_os("VEILGRAD_WRITE_NOISE") {
        std::fs::write(path, print(&first)).unwrap();
    }
    assert_all_distinct([first, second]);
}

fn started_together(count: usize, name: &str) -> Vec<Vec<i64>> {
    let path = std::env::temp_dir().join(format!("veilgrad-{name}-{}", std::process::id()));
    let paths: Vec<_> = (0..count).map(|index| path.with_extension(index.to_string())).collect();
    let processes: Vec<_> = paths
        .iter()
        .map(|path| {
            Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "a_process_of_its_own"])
                .env("VEILGRAD_WRITE_NOISE", path)
                .stdout(std::process::Stdio::null())
                .spawn()
                .unwrap()
        })
        .collect();
    processes.into_iter().for_each(|mut process| assert!(process.wait().unwrap().success()));
    paths
        .iter()
        .map(|path| {
            let values = parse(&std::fs::read_to_string(path).unwrap());
            std::fs::remove_file(path).unwrap();
            values
        })
        .collect()
}

#[test]
fn processes_started_together_do_not_repeat_each_other() {
    assert_all_distinct(started_together(6, "together"));
}

/// A resumed run is a new process with the same arguments, environment and files: here, two processes start from
/// the same state. A checkpoint holds no generator state.
#[test]
fn a_run_resumed_twice_does_not_repeat_itself() {
    let first = started_together(1, "resumed");
    let second = started_together(1, "resumed");
    assert_all_distinct([first, second].concat());
}
