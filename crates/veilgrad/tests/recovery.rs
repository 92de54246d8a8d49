//! A federated server that dies between charge and release, or between release and save: what it charged stays charged, the
//! run goes on from its checkpoint, and neither cohort nor noise is used again. The server is a process of its own, which
//! aborts at that moment.

use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use veilgrad::accounting::Tightest;
use veilgrad::events::{Budget, Mode};
use veilgrad::ledger::{DatasetLedger, Head, Ledger, Options};
use veilgrad::nn::{
    Clipping, Contribution, FileError, Hooks, Layer, Loss, Model, Optimizer, Pace, Performance,
    Progress, Records, Schedule, Sgd, Trainer, TrainingPlan, Unit, drive,
};
use veilgrad::prelude::*;

const ROUNDS: u64 = 6;
/// Rounds that are charged at once.
const BLOCK: u64 = 2;
const MOMENT: &str = "VEILGRAD_TEST_DIES_WHEN";
const PLACE: &str = "VEILGRAD_TEST_PLACE";

struct Directory(PathBuf);

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Forty users of three examples. Notes whose examples were read.
#[derive(Default)]
struct Users {
    read: Mutex<BTreeSet<u8>>,
}

impl Users {
    /// Whose examples were read since the last call: the cohort of a round.
    fn cohort(&self) -> Vec<u8> {
        std::mem::take(&mut *self.read.lock().unwrap()).into_iter().collect()
    }
}

impl Records for Users {
    fn count(&self) -> u64 {
        40
    }

    fn examples(&self, _: u64) -> usize {
        3
    }

    fn read(&self, user: u64, example: usize, input: &mut [f32], target: &mut [f32]) {
        self.read.lock().unwrap().insert(user as u8);
        let number = 3 * user + example as u64;
        input.iter_mut().zip(1..).for_each(|(x, i)| *x = (number * i % 7) as f32 / 7.0);
        target[0] = (number % 2) as f32;
    }
}

type Server = Trainer<Box<dyn Optimizer>>;

fn server() -> Server {
    let number = |n| NonZeroU32::new(n).unwrap();
    let contribution = Contribution::LocalSgd { rate: 0.5, batch: number(2), epochs: number(1) };
    let clipping = Clipping::Flat(ClipNorm::new(1.0).unwrap());
    let noise = NoiseMultiplier::new(3.0).unwrap();
    let plan = TrainingPlan::new(clipping, noise, PublicCount::new(20.0).unwrap())
        .unit(Unit::User { examples: number(3), contribution });
    let model = Model::new(&[2], [Layer::linear(2)], 1).unwrap();
    let optimizer: Box<dyn Optimizer> = Box::new(Sgd::with_momentum(0.9));
    let (loss, rate) = (Loss::SoftmaxCrossEntropy, Schedule::Constant(1.0));
    Trainer::new(model, loss, plan, optimizer, rate, Performance::default()).unwrap()
}

fn bits(server: &Server) -> Vec<u8> {
    let parameters = server.model().parameters();
    parameters.flat_map(|(_, _, values)| values.iter().flat_map(|x| x.to_le_bytes())).collect()
}

/// Saves after each round; dies at a moment, if one is named.
struct Saved<'a> {
    place: &'a Path,
    users: &'a Users,
    head: Head,
    dies: Option<&'a str>,
    blocks: u64,
    third: Third,
}

/// The third round: its cohort, and the model after it.
#[derive(Default)]
struct Third {
    cohort: Vec<u8>,
    model: Vec<u8>,
}

impl Hooks<Server, DatasetLedger> for Saved<'_> {
    fn charged(&mut self, run: &Run<DatasetLedger>) {
        self.head = run.store().ledger().head().clone();
        self.blocks += 1;
        if self.blocks == 2 && self.dies == Some("charged") {
            std::process::abort();
        }
    }

    fn show(&mut self, server: &Server, progress: &Progress) {
        let cohort = self.users.cohort();
        if progress.round == 3 {
            self.third = Third { cohort, model: bits(server) };
            if self.dies == Some("released") {
                std::fs::write(self.place.join("lost"), &self.third.model).unwrap();
                std::fs::write(self.place.join("cohort"), &self.third.cohort).unwrap();
                std::process::abort();
            }
        }
    }

    fn save(&mut self, server: &Server) -> Result<(), FileError> {
        server.save(&self.place.join("checkpoint"), Some(&self.head))
    }
}

