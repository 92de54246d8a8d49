//! Restored plans, and noise in reused memory.

use crate::common::{clip, count, header, noise, plan};
use veilgrad_events::{MemoryLedger, Run};
use veilgrad_mechanism::{Adapted, AllRecords, Group, Noise, PlanError, Quantile, Sample};

#[test]
fn a_restored_plan_has_the_same_estimates_and_refuses_clip_norms_below_a_floor() {
    let quantile = Quantile::of_norm("g", 0.5, count(2.0), clip(0.5)).unwrap();
    let value = Quantile::of_value("v", 0.5, count(2.0), 3.0).unwrap();
    let groups = vec![
        Group::new("g", ["x"], clip(1.0)),
        Group::quantile("q", quantile).noise(noise(10.0)),
        Group::quantile("p", value).noise(noise(10.0)),
    ];
    let mut plan = plan(&[("x", 3), ("v", 1)], groups);
    let grid = plan.grid("g");
    let adapted = |rounds, q, p| {
        let estimates = [("q".to_owned(), q), ("p".to_owned(), p)].into();
        Adapted { rounds, estimates }
    };
    assert_eq!(plan.adapted(), adapted(0, 1.0, 3.0));
    plan.restore(&adapted(7, 0.6, -2.0)).unwrap();
    assert_eq!(plan.adapted(), adapted(7, 0.6, -2.0));
    assert_eq!(plan.clip_norm("g"), Some(clip(0.6)));
    assert_eq!(plan.grid("g"), grid);
    assert!(matches!(plan.restore(&adapted(8, 0.4, 1.0)), Err(PlanError::BelowFloor { .. })));
    assert!(matches!(plan.restore(&adapted(8, f64::NAN, 1.0)), Err(PlanError::Unit(..))));
    assert!(matches!(plan.restore(&adapted(8, 0.7, f64::NAN)), Err(PlanError::Estimate(_))));
    let mut missing = adapted(8, 0.7, 1.0);
    missing.estimates.remove("p");
    assert!(matches!(plan.restore(&missing), Err(PlanError::Reference { .. })));
    let mut unknown = adapted(8, 0.7, 1.0);
    unknown.estimates.insert("g".to_owned(), 1.0);
    assert!(matches!(plan.restore(&unknown), Err(PlanError::Reference { .. })));
    // A refused state changes nothing.
    assert_eq!(plan.adapted(), adapted(7, 0.6, -2.0));
}

#[test]
fn noise_in_reused_memory_is_fresh() {
    let plan = plan(&[("x", 3000)], vec![Group::new("g", ["x"], clip(1.0))]);
    let mut run = Run::open(MemoryLedger::new(), header()).unwrap();
    let mut noise = Noise::draw(&plan).unwrap();
    let mut seen: Vec<Vec<f64>> = Vec::new();
    for permit in run.reserve(&plan.round(&AllRecords).unwrap(), 4).unwrap() {
        let sample = Sample::draw(permit, &mut AllRecords, 0).unwrap();
        let sum = sample.begin(&plan);
        let released = sum.release(sample, noise).unwrap();
        let values = crate::common::vector(&released, "x");
        // Uncorrelated with every earlier round. The standard deviation of the correlation is 0.018; it exceeds
        // 0.13 with probability 1e-12.
        let square = |v: &[f64]| v.iter().map(|x| x * x).sum::<f64>();
        for old in &seen {
            let product: f64 = old.iter().zip(&values).map(|(a, b)| a * b).sum();
            assert!(product.abs() < 0.13 * (square(old) * square(&values)).sqrt());
        }
        seen.push(values);
        noise = Noise::draw_over(&plan, 1, released).unwrap();
    }
}
