//! Gaussian sum queries and their privacy tuples.

use serde::{Deserialize, Serialize};

use super::grid::{GridError, IntegerGrid, power_of_two};
use super::strategy::BandedStrategy;
use super::unit::{ClipNorm, NoiseStd, UnitError};

/// A Gaussian sum query over one group of vectors, with its privacy tuple `(S, sigma)`.
///
/// `clip` and `noise` are in the same unit; privacy depends only on their ratio. A query run by an exact
/// mechanism also has an [`IntegerGrid`]; its ratio is then the rational `2^k / S_int`. If its noise is correlated between
/// rounds, it has a [`BandedStrategy`] with entries of norm `|m|`, and its ratio is `2^k / (S_int |m|)`.
///
/// # Example
/// ```
/// use veilgrad_events::{ClipNorm, NoiseStd, SumQuery};
///
/// let query = SumQuery::new("gradient", ClipNorm::new(0.5)?, NoiseStd::new(0.55)?);
/// assert_eq!(query.group(), "gradient");
/// assert!((query.noise().get() / query.clip().get() - 1.1).abs() < 1e-12);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "RawQuery", into = "RawQuery")]
pub struct SumQuery {
    group: String,
    clip: ClipNorm,
    noise: NoiseStd,
    exact: Option<ExactQuery>,
}

#[derive(Debug, Clone, PartialEq)]
struct ExactQuery {
    dimension: u64,
    grid: IntegerGrid,
    strategy: Option<BandedStrategy>,
}

impl ExactQuery {
    /// The sensitivity in units of the grid, rounded up: `S_int`, times the norm of the strategy.
    fn sensitivity_up(&self) -> f64 {
        let s_int = f64::from(self.grid.s_int());
        self.strategy.as_ref().map_or(s_int, |strategy| (s_int * strategy.norm_up()).next_up())
    }

    /// The noise multiplier `2^k / (S_int |m|)`, to within a few roundings.
    fn noise_multiplier(&self) -> f64 {
        power_of_two(self.grid.k()) / self.sensitivity_up()
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawQuery {
    group: String,
    clip: ClipNorm,
    noise: NoiseStd,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    dimension: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    s_int: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    k: Option<u8>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    strategy: Option<BandedStrategy>,
}

/// A sum query is invalid or contradicts itself.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum QueryError {
    /// Only some of `dimension`, `s_int` and `k` are present, or a strategy without them.
    #[error("query '{0}' needs all of dimension, s_int and k, or none of them and no strategy")]
    Incomplete(String),
    /// The integers are out of range.
    #[error("query '{0}': {1}")]
    Grid(String, GridError),
    /// The noise is out of range.
    #[error("query '{0}': {1}")]
    Noise(String, UnitError),
    /// `2^k / s_int` (over the norm of the strategy, if there is one) and `noise / clip` are different noise multipliers.
    #[error("query '{group}': noise/clip = {ratio} but its integers give {grid}")]
    Contradiction {
        /// The query's group.
        group: String,
        /// The noise multiplier according to `clip` and `noise`.
        ratio: f64,
        /// The noise multiplier according to the integers.
        grid: f64,
    },
}

impl SumQuery {
    /// A query given by its privacy tuple, without an integer grid.
    #[must_use]
    pub fn new(group: impl Into<String>, clip: ClipNorm, noise: NoiseStd) -> Self {
        Self { group: group.into(), clip, noise, exact: None }
    }

    /// A query that an exact mechanism runs on `dimension` coordinates.
    ///
    /// `noise` is `clip * 2^k / s_int`, rounded down: an epsilon computed from `clip` and `noise` is never smaller
    /// than the one computed from the integers.
    ///
    /// # Errors
    /// When `clip` is so near the limits of f64 that the derived noise is not a normal number.
    pub fn exact(
        group: impl Into<String>,
        clip: ClipNorm,
        dimension: u64,
        grid: IntegerGrid,
    ) -> Result<Self, QueryError> {
        Self::of_integers(group.into(), clip, ExactQuery { dimension, grid, strategy: None })
    }

    /// A query that an exact mechanism runs with noise that is correlated between rounds.
    ///
    /// `noise` is `clip * 2^k / (s_int |m|)`, rounded down: the noise that one round would need to cost a record as much as
    /// taking part once in these rounds.
    ///
    /// # Errors
    /// As for [`exact`](Self::exact).
    pub fn correlated(
        group: impl Into<String>,
        clip: ClipNorm,
        dimension: u64,
        grid: IntegerGrid,
        strategy: BandedStrategy,
    ) -> Result<Self, QueryError> {
        let exact = ExactQuery { dimension, grid, strategy: Some(strategy) };
        Self::of_integers(group.into(), clip, exact)
    }

