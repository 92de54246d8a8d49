//! Noise that is correlated between rounds, and the cyclic samples that it needs.

use std::collections::HashSet;
use std::num::NonZeroU64;

use crate::common::*;
use veilgrad_events::{BandedStrategy, MemoryLedger, RoundError, RoundPermit, Run, SampleRate};
use veilgrad_mechanism::insecure::{no_noise, released_integers};
use veilgrad_mechanism::{
    AllRecords, CorrelatedNoise, CyclicSampler, Group, Noise, NoiseError, PlanError, ReleaseError,
    RoundPlan, Sample, SampleError,
};

const ENTRIES: [u32; 4] = [4096, 2048, 1536, 1280];

fn strategy() -> BandedStrategy {
    BandedStrategy::new(12, ENTRIES.to_vec()).unwrap()
}

fn correlated(dimension: usize) -> RoundPlan {
    let plan = plan(&[("x", dimension)], Group::flat("all", "*", clip(1.0)));
    plan.correlated(strategy()).unwrap()
}

fn sampler(rate: f64, groups: u64) -> CyclicSampler {
    CyclicSampler::new(SampleRate::new(rate).unwrap(), NonZeroU64::new(groups).unwrap(), 0)
}

fn permits(plan: &RoundPlan, sampler: &CyclicSampler, count: u64) -> Vec<RoundPermit> {
    let mut run = Run::open(MemoryLedger::new(), header()).unwrap();
    run.reserve(&plan.round(sampler).unwrap(), count).unwrap().collect()
}

/// Releases of empty sums: the noise of a segment.
fn noise_of(plan: &RoundPlan, rounds: u64, threads: usize, ahead: bool) -> Vec<Vec<i64>> {
    let (mut sampler, mut source) = (sampler(0.5, 4), CorrelatedNoise::new(plan, rounds).unwrap());
    let mut old = None;
    let mut all = Vec::new();
    for permit in permits(plan, &sampler, rounds) {
        let sample = Sample::draw(permit, &mut sampler, 0).unwrap();
        if ahead {
            source.prepare(threads).unwrap();
        }
        let noise = match old.take() {
            Some(old) => source.draw_over(&sample, threads, old).unwrap(),
            None => source.draw(&sample, threads).unwrap(),
        };
        let released = sample.begin(plan).release(sample, noise).unwrap();
        all.push(released_integers(&released)[0].clone());
        old = Some(released);
    }
    all
}

/// `C^-1 C^-T` for the first rounds of a segment: what the noise of two rounds has in common, in units of `2^(2k - 2p)`.
fn covariance(rounds: usize) -> Vec<Vec<f64>> {
    let c = ENTRIES.map(|m| f64::from(m) / 4096.0);
    let mut d: Vec<f64> = Vec::new();
    for t in 0..rounds {
        let earlier: f64 = (1..c.len().min(t + 1)).map(|j| c[j] * d[t - j]).sum();
        d.push(if t == 0 { 1.0 } else { -earlier });
    }
    let entry = |s: usize, t: usize| (0..=s.min(t)).map(|i| d[s - i] * d[t - i]).sum();
    (0..rounds).map(|s| (0..rounds).map(|t| entry(s, t)).collect()).collect()
}

/// Every variance and covariance of 10 rounds over 131,072 coordinates, enough for two threads, is within 7 standard deviations
/// of that of the strategy, on one thread and on two, drawn ahead or not: 4 x 55 numbers, false alarm below 1e-9. The laws of
/// groups and of single coordinates are in `veilgrad-statistics`.
#[test]
fn the_noise_of_rounds_has_the_covariance_of_the_strategy() {
    let (dimension, rounds) = (2 << 16, 10);
    let plan = correlated(dimension);
    let k = plan.grid("all").unwrap().k();
    let unit = 2f64.powi(i32::from(k) - 12);
    let expected = covariance(rounds);
    for (threads, ahead) in [(1, false), (2, false), (1, true), (2, true)] {
        let noise = noise_of(&plan, rounds as u64, threads, ahead);
        for (s, t) in (0..rounds).flat_map(|s| (0..=s).map(move |t| (s, t))) {
            let products = noise[s].iter().zip(&noise[t]).map(|(a, b)| {
                // The noise is rounded down.
                (*a as f64 + 0.5) / unit * ((*b as f64 + 0.5) / unit)
            });
            let found = products.sum::<f64>() / dimension as f64;
            let of = |s: usize, t: usize| expected[s][t];
            let deviation = ((of(s, s) * of(t, t) + of(s, t).powi(2)) / dimension as f64).sqrt();
            let away = (found - of(s, t)) / deviation;
            assert!(away.abs() < 7.0, "rounds {s}, {t} on {threads}: {found} for {}", of(s, t));
        }
        // Coordinates are independent of each other, at the boundaries of chunks and threads as elsewhere.
        for lag in [1, 512, 4096, 20_480, 65_536] {
            let pairs = noise[5].iter().zip(&noise[5][lag..]);
            let sum: f64 = pairs.map(|(a, b)| (*a as f64 / unit) * (*b as f64 / unit)).sum();
            let count = (dimension - lag) as f64;
            let away = sum / (expected[5][5] * count.sqrt());
            assert!(away.abs() < 7.0, "lag {lag} on {threads}: {away}");
        }
    }
}

