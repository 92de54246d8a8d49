//! Banded factorisations: the strategy of correlated noise whose errors add up least.
//!
//! Rounds release `y = x + C^-1 N / 2^p` (docs of `veilgrad-mechanism`), and a model adds the releases up: with learning rate 1 its
//! parameters after round t are the sum of `y_0, ..., y_t`. The noise in them is row t of `B N`, `B = A C^-1`, where A has the
//! weights with which rounds enter parameters ([`Workload`]). For the same privacy, N must be larger by the norm of a column of
//! C. So the root mean squared error is proportional to `|c| |B|_F`, and the best C minimises that.
//!
//! Both matrices are Toeplitz, so `B` has one column `s = a / c` as power series, and `|B|_F^2 = sum_j (T - j) s_j^2`.
//! Dividing by a series of b terms takes O(T b) operations. The derivatives are
//! `d |B|_F^2 / d c_i = -2 sum_j (T - j) s_j v_{j-i}` with `v = s / c`: one more division.

mod choice;
mod minimise;

use veilgrad_events::{BandedStrategy, StrategyError};

pub use choice::{NoiseChoice, cyclic};
use minimise::minimise;

/// Entries are multiples of 2^-12: finer ones change no ratio of errors in its first four digits.
const PRECISION: u8 = 12;

/// How the releases of rounds add up in the parameters of a model: what correlated noise is optimised for.
///
/// # Example
/// ```
/// use veilgrad_accounting::Workload;
///
/// let workload = Workload::prefix_sums(500);
/// let strategy = workload.strategy(16)?;
/// assert_eq!(strategy.bands(), 16);
/// // The noise in the sums of 1 to 500 rounds, relative to independent noise of the same norm.
/// assert!(workload.error_ratio(&strategy) < 0.3);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Workload {
    rounds: usize,
    momentum: f64,
    decay: f64,
}

impl Workload {
    /// Parameters that are sums of releases, as with plain SGD, over this many rounds.
    #[must_use]
    pub const fn prefix_sums(rounds: usize) -> Self {
        Self { rounds, momentum: 0.0, decay: 0.0 }
    }

    /// With momentum: round t enters parameters after `j` further rounds with weight `1 + beta + ... + beta^j`. Values outside
    /// `[0, 1)` count as the nearest inside.
    #[must_use]
    pub const fn with_momentum(self, beta: f64) -> Self {
        Self { momentum: within(beta), ..self }
    }

    /// With weight decay: every round multiplies parameters by `1 - decay` (learning rate times weight decay). Values
    /// outside `[0, 1)` count as the nearest inside.
    #[must_use]
    pub const fn with_decay(self, decay: f64) -> Self {
        Self { decay: within(decay), ..self }
    }

    /// The strategy of at most `bands` bands with the least error, positive and decreasing, on a grid of `2^-12`. It has no more
    /// bands than there are rounds.
    ///
    /// # Errors
    /// When `bands` is 0 or above [`BandedStrategy::MAX_BANDS`].
    pub fn strategy(self, bands: usize) -> Result<BandedStrategy, StrategyError> {
        let bands = bands.min(self.rounds.max(1));
        if bands == 0 || bands > BandedStrategy::MAX_BANDS {
            return Err(StrategyError::Bands(bands));
        }
        let response = self.response();
        let objective = |theta: &[f64]| objective(&response, theta);
        // Begins with the coefficients of (1 - x)^(-1/2), the best without a limit to bands: ratios 1 - 1/(2j).
        let start = (1..bands).map(|j| libm::log(2.0 * j as f64 - 1.0)).collect();
        let entries = entries(&minimise(start, objective));
        let one = f64::from(1u32 << PRECISION);
        let quantise = |entry: &f64| (libm::round(entry * one) as u32).max(1);
        BandedStrategy::new(PRECISION, entries.iter().map(quantise).collect())
    }

    /// The root mean squared error of parameters under noise with this strategy, relative to independent noise with the same
    /// privacy for a record that takes part once. Does not include what sampling in turn costs.
    #[must_use]
    pub fn error_ratio(self, strategy: &BandedStrategy) -> f64 {
        let one = f64::from(1u32 << strategy.precision());
        let c: Vec<f64> = strategy.entries().iter().map(|m| f64::from(*m) / one).collect();
        let response = self.response();
        let mut quotient = response.clone();
        divide(&mut quotient, &c);
        (squared(&c) * weighted_squares(&quotient) / weighted_squares(&response)).sqrt()
    }

