//! What those get who form sums outside, and noise in old memory.

mod common;

use common::{begin, clip, count, header, noise, plan, weight};
use veilgrad_events::{MemoryLedger, Run};
use veilgrad_mechanism::exact::{Direction, quantise, round_down};
use veilgrad_mechanism::{Adapted, AllRecords, Group, Noise, PlanError, Quantile, Sample};

#[test]
fn a_factor_with_slack_leaves_room_for_rounding() {
    let groups = vec![Group::new("g", ["x"], clip(2.0)).summed_outside()];
    let plan = plan(&[("x", 3)], groups);
    let s_int = f64::from(plan.grid("g").unwrap().s_int());
    // Short records keep their length, long ones get the bound less the slack.
    assert_eq!(plan.clip_factor("g", 1.0, 5.0), Some(s_int / 2.0));
    let long = plan.clip_factor("g", 1e6, 1000.0).unwrap();
    assert!(long * 1e3 <= s_int - 1000.0 && long * 1e3 > (s_int - 1000.0) * (1.0 - 1e-6));
    assert_eq!(plan.clip_factor("g", 1e6, s_int), Some(0.0));
    assert_eq!(plan.clip_factor("g", 1e6, f64::NAN), Some(0.0));
    assert_eq!(plan.clip_factor("h", 1.0, 0.0), None);
    let weighted = Group::new("g", ["x"], clip(2.0)).weighted(weight(4.0)).summed_outside();
    let weighted = common::plan(&[("x", 3)], vec![weighted]);
    let whole = f64::from(weighted.grid("g").unwrap().s_int());
    assert_eq!(weighted.clip_factor("g", 1.0, 0.0), Some(whole / 2.0 / 4.0));
}

#[test]
fn integers_from_outside_release_what_the_inside_would() {
    let x = [3.0f32, -4.0, 0.5];
    let inside = plan(&[("x", 3)], vec![Group::new("g", ["x"], clip(1.0))]);
    let expected = common::vector(&common::release_of(&inside, &[&[&x]]), "x");
    let outside = plan(&[("x", 3)], vec![Group::new("g", ["x"], clip(1.0)).summed_outside()]);
    let norm = x.iter().map(|x| f64::from(*x).powi(2)).sum();
    let factor = round_down(outside.clip_factor("g", norm, 0.0).unwrap());
    let mut sums = [0i32; 3];
    let s_int = outside.grid("g").unwrap().s_int();
    let squares = quantise(&x, factor, s_int, Direction::Add, &mut sums);
    let certificate = outside.certify("g", squares).unwrap();
    let (sample, mut sum) = begin(&outside);
    sum.add_exact("g", &sums.map(i64::from), vec![certificate]).unwrap();
    assert_eq!(common::vector(&common::release(&outside, sample, sum), "x"), expected);
}

#[test]
fn a_plan_goes_on_from_where_it_stood_but_not_below_a_floor() {
    let quantile = Quantile::of_norm("g", 0.5, count(2.0), clip(0.5)).unwrap();
    let value = Quantile::of_value("v", 0.5, count(2.0), 3.0).unwrap();
    let groups = vec![
        Group::new("g", ["x"], clip(1.0)),
        Group::quantile("q", quantile).noise(noise(10.0)),
        Group::quantile("p", value).noise(noise(10.0)),
    ];
    let mut plan = plan(&[("x", 3), ("v", 1)], groups);
    let grid = plan.grid("g");
    let at = |rounds, q, p| {
        let estimates = [("q".to_owned(), q), ("p".to_owned(), p)].into();
        Adapted { rounds, estimates }
    };
    assert_eq!(plan.adapted(), at(0, 1.0, 3.0));
    plan.restore(&at(7, 0.6, -2.0)).unwrap();
    assert_eq!(plan.adapted(), at(7, 0.6, -2.0));
    assert_eq!(plan.clip_norm("g"), Some(clip(0.6)));
    assert_eq!(plan.grid("g"), grid);
    assert!(matches!(plan.restore(&at(8, 0.4, 1.0)), Err(PlanError::BelowFloor { .. })));
    assert!(matches!(plan.restore(&at(8, f64::NAN, 1.0)), Err(PlanError::Unit(..))));
    assert!(matches!(plan.restore(&at(8, 0.7, f64::NAN)), Err(PlanError::Estimate(_))));
    let mut missing = at(8, 0.7, 1.0);
    missing.estimates.remove("p");
    assert!(matches!(plan.restore(&missing), Err(PlanError::Reference { .. })));
    let mut unknown = at(8, 0.7, 1.0);
    unknown.estimates.insert("g".to_owned(), 1.0);
    assert!(matches!(plan.restore(&unknown), Err(PlanError::Reference { .. })));
    // What was refused has changed nothing.
    assert_eq!(plan.adapted(), at(7, 0.6, -2.0));
}

#[test]
fn noise_in_old_memory_is_as_fresh_as_any() {
    let plan = plan(&[("x", 3000)], vec![Group::new("g", ["x"], clip(1.0))]);
    let mut run = Run::open(MemoryLedger::new(), header()).unwrap();
    let mut noise = Noise::draw(&plan).unwrap();
    let mut seen: Vec<Vec<f64>> = Vec::new();
    for permit in run.reserve(&plan.round(&AllRecords).unwrap(), 4).unwrap() {
        let sample = Sample::draw(permit, &mut AllRecords, 0).unwrap();
        let sum = sample.begin(&plan);
        let released = sum.release(sample, noise).unwrap();
        let values = common::vector(&released, "x");
        // Independent: no value of an earlier round shines through. The standard deviation of the
        // correlation is 0.018; beyond 0.13 with probability 1e-12.
        let square = |v: &[f64]| v.iter().map(|x| x * x).sum::<f64>();
        for old in &seen {
            let product: f64 = old.iter().zip(&values).map(|(a, b)| a * b).sum();
            assert!(product.abs() < 0.13 * (square(old) * square(&values)).sqrt());
        }
        seen.push(values);
        noise = Noise::draw_over(&plan, 1, released).unwrap();
    }
}
