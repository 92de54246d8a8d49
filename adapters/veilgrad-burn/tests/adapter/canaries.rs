//! Canaries of an audit, with a Burn model.

use burn::module::Module;
use veilgrad::accounting::audit::{Confidence, RunAudit};
use veilgrad_burn::{Outcome, Records, Trainer, TrainingPlan};
use veilgrad_events::{
    Adjacency, Delta, Folded, MemoryLedger, NoiseMultiplier, PublicCount, Run, Sampling,
};
use veilgrad_mechanism::AllRecords;
use veilgrad_mechanism::insecure::no_noise;
use veilgrad_nn::{Clipping, Loss};

use crate::common::{Mlp, Points, backends, clip, example, flat, judge, tiles};

const CANARIES: usize = 60;

fn model() -> (Mlp, Points) {
    (Mlp::new(&backends()[0].1), Points::new(9, 12, None))
}

/// One round over all records and canaries without noise.
fn round<M, R, F>(mut trainer: Trainer<M, R, F>, model: &M) -> Trainer<M, R, F>
where
    M: Module + Sync,
    R: Records + Sync,
    F: Fn(&M, R::Batch) -> Outcome + Sync,
{
    let header = trainer.header(Adjacency::ZeroOut);
    let mut run = Run::open_insecure(MemoryLedger::new(), header, "test").unwrap();
    let permit = run.reserve(&trainer.event(&AllRecords).unwrap(), 1).unwrap().next().unwrap();
    let noise = no_noise(trainer.plan());
    trainer.round_insecure(model, permit, &mut AllRecords, noise).unwrap();
    trainer
}

/// Canaries do not change what is released for the model. An included canary has the clip norm, an excluded one
/// contributes zero.
fn check<M, R, F>(model: &M, trainer: impl Fn(TrainingPlan) -> Trainer<M, R, F>, plan: TrainingPlan)
where
    M: Module + Sync,
    R: Records + Sync,
    F: Fn(&M, R::Batch) -> Outcome + Sync,
{
    let without = round(trainer(plan.clone()), model);
    let with = round(trainer(plan.clone().canaries(CANARIES)), model);
    assert!(without.canaries().is_none());
    for (name, _) in without.plan().structure().vectors() {
        let released = |trainer: &Trainer<M, R, F>| {
            trainer.estimates().unwrap().vector(name).unwrap().to_vec()
        };
        assert_eq!(released(&without), released(&with), "{name}, {plan:?}");
    }
    let lane = with.canaries().unwrap();
    assert!(lane.included().contains(&true) && lane.included().contains(&false)); // except with probability 2^-59
    for group in with.plan().group_names() {
        let released = with.estimates().unwrap().vector(&lane.vector(group).0).unwrap();
        let clip = with.plan().clip_norm(group).unwrap().get();
        for (value, is_in) in released.iter().zip(lane.included()) {
            let expected = if *is_in { clip } else { 0.0 };
            // The clip factor leaves some slack for rounding outer products.
            assert!((value - expected).abs() < 2e-3 * clip, "{group}: {value}");
        }
    }
    for (score, is_in) in lane.scores().iter().zip(lane.included()) {
        assert_eq!(*score > 0.0, *is_in, "{score}");
    }
}

#[test]
fn canaries_change_nothing_for_records_and_are_clipped_like_them() {
    let (model, points) = model();
    let noise = NoiseMultiplier::new(1.0).unwrap();
    let layers = Clipping::PerLayer(clip(0.7));
    let layers = TrainingPlan::new(layers, noise, PublicCount::new(1.0).unwrap());
    for plan in [flat(0.7), layers] {
        let typed = |plan| {
            let loss = Loss::SoftmaxCrossEntropy;
            Trainer::per_record_with(&model, &points, plan, loss, example, tiles(4)).unwrap()
        };
        check(&model, typed, plan.clone());
        for tile in [1, 4] {
            let with = |plan| Trainer::with(&model, &points, plan, judge, tiles(tile)).unwrap();
            check(&model, with, plan.clone());
        }
        let alone = |plan| Trainer::with(&model, &points, plan, judge, tiles(0)).unwrap();
        check(&model, alone, plan.materialised());
    }
}

/// One round over all records with noise, and the result of its audit for a claimed noise multiplier.
fn is_accused(noise: f64, claimed: f64) -> bool {
    const MANY: usize = 1000;
    let (model, points) = model();
    let noise = NoiseMultiplier::new(noise).unwrap();
    let clipping = Clipping::Flat(clip(0.7));
    let plan = TrainingPlan::new(clipping, noise, PublicCount::new(1.0).unwrap());
    let loss = Loss::SoftmaxCrossEntropy;
    let plan = plan.canaries(MANY);
    let mut trainer = Trainer::per_record(&model, &points, plan, loss, example).unwrap();
    let header = trainer.header(Adjacency::AddRemove);
    let mut run = Run::open(MemoryLedger::new(), header).unwrap();
    for permit in run.reserve(&trainer.event(&AllRecords).unwrap(), 1).unwrap() {
        trainer.round(&model, permit, &mut AllRecords).unwrap();
    }
    let noise_multiplier = NoiseMultiplier::new(claimed).unwrap();
    let rounds = [Folded { count: 1, sampling: Sampling::All {}, noise_multiplier }];
    let (delta, confidence) = (Delta::new(1e-5).unwrap(), Confidence::STANDARD);
    let adjacency = Adjacency::AddRemove;
    let audit = RunAudit::plan(&rounds, adjacency, delta, MANY as u64, confidence).unwrap();
    let lane = trainer.canaries().unwrap();
    audit.judge(lane.scores(), lane.included()).unwrap().contradicted
}

/// The lower bound of a correct run is several standard deviations below its claim, and that of a run with a quarter of
/// the noise is as far above: each fails less than once in thousands of runs.
#[test]
fn the_audit_of_a_run_accuses_one_with_a_quarter_of_the_noise_and_no_other() {
    assert!(!is_accused(1.0, 1.0));
    assert!(is_accused(0.5, 2.0));
}
