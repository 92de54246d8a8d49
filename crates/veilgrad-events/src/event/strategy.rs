//! Banded strategies: how the noise of a round is correlated with that of earlier rounds.

use std::collections::VecDeque;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// The strategy of correlated Gaussian noise: a banded Toeplitz matrix with entries `c_j = m_j / 2^p`, as public integers.
///
/// Noise of this strategy is `C^-1` times independent Gaussian noise, where `C` has `c_0 = 1, c_1, ..., c_{b-1}` on its main
/// diagonal and on the `b - 1` diagonals below it. In a running sum of `b` or more rounds most of it cancels.
///
/// # Guarantee
/// The entries are positive and do not increase, and `m_0 = 2^p`. A record that takes part once in any `b` consecutive rounds
/// changes what the mechanism measures by its own norm times [`norm_up`](Self::norm_up), for each time that it takes part.
///
/// # Example
/// ```
/// use veilgrad_events::BandedStrategy;
///
/// let strategy = BandedStrategy::new(12, vec![4096, 2048, 1536])?;
/// assert_eq!(strategy.bands(), 3);
/// assert_eq!(strategy.squared_norm(), 4096 * 4096 + 2048 * 2048 + 1536 * 1536);
/// assert!(BandedStrategy::new(12, vec![4096, 2048, 2049]).is_err()); // it increases
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "RawStrategy", into = "RawStrategy")]
pub struct BandedStrategy {
    p: u8,
    // Shared, because every query of a round holds the strategy.
    m: Arc<[u32]>,
}

/// Later coefficients of `1 / c` hardly change the noise of a round.
const MOST_COEFFICIENTS: u64 = 10_000;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawStrategy {
    p: u8,
    m: Vec<u32>,
}

/// The integers are no banded strategy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StrategyError {
    /// The exponent of the denominator is too large.
    #[error("precision {0} of a strategy is not at most 16")]
    Precision(u8),
    /// There are no bands, or too many.
    #[error("a strategy of {0} bands does not have between 1 and 4096")]
    Bands(usize),
    /// The first entry is not 1.
    #[error("the first entry {first} of a strategy is not 2^{p}")]
    First {
        /// The entry.
        first: u32,
        /// The exponent of the denominator.
        p: u8,
    },
    /// An entry is 0 or larger than the one before it.
    #[error("entry {entry} of band {band} is not between 1 and the entry {before} before it")]
    Increases {
        /// The number of the band, from 0.
        band: usize,
        /// Its entry.
        entry: u32,
        /// The entry before it.
        before: u32,
    },
}

impl BandedStrategy {
    /// The largest exponent of the denominator.
    pub const MAX_PRECISION: u8 = 16;
    /// The largest number of bands.
    pub const MAX_BANDS: usize = 4096;

    /// A strategy with entries `m_j / 2^p`.
    ///
    /// # Errors
    /// When `p` is above 16, there are no bands or more than 4096, `m_0` is not `2^p`, or an entry is 0 or larger than the one
    /// before it.
    pub fn new(p: u8, m: Vec<u32>) -> Result<Self, StrategyError> {
        if p > Self::MAX_PRECISION {
            return Err(StrategyError::Precision(p));
        }
        let first = match m.first() {
            Some(first) if m.len() <= Self::MAX_BANDS => *first,
            _ => return Err(StrategyError::Bands(m.len())),
        };
        if first != 1 << p {
            return Err(StrategyError::First { first, p });
        }
        for (band, (before, entry)) in (1..).zip(m.iter().zip(m.iter().skip(1))) {
            if *entry == 0 || entry > before {
                return Err(StrategyError::Increases { band, entry: *entry, before: *before });
            }
        }
        Ok(Self { p, m: m.into() })
    }

    /// `p`: the entries are in units of `2^-p`.
    #[must_use]
    pub const fn precision(&self) -> u8 {
        self.p
    }

    /// `m_0, ..., m_{b-1}`: the entries in units of `2^-p`.
    #[must_use]
    pub fn entries(&self) -> &[u32] {
        &self.m
    }

    /// `b`: the number of bands. With one band the noise of different rounds is independent.
    #[must_use]
    pub fn bands(&self) -> usize {
        self.m.len()
    }

    /// `m_0^2 + ... + m_{b-1}^2`.
    #[must_use]
    pub fn squared_norm(&self) -> u64 {
        // At most 4096 squares of at most 2^32.
        self.m.iter().map(|entry| u64::from(*entry) * u64::from(*entry)).sum()
    }

    /// The norm of `m_0, ..., m_{b-1}`, rounded up.
    #[must_use]
    pub fn norm_up(&self) -> f64 {
        // The squared norm is below 2^45, so it is an f64 exactly. A root is rounded to the nearest f64.
        let root = (self.squared_norm() as f64).sqrt();
        if self.bands() == 1 { root } else { root.next_up() }
    }

