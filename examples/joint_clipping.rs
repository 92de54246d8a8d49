//! The paper's example of joint clipping: two vectors on very different scales.
//!
//! `||v1|| <= 1` and `||v2|| <= 100`, one of the two is always zero, and the averages tolerate noise of
//! 0.01 and 1. The program compares three ways to clip with that noise and prints the noise multiplier
//! of each. It runs without noise, in a run that is stamped INSECURE, to show that no record is clipped.
//!
//! `cargo run --example joint_clipping --features insecure-testing`

#![allow(clippy::print_stdout)]

use std::error::Error;

use veilgrad::mechanism::insecure::no_noise;
use veilgrad::prelude::*;

const RECORDS: u16 = 1000;

fn main() -> Result<(), Box<dyn Error>> {
    let clip = ClipNorm::new;
    // Noise on the sum: the tolerated noise on the average, times the number of records.
    let noise = |on_average: f64| NoiseStd::new(on_average * f64::from(RECORDS));
    let alphas = [("v1", JointScale::new(1.0)?), ("v2", JointScale::new(100.0)?)];
    let ways = [
        (
            "joint, alphas 1 and 100",
            vec![Group::joint("both", alphas, clip(1.0)?).noise(noise(0.01)?)],
        ),
        (
            "separate groups",
            vec![
                Group::new("v1", ["v1"], clip(1.0)?).noise(noise(0.01)?),
                Group::new("v2", ["v2"], clip(100.0)?).noise(noise(1.0)?),
            ],
        ),
        ("one flat group", vec![Group::new("both", ["*"], clip(100.0)?).noise(noise(0.01)?)]),
    ];

    println!("{:<26}{:>20}{:>12}{:>12}", "", "noise multiplier z", "sum of v1", "sum of v2");
    for (name, groups) in ways {
        let structure = Structure::new([("v1", 2), ("v2", 2)])?;
        let plan = RoundPlan::new(structure, groups, Allocation::Explicit)?;
        let estimates = release(&plan)?;
        let norm = |vector| -> Option<f64> {
            Some(estimates.vector(vector)?.iter().map(|x| x * x).sum::<f64>().sqrt())
        };
        let norms = norm("v1").zip(norm("v2")).ok_or("a vector is missing")?;
        let z = plan.noise_multiplier()?;
        println!("{name:<26}{:>20.4}{:>12.2}{:>12.2}", z.get(), norms.0, norms.1);
    }
    println!("\nThe larger z, the more privacy. No way clips any record.");
    Ok(())
}

/// One round over records that have either `v1` of norm 1 or `v2` of norm 100.
fn release(plan: &RoundPlan) -> Result<Released<Estimates>, Box<dyn Error>> {
    let header = RunHeader::new(RecordUnit::Example, Adjacency::AddRemove);
    let mut run = Run::open_insecure(MemoryLedger::new(), header, "an example without noise")?;
    let permit = run.reserve(&plan.round(&AllRecords)?, 1)?.next().ok_or("no permit")?;
    let sample = Sample::draw(permit, &mut AllRecords, u64::from(RECORDS))?;
    let mut sum = sample.begin(plan);
    for id in sample.ids() {
        if id % 2 == 0 {
            sum.add(&[&[0.6, 0.8], &[0.0, 0.0]])?;
        } else {
            sum.add(&[&[0.0, 0.0], &[80.0, 60.0]])?;
        }
    }
    Ok(sum.release(sample, no_noise(plan))?)
}
