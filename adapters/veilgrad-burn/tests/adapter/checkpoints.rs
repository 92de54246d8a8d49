//! Runs of Burn models in the durable ledger: charges, epsilon, checkpoints.

use std::sync::Arc;

use burn::optim::{AdamConfig, SgdConfig};
use burn::tensor::Device;
use veilgrad::accounting::Tightest;
use veilgrad::ledger::{Ledger, Options};
use veilgrad_burn::{PrivateOptimizer, Trainer, Training, TrainingPlan};
use veilgrad_events::{
    Adjacency, Budget, Delta, Epsilon, Event, LedgerKind, LedgerStore, MemoryLedger, Mode,
    NoiseMultiplier, PublicCount, RecordUnit, Run, SampleRate,
};
use veilgrad_mechanism::PoissonSampler;
use veilgrad_nn::{
    Clipping, Hooks, Layer, Loss, Model, Pace, Performance, Progress, Schedule, Sgd, drive,
};

use crate::common::{Mlp, Points, clip, example, judge};

fn plan() -> TrainingPlan {
    let (noise, four) = (NoiseMultiplier::new(1.1).unwrap(), PublicCount::new(4.0).unwrap());
    TrainingPlan::new(Clipping::Flat(clip(1.0)), noise, four)
}

#[test]
fn a_checkpoint_goes_on_where_it_was_and_needs_its_ledger() {
    let directory = std::env::temp_dir().join(format!("veilgrad-burn-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let mut ledger = Ledger::create(directory.join("ledger.db"), Options::default()).unwrap();
    let budget = Budget {
        dataset: "points".to_owned(),
        unit: RecordUnit::Example,
        adjacency: Adjacency::AddRemove,
        delta: Delta::new(1e-5).unwrap(),
        epsilon: Epsilon::new(8.0).unwrap(),
        mode: Mode::Planned,
        order: None,
    };
    ledger.create_budget(budget).unwrap();
    let device = Device::flex().autodiff();
    let points = Points::new(40, 12, None);
    let mut sampler = PoissonSampler::new(SampleRate::new(0.1).unwrap());
    let mut model = Mlp::new(&device);
    let mut optimizer = PrivateOptimizer::new(AdamConfig::new().init());
    let mut trainer = Trainer::new(&model, &points, plan(), judge).unwrap();
    let store = ledger.dataset("points", Arc::new(Tightest)).unwrap();
    let mut run = Run::open(store, trainer.header(Adjacency::AddRemove)).unwrap();
    for permit in run.reserve(&trainer.event(&sampler).unwrap(), 2).unwrap() {
        trainer.round(&model, permit, &mut sampler).unwrap();
        model = trainer.step(&mut optimizer, 0.1, model);
    }
    assert_eq!(trainer.estimates().unwrap().charged_to(), LedgerKind::Durable);
    drop(run.close().unwrap());
    let ledger = Ledger::open(directory.join("ledger.db"), Options::default()).unwrap();
    let head = ledger.head().clone();
    let path = directory.join("checkpoint");
    trainer.save(&path, &model, &optimizer, Some(&head)).unwrap();

    // As in a new process.
    let fresh = Mlp::new(&device);
    let mut resumed = Trainer::new(&fresh, &points, plan(), judge).unwrap();
    let new = || PrivateOptimizer::new(AdamConfig::new().init());
    assert!(resumed.resume(&path, fresh.clone(), new(), None).is_err());
    let (again, mut restored) = resumed.resume(&path, fresh, new(), Some(&ledger)).unwrap();
    assert_eq!(resumed.rounds(), 2);
    again.first.weight.to_data().assert_eq(&model.first.weight.to_data(), true);
    // The optimizer state is restored: the same release updates both models alike.
    let mut run = Run::open(MemoryLedger::new(), resumed.header(Adjacency::AddRemove)).unwrap();
    let permit = run.reserve(&resumed.event(&sampler).unwrap(), 1).unwrap().next().unwrap();
    resumed.round(&again, permit, &mut sampler).unwrap();
    assert_eq!(resumed.estimates().unwrap().charged_to(), LedgerKind::Memory);
    let a = resumed.step(&mut optimizer, 0.1, model);
    let b = resumed.step(&mut restored, 0.1, again);
    a.first.weight.to_data().assert_eq(&b.first.weight.to_data(), true);
    // Another plan is refused.
    let other = TrainingPlan::new(
        Clipping::Flat(clip(2.0)),
        NoiseMultiplier::new(1.1).unwrap(),
        PublicCount::new(4.0).unwrap(),
    );
    let mut other = Trainer::new(&b, &points, other, judge).unwrap();
    assert!(other.resume(&path, b.clone(), new(), Some(&ledger)).is_err());
    std::fs::remove_dir_all(directory).unwrap();
}

#[test]
fn a_run_charges_exactly_what_a_native_one_charges() {
    let device = Device::flex().autodiff();
    let points = Points::new(40, 12, None);
    let sampler = PoissonSampler::new(SampleRate::new(0.1).unwrap());
    let loss = Loss::SoftmaxCrossEntropy;
    let trainer = Trainer::per_record(&Mlp::new(&device), &points, plan(), loss, example).unwrap();
    let layers = [Layer::linear(7), Layer::Relu, Layer::linear(3)];
    let (noise, four) = (NoiseMultiplier::new(1.1).unwrap(), PublicCount::new(4.0).unwrap());
    let native_plan = veilgrad_nn::TrainingPlan::new(Clipping::Flat(clip(1.0)), noise, four);
    let native = veilgrad_nn::Trainer::new(
        Model::new(&[12], layers, 1).unwrap(),
        loss,
        native_plan,
        Sgd::plain(),
        Schedule::Constant(0.1),
        Performance::default(),
    )
    .unwrap();
    let adjacency = Adjacency::AddRemove;
    assert_eq!(trainer.header(adjacency), native.header(adjacency));
    assert_eq!(trainer.event(&sampler).unwrap(), native.event(&sampler).unwrap());
    let events = |header, round| {
        let mut run = Run::open(MemoryLedger::new(), header).unwrap();
        let _permits = run.reserve(&round, 10).unwrap();
        let store = run.close().unwrap();
        let mut events: Vec<Event> = Vec::new();
        veilgrad_events::LedgerStore::visit(&store, &mut |event| events.push(event.clone()))
            .unwrap();
        events
    };
    let ours = events(trainer.header(adjacency), trainer.event(&sampler).unwrap());
    assert_eq!(ours, events(native.header(adjacency), native.event(&sampler).unwrap()));
}

#[test]
fn the_driver_loop_trains_burn_models_and_stops_in_order() {
    struct StopAfter(u64);
    impl<T, S: LedgerStore> Hooks<T, S> for StopAfter {
        fn show(&mut self, _: &T, progress: &Progress) {
            self.0 = self.0.saturating_sub(progress.round.min(1));
        }
        fn stop(&mut self) -> bool {
            self.0 == 0
        }
    }
    let device = Device::flex().autodiff();
    let points = Points::new(40, 12, None);
    let mut sampler = PoissonSampler::new(SampleRate::new(0.5).unwrap());
    let (model, loss) = (Mlp::new(&device), Loss::SoftmaxCrossEntropy);
    let trainer = Trainer::per_record(&model, &points, plan(), loss, example).unwrap();
    let optimizer = PrivateOptimizer::new(SgdConfig::new().init());
    let before = format!("{:?}", model.first.weight.val().into_data());
    let mut training = Training { trainer, model, optimizer, schedule: Schedule::Constant(0.1) };
    let header = training.trainer.header(Adjacency::AddRemove);
    let mut run = Run::open(MemoryLedger::new(), header).unwrap();
    let pace = Pace { rounds: 9, block: 2, checkpoint_rounds: None };
    let left = drive(&mut training, &mut run, &mut sampler, &(), &pace, &mut StopAfter(5));
    assert_eq!((left.unwrap(), training.trainer.rounds()), (4, 5));
    assert_ne!(format!("{:?}", training.model.first.weight.val().into_data()), before);
}