    fn of_integers(group: String, clip: ClipNorm, exact: ExactQuery) -> Result<Self, QueryError> {
        let noise = (clip.get() * exact.noise_multiplier()).next_down().next_down();
        match NoiseStd::new(noise) {
            Ok(noise) => Self::checked(group, clip, noise, exact),
            Err(error) => Err(QueryError::Noise(group, error)),
        }
    }

    /// Checks that the integers and `noise / clip` give the same noise multiplier.
    fn checked(
        group: String,
        clip: ClipNorm,
        noise: NoiseStd,
        exact: ExactQuery,
    ) -> Result<Self, QueryError> {
        let ratio = noise.get() / clip.get();
        let grid = exact.noise_multiplier();
        // 1e-12 is far above the rounding error of both quotients, and far too small to matter for epsilon.
        if (ratio / grid - 1.0).abs() <= 1e-12 {
            Ok(Self { group, clip, noise, exact: Some(exact) })
        } else {
            Err(QueryError::Contradiction { group, ratio, grid })
        }
    }

    /// The name of the group that was summed.
    #[must_use]
    pub fn group(&self) -> &str {
        &self.group
    }

    /// `S_g`: the bound on one record's contribution.
    #[must_use]
    pub const fn clip(&self) -> ClipNorm {
        self.clip
    }

    /// `sigma_g`: the standard deviation of the noise that decides what the query costs. Without a strategy it is that of the
    /// noise on the sum. With one it is that of the single Gaussian that measures a record once, over all rounds that it affects, and
    /// the noise on the sum of a round is larger: see [`noise_on_sum`](Self::noise_on_sum).
    #[must_use]
    pub const fn noise(&self) -> NoiseStd {
        self.noise
    }

    /// The standard deviation of the noise on the sum of a round, the `round`-th of its segment from 0; for error bars, not for
    /// accounting. It is that of [`noise`](Self::noise), unless noise is correlated between rounds; then it grows with the
    /// number of rounds, towards a limit.
    ///
    /// # Example
    /// ```
    /// use veilgrad_events::{BandedStrategy, ClipNorm, IntegerGrid, SumQuery};
    ///
    /// let (clip, grid) = (ClipNorm::new(1.0)?, IntegerGrid::new(1 << 20, 32)?);
    /// let strategy = BandedStrategy::new(1, vec![2, 1])?;
    /// let query = SumQuery::correlated("g", clip, 1, grid, strategy)?;
    /// // Entries 1 and 1/2: 5/4 of the variance, and as much of what 1, -1/2, 1/4, -1/8, ... make of it.
    /// let ratio = query.noise_on_sum(100) / query.noise().get();
    /// assert!((ratio - (5.0f64 / 4.0 * 4.0 / 3.0).sqrt()).abs() < 1e-12);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn noise_on_sum(&self, round: u64) -> f64 {
        self.noise.get() * self.strategy().map_or(1.0, |strategy| strategy.amplification(round))
    }

    /// The number of coordinates, if recorded.
    #[must_use]
    pub fn dimension(&self) -> Option<u64> {
        self.exact.as_ref().map(|e| e.dimension)
    }

    /// The integer grid of an exact sum, if recorded.
    #[must_use]
    pub fn grid(&self) -> Option<IntegerGrid> {
        self.exact.as_ref().map(|e| e.grid)
    }

    /// The strategy of noise that is correlated between rounds, if it is.
    #[must_use]
    pub fn strategy(&self) -> Option<&BandedStrategy> {
        self.exact.as_ref()?.strategy.as_ref()
    }

    /// In how many consecutive rounds a record may take part at most once: the number of bands of the strategy.
    pub(crate) fn separation(&self) -> u64 {
        self.strategy().map_or(1, |strategy| strategy.bands() as u64)
    }

    /// `sigma_g / S_g`, rounded down; computed from the integer grid if there is one.
    pub(crate) fn noise_ratio_down(&self) -> f64 {
        let (noise, clip) = match &self.exact {
            Some(e) => (power_of_two(e.grid.k()), e.sensitivity_up()),
            None => (self.noise.get(), self.clip.get()),
        };
        let ratio = (noise / clip).min(f64::MAX);
        // The sign of ratio * clip - noise says whether the quotient was rounded up. For tiny noise it would underflow.
        if ratio.mul_add(clip, -noise) > 0.0 || noise < 1e-250 { ratio.next_down() } else { ratio }
    }