    /// The weight with which a release enters parameters, by the number of rounds since.
    fn response(self) -> Vec<f64> {
        let mut response = vec![0.0; self.rounds.max(1)];
        if let Some(first) = response.first_mut() {
            *first = 1.0;
        }
        divide(&mut response, &[1.0, self.decay - 1.0]);
        divide(&mut response, &[1.0, -self.momentum]);
        response
    }
}

const fn within(value: f64) -> f64 {
    // NaN counts as 0.
    match value > 0.0 {
        true => value.min(1.0 - f64::EPSILON),
        false => 0.0,
    }
}

/// Divides a power series by another one that begins with 1.
fn divide(series: &mut [f64], divisor: &[f64]) {
    let divisor = divisor.get(1..).unwrap_or_default();
    let mut rest = series;
    while let Some((value, later)) = std::mem::take(&mut rest).split_first_mut() {
        // Every coefficient is final when it is reached: its part of the later ones is subtracted then.
        for (later, divisor) in later.iter_mut().zip(divisor) {
            *later -= divisor * *value;
        }
        rest = later;
    }
}

fn squared(values: &[f64]) -> f64 {
    values.iter().map(|value| value * value).sum()
}

/// `(T - j)` for `j = 0, ..., T - 1`: how many of the sums release j of a column is in.
fn weights(rounds: usize) -> impl Iterator<Item = f64> {
    (1..=rounds).rev().map(|weight| weight as f64)
}

fn weighted_squares(series: &[f64]) -> f64 {
    series.iter().zip(weights(series.len())).map(|(s, weight)| weight * s * s).sum()
}

fn sigmoid(theta: f64) -> f64 {
    1.0 / (1.0 + libm::exp(-theta))
}

/// `c_j = sigmoid(theta_1) ... sigmoid(theta_j)`: positive and decreasing, from `c_0 = 1`.
fn entries(theta: &[f64]) -> Vec<f64> {
    let ratios = theta.iter().map(|theta| sigmoid(*theta));
    let products = ratios.scan(1.0, |product, ratio| {
        *product *= ratio;
        Some(*product)
    });
    std::iter::once(1.0).chain(products).collect()
}

