//! The secret number of runs of a private tuning, drawn exactly.

use std::num::NonZeroU64;

use veilgrad_events::{RawCount, RunCount};

use crate::{KeyStream, Purpose, RandomError, RoundKey};

/// The stream group of a number of runs.
const RUNS: u16 = 5;
/// Means of Poisson distributions are multiples of one over this.
const POISSON_GRAIN: u64 = 1 << 20;

/// Draws the number of runs of a tuning from its distribution.
///
/// # Guarantee
/// As for [`geometric`].
///
/// # Errors
/// When another process drew the key.
pub fn draw(key: &RoundKey, count: RunCount) -> Result<u64, RandomError> {
    match count.raw() {
        RawCount::Geometric { gamma } => geometric(key, gamma),
        RawCount::Logarithmic { gamma } => logarithmic(key, gamma),
        RawCount::Poisson { mean } => poisson(key, mean),
    }
}

/// Draws which of `settings` settings a run of a tuning has: each with the same probability.
///
/// # Errors
/// When another process drew the key.
pub fn setting(key: &RoundKey, settings: NonZeroU64) -> Result<u64, RandomError> {
    let mut stream = key.streams()?.stream(Purpose::Sample, RUNS, 3);
    Ok(stream.below(settings.get()))
}

/// Draws K from the truncated negative binomial distribution with eta 1 (geometric): `P(K = k) = gamma (1 - gamma)^(k-1)`.
///
/// # Guarantee
/// The probabilities are exact for this f64. The number is secret: it must not be shown, logged or stored.
///
/// # Errors
/// When another process drew the key.
pub fn geometric(key: &RoundKey, gamma: f64) -> Result<u64, RandomError> {
    let mut stream = key.streams()?.stream(Purpose::Sample, RUNS, 0);
    Ok(draw_geometric(&mut stream, gamma))
}

/// Draws K from the truncated negative binomial distribution with eta 0 (logarithmic): `P(K = k)` in proportion to
/// `(1 - gamma)^k / k`.
///
/// # Guarantee
/// As for [`geometric`].
///
/// # Errors
/// When another process drew the key.
pub fn logarithmic(key: &RoundKey, gamma: f64) -> Result<u64, RandomError> {
    let mut stream = key.streams()?.stream(Purpose::Sample, RUNS, 1);
    Ok(draw_logarithmic(&mut stream, gamma))
}

/// Draws K from the Poisson distribution with this mean, which must be a multiple of 2^-20 (see [`poisson_mean`]).
///
/// # Guarantee
/// As for [`geometric`].
///
/// # Errors
/// When another process drew the key.
pub fn poisson(key: &RoundKey, mean: f64) -> Result<u64, RandomError> {
    let mut stream = key.streams()?.stream(Purpose::Sample, RUNS, 2);
    Ok(draw_any_poisson(&mut stream, mean))
}

/// The nearest mean that [`poisson`] can draw exactly: a multiple of 2^-20, at most 2^30.
#[must_use]
pub fn poisson_mean(mean: f64) -> f64 {
    let units = (mean * POISSON_GRAIN as f64).round();
    let most = (1u64 << 50) as f64;
    // Not `clamp`, which keeps NaN.
    if units > 0.0 { units.min(most) / POISSON_GRAIN as f64 } else { 0.0 }
}

/// The number of trials until the first success, with probability `gamma` each.
fn draw_geometric(stream: &mut KeyStream, gamma: f64) -> u64 {
    let mut k = 1;
    while !is_below(stream, gamma) {
        k += 1;
    }
    k
}

/// A geometric number k, kept with probability 1/k and else drawn again.
fn draw_logarithmic(stream: &mut KeyStream, gamma: f64) -> u64 {
    loop {
        let k = draw_geometric(stream, gamma);
        if stream.below(k) == 0 {
            return k;
        }
    }
}

/// True with probability exactly `p`: compares random bits with the binary digits of p.
fn is_below(stream: &mut KeyStream, p: f64) -> bool {
    if p >= 1.0 {
        return true;
    }
    let mut rest = p;
    while rest > 0.0 {
        let word = stream.word();
        for bit in (0..64).rev() {
            // Doubling and subtracting 1 are exact.
            rest *= 2.0;
            let (digit, random) = (rest >= 1.0, (word >> bit) & 1 == 1);
            if digit != random {
                return digit;
            }
            if digit {
                rest -= 1.0;
            }
        }
    }
    // Equal so far: a uniform number is not below p.
    false
}

/// A Poisson variable with this mean: the sum of independent ones with mean 1, and one with the fraction that is left.
fn draw_any_poisson(stream: &mut KeyStream, mean: f64) -> u64 {
    let units = (poisson_mean(mean) * POISSON_GRAIN as f64) as u64;
    let mut runs = 0;
    for _ in 0..units / POISSON_GRAIN {
        runs += draw_poisson(stream, POISSON_GRAIN);
    }
    runs + draw_poisson(stream, units % POISSON_GRAIN)
}

