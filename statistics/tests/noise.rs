//! The short form of the noise tests, and examples of wrong noise that they detect.

use rand_distr::{Distribution, StandardNormal};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::SeedableRng;
use veilgrad_events::IntegerGrid;
use veilgrad_random::{RoundKey, gaussian};
use veilgrad_statistics::Check;
use veilgrad_statistics::karney::Karney;
use veilgrad_statistics::noise::Battery;

fn battery(k: u8, samples: usize, mut fill: impl FnMut(&mut Vec<i64>)) -> Vec<Check> {
    let (mut battery, mut values) = (Battery::new(k), vec![0; 1 << 18]);
    for _ in 0..samples.div_ceil(values.len()) {
        fill(&mut values);
        battery.add(&values);
    }
    battery.checks()
}

fn failures(checks: &[Check]) -> Vec<String> {
    let failed = checks.iter().filter(|check| !check.holds());
    failed.map(|check| format!("{} ({:e})", check.name, check.tail)).collect()
}

fn grid(k: u8) -> IntegerGrid {
    IntegerGrid::new(1, k).unwrap()
}

/// About 430 checks at 1e-9: a false alarm in one of two million runs.
#[test]
fn noise_has_the_exact_distribution() {
    for (k, samples) in [
        (6, 1_000_000),
        (31, 1_000_000),
        (32, 1_000_000),
        (39, 1_000_000),
        (40, 1_000_000),
        (27, 10_000_000),
        (50, 3_000_000),
        (35, 1_000_000),
        (3, 1_000_000),
        (0, 1_000_000),
    ] {
        let key = RoundKey::from_os().unwrap();
        let mut group = 0;
        let checks = battery(k, samples, |values| {
            gaussian::fill(&key, group, grid(k), values, values.len(), 2).unwrap();
            group += 1;
        });
        assert_eq!(failures(&checks), Vec::<String>::new());
    }
}

#[test]
fn an_independent_exact_sampler_passes_the_same_checks() {
    let mut karney = Karney::new(1);
    let checks = battery(27, 1_000_000, |values| {
        values.iter_mut().for_each(|value| *value = karney.sample(27));
    });
    assert!(checks.len() > 30);
    assert_eq!(failures(&checks), Vec::<String>::new());
}

/// Wrong samplers with mistakes that have occurred elsewhere, and the check that must detect each.
#[test]
fn wrong_samplers_are_noticed() {
    let mut normal = Xoshiro256PlusPlus::seed_from_u64(1);
    let mut normal = move || -> f64 { StandardNormal.sample(&mut normal) };
    let scale = f64::from(1u32 << 27);
    let mut check = |what: &str, wrong: &mut dyn FnMut(f64, usize) -> i64| {
        let checks = battery(27, 4_000_000, |values| {
            for (index, value) in values.iter_mut().enumerate() {
                *value = wrong(normal(), index);
            }
        });
        let failed = failures(&checks);
        assert!(failed.iter().any(|failure| failure.contains(what)), "{what}: {failed:?}");
    };
    check("moment 2", &mut |z, _| (1.005 * z * scale).floor() as i64);
    check("moment 1", &mut |z, _| ((z + 0.005) * scale).floor() as i64);
    // The last bit is constant (opendp#2708): of the value, and of the magnitude.
    check("bit 0 of the value", &mut |z, _| (z * scale).floor() as i64 & !1);
    check("bit 0 of the magnitude", &mut |z, _| {
        let value = (z * scale).floor() as i64;
        ((value ^ (value >> 63)) & !1) ^ (value >> 63)
    });
    check("lowest byte of the value", &mut |z, _| ((z * scale).floor() as i64 & !0xff) | 0x80);
    // A truncated tail.
    check("beyond 4", &mut |z, _| (z.clamp(-3.999, 3.999) * scale).floor() as i64);
    // Every tenth coordinate repeats the one before; and a sign that depends on the magnitude.
    let mut last = 0;
    check("correlation at distance 1", &mut |z, index| {
        last = if index % 10 == 9 { last } else { (z * scale).floor() as i64 };
        last
    });
    check("sign and size", &mut |z, _| {
        ((if z.abs() > 2.5 { z.abs() } else { z }) * scale).floor() as i64
    });
}

#[test]
fn noise_is_the_same_for_any_number_of_threads_and_for_add_and_fill() {
    let key = RoundKey::from_os().unwrap();
    for length in [1, 511, 512, 513, 4096, 4097, 100_000] {
        for k in [3, 27, 35, 50] {
            let mut expected = Vec::new();
            gaussian::fill(&key, 1, grid(k), &mut expected, length, 1).unwrap();
            assert_eq!(expected.len(), length);
            for threads in [2, 3, 7] {
                // Old contents are overwritten.
                let mut values = vec![7; 3 * length / 2];
                gaussian::fill(&key, 1, grid(k), &mut values, length, threads).unwrap();
                assert_eq!(values, expected);
                let mut sums = vec![i64::MAX; length];
                gaussian::add(&key, 1, grid(k), &mut sums, threads).unwrap();
                let added = expected.iter().map(|noise| i64::MAX.wrapping_add(*noise));
                assert!(added.eq(sums));
            }
            // A longer vector begins with the same noise.
            let mut longer = vec![7; 10];
            gaussian::fill(&key, 1, grid(k), &mut longer, length + 1000, 1).unwrap();
            assert_eq!(longer[..length], expected);
        }
    }
}
