//! Model files and checkpoints: weights round-trip, and resuming cannot undo a charge.

use std::path::PathBuf;
use std::sync::Arc;

use crate::common::{bits, examples, in_memory, model, plan, train_exactly, trainer};
use veilgrad_events::{
    Adjacency, Budget, ClipNorm, Delta, Epsilon, LedgerKind, MemoryLedger, Mode, NoiseMultiplier,
    NoiseStd, Pricing, PublicCount, RecordUnit, Run, RunRounds, SampleRate,
};
use veilgrad_ledger::{Ledger, Options};
use veilgrad_mechanism::{Group, LearningRate, PoissonSampler, Quantile};
use veilgrad_nn::{Adam, Clipping, FileError, Loss, Performance, Schedule, Trainer, TrainingPlan};

struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("veilgrad-nn-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A pricing in which every round costs 1.
struct Counting;

impl Pricing for Counting {
    fn price(&self, _: &Budget, runs: &[RunRounds<'_>]) -> Result<f64, String> {
        Ok(runs.iter().flat_map(|run| run.rounds).map(|round| round.count as f64).sum())
    }

    fn order(&self, _: Epsilon, _: Delta) -> Option<f64> {
        None
    }
}

#[test]
fn weights_round_trip_and_nothing_else_is_in_the_file() {
    let original = model();
    let bytes = original.to_safetensors().unwrap();
    let mut copy = model();
    copy.parameter_mut("linear1.weight").unwrap().fill(0.0);
    assert_ne!(bits(&copy), bits(&original));
    copy.load_safetensors(&bytes).unwrap();
    assert_eq!(bits(&copy), bits(&original));
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let numbers: usize = original.parameters().map(|(_, _, values)| values.len()).sum();
    assert_eq!(bytes.len(), header + 4 * numbers);
    assert!(!String::from_utf8_lossy(&bytes[8..header]).contains("metadata"));
    // Weights that are not finite are refused.
    for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut spoilt = model();
        spoilt.parameter_mut("linear1.bias").unwrap()[1] = value;
        let refused = model().load_safetensors(&spoilt.to_safetensors().unwrap());
        assert!(matches!(refused, Err(FileError::Model(_))), "{value}");
    }
    // A truncated file is refused.
    for length in 0..bytes.len() {
        assert!(copy.load_safetensors(&bytes[..length]).is_err(), "{length}");
    }
}

#[test]
fn training_resumed_from_a_checkpoint_gives_the_same_bits() {
    let directory = Directory::new("resume");
    let path = directory.0.join("checkpoint");
    let data = in_memory(&examples(40, 3));
    let performance = Performance { threads: 1, tile: 8 };
    let mut straight = trainer(plan(0.3, 40.0), performance).averaging(0.9);
    train_exactly(&mut straight, &data, 3);
    straight.save(&path, None).unwrap();
    let again = directory.0.join("again");
    straight.save(&again, None).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), std::fs::read(&again).unwrap());
    train_exactly(&mut straight, &data, 3);
    let mut resumed = trainer(plan(0.3, 40.0), performance).averaging(0.9);
    resumed.resume(&path, None).unwrap();
    assert_eq!(resumed.rounds(), 3);
    train_exactly(&mut resumed, &data, 3);
    assert_eq!(bits(resumed.model()), bits(straight.model()));
    let averages = [resumed, straight].map(|t| bits(&t.averaged_model().unwrap()));
    assert_eq!(averages[0], averages[1]);
}