/// A Poisson variable with mean `m = units / POISSON_GRAIN`, at most 1, by rejection from the geometric law `2^-(k+1)`. The
/// ratio of both is in proportion to `(2 m)^k / k!`, which is largest at 0, 1 or 2; a draw is kept with probability ratio
/// over largest ratio, a product of fractions.
fn draw_poisson(stream: &mut KeyStream, units: u64) -> u64 {
    if units == 0 {
        return 0;
    }
    let twice = 2 * units;
    // The k with the largest ratio: the last one whose factor 2m/k is at least 1.
    let mode = twice / POISSON_GRAIN;
    loop {
        let mut k = 0;
        while stream.word() & 1 == 1 {
            k += 1;
        }
        // Below the mode: j/(2m) for j = k+1, ..., mode. Above it: 2m/j for j = mode+1, ..., k.
        let is_kept = match k < mode {
            true => (k + 1..=mode).all(|j| stream.below(twice) < j * POISSON_GRAIN),
            false => (mode + 1..=k).all(|j| stream.below(j * POISSON_GRAIN) < twice),
        };
        if is_kept {
            return k;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRAWS: usize = 200_000;

    fn stream() -> KeyStream {
        RoundKey::from_os().unwrap().streams().unwrap().stream(Purpose::Sample, 9, 0)
    }

    /// Checks that every frequency is within 7 standard deviations, and 8 counts for rare numbers, of its probability. False alarm
    /// below 3e-12 for each frequency: fewer than 200 in all tests here, so below 1e-9 together.
    fn check(probabilities: &[f64], first: u64, mut draw: impl FnMut() -> u64) {
        let mut counts = vec![0.0; probabilities.len()];
        for _ in 0..DRAWS {
            let drawn = draw();
            assert!(drawn >= first, "{drawn} is below the least number, {first}");
            if let Some(count) = counts.get_mut((drawn - first) as usize) {
                *count += 1.0;
            }
        }
        for (index, (p, count)) in probabilities.iter().zip(counts).enumerate() {
            let (mean, n) = (p * DRAWS as f64, DRAWS as f64);
            let deviation = (n * p * (1.0 - p)).sqrt();
            assert!((count - mean).abs() < 7.0 * deviation + 8.0, "{index}: {count} {mean}");
        }
    }

    /// The probabilities of 0, 1, ... of a Poisson variable.
    fn of_poisson(mean: f64) -> Vec<f64> {
        let mut p = f64::exp(-mean);
        let mut probabilities = Vec::new();
        for k in 1..14 {
            probabilities.push(p);
            p *= mean / f64::from(k);
        }
        probabilities
    }

    #[test]
    fn numbers_of_runs_have_their_probabilities() {
        let mut random = stream();
        for gamma in [0.9, 0.3, 0.0625] {
            let geometric: Vec<f64> = (0..12).map(|k| gamma * f64::powi(1.0 - gamma, k)).collect();
            check(&geometric, 1, || draw_geometric(&mut random, gamma));
            let scale = 1.0 / -f64::ln(gamma);
            let logarithmic: Vec<f64> =
                (1..12).map(|k| scale * f64::powi(1.0 - gamma, k) / f64::from(k)).collect();
            check(&logarithmic, 1, || draw_logarithmic(&mut random, gamma));
        }
        for mean in [0.25, 0.75, 1.0] {
            let units = (mean * POISSON_GRAIN as f64) as u64;
            check(&of_poisson(mean), 0, || draw_poisson(&mut random, units));
        }
        check(&of_poisson(2.25), 0, || draw_any_poisson(&mut random, 2.25));
    }

    #[test]
    fn every_setting_is_equally_likely() {
        let three = NonZeroU64::new(3).unwrap();
        let third = 1.0 / 3.0;
        let draw = || setting(&RoundKey::from_os().unwrap(), three).unwrap();
        check(&[third; 3], 0, draw);
    }

    #[test]
    fn whole_draws_agree_with_their_parts() {
        let key = || RoundKey::from_os().unwrap();
        assert_eq!(geometric(&key(), 1.0).unwrap(), 1);
        assert_eq!(logarithmic(&key(), 1.0).unwrap(), 1);
        assert_eq!(poisson(&key(), 0.0).unwrap(), 0);
        assert_eq!(draw(&key(), RunCount::geometric(1.0).unwrap()).unwrap(), 1);
        assert_eq!(draw(&key(), RunCount::logarithmic(1.0).unwrap()).unwrap(), 1);
        // Poisson with mean 100: beyond 7 standard deviations once in 10^11 runs.
        let runs = poisson(&key(), 100.0).unwrap();
        assert!((20..=190).contains(&runs), "{runs}");
        assert_eq!(poisson_mean(f64::NAN), 0.0);
        assert_eq!(poisson_mean(10.0), 10.0);
        assert!((poisson_mean(0.1) - 0.1).abs() < 1e-6);
    }
}
