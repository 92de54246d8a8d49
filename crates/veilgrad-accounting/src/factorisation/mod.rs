//! Banded factorisations: the strategy of correlated noise whose errors add up least.
//!
//! Rounds release `y = x + C^-1 N / 2^p` (docs of `veilgrad-mechanism`), and a model adds the releases up: its parameters after
//! round t are the sum of `rate_s y_s` over the rounds s up to t. The noise in them is row t of `B N`, `B = A C^-1`, where A has the
//! weights with which rounds enter parameters ([`Workload`]): those of learning rates, momentum and weight decay, which
//! are public. For the same privacy, N must be larger by the norm of a column of C. So the root mean squared error is proportional to
//! `|c| |B|_F`, and the best C minimises that. Both `|B|_F` and its derivatives take O(T b) operations: see `error.rs`.

mod choice;
mod error;
mod minimise;
mod series;

use veilgrad_events::{BandedStrategy, StrategyError};

pub use choice::{NoiseChoice, cyclic};
use error::{Entry, SquaredError};
use minimise::minimise;
use series::dot;

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
/// // SGD with momentum and a learning rate that falls linearly.
/// let falling = Workload::sgd((0..500).map(|t| 1.0 - t as f64 / 500.0)).with_momentum(0.9);
/// assert!(falling.error_ratio(&falling.strategy(16)?) < falling.error_ratio(&strategy));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Workload {
    /// The learning rate of each round; there is at least one.
    rates: Vec<f64>,
    momentum: f64,
    nesterov: bool,
    decay: f64,
}

impl Workload {
    /// Parameters that are sums of releases, as with plain SGD at a constant learning rate, over this many rounds.
    #[must_use]
    pub fn prefix_sums(rounds: usize) -> Self {
        Self::sgd(std::iter::repeat_n(1.0, rounds))
    }

    /// SGD with these learning rates, one for each round: parameters are sums of the releases, each times the rate of its round. Only
    /// ratios of rates matter. Rates that are negative or not finite count as 0, and as 1 if no other is left.
    #[must_use]
    pub fn sgd(rates: impl IntoIterator<Item = f64>) -> Self {
        let usable = |rate: f64| if rate > 0.0 && rate.is_finite() { rate } else { 0.0 };
        let mut rates: Vec<f64> = rates.into_iter().map(usable).collect();
        if rates.iter().all(|rate| *rate == 0.0) {
            rates = vec![1.0; rates.len().max(1)];
        }
        Self { rates, momentum: 0.0, nesterov: false, decay: 0.0 }
    }

    /// With momentum: a round adds its rate times `v_t = y_t + beta v_{t-1}`. Values outside `[0, 1)` count as the nearest inside.
    #[must_use]
    pub fn with_momentum(self, beta: f64) -> Self {
        Self { momentum: within(beta), nesterov: false, ..self }
    }

    /// With Nesterov momentum: a round adds its rate times `y_t + beta v_t`, where `v_t = y_t + beta v_{t-1}`. Values outside `[0, 1)`
    /// count as the nearest inside.
    #[must_use]
    pub fn with_nesterov(self, beta: f64) -> Self {
        Self { momentum: within(beta), nesterov: true, ..self }
    }

    /// With weight decay: every round multiplies parameters by `1 - rate * decay` before it adds to them. A product outside
    /// `[0, 1)` counts as the nearest inside.
    #[must_use]
    pub fn with_decay(self, decay: f64) -> Self {
        Self { decay, ..self }
    }

    /// The strategy of at most `bands` bands with the least error, positive and decreasing, on a grid of `2^-12`. It has no more
    /// bands than there are rounds.
    ///
    /// # Errors
    /// When `bands` is 0 or above [`BandedStrategy::MAX_BANDS`].
    pub fn strategy(&self, bands: usize) -> Result<BandedStrategy, StrategyError> {
        let bands = bands.min(self.rates.len());
        if bands == 0 || bands > BandedStrategy::MAX_BANDS {
            return Err(StrategyError::Bands(bands));
        }
        let rounds = self.entries();
        let objective = |theta: &[f64]| objective(&rounds, self.momentum, theta);
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
    pub fn error_ratio(&self, strategy: &BandedStrategy) -> f64 {
        let one = f64::from(1u32 << strategy.precision());
        let c: Vec<f64> = strategy.entries().iter().map(|m| f64::from(*m) / one).collect();
        let rounds = self.entries();
        let error = |c: &[f64]| SquaredError::new(&rounds, c, self.momentum).sum;
        (dot(&c, &c) * error(&c) / error(&[1.0])).sqrt()
    }

    /// How each round enters parameters.
    fn entries(&self) -> Vec<Entry> {
        let largest = self.rates.iter().copied().fold(0.0, f64::max);
        let keep = |rate: f64| 1.0 - within(rate * self.decay);
        let next = self.rates.iter().skip(1).copied().chain([0.0]);
        let entry = |(rate, next): (&f64, f64)| {
            let gain = rate / largest;
            // y_t + beta v_t = (1 + beta) v_t - beta v_{t-1}: what the next round subtracts of this one is left out of it, and
            // is seen until then.
            let ahead =
                if self.nesterov { self.momentum * next / largest / keep(next) } else { 0.0 };
            let nesterov = if self.nesterov { self.momentum * gain - ahead } else { 0.0 };
            Entry { keep: keep(*rate), gain: gain + nesterov, ahead }
        };
        self.rates.iter().zip(next).map(entry).collect()
    }
}

const fn within(value: f64) -> f64 {
    // NaN counts as 0.
    match value > 0.0 {
        true => value.min(1.0 - f64::EPSILON),
        false => 0.0,
    }
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
fn objective(rounds: &[Entry], momentum: f64, theta: &[f64]) -> (f64, Vec<f64>) {
    let c = entries(theta);
    let error = SquaredError::new(rounds, &c, momentum);
    let (norm, derivatives) = (dot(&c, &c), error.derivatives(momentum));
    // c_j times its derivative; d c_j / d theta_i = c_j (1 - sigmoid(theta_i)) for j >= i.
    let parts = c.iter().skip(1).zip(&derivatives).rev();
    let parts = parts.map(|(c, derivative)| c * (2.0 * c / norm + derivative / error.sum));
    let sums = parts.scan(0.0, |sum, part| {
        *sum += part;
        Some(*sum)
    });
    let of_theta = |(sum, theta): (f64, &f64)| sum * sigmoid(-theta);
    let mut gradient: Vec<f64> = sums.zip(theta.iter().rev()).map(of_theta).collect();
    gradient.reverse();
    (libm::log(norm) + libm::log(error.sum), gradient)
}

#[cfg(test)]
mod tests;