#[test]
fn an_older_checkpoint_cannot_undo_a_charge() {
    let directory = Directory::new("ledger");
    let path = directory.0.join("ledger.db");
    let mut ledger = Ledger::create(&path, Options::default()).unwrap();
    ledger
        .create_budget(Budget {
            dataset: "toy".to_owned(),
            unit: RecordUnit::Example,
            adjacency: Adjacency::AddRemove,
            delta: Delta::new(1e-5).unwrap(),
            epsilon: Epsilon::new(7.0).unwrap(),
            mode: Mode::Planned,
            order: None,
        })
        .unwrap();
    // A copy of the ledger before any charge.
    drop(ledger);
    let early = directory.0.join("early.db");
    std::fs::copy(&path, &early).unwrap();
    std::fs::copy(Ledger::anchor_path(&path), Ledger::anchor_path(&early)).unwrap();

    let checkpoint = directory.0.join("checkpoint");
    let data = in_memory(&examples(40, 3));
    let mut sampler = PoissonSampler::new(SampleRate::new(0.2).unwrap());
    let mut weights = Vec::new();
    let mut ledger = Some(Ledger::open(&path, Options::default()).unwrap());
    for attempt in 0..3 {
        let mut trainer = trainer(plan(0.3, 8.0), Performance::default());
        if attempt > 0 {
            trainer.resume(&checkpoint, ledger.as_ref().map(|ledger| ledger as _)).unwrap();
        }
        let store = ledger.take().unwrap().dataset("toy", Arc::new(Counting)).unwrap();
        let mut run = Run::open(store, trainer.header(Adjacency::AddRemove)).unwrap();
        trainer.train(&mut run, &mut sampler, &data, 2, 2, |_, _| ()).unwrap();
        if attempt == 0 {
            trainer.save(&checkpoint, Some(run.store().ledger().head())).unwrap();
        }
        weights.push(bits(trainer.model()));
        ledger = Some(run.close().unwrap().into_ledger());
    }
    // The second and third attempt resumed from the same checkpoint: with new samples, noise and charges.
    assert_ne!(weights[1], weights[2]);
    let charged = |ledger: &Ledger| -> u64 {
        ledger.state().datasets()["toy"].runs.values().map(|run| run.charged()).sum()
    };
    let ledger = ledger.unwrap();
    assert_eq!(charged(&ledger), 6);
    // A ledger without the charge is refused, and so is a missing ledger.
    let mut trainer = trainer(plan(0.3, 8.0), Performance::default());
    let rolled_back = Ledger::open(&early, Options::default()).unwrap();
    let refused = trainer.resume(&checkpoint, Some(&rolled_back));
    assert!(matches!(refused, Err(FileError::Ledger(_))));
    assert!(matches!(trainer.resume(&checkpoint, None), Err(FileError::Format(_))));
    // The last round is granted, and then no more.
    let store = ledger.dataset("toy", Arc::new(Counting)).unwrap();
    let mut run = Run::open(store, trainer.header(Adjacency::AddRemove)).unwrap();
    trainer.train(&mut run, &mut sampler, &data, 1, 1, |_, _| ()).unwrap();
    assert_eq!(trainer.estimates().unwrap().charged_to(), LedgerKind::Durable);
    assert!(trainer.train(&mut run, &mut sampler, &data, 1, 1, |_, _| ()).is_err());
    // The estimates say when a later round is charged to a ledger in memory.
    let header = trainer.header(Adjacency::AddRemove);
    let mut forgetful = Run::open(MemoryLedger::new(), header).unwrap();
    trainer.train(&mut forgetful, &mut sampler, &data, 1, 1, |_, _| ()).unwrap();
    assert_eq!(trainer.estimates().unwrap().charged_to(), LedgerKind::Memory);
}

#[cfg(unix)]
#[test]
fn a_checkpoint_is_readable_by_its_owner_alone_and_follows_no_symlink() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let directory = Directory::new("mode");
    let trainer = trainer(plan(1.0, 1.0), Performance { threads: 1, tile: 8 });
    let path = |name: &str| directory.0.join(name);
    // A partial file of a crash, readable by everyone.
    std::fs::write(path("first.partial"), b"left over").unwrap();
    let open = std::fs::Permissions::from_mode(0o666);
    std::fs::set_permissions(path("first.partial"), open).unwrap();
    // A symlink planted by an attacker.
    std::fs::write(path("precious"), b"precious").unwrap();
    symlink(path("precious"), path("second.partial")).unwrap();
    for name in ["first", "second", "third"] {
        trainer.save(&path(name), None).unwrap();
        let found = std::fs::symlink_metadata(path(name)).unwrap();
        assert!(found.is_file());
        assert_eq!(found.permissions().mode() & 0o777, 0o600, "{name}");
    }
    assert_eq!(std::fs::read(path("precious")).unwrap(), b"precious");
}

