//! Precision attacks (Mironov 2012, Haney et al. 2022): do the low bits of a release reveal which of two
//! neighbouring sums it hides? Compares the patterns of low bits in many releases of each sum.

#![allow(clippy::print_stdout)]

use rand_distr::{Distribution, StandardNormal};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::SeedableRng;
use veilgrad::prelude::*;
use veilgrad_statistics::Check;

const RELEASES: usize = 1 << 21;

/// Tests whether patterns of low bits are equally frequent in both samples, by a two-sample chi-square test for each
/// width from one bit to ten.
fn low_bits(one: &[u64], other: &[u64]) -> Vec<Check> {
    (1..=10)
        .map(|bits| {
            let mut counts = vec![[0f64; 2]; 1 << bits];
            for (side, releases) in [one, other].into_iter().enumerate() {
                for release in releases {
                    counts[(release & ((1 << bits) - 1)) as usize][side] += 1.0;
                }
            }
            // Equal sample sizes: sum (a - b)^2 / (a + b) is chi-square.
            let occupied: Vec<_> = counts.iter().filter(|[a, b]| a + b > 0.0).collect();
            let chi2 = occupied.iter().map(|[a, b]| (a - b) * (a - b) / (a + b)).sum();
            let freedom = (occupied.len() as f64 - 1.0).max(1.0);
            Check::by_dispersion(format!("lowest {bits} bits"), chi2, freedom)
        })
        .collect()
}

/// The released integers of a round over these records; all coordinates of a record are equal.
fn released(plan: &RoundPlan, records: &[f32]) -> Vec<u64> {
    let header = RunHeader::new(RecordUnit::Example, Adjacency::AddRemove);
    let mut run = Run::open(MemoryLedger::new(), header).unwrap();
    let permit = run.reserve(&plan.round(&AllRecords).unwrap(), 1).unwrap().next().unwrap();
    let sample = Sample::draw(permit, &mut AllRecords, records.len() as u64).unwrap();
    let mut sum = sample.begin(plan);
    for id in sample.ids() {
        sum.add(&[&vec![records[id as usize]; RELEASES]]).unwrap();
    }
    let estimates = sum.release(sample, Noise::draw(plan).unwrap()).unwrap();
    let unit = 1.0 / f64::from(plan.grid("x").unwrap().s_int());
    let integer = |value: f64| (value / unit - 0.5).round() as i64 as u64;
    estimates.vector("x").unwrap().iter().map(integer).collect()
}

/// 30 checks at 1e-9: sums with and without one record, of three sizes.
#[test]
fn low_bits_of_exact_releases_do_not_tell_neighbouring_sums_apart() {
    let structure = Structure::new([("x", RELEASES)]).unwrap();
    let groups = Group::flat("x", "x", ClipNorm::new(1.0).unwrap());
    let allocation = Allocation::Proportional(NoiseMultiplier::new(1.0).unwrap());
    let plan = RoundPlan::new(structure, groups, allocation).unwrap();
    // With 1/sqrt(d) in every coordinate, a record has exactly the clip norm.
    for record in [1e-8, 1e-4, (RELEASES as f32).sqrt().recip()] {
        let others = [2e-4, -1e-4];
        let with = released(&plan, &[others[0], others[1], record]);
        for check in low_bits(&released(&plan, &others), &with) {
            println!("record {record:e}: {}, tail {:.2e}", check.name, check.tail);
            assert!(check.holds(), "{} {:e}", check.name, check.tail);
        }
    }
}

#[test]
fn the_same_test_tells_floating_point_releases_apart() {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(1);
    let mut released = |sum: f32| -> Vec<u64> {
        let mut release = || -> f32 {
            let noise: f32 = StandardNormal.sample(&mut random);
            sum + noise
        };
        (0..RELEASES).map(|_| u64::from(release().to_bits())).collect()
    };
    let checks = low_bits(&released(0.0), &released(1.0));
    for check in &checks {
        println!("floating point: {}, tail {:.2e}", check.name, check.tail);
    }
    assert!(checks.iter().filter(|check| !check.holds()).count() >= 8, "{checks:?}");
}