    /// `S_g / sigma_g`; computed from the integer grid if there is one.
    pub(crate) fn sensitivity_ratio(&self) -> f64 {
        match &self.exact {
            Some(e) => e.sensitivity_up() / power_of_two(e.grid.k()),
            None => self.clip.get() / self.noise.get(),
        }
    }
}

impl TryFrom<RawQuery> for SumQuery {
    type Error = QueryError;

    fn try_from(raw: RawQuery) -> Result<Self, QueryError> {
        match (raw.dimension, raw.s_int, raw.k) {
            (None, None, None) if raw.strategy.is_none() => {
                Ok(Self::new(raw.group, raw.clip, raw.noise))
            }
            (Some(dimension), Some(s_int), Some(k)) => match IntegerGrid::new(s_int, k) {
                Ok(grid) => {
                    let exact = ExactQuery { dimension, grid, strategy: raw.strategy };
                    Self::checked(raw.group, raw.clip, raw.noise, exact)
                }
                Err(error) => Err(QueryError::Grid(raw.group, error)),
            },
            _ => Err(QueryError::Incomplete(raw.group)),
        }
    }
}

impl From<SumQuery> for RawQuery {
    fn from(query: SumQuery) -> Self {
        Self {
            dimension: query.dimension(),
            s_int: query.grid().map(IntegerGrid::s_int),
            k: query.grid().map(IntegerGrid::k),
            strategy: query.strategy().cloned(),
            group: query.group,
            clip: query.clip,
            noise: query.noise,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exact_query_keeps_its_integers_and_understates_its_noise() {
        let grid = IntegerGrid::new(100_000_001, 27).unwrap();
        let query = SumQuery::exact("w", ClipNorm::new(0.3).unwrap(), 7, grid).unwrap();
        let json = serde_json::to_string(&query).unwrap();
        assert_eq!(serde_json::from_str::<SumQuery>(&json).unwrap(), query);
        assert!(query.noise().get() < 0.3 * grid.noise_multiplier());
        assert!(query.noise().get() > 0.3 * grid.noise_multiplier() * (1.0 - 1e-15));
    }

    #[test]
    fn a_correlated_query_keeps_its_strategy_and_understates_its_noise() {
        let grid = IntegerGrid::new(100_000_001, 40).unwrap();
        let strategy = BandedStrategy::new(12, vec![4096, 2049, 1535, 1]).unwrap();
        let clip = ClipNorm::new(0.3).unwrap();
        let query = SumQuery::correlated("w", clip, 7, grid, strategy.clone()).unwrap();
        let json = serde_json::to_string(&query).unwrap();
        assert_eq!(serde_json::from_str::<SumQuery>(&json).unwrap(), query);
        assert_eq!((query.strategy(), query.separation()), (Some(&strategy), 4));
        let exact = 2f64.powi(40) / (100_000_001.0 * (strategy.squared_norm() as f64).sqrt());
        for z in [query.noise_ratio_down(), 1.0 / query.sensitivity_ratio()] {
            assert!((z / exact - 1.0).abs() < 1e-14, "{z} {exact}");
        }
        assert!(query.noise_ratio_down() < exact);
        assert!(query.noise().get() / 0.3 < exact);
    }

    #[test]
    fn integers_that_contradict_noise_over_clip_are_refused() {
        for (json, expected) in [
            (
                r#"{"group":"w","clip":1,"noise":1.1,"dimension":3,"s_int":134217728,"k":27}"#,
                "noise/clip = 1.1 but its integers give 1",
            ),
            (r#"{"group":"w","clip":1,"noise":1,"s_int":134217728,"k":27}"#, "needs all of"),
            (
                r#"{"group":"w","clip":1,"noise":1,"dimension":3,"s_int":0,"k":27}"#,
                "integer sensitivity 0",
            ),
            (r#"{"group":"w","clip":1,"noise":1,"strategy":{"p":0,"m":[1]}}"#, "needs all of"),
            (
                r#"{"group":"w","clip":1,"noise":1,"dimension":3,"s_int":4,"k":4,"strategy":{"p":1,"m":[2,1]}}"#,
                "noise/clip = 1 but its integers give 1.78",
            ),
            (r#"{"group":"w","clip":1,"noise":0}"#, "noise standard deviation 0"),
            (r#"{"group":"w","clip":1,"noise":1,"mechanism":"laplace"}"#, "unknown field"),
        ] {
            let message = serde_json::from_str::<SumQuery>(json).unwrap_err().to_string();
            assert!(message.contains(expected), "{json}: {message}");
        }
    }
}
