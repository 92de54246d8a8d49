//! Noise that is correlated between rounds, for every unit of record.

use std::num::{NonZeroU32, NonZeroU64};

use crate::common::{distance, plain_trainer, train_exactly};
use veilgrad_events::{
    Adjacency, BandedStrategy, ClipNorm, MemoryLedger, NoiseMultiplier, PublicCount, Run,
    SampleRate,
};
use veilgrad_mechanism::{CyclicSampler, NoiseError, PoissonSampler};
use veilgrad_nn::{
    Clipping, Contribution, Layer, Model, Performance, Records, TrainError, TrainingPlan, Unit,
};

const WIDTH: usize = 36;
const ENTRIES: [u32; 4] = [4096, 2048, 1536, 1280];

/// Users with several examples each.
struct Users(Vec<Vec<(Vec<f32>, f32)>>);

impl Records for Users {
    fn count(&self) -> u64 {
        self.0.len() as u64
    }

    fn examples(&self, record: u64) -> usize {
        self.0[record as usize].len()
    }

    fn read(&self, record: u64, example: usize, input: &mut [f32], target: &mut [f32]) {
        let (x, y) = &self.0[record as usize][example];
        input.copy_from_slice(x);
        target[0] = *y;
    }
}

fn strategy() -> BandedStrategy {
    BandedStrategy::new(12, ENTRIES.to_vec()).unwrap()
}

/// A plan with clip norm 1 that expects one record.
fn plan(noise: f64, unit: Unit) -> TrainingPlan {
    let clipping = Clipping::Flat(ClipNorm::new(1.0).unwrap());
    let (noise, one) = (NoiseMultiplier::new(noise).unwrap(), PublicCount::new(1.0).unwrap());
    TrainingPlan::new(clipping, noise, one).unit(unit)
}

fn user(contribution: Contribution) -> Unit {
    Unit::User { examples: NonZeroU32::new(3).unwrap(), contribution }
}

/// All groups' records in every round of theirs.
fn cyclic() -> CyclicSampler {
    let groups = NonZeroU64::new(ENTRIES.len() as u64).unwrap();
    CyclicSampler::new(SampleRate::new(1.0).unwrap(), groups, 0)
}

/// The sum over rounds of the expected squares of a parameter that adds up nothing but noise with multiplier 1:
/// `|c|^2 sum_j (T - j) s_j^2`, where `s` are the sums of the coefficients of `1/c`.
fn expected_squares(rounds: usize) -> f64 {
    let c = ENTRIES.map(|m| f64::from(m) / 4096.0);
    let (mut inverse, mut sum, mut squares) = (Vec::new(), 0.0, 0.0);
    for t in 0..rounds {
        let earlier: f64 = (1..c.len().min(t + 1)).map(|j| c[j] * inverse[t - j]).sum();
        let coefficient = if t == 0 { 1.0 } else { -earlier };
        inverse.push(coefficient);
        sum += coefficient;
        squares += (rounds - t) as f64 * sum * sum;
    }
    squares * c.iter().map(|c| c * c).sum::<f64>()
}

/// Without records, a model is the sum of the noise. The standard deviation of a parameter's squares is at most `sqrt(2)` of their
/// mean, and there are 37,000 parameters: 5 % are 7 standard deviations, with false alarms below 1e-11. Plain noise has 2.5 times
/// as much.
#[test]
fn the_noise_of_rounds_cancels_in_the_model_for_every_unit() {
    let rounds = 24;
    let model = Model::new(&[WIDTH], [Layer::linear(1000)], 1).unwrap();
    let three = NonZeroU32::new(3).unwrap();
    let local = Contribution::LocalSgd { rate: 0.1, batch: three, epochs: three };
    for (unit, threads) in [
        (Unit::Example, 1),
        (Unit::Microbatch { examples: three }, 2),
        (user(Contribution::Average), 1),
        (user(local), 2),
    ] {
        let plan = plan(0.7, unit).correlated(strategy(), rounds as u64);
        let performance = Performance { threads, ..Performance::default() };
        let mut trainer = plain_trainer(&model, plan, 1.0, performance).unwrap();
        let mut run = Run::open(MemoryLedger::new(), trainer.header(Adjacency::AddRemove)).unwrap();
        let mut squares = 0.0;
        let (mut sampler, nobody) = (cyclic(), Users(Vec::new()));
        trainer
            .train(&mut run, &mut sampler, &nobody, rounds as u64, 5, |trainer, _| {
                squares += distance(trainer.model(), &model).powi(2);
            })
            .unwrap();
        let expected = 0.49 * 37_000.0 * expected_squares(rounds);
        assert!((squares / expected - 1.0).abs() < 0.05, "{unit:?}: {squares} {expected}");
    }
    // Plain noise adds up: T (T + 1) / 2.
    assert!((rounds * (rounds + 1) / 2) as f64 > 2.4 * expected_squares(rounds));
}

