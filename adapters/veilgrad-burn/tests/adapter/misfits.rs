//! Unusable records, and empty samples.

use burn::module::Module;
use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig};
use burn::tensor::{Device, Tensor};
use veilgrad_burn::{PrivateOptimizer, Trainer, TrainingPlan};
use veilgrad_events::{
    Adjacency, BudgetShare, MemoryLedger, NoiseMultiplier, PublicCount, RecordUnit, Run, SampleRate,
};
use veilgrad_mechanism::{Metric, PoissonSampler};
use veilgrad_nn::{Clipping, Unit};

use crate::common::{
    Classify, Convs, Mlp, Points, Text, all_integers, backends, clip, flat, judge, released,
};

/// Adding unusable records changes nothing; records of zeros are valid.
fn ignores<M: Classify>(model: &M, points: &Points, bad: &[(Vec<f32>, i64)], plan: &TrainingPlan) {
    let sums = |points: &Points| all_integers(&released(model, points, plan.clone(), 4));
    let whole = sums(points);
    for row in bad {
        let mut with = points.clone();
        with.rows.insert(2, row.clone());
        assert_eq!(sums(&with), whole, "{row:?}");
    }
    // Only unusable records.
    let mut with = points.clone();
    with.rows.splice(1..1, bad.iter().cloned());
    assert_eq!(sums(&with), whole);
    with.rows = bad.to_vec();
    assert!(sums(&with).iter().all(|sum| *sum == 0));
    with.rows.clear();
    assert!(sums(&with).iter().all(|sum| *sum == 0));
}

#[test]
fn unusable_records_contribute_zero_on_every_path() {
    for (_, device) in backends() {
        let row = |x: f32, width| vec![x; width];
        for plan in [flat(0.5), flat(0.5).materialised()] {
            let bad = [
                (row(f32::NAN, 12), 0),
                (row(f32::INFINITY, 12), 1),
                (row(0.1, 12), 3),
                (row(0.1, 12), -1),
                (row(0.1, 12), i64::MAX),
                // Burn panics on wrong shapes.
                (row(0.1, 11), 0),
                (Vec::new(), 0),
            ];
            ignores(&Mlp::new(&device), &Points::new(6, 12, None), &bad, &plan);
        }
        let plan = flat(0.5).statistics(clip(1.0), BudgetShare::new(0.1).unwrap());
        let bad = [(row(f32::NAN, 36), 0), (row(f32::INFINITY, 36), 2), (row(0.1, 35), 0)];
        ignores(&Convs::new(&device), &Points::new(6, 36, None), &bad, &plan);
        let bad = [(row(9.0, 6), 0), (row(-1.0, 6), 0), (row(1.0, 6), 7)];
        ignores(&Text::new(&device), &Points::new(6, 6, Some(9)), &bad, &flat(0.5));
    }
}

/// Burn's own embedding panics on an index out of range.
#[derive(Module, Debug)]
struct Panicking {
    table: Embedding,
    head: Linear,
}

impl Classify for Panicking {
    fn logits(&self, x: Tensor<2>) -> Tensor<2> {
        let x: Tensor<3> = self.table.forward(x.int());
        self.head.forward(x.flatten(1, 2))
    }
}

#[test]
fn a_record_that_makes_burn_panic_contributes_zero_and_training_goes_on() {
    let device = Device::flex().autodiff();
    let model = Panicking {
        table: EmbeddingConfig::new(5, 2).init(&device),
        head: LinearConfig::new(8, 3).init(&device),
    };
    let bad = [(vec![5.0; 4], 0), (vec![1e9; 4], 1), (vec![1.0; 3], 1)];
    ignores(&model, &Points::new(5, 4, Some(5)), &bad, &flat(0.5).materialised());
}

#[test]
fn huge_and_zero_records_are_clipped_like_others() {
    let device = Device::flex().autodiff();
    let (model, mut alone) = (Mlp::new(&device), Points::new(0, 12, None));
    let largest = u128::from(1u64 << 27).pow(2);
    for value in [0.0, 1e-30, 1e15, f32::MAX] {
        // For one class, a very confident model may have a gradient of zero.
        let mut counted = 0;
        for class in 0..3 {
            alone.rows = vec![(vec![value; 12], class)];
            let sums = all_integers(&released(&model, &alone, flat(0.5), 4));
            let squares: u128 = sums.iter().map(|x| u128::from(x.unsigned_abs()).pow(2)).sum();
            assert!(squares <= largest, "{value}");
            counted += u32::from(squares > 0);
        }
        // Values beyond f32 may make the record unusable.
        assert!(counted >= 2 || value == f32::MAX, "{value}");
    }
}

/// Rounds with noise, a metric and an adaptive ledger, on nearly empty samples.
#[test]
fn empty_samples_and_bad_records_are_rounds_like_others() {
    let device = Device::flex().autodiff();
    let mut points = Points::new(40, 12, None);
    for (index, row) in points.rows.iter_mut().enumerate() {
        match index % 4 {
            0 => row.0.fill(f32::NAN),
            1 => row.1 = 99,
            _ => {}
        }
    }
    let (noise, one) = (NoiseMultiplier::new(1.0).unwrap(), PublicCount::new(4.0).unwrap());
    let share = BudgetShare::new(0.2).unwrap();
    let plan = TrainingPlan::new(Clipping::Flat(clip(1.0)), noise, one)
        .metric(Metric::bounded("accuracy", 0.0, 1.0).unwrap(), share);
    let watched = |model: &Mlp, batch: crate::common::Batch| {
        let logits = model.logits(batch.x.clone());
        let right = veilgrad_burn::accuracy(logits, batch.y.clone());
        judge(model, batch).metric("accuracy", right)
    };
    for rate in [1e-9, 0.5] {
        let mut model = Mlp::new(&device);
        let mut optimizer = PrivateOptimizer::new(burn::optim::AdamConfig::new().init());
        let mut trainer = Trainer::new(&model, &points, plan.clone(), watched).unwrap();
        let mut sampler = PoissonSampler::new(SampleRate::new(rate).unwrap());
        let header = trainer.header(Adjacency::AddRemove);
        let mut run = Run::open(MemoryLedger::new(), header).unwrap();
        for permit in run.reserve(&trainer.event(&sampler).unwrap(), 3).unwrap() {
            let progress = trainer.round(&model, permit, &mut sampler).unwrap();
            assert_eq!(progress.metric("accuracy").unwrap().len(), 1);
            model = trainer.step(&mut optimizer, 0.01, model);
        }
        assert_eq!(trainer.rounds(), 3);
        let weights = model.first.weight.val().into_data();
        assert!(weights.iter::<f32>().all(|weight| weight.is_finite()));
    }
}

#[test]
fn microbatches_are_records_of_their_own() {
    let device = Device::flex().autodiff();
    let examples = std::num::NonZeroU32::new(4).unwrap();
    let plan = flat(1.0).unit(Unit::Microbatch { examples });
    let (model, points) = (Mlp::new(&device), Points::new(6, 12, None));
    let trainer = Trainer::new(&model, &points, plan, judge).unwrap();
    let unit = trainer.header(Adjacency::AddRemove).unit;
    assert_eq!(unit, RecordUnit::Microbatch { examples });
}