/// The logarithm of the squared error, and its derivatives.
fn objective(response: &[f64], theta: &[f64]) -> (f64, Vec<f64>) {
    let c = entries(theta);
    let mut s = response.to_vec();
    divide(&mut s, &c);
    // v after b - 1 zeros, so that every coefficient of s sees a whole window of v that ends with it.
    let mut v = vec![0.0; c.len() - 1];
    v.extend_from_slice(&s);
    divide(v.get_mut(c.len() - 1..).unwrap_or_default(), &c);
    // By number of the entry, from the last to the first.
    let mut correlations = vec![0.0; c.len()];
    for ((window, s), weight) in v.windows(c.len()).zip(&s).zip(weights(s.len())) {
        for (sum, v) in correlations.iter_mut().zip(window) {
            *sum += weight * s * v;
        }
    }
    let (norm, error) = (squared(&c), weighted_squares(&s));
    // c_j and its derivative; d c_j / d theta_i = c_j (1 - sigmoid(theta_i)) for j >= i.
    let parts = c.iter().rev().zip(&correlations);
    let parts = parts.map(|(c, correlation)| c * (2.0 * c / norm - 2.0 * correlation / error));
    let sums = parts.scan(0.0, |sum, part| {
        *sum += part;
        Some(*sum)
    });
    let of_theta = |(sum, theta): (f64, &f64)| sum * sigmoid(-theta);
    let mut gradient: Vec<f64> = sums.zip(theta.iter().rev()).map(of_theta).collect();
    gradient.reverse();
    (libm::log(norm) + libm::log(error), gradient)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ratio(rounds: usize, bands: usize) -> f64 {
        let workload = Workload::prefix_sums(rounds);
        workload.error_ratio(&workload.strategy(bands).unwrap())
    }

    /// From an independent prototype, to four digits.
    #[test]
    fn errors_are_those_of_the_prototype() {
        for (rounds, bands, expected) in [
            (500, 2, 0.7144),
            (500, 16, 0.2971),
            (500, 64, 0.2074),
            (10_000, 16, 0.2571),
            (10_000, 64, 0.1393),
        ] {
            let found = ratio(rounds, bands);
            assert!((found - expected).abs() < 5e-4, "{rounds} {bands}: {found}");
        }
    }

    #[test]
    fn one_band_is_independent_noise_and_more_bands_are_never_worse() {
        assert_eq!(ratio(300, 1), 1.0);
        let ratios: Vec<f64> = [1, 2, 3, 4, 8, 16, 32].map(|bands| ratio(300, bands)).to_vec();
        assert!(ratios.is_sorted_by(|a, b| a > b), "{ratios:?}");
        // No more bands than rounds.
        assert_eq!(Workload::prefix_sums(5).strategy(64).unwrap().bands(), 5);
        assert!(Workload::prefix_sums(5).strategy(0).is_err());
        assert!(Workload::prefix_sums(9999).strategy(4097).is_err());
    }

    /// The error by matrices: `|c| |A C^-1|_F / |A|_F`, with dense triangular matrices.
    #[test]
    fn the_error_is_that_of_the_dense_matrices() {
        let rounds = 40;
        for (bands, momentum, decay) in
            [(1, 0.0, 0.0), (3, 0.0, 0.0), (5, 0.9, 0.0), (40, 0.5, 0.1)]
        {
            let workload = Workload::prefix_sums(rounds).with_momentum(momentum).with_decay(decay);
            let strategy = workload.strategy(bands).unwrap();
            let c: Vec<f64> = strategy.entries().iter().map(|m| f64::from(*m) / 4096.0).collect();
            // Parameters theta and velocity v of SGD: v = beta v + y, theta = (1 - decay) theta + v.
            let mut a = vec![vec![0.0; rounds]; rounds];
            for column in 0..rounds {
                let (mut velocity, mut theta) = (0.0, 0.0);
                for (t, row) in a.iter_mut().enumerate() {
                    velocity = momentum * velocity + f64::from(u8::from(t == column));
                    theta = (1.0 - decay) * theta + velocity;
                    row[column] = theta;
                }
            }
            // B C = A, row by row from the last column.
            let mut error = 0.0;
            for row in &a {
                let mut b = vec![0.0; rounds];
                for column in (0..rounds).rev() {
                    let known = (1..c.len()).filter(|j| column + j < rounds);
                    b[column] = row[column] - known.map(|j| c[j] * b[column + j]).sum::<f64>();
                }
                error += squared(&b);
            }
            let plain: f64 = a.iter().map(|row| squared(row)).sum();
            let expected = (squared(&c) * error / plain).sqrt();
            let found = workload.error_ratio(&strategy);
            assert!((found / expected - 1.0).abs() < 1e-12, "{bands}: {found} {expected}");
        }
    }

    #[test]
    fn derivatives_are_differences() {
        let response = Workload::prefix_sums(60).with_momentum(0.8).response();
        let theta = [0.3, -0.4, 1.5, 2.0, 0.1];
        let (_, gradient) = objective(&response, &theta);
        for (i, derivative) in gradient.iter().enumerate() {
            let at = |step: f64| {
                let mut moved = theta;
                moved[i] += step;
                objective(&response, &moved).0
            };
            let difference = (at(1e-5) - at(-1e-5)) / 2e-5;
            assert!((difference - derivative).abs() < 1e-8, "{i}: {derivative} {difference}");
        }
    }

    /// No entry can be changed for the better by more than what rounding to the grid costs.
    #[test]
    fn no_small_change_of_a_strategy_has_a_smaller_error() {
        for workload in [
            Workload::prefix_sums(200),
            Workload::prefix_sums(200).with_momentum(0.9),
            Workload::prefix_sums(200).with_decay(0.02),
        ] {
            let best = workload.strategy(8).unwrap();
            let error = workload.error_ratio(&best);
            for (j, step) in (1..8).flat_map(|j| [-40i64, -8, 8, 40].map(|step| (j, step))) {
                let mut m = best.entries().to_vec();
                m[j] = u32::try_from(i64::from(m[j]) + step).unwrap();
                if let Ok(other) = BandedStrategy::new(best.precision(), m) {
                    let other = workload.error_ratio(&other);
                    assert!(other > error * (1.0 - 1e-6), "{workload:?} {j} {step}");
                }
            }
        }
    }
}