/// With next to no noise, four rounds are one step on the only user: it is in one group, and only that group's rounds use it.
#[test]
fn a_user_takes_part_once_in_every_turn_with_all_of_its_examples() {
    let model = Model::new(&[WIDTH], [Layer::linear(3)], 1).unwrap();
    let examples = (0..3).map(|i| (vec![0.2 * i as f32; WIDTH], i as f32)).collect();
    let records = Users(vec![examples]);
    let two = NonZeroU32::new(2).unwrap();
    let local = Contribution::LocalSgd { rate: 0.1, batch: two, epochs: two };
    for contribution in [Contribution::Average, local] {
        let unit = user(contribution);
        let exact = plan(1.0, unit);
        let mut exact = plain_trainer(&model, exact, 0.5, Performance::default()).unwrap();
        train_exactly(&mut exact, &records, 6);
        let plan = plan(1e-5, unit).correlated(strategy(), 24);
        let mut trainer = plain_trainer(&model, plan, 0.5, Performance::default()).unwrap();
        let mut run = Run::open(MemoryLedger::new(), trainer.header(Adjacency::AddRemove)).unwrap();
        trainer.train(&mut run, &mut cyclic(), &records, 24, 5, |_, _| ()).unwrap();
        let (apart, moved) =
            (distance(exact.model(), trainer.model()), distance(&model, exact.model()));
        assert!(moved > 0.1 && apart < 0.005 * moved, "{contribution:?}: {apart} of {moved}");
    }
}

#[test]
fn samples_that_are_not_cyclic_and_rounds_of_another_trainer_are_refused() {
    let model = Model::new(&[WIDTH], [Layer::linear(3)], 1).unwrap();
    let plan = plan(1.0, user(Contribution::Average)).correlated(strategy(), 24);
    let trainer = || plain_trainer(&model, plan.clone(), 1.0, Performance::default()).unwrap();
    let (mut first, mut second) = (trainer(), trainer());
    let poisson = PoissonSampler::new(SampleRate::new(0.5).unwrap());
    assert!(first.event(&poisson).is_err());
    let mut run = Run::open(MemoryLedger::new(), first.header(Adjacency::AddRemove)).unwrap();
    let (mut sampler, records) = (cyclic(), Users(Vec::new()));
    let mut permits = run.reserve(&first.event(&sampler).unwrap(), 3).unwrap();
    first.round(permits.next().unwrap(), &mut sampler, &records).unwrap();
    // As after an interruption: the second round has no past noise.
    let refused = second.round(permits.next().unwrap(), &mut sampler, &records);
    assert!(matches!(refused, Err(TrainError::Noise(NoiseError::SegmentOrder))), "{refused:?}");
    // That round was neither sampled nor given noise, so the segment is over for the first trainer, too.
    let refused = first.round(permits.next().unwrap(), &mut sampler, &records);
    assert!(matches!(refused, Err(TrainError::Sample(_))), "{refused:?}");
}

/// A trainer with a strategy that 64 bits may not hold is refused when it is made, and too many rounds before any is charged.
#[test]
fn what_64_bits_cannot_hold_and_too_many_rounds_are_refused_before_a_charge() {
    let model = Model::new(&[WIDTH], [Layer::linear(3)], 1).unwrap();
    // Equal entries: the noise of a round is a sum of as many numbers as there were rounds.
    let unstable = BandedStrategy::new(1, vec![2, 2]).unwrap();
    let made = |noise, strategy, rounds| {
        let plan = plan(noise, user(Contribution::Average)).correlated(strategy, rounds);
        plain_trainer(&model, plan, 1.0, Performance::default())
    };
    let refused = made(1e7, unstable, 100_000).err();
    assert!(matches!(refused, Some(TrainError::Noise(NoiseError::Unstable { .. }))), "{refused:?}");
    let mut trainer = made(1.0, strategy(), 24).unwrap();
    let mut run = Run::open(MemoryLedger::new(), trainer.header(Adjacency::AddRemove)).unwrap();
    let records = Users(Vec::new());
    let refused = trainer.train(&mut run, &mut cyclic(), &records, 25, 5, |_, _| ());
    assert!(matches!(refused, Err(TrainError::Noise(NoiseError::SegmentEnd(24)))), "{refused:?}");
    assert!(run.store().rounds().is_empty());
    trainer.train(&mut run, &mut cyclic(), &records, 24, 5, |_, _| ()).unwrap();
}
