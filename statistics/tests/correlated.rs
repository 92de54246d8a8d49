//! Noise that is correlated between rounds has the law of its event, and the tests detect wrong noise.

use veilgrad_statistics::Check;
use veilgrad_statistics::correlated::{Numbers, law, law_of_coordinates};

fn failed(checks: &[Check]) -> Vec<&Check> {
    checks.iter().filter(|check| !check.holds()).collect()
}

const fn right(_: &mut Numbers) {}

/// On each number of threads 64 checks at 1e-9, on 390,000 to 790,000 numbers for a distance between rounds.
#[test]
fn groups_of_a_segment_have_the_covariance_of_the_strategy() {
    for threads in [1, 2] {
        let checks = law(1, threads, right).unwrap();
        assert_eq!(checks.len(), 2 * (2 * 7 + 13) + 2 * 5);
        assert!(failed(&checks).is_empty(), "{:?}", failed(&checks));
    }
}

/// 738 checks at 1e-9.
#[test]
fn every_coordinate_has_the_law_of_the_strategy() {
    let checks = law_of_coordinates(10_000, right).unwrap();
    assert_eq!(checks.len(), 36 * 3 + 36 * 35 / 2);
    assert!(failed(&checks).is_empty(), "{:?}", failed(&checks));
}

fn one_percent_less(noise: &mut [Vec<f64>]) {
    noise.iter_mut().flatten().for_each(|value| *value *= 0.99);
}

/// The independent noise of the last of these rounds.
fn independent(rounds: &[Vec<f64>]) -> Vec<f64> {
    let strategy = [1.0, 0.5, 0.375, 0.3125];
    let bands = || strategy.iter().zip(rounds.iter().rev());
    (0..rounds[0].len()).map(|i| bands().map(|(c, row)| c * row[i]).sum()).collect()
}

#[test]
fn wrong_noise_of_large_groups_is_noticed() {
    let is_noticed = |what: &str, change: fn(&mut Numbers)| {
        assert!(!failed(&law(1, 1, change).unwrap()).is_empty(), "{what}");
    };
    // 12 standard deviations of the sum of the squares of a group's independent noise.
    is_noticed("one percent less in one group", |noise| one_percent_less(&mut noise[1]));
    is_noticed("one noise for both groups", |noise| noise[1] = noise[0].clone());
    is_noticed("the noise of the round before in the other group", |noise| {
        let [one, two] = noise;
        two[1..].clone_from_slice(&one[..one.len() - 1]);
    });
    is_noticed("a group whose noise is independent between rounds", |noise| {
        noise[1] = (0..noise[1].len()).map(|t| independent(&noise[1][..=t])).collect();
    });
    is_noticed("the noise of the first thread on the second", |noise| {
        for row in &mut noise[0] {
            let (share, end) = (9 << 12, row.len());
            row.copy_within(..end - share, share);
        }
    });
}

#[test]
fn wrong_noise_of_one_coordinate_is_noticed() {
    let is_noticed = |what: &str, change: fn(&mut Numbers)| {
        assert!(!failed(&law_of_coordinates(2000, change).unwrap()).is_empty(), "{what}");
    };
    is_noticed("no noise on the last coordinate", |noise| {
        noise[1].iter_mut().for_each(|row| row[2] = 0.0);
    });
    is_noticed("neighbours with one noise", |noise| {
        noise[0].iter_mut().for_each(|row| row[1] = row[0]);
    });
    is_noticed("no noise in the first round", |noise| noise[0][0] = vec![0.0; 3]);
    is_noticed("a fifth less on the first coordinate", |noise| {
        noise[0].iter_mut().for_each(|row| row[0] *= 0.8);
    });
}
