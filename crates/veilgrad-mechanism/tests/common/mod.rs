//! Short constructors, and INSECURE rounds without noise.
#![allow(dead_code, missing_docs, unreachable_pub)]

use veilgrad_events::{
    Adjacency, ClipNorm, JointScale, MemoryLedger, NoiseMultiplier, NoiseStd, PublicCount,
    RecordUnit, Run, RunHeader, WeightBound,
};
use veilgrad_mechanism::insecure::no_noise;
use veilgrad_mechanism::{
    AllRecords, Allocation, ClippedSum, Estimates, Group, Released, RoundPlan, Sample, Structure,
};

pub fn clip(value: f64) -> ClipNorm {
    ClipNorm::new(value).unwrap()
}

pub fn noise(value: f64) -> NoiseStd {
    NoiseStd::new(value).unwrap()
}

pub fn z(value: f64) -> NoiseMultiplier {
    NoiseMultiplier::new(value).unwrap()
}

pub fn count(value: f64) -> PublicCount {
    PublicCount::new(value).unwrap()
}

pub fn weight(value: f64) -> WeightBound {
    WeightBound::new(value).unwrap()
}

pub fn alpha(value: f64) -> JointScale {
    JointScale::new(value).unwrap()
}

pub fn header() -> RunHeader {
    RunHeader::new(RecordUnit::Example, Adjacency::AddRemove)
}

pub fn plan(vectors: &[(&str, usize)], groups: Vec<Group>) -> RoundPlan {
    let structure = Structure::new(vectors.iter().copied()).unwrap();
    RoundPlan::new(structure, groups, Allocation::Proportional(z(1.0))).unwrap()
}

/// The sample of one round of an INSECURE run with this plan, which has room for the records of any test.
pub fn insecure_sample(plan: &RoundPlan) -> Sample {
    insecure_sample_of(plan, 1 << 20)
}

/// The same, of so many records.
pub fn insecure_sample_of(plan: &RoundPlan, records: u64) -> Sample {
    let mut run = Run::open_insecure(MemoryLedger::new(), header(), "no noise").unwrap();
    let permit = run.reserve(&plan.round(&AllRecords).unwrap(), 1).unwrap().next().unwrap();
    Sample::draw(permit, &mut AllRecords, records).unwrap()
}

/// A sample of an INSECURE run and an empty sum for it.
pub fn begin(plan: &RoundPlan) -> (Sample, ClippedSum) {
    let sample = insecure_sample(plan);
    let sum = sample.begin(plan);
    (sample, sum)
}

pub fn release(plan: &RoundPlan, sample: Sample, sum: ClippedSum) -> Released<Estimates> {
    sum.release(sample, no_noise(plan)).unwrap()
}

/// The release of a whole round over these records, without noise.
pub fn release_of(plan: &RoundPlan, records: &[&[&[f32]]]) -> Released<Estimates> {
    let (sample, mut sum) = begin(plan);
    for record in records {
        sum.add(record).unwrap();
    }
    release(plan, sample, sum)
}

pub fn vector(estimates: &Estimates, name: &str) -> Vec<f64> {
    estimates.vector(name).unwrap().to_vec()
}

#[track_caller]
pub fn assert_close(found: &[f64], expected: &[f64]) {
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        let tolerance = 1e-6 + 1e-6 * expected.abs();
        assert!((found - expected).abs() <= tolerance, "{found} is not {expected}");
    }
}