/// The whole point: noise in the sum of all rounds is far smaller than that of as many independent rounds.
#[test]
fn most_of_the_noise_cancels_in_the_sum_of_rounds() {
    let (dimension, rounds) = (10_000, 40);
    let plan = correlated(dimension);
    let noise = noise_of(&plan, rounds, 1, false);
    let sums = (0..dimension).map(|i| noise.iter().map(|row| row[i] as f64).sum::<f64>());
    let variance = sums.map(|sum| sum * sum).sum::<f64>() / dimension as f64;
    let expected: f64 = covariance(rounds as usize).iter().flatten().sum();
    let unit = 2f64.powi(i32::from(plan.grid("all").unwrap().k()) - 12);
    let ratio = variance / unit.powi(2) / expected;
    // A variance over 10,000 numbers has a relative standard deviation of 0.0142.
    assert!((ratio - 1.0).abs() < 0.1, "{ratio}");
    let norm = strategy().squared_norm() as f64 / 4096f64.powi(2);
    assert!(expected * norm < 0.5 * 40.0, "{expected}");
}

#[test]
fn a_correlated_plan_keeps_its_noise_multiplier_for_every_noise() {
    for target in [1e-3, 0.01, 0.7, 1.0, 1.1, 30.0, 4000.0, 1e6] {
        let structure = veilgrad_mechanism::Structure::new([("x", 3), ("y", 2)]).unwrap();
        let groups = vec![Group::new("x", ["x"], clip(0.3)), Group::new("y", ["y"], clip(2.0))];
        let allocation = veilgrad_mechanism::Allocation::Proportional(z(target));
        let plain = RoundPlan::new(structure, groups, allocation).unwrap();
        let plan = plain.correlated(strategy()).unwrap();
        let (before, after) =
            (plain.noise_multiplier().unwrap().get(), plan.noise_multiplier().unwrap().get());
        assert!(after >= before * (1.0 - 1e-13), "{target}: {before} {after}");
        // Very large noise leaves few bits for the sensitivity.
        let excess = if target > 1e5 { 1e-4 } else { 1e-6 };
        assert!(after <= before * (1.0 + excess), "{target}: {before} {after}");
        assert!(["x", "y"].iter().all(|group| plan.grid(group).unwrap().k() <= 49));
        // Again: the strategy is replaced, not added.
        let again = plan.correlated(strategy()).unwrap().noise_multiplier().unwrap().get();
        assert!((again / after - 1.0).abs() < excess, "{target}: {after} {again}");
        assert!(CorrelatedNoise::new(&plan, 100_000).is_ok(), "{target}");
    }
}

#[test]
fn correlated_noise_is_drawn_in_order_from_the_first_round_on_and_once_for_every_sample() {
    let plan = correlated(3);
    let mut cyclic = sampler(0.5, 4);
    let mut source = CorrelatedNoise::new(&plan, 10).unwrap();
    let mut samples: Vec<Sample> = permits(&plan, &cyclic, 4)
        .into_iter()
        .map(|permit| Sample::draw(permit, &mut cyclic, 9).unwrap())
        .collect();
    let third = samples.remove(2);
    let second = samples.remove(1);
    let first = samples.remove(0);
    // A source that begins in the middle.
    let late = CorrelatedNoise::new(&plan, 10).unwrap().draw(&second, 1);
    assert_eq!(late.err(), Some(NoiseError::SegmentOrder));
    let noise = source.draw(&first, 1).unwrap();
    // A second source for the same sample.
    let twice = CorrelatedNoise::new(&plan, 10).unwrap().draw(&first, 1);
    assert_eq!(twice.err(), Some(NoiseError::SegmentOrder));
    // Noise of one round in another.
    let sum = second.begin(&plan);
    assert!(matches!(sum.release(second, noise), Err(ReleaseError::ForeignNoise)));
    // A round is left out, and then nothing goes on.
    assert_eq!(source.draw(&third, 1).err(), Some(NoiseError::SegmentOrder));
    assert_eq!(source.draw(&third, 1).err(), Some(NoiseError::SegmentOrder));
    assert_eq!(source.prepare(1).err(), Some(NoiseError::SegmentOrder));
}

