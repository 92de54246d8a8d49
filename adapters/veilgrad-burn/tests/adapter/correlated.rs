//! Noise that is correlated between rounds, with a Burn model: of examples and of users.

use std::num::{NonZeroU32, NonZeroU64};

use veilgrad_burn::{Trainer, TrainingPlan};
use veilgrad_events::{
    Adjacency, BandedStrategy, MemoryLedger, NoiseMultiplier, PublicCount, Run, SampleRate,
};
use veilgrad_mechanism::AllRecords;
use veilgrad_mechanism::CyclicSampler;
use veilgrad_mechanism::insecure::no_noise;
use veilgrad_nn::{Clipping, Contribution, Unit};

use crate::common::{Mlp, Points, backends, clip, judge, tiles};

const ROUNDS: u64 = 24;
/// The coefficients of `(1 - x)^(-1/2)`: with all of them noise would cancel in sums as much as it can.
const ENTRIES: [u32; 4] = [4096, 2048, 1536, 1280];
const PARAMETERS: usize = 12 * 7 + 7 + 7 * 3 + 3;

fn users() -> Unit {
    let examples = NonZeroU32::new(3).unwrap();
    Unit::User { examples, contribution: Contribution::Average }
}

fn plan(noise: f64, unit: Unit) -> TrainingPlan {
    let noise = NoiseMultiplier::new(noise).unwrap();
    let one = PublicCount::new(1.0).unwrap();
    TrainingPlan::new(Clipping::Flat(clip(1.0)), noise, one).unit(unit)
}

/// All parameters of the releases of a segment, in which every record is in each round of its group.
fn segment(noise: f64, unit: Unit, points: &Points) -> Vec<Vec<f64>> {
    let model = Mlp::new(&backends()[0].1);
    let strategy = BandedStrategy::new(12, ENTRIES.to_vec()).unwrap();
    let plan = plan(noise, unit).correlated(strategy, ROUNDS);
    let mut trainer = Trainer::with(&model, points, plan, judge, tiles(4)).unwrap();
    let groups = NonZeroU64::new(ENTRIES.len() as u64).unwrap();
    let mut sampler = CyclicSampler::new(SampleRate::new(1.0).unwrap(), groups, 0);
    let mut run = Run::open(MemoryLedger::new(), trainer.header(Adjacency::AddRemove)).unwrap();
    let permits = run.reserve(&trainer.event(&sampler).unwrap(), ROUNDS).unwrap();
    permits
        .map(|permit| {
            trainer.round(&model, permit, &mut sampler).unwrap();
            let estimates = trainer.estimates().unwrap();
            let vectors = trainer.plan().structure().vectors();
            vectors.flat_map(|(name, _)| estimates.vector(name).unwrap().to_vec()).collect()
        })
        .collect()
}

/// `|c|^2 sum_j (T - j) s_j^2`, where `s` are the sums of the coefficients of `1/c`: the expected squares of all sums of releases,
/// per parameter and squared noise multiplier.
fn expected_squares() -> f64 {
    let c = ENTRIES.map(|m| f64::from(m) / 4096.0);
    let (mut inverse, mut sum, mut squares) = (Vec::new(), 0.0, 0.0);
    for t in 0..ROUNDS as usize {
        let earlier: f64 = (1..c.len().min(t + 1)).map(|j| c[j] * inverse[t - j]).sum();
        let coefficient = if t == 0 { 1.0 } else { -earlier };
        inverse.push(coefficient);
        sum += coefficient;
        squares += (ROUNDS as usize - t) as f64 * sum * sum;
    }
    squares * c.iter().map(|c| c * c).sum::<f64>()
}

/// Next to noise of 10,000 clip norms records do not matter. Of 40 segments, sums of squares of 4600 parameters deviate by at most
/// `sqrt(2 / 4600)`: 15 % are 7 standard deviations. Plain noise would have 2.5 times as much.
#[test]
fn noise_cancels_in_the_sum_of_rounds_for_examples_and_users() {
    for unit in [Unit::Example, users()] {
        let mut points = Points::new(3, 12, None);
        points.examples = if unit == Unit::Example { 1 } else { 3 };
        let mut squares = 0.0;
        for _ in 0..40 {
            let mut sums = vec![0.0; PARAMETERS];
            for released in segment(1e4, unit, &points) {
                assert_eq!(released.len(), PARAMETERS);
                sums.iter_mut().zip(&released).for_each(|(sum, value)| *sum += value);
                squares += sums.iter().map(|sum| sum * sum).sum::<f64>();
            }
        }
        let found = squares / (40.0 * PARAMETERS as f64 * 1e8) / expected_squares();
        assert!((found - 1.0).abs() < 0.15, "{unit:?}: {found}");
    }
}

/// With next to no noise, every fourth round releases the only user, and the others release nothing.
#[test]
fn a_user_takes_part_once_in_every_turn() {
    let mut points = Points::new(3, 12, None);
    points.examples = 3;
    let model = Mlp::new(&backends()[0].1);
    let mut exact = Trainer::with(&model, &points, plan(1.0, users()), judge, tiles(4)).unwrap();
    let header = exact.header(Adjacency::AddRemove);
    let mut run = Run::open_insecure(MemoryLedger::new(), header, "test").unwrap();
    for permit in run.reserve(&exact.event(&AllRecords).unwrap(), 1).unwrap() {
        let noise = no_noise(exact.plan());
        exact.round_insecure(&model, permit, &mut AllRecords, noise).unwrap();
    }
    let expected: Vec<f64> = (exact.plan().structure().vectors())
        .flat_map(|(name, _)| exact.estimates().unwrap().vector(name).unwrap().to_vec())
        .collect();
    let largest = expected.iter().fold(0f64, |largest, value| largest.max(value.abs()));
    let is_near = |released: &[f64], wanted: &[f64]| {
        released.iter().zip(wanted).all(|(a, b)| (a - b).abs() < 1e-3 * largest)
    };
    let releases = segment(1e-6, users(), &points);
    let of_the_user = releases.iter().filter(|released| is_near(released, &expected)).count();
    let of_nobody = releases.iter().filter(|released| is_near(released, &[0.0; PARAMETERS]));
    let turns = ROUNDS as usize / ENTRIES.len();
    assert_eq!((of_the_user, of_nobody.count()), (turns, ROUNDS as usize - turns));
}
