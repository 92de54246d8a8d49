//! Canaries: a round treats them like records, and they do not change the weights.

use crate::common::{bits, examples, in_memory, plan, train_exactly, trainer};
use veilgrad_events::{Adjacency, PublicCount, Run};
use veilgrad_events::{BudgetShare, ClipNorm, FixedBatch, MemoryLedger, NoiseMultiplier};
use veilgrad_mechanism::{FixedSampler, Metric};
use veilgrad_nn::{Clipping, Performance, TrainingPlan};

const CANARIES: usize = 60;

/// Plans with every kind of clipping, with outer products and with materialised gradients, and one with a metric.
fn plans() -> Vec<TrainingPlan> {
    let (clip, expected) = (ClipNorm::new(0.7).unwrap(), PublicCount::new(40.0).unwrap());
    let noise = NoiseMultiplier::new(1.1).unwrap();
    let plan_with = |clipping| TrainingPlan::new(clipping, noise, expected);
    let share = BudgetShare::new(0.1).unwrap();
    vec![
        plan(0.7, 40.0),
        plan(0.7, 40.0).materialised(),
        plan(0.7, 40.0).metric(Metric::accuracy().unwrap(), share),
        plan_with(Clipping::PerLayer(clip)),
        plan_with(Clipping::DimensionAware(clip)),
    ]
}

#[test]
fn canaries_change_no_bit_of_the_weights() {
    let records = in_memory(&examples(40, 5));
    for plan in plans() {
        for threads in [1, 2] {
            let performance = Performance { threads, tile: 8 };
            let mut without = trainer(plan.clone(), performance);
            let mut with = trainer(plan.clone().canaries(CANARIES), performance);
            train_exactly(&mut without, &records, 3);
            train_exactly(&mut with, &records, 3);
            assert_eq!(bits(without.model()), bits(with.model()), "{plan:?}");
            assert!(without.canaries().is_none());
        }
    }
}

#[test]
fn an_included_canary_has_the_clip_norm_and_an_excluded_one_contributes_zero() {
    let records = in_memory(&examples(40, 5));
    for plan in plans() {
        let performance = Performance { threads: 2, tile: 8 };
        let mut trainer = trainer(plan.clone().canaries(CANARIES), performance);
        train_exactly(&mut trainer, &records, 1);
        let lane = trainer.canaries().unwrap();
        let coins = lane.included();
        assert!(coins.contains(&true) && coins.contains(&false)); // except with probability 2^-59
        let groups: Vec<String> = trainer.plan().group_names().map(str::to_owned).collect();
        let mut lanes = 0;
        for group in &groups {
            let name = lane.vector(group).0;
            let Some(released) = trainer.estimates().unwrap().vector(&name) else { continue };
            lanes += 1;
            let clip = trainer.plan().clip_norm(group).unwrap().get();
            for (value, is_in) in released.iter().zip(coins) {
                let expected = if *is_in { clip / 40.0 } else { 0.0 };
                // The clip factor leaves some slack for rounding outer products.
                assert!((value - expected).abs() < 2e-3 * clip / 40.0, "{group}: {value}");
            }
        }
        let gradients = groups.iter().filter(|group| *group != "accuracy").count();
        assert_eq!(lanes, gradients, "{groups:?}");
        for (score, is_in) in lane.scores().iter().zip(coins) {
            assert_eq!(*score > 0.0, *is_in, "{score}");
        }
    }
}

#[test]
fn a_checkpoint_keeps_coins_and_scores_and_one_without_them_is_refused() {
    let records = in_memory(&examples(40, 5));
    let audited = || trainer(plan(0.7, 40.0).canaries(CANARIES), Performance::default());
    let (mut first, mut second) = (audited(), audited());
    train_exactly(&mut first, &records, 2);
    second.restore(&first.checkpoint(None)).unwrap();
    let lanes = || (first.canaries().unwrap(), second.canaries().unwrap());
    assert_eq!(lanes().0.included(), lanes().1.included());
    assert_eq!(lanes().0.scores(), lanes().1.scores());
    let plain = trainer(plan(0.7, 40.0), Performance::default());
    assert!(second.restore(&plain.checkpoint(None)).is_err());
}

#[test]
fn batches_of_a_fixed_size_are_drawn_from_records_and_canaries() {
    let records = in_memory(&examples(40, 5));
    let mut trainer = trainer(plan(0.7, 25.0).canaries(CANARIES), Performance::default());
    let mut run = Run::open(MemoryLedger::new(), trainer.header(Adjacency::ZeroOut)).unwrap();
    let mut all = FixedSampler::new(FixedBatch::new(40 + CANARIES as u64, 25).unwrap());
    trainer.train(&mut run, &mut all, &records, 2, 2, |_, _| ()).unwrap();
    // A sampler for the real records alone is refused.
    let mut few = FixedSampler::new(FixedBatch::new(40, 25).unwrap());
    assert!(trainer.train(&mut run, &mut few, &records, 1, 1, |_, _| ()).is_err());
}