#[test]
fn a_segment_ends_with_the_rounds_that_its_noise_was_prepared_for() {
    let plan = correlated(3);
    let mut cyclic = sampler(0.5, 4);
    let mut source = CorrelatedNoise::new(&plan, 2).unwrap();
    let permits = permits(&plan, &cyclic, 3);
    let drawn = permits.into_iter().map(|permit| {
        let sample = Sample::draw(permit, &mut cyclic, 9).unwrap();
        source.draw(&sample, 1).map(drop)
    });
    assert_eq!(drawn.collect::<Vec<_>>(), [Ok(()), Ok(()), Err(NoiseError::SegmentEnd(2))]);
}

#[test]
fn plain_and_correlated_noise_do_not_replace_each_other() {
    let plan = correlated(3);
    let plain = crate::common::plan(&[("x", 3)], Group::flat("all", "*", clip(1.0)));
    assert!(matches!(Noise::draw(&plan).err(), Some(NoiseError::WrongKind(..))));
    assert!(matches!(CorrelatedNoise::new(&plain, 9).err(), Some(NoiseError::WrongKind(..))));
    let (sample, sum) = begin(&plain);
    assert!(matches!(sum.release(sample, no_noise(&plan)), Err(ReleaseError::ForeignNoise)));
    // A sampler that does not keep records apart for all bands.
    let refused = plan.round(&AllRecords).unwrap_err();
    assert!(matches!(refused, PlanError::Round(RoundError::Separation { bands: 4, .. })));
    assert!(plan.round(&sampler(0.5, 3)).is_err());
    // The strategy is part of the charge.
    let other = crate::common::plan(&[("x", 3)], Group::flat("all", "*", clip(1.0)));
    let other = other.correlated(BandedStrategy::new(12, vec![4096, 2048, 1536, 1281]).unwrap());
    let other = other.unwrap();
    let mut cyclic = sampler(0.5, 4);
    let sample = Sample::draw(permits(&plan, &cyclic, 1).remove(0), &mut cyclic, 9).unwrap();
    let noise = CorrelatedNoise::new(&other, 9).unwrap().draw(&sample, 1).unwrap();
    let released = sample.begin(&other).release(sample, noise);
    assert!(matches!(released, Err(ReleaseError::NotCharged(_))));
}

#[test]
fn a_record_is_in_rounds_of_one_group_only() {
    let plan = correlated(1);
    let (rounds, records) = (40, 500);
    let mut cyclic = sampler(0.7, 4);
    let mut group_of = vec![None; 500];
    let mut taken = 0;
    for (t, permit) in permits(&plan, &cyclic, rounds).into_iter().enumerate() {
        let sample = Sample::draw(permit, &mut cyclic, records).unwrap();
        for id in sample.ids() {
            let group = group_of[id as usize].get_or_insert(t % 4);
            assert_eq!(*group, t % 4, "record {id}");
            taken += 1;
        }
    }
    assert!(group_of.iter().all(Option::is_some));
    // 500 records, 10 rounds each, rate 0.7: standard deviation 32.
    assert!((taken - 3500i32).abs() < 230, "{taken}");
}

#[test]
fn every_segment_has_new_groups_and_none_is_continued_by_another_sampler() {
    let plan = correlated(1);
    let everyone = |cyclic: &mut CyclicSampler, permit| {
        Sample::draw(permit, cyclic, 200).map(|sample| sample.ids().collect::<HashSet<u64>>())
    };
    let mut cyclic = sampler(1.0, 4);
    let mut first = permits(&plan, &cyclic, 5);
    let last = first.pop().unwrap();
    let groups: Vec<_> =
        first.into_iter().map(|permit| everyone(&mut cyclic, permit).unwrap()).collect();
    assert_eq!(groups.iter().map(HashSet::len).sum::<usize>(), 200);
    let other = &mut sampler(1.0, 4);
    let continued = everyone(other, last).unwrap_err();
    assert_eq!(continued, SampleError::SegmentOrder);
    // Another run: that all 200 records are in the same groups has probability 4^-200.
    let again =
        permits(&plan, &cyclic, 4).into_iter().map(|permit| everyone(&mut cyclic, permit).unwrap());
    assert!(again.zip(&groups).any(|(again, before)| again != *before));
}