#[test]
fn adaptive_clip_norms_and_their_step_sizes_are_restored() {
    let directory = Directory::new("adaptive");
    let path = directory.0.join("checkpoint");
    let data = in_memory(&examples(60, 12));
    let make = || {
        let (expected, floor) = (PublicCount::new(60.0).unwrap(), ClipNorm::new(0.05).unwrap());
        let quantile = Quantile::of_norm("gradient", 0.5, expected, floor).unwrap();
        let quantile = quantile.learning_rate(LearningRate::inverse_sqrt(0.5).unwrap());
        let group = Group::quantile("median", quantile).noise(NoiseStd::new(3.0).unwrap());
        trainer(plan(20.0, 60.0).group(group), Performance { threads: 1, tile: 8 })
    };
    let mut straight = make();
    train_exactly(&mut straight, &data, 10);
    straight.save(&path, None).unwrap();
    let mut resumed = make();
    resumed.resume(&path, None).unwrap();
    assert_eq!(resumed.plan().adapted(), straight.plan().adapted());
    let saved = straight.plan().adapted();
    train_exactly(&mut straight, &data, 10);
    train_exactly(&mut resumed, &data, 10);
    assert_ne!(straight.plan().adapted(), saved);
    assert_eq!(resumed.plan().adapted(), straight.plan().adapted());
    assert_eq!(bits(resumed.model()), bits(straight.model()));
}

#[test]
fn a_checkpoint_of_another_optimizer_or_plan_is_refused_and_changes_nothing() {
    let directory = Directory::new("adam");
    let path = directory.0.join("checkpoint");
    let data = in_memory(&examples(10, 1));
    let (rate, performance) = (Schedule::Constant(0.01), Performance { threads: 1, tile: 8 });
    let adam = |clip| {
        Trainer::new(
            model(),
            Loss::SoftmaxCrossEntropy,
            plan(clip, 10.0),
            Adam::standard(),
            rate,
            performance,
        )
        .unwrap()
    };
    let mut straight = adam(1.0);
    train_exactly(&mut straight, &data, 3);
    straight.save(&path, None).unwrap();
    train_exactly(&mut straight, &data, 3);
    let mut resumed = adam(1.0);
    resumed.resume(&path, None).unwrap();
    train_exactly(&mut resumed, &data, 3);
    assert_eq!(bits(resumed.model()), bits(straight.model()));

    let mut other = adam(7.0);
    assert!(matches!(other.resume(&path, None), Err(FileError::Format(_))));
    assert_eq!((other.rounds(), bits(other.model())), (0, bits(&model())));
    assert_eq!(other.plan().clip_norm("gradient"), Some(ClipNorm::new(7.0).unwrap()));
    let mut sgd = trainer(plan(1.0, 10.0), performance);
    assert!(matches!(sgd.resume(&path, None), Err(FileError::Format(_))));
    assert_eq!((sgd.rounds(), bits(sgd.model())), (0, bits(&model())));
}

#[test]
fn training_resumes_with_any_characters_in_the_names_of_groups() {
    let directory = Directory::new("signs");
    let path = directory.0.join("checkpoint.safetensors");
    for name in ["a=b", "=", "a=b=c", "quantile/x", "\\", "\"", "é"] {
        let new = || {
            let group = Group::new(name, ["*"], ClipNorm::new(1.0).unwrap());
            let (noise, expected) = (NoiseMultiplier::new(1.0), PublicCount::new(8.0));
            let clipping = Clipping::Groups(vec![group]);
            let plan = TrainingPlan::new(clipping, noise.unwrap(), expected.unwrap());
            trainer(plan, Performance::default())
        };
        new().save(&path, None).unwrap();
        new().resume(&path, None).unwrap_or_else(|error| panic!("{name:?}: {error}"));
    }
}
