//! Precision attacks (Mironov 2012, Haney et al. 2022): can the low bits of a release tell which of two
//! neighbouring sums it hides? Two samples of releases, one per sum, are compared pattern by pattern.

use rand_distr::{Distribution, StandardNormal};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::SeedableRng;
use veilgrad_random::{RoundKey, gaussian};
use veilgrad_statistics::Check;

const RELEASES: usize = 1 << 21;

/// Whether the patterns of the low bits are equally frequent in both: chi-square of two samples, for
/// each width of pattern from one bit to ten.
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

/// 40 checks at 1e-9.
#[test]
fn low_bits_of_exact_releases_do_not_tell_neighbouring_sums_apart() {
    for (k, neighbour) in [(27, 1i64), (27, (1 << 27) - 1), (27, 91_234_567), (12, 4096)] {
        let released = |sum: i64| -> Vec<u64> {
            let mut sums = vec![sum; RELEASES];
            gaussian::add(&RoundKey::from_os().unwrap(), 0, k, &mut sums, 2);
            sums.into_iter().map(|release| release as u64).collect()
        };
        for check in low_bits(&released(0), &released(neighbour)) {
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
    assert!(checks.iter().filter(|check| !check.holds()).count() >= 8, "{checks:?}");
}