    /// The standard deviation of the noise of the `round`-th round of a segment, from 0, over that of independent noise with the
    /// same privacy: `|c|` times the norm of the first `round + 1` coefficients of `1 / c`.
    pub(crate) fn amplification(&self, round: u64) -> f64 {
        let one = f64::from(1u32 << self.p);
        let c: Vec<f64> = self.m.iter().map(|entry| f64::from(*entry) / one).collect();
        let feedback = c.get(1..).unwrap_or_default();
        let mut latest: VecDeque<f64> = std::iter::once(1.0).collect();
        let mut sum = 1.0;
        for _ in 0..round.min(MOST_COEFFICIENTS) {
            let next = -feedback.iter().zip(&latest).map(|(c, d)| c * d).sum::<f64>();
            sum += next * next;
            latest.push_front(next);
            latest.truncate(feedback.len());
        }
        (c.iter().map(|c| c * c).sum::<f64>() * sum).sqrt()
    }
}

impl TryFrom<RawStrategy> for BandedStrategy {
    type Error = StrategyError;
    fn try_from(raw: RawStrategy) -> Result<Self, StrategyError> {
        Self::new(raw.p, raw.m)
    }
}

impl From<BandedStrategy> for RawStrategy {
    fn from(strategy: BandedStrategy) -> Self {
        Self { p: strategy.p, m: strategy.m.to_vec() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strategies_round_trip_through_json_and_bad_integers_are_refused_by_name() {
        let json = r#"{"p":3,"m":[8,5,5,1]}"#;
        let strategy: BandedStrategy = serde_json::from_str(json).unwrap();
        assert_eq!(strategy, BandedStrategy::new(3, vec![8, 5, 5, 1]).unwrap());
        assert_eq!(serde_json::to_string(&strategy).unwrap(), json);
        for (json, expected) in [
            (r#"{"p":3,"m":[]}"#, "0 bands"),
            (r#"{"p":17,"m":[131072]}"#, "precision 17"),
            (r#"{"p":3,"m":[7,5]}"#, "first entry 7 of a strategy is not 2^3"),
            (r#"{"p":3,"m":[8,5,6]}"#, "entry 6 of band 2 is not between 1 and the entry 5"),
            (r#"{"p":3,"m":[8,9]}"#, "entry 9 of band 1"),
            (r#"{"p":3,"m":[8,0]}"#, "entry 0 of band 1"),
            (r#"{"p":3,"m":[8],"b":1}"#, "unknown field"),
        ] {
            let message = serde_json::from_str::<BandedStrategy>(json).unwrap_err().to_string();
            assert!(message.contains(expected), "{json}: {message}");
        }
        let too_many = vec![1; BandedStrategy::MAX_BANDS + 1];
        assert_eq!(BandedStrategy::new(0, too_many), Err(StrategyError::Bands(4097)));
    }

    /// Of entries 1 and 1/2, the coefficients of the inverse are 1, -1/2, 1/4, ...
    #[test]
    fn the_noise_of_a_round_is_that_of_the_coefficients_so_far() {
        let strategy = BandedStrategy::new(1, vec![2, 1]).unwrap();
        for round in 0..60 {
            let squares = (1.0 - 0.25f64.powi(round + 1)) / 0.75;
            let found = strategy.amplification(round as u64);
            assert!((found - (1.25 * squares).sqrt()).abs() < 1e-14, "{round}: {found}");
        }
        let plain = BandedStrategy::new(12, vec![4096]).unwrap();
        assert_eq!(plain.amplification(99), 1.0);
    }

    /// `r >= sqrt(s)` if and only if `r^2 >= s`; both are integers when `r` is scaled by 2^40, which keeps all its bits.
    #[test]
    fn the_norm_is_never_below_the_root_of_the_squares() {
        let largest = vec![1 << 16; BandedStrategy::MAX_BANDS];
        let strategies = (1..60).map(|b| (0..b).map(|j| 4096 - 61 * j).collect());
        for m in strategies.chain([largest]) {
            let p = if m[0] == 4096 { 12 } else { 16 };
            let strategy = BandedStrategy::new(p, m).unwrap();
            let scaled = (strategy.norm_up() * 2f64.powi(40)) as u128;
            assert_eq!(scaled as f64, strategy.norm_up() * 2f64.powi(40));
            assert!(scaled * scaled >= u128::from(strategy.squared_norm()) << 80);
            assert!(strategy.norm_up() <= (strategy.squared_norm() as f64).sqrt() * (1.0 + 1e-15));
        }
    }
}