/// Goes on with what is left of the run, or begins it.
fn run(place: &Path, dies: Option<&str>) -> Third {
    let (path, mut server) = (place.join("ledger.db"), server());
    if place.join("checkpoint").exists() {
        let ledger = Ledger::read(&path, Options::default()).unwrap();
        server.resume(&place.join("checkpoint"), Some(&ledger)).unwrap();
        // Two rounds were saved, whatever was charged or released after them.
        assert_eq!(server.rounds(), 2);
    }
    let budget = Budget {
        dataset: "users".to_owned(),
        unit: RecordUnit::User,
        adjacency: Adjacency::AddRemove,
        delta: Delta::new(1e-5).unwrap(),
        epsilon: Epsilon::new(100.0).unwrap(),
        mode: Mode::Planned,
        order: None,
    };
    let header = server.header(Adjacency::AddRemove);
    let (mut run, _) =
        Ledger::open_run(&path, Options::default(), &budget, header, Arc::new(Tightest)).unwrap();
    let mut sampler = PoissonSampler::new(SampleRate::new(0.5).unwrap());
    let head = run.store().ledger().head().clone();
    let users = Users::default();
    let mut hooks = Saved { place, users: &users, head, dies, blocks: 0, third: Third::default() };
    let checkpoint_rounds = std::num::NonZeroU64::new(1);
    let pace = Pace { rounds: ROUNDS - server.rounds(), block: BLOCK, checkpoint_rounds };
    let left = drive(&mut server, &mut run, &mut sampler, &users, &pace, &mut hooks).unwrap();
    assert_eq!((left, server.rounds()), (0, ROUNDS));
    run.close().unwrap();
    hooks.third
}

/// The rounds that each run charged.
fn charged(place: &Path) -> Vec<u64> {
    let ledger = Ledger::read(place.join("ledger.db"), Options::default()).unwrap();
    ledger.state().datasets()["users"].runs.values().map(|run| run.charged()).collect()
}

/// The process that dies. Does nothing unless the tests below start it.
#[test]
fn a_server_that_dies() {
    if let (Ok(moment), Ok(place)) = (std::env::var(MOMENT), std::env::var(PLACE)) {
        run(Path::new(&place), Some(&moment));
        panic!("it did not die");
    }
}

fn dies_when(moment: &str) -> Directory {
    let name = format!("veilgrad-recovery-{moment}-{}", std::process::id());
    let directory = Directory(std::env::temp_dir().join(name));
    std::fs::create_dir(&directory.0).unwrap();
    let died = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_server_that_dies", "--nocapture"])
        .env(MOMENT, moment)
        .env(PLACE, &directory.0)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .unwrap();
    use std::os::unix::process::ExitStatusExt;
    assert_eq!(died.signal(), Some(6), "{moment}: {died}");
    directory
}

#[test]
fn a_server_killed_between_charge_and_release_stays_charged_and_goes_on() {
    let Directory(place) = &dies_when("charged");
    // Two blocks: one was run and saved, and nobody was invited for the other.
    assert_eq!(charged(place), [2 * BLOCK]);
    run(place, None);
    // The rounds that were lost are charged again.
    assert_eq!(charged(place), [2 * BLOCK, ROUNDS - 2]);
}

#[test]
fn a_server_killed_between_release_and_save_repeats_neither_cohort_nor_noise() {
    let Directory(place) = &dies_when("released");
    assert_eq!(charged(place), [2 * BLOCK]);
    let third = run(place, None);
    assert_eq!(charged(place), [2 * BLOCK, ROUNDS - 2]);
    let lost = std::fs::read(place.join("lost")).unwrap();
    assert_eq!(lost.len(), third.model.len());
    // With noise of standard deviation 0.15 on every weight, two are equal in all bits once in 10^40 runs.
    assert_ne!(lost, third.model);
    let cohort = std::fs::read(place.join("cohort")).unwrap();
    assert!(!cohort.is_empty() && !third.cohort.is_empty());
    // Two cohorts of 40 users at rate 1/2 are equal, or one is empty, with probability 3 in 2^40: below 1e-11.
    assert_ne!(cohort, third.cohort);
}
