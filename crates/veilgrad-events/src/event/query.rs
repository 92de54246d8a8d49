//! Gaussian sum queries and their privacy tuples.

use serde::{Deserialize, Serialize};

use super::grid::{GridError, IntegerGrid, power_of_two};
use super::unit::{ClipNorm, NoiseStd, UnitError};

/// A Gaussian sum query over one group of vectors, with its privacy tuple `(S, sigma)`.
///
/// `clip` and `noise` are in the same unit; privacy depends only on their ratio. A query run by an exact
/// mechanism also has an [`IntegerGrid`]; its ratio is then the rational `2^k / S_int`.
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

#[derive(Debug, Clone, Copy, PartialEq)]
struct ExactQuery {
    dimension: u64,
    grid: IntegerGrid,
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
}

/// A sum query is invalid or contradicts itself.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum QueryError {
    /// Only some of `dimension`, `s_int` and `k` are present.
    #[error("query '{0}' needs all of dimension, s_int and k, or none of them")]
    Incomplete(String),
    /// The integers are out of range.
    #[error("query '{0}': {1}")]
    Grid(String, GridError),
    /// The noise is out of range.
    #[error("query '{0}': {1}")]
    Noise(String, UnitError),
    /// `2^k / s_int` and `noise / clip` are different noise multipliers.
    #[error("query '{group}': noise/clip = {ratio} but 2^k/s_int = {grid}")]
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
        let group = group.into();
        let noise = (clip.get() * grid.noise_multiplier()).next_down().next_down();
        match NoiseStd::new(noise) {
            Ok(noise) => Self::checked(group, clip, noise, ExactQuery { dimension, grid }),
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
        let grid = exact.grid.noise_multiplier();
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

    /// `sigma_g`: the standard deviation of the noise on the sum.
    #[must_use]
    pub const fn noise(&self) -> NoiseStd {
        self.noise
    }

    /// The number of coordinates, if recorded.
    #[must_use]
    pub fn dimension(&self) -> Option<u64> {
        self.exact.map(|e| e.dimension)
    }

    /// The integer grid of an exact sum, if recorded.
    #[must_use]
    pub fn grid(&self) -> Option<IntegerGrid> {
        self.exact.map(|e| e.grid)
    }

    /// `sigma_g / S_g`, rounded down; computed from the integer grid if there is one.
    pub(crate) fn noise_ratio_down(&self) -> f64 {
        let (noise, clip) = match self.exact {
            Some(e) => (power_of_two(e.grid.k()), f64::from(e.grid.s_int())),
            None => (self.noise.get(), self.clip.get()),
        };
        let ratio = (noise / clip).min(f64::MAX);
        // The sign of ratio * clip - noise says whether the quotient was rounded up. For tiny noise it would underflow.
        if ratio.mul_add(clip, -noise) > 0.0 || noise < 1e-250 { ratio.next_down() } else { ratio }
    }

    /// `S_g / sigma_g`; computed from the integer grid if there is one.
    pub(crate) fn sensitivity_ratio(&self) -> f64 {
        match self.exact {
            Some(e) => f64::from(e.grid.s_int()) / power_of_two(e.grid.k()),
            None => self.clip.get() / self.noise.get(),
        }
    }
}

impl TryFrom<RawQuery> for SumQuery {
    type Error = QueryError;

    fn try_from(raw: RawQuery) -> Result<Self, QueryError> {
        match (raw.dimension, raw.s_int, raw.k) {
            (None, None, None) => Ok(Self::new(raw.group, raw.clip, raw.noise)),
            (Some(dimension), Some(s_int), Some(k)) => match IntegerGrid::new(s_int, k) {
                Ok(grid) => {
                    Self::checked(raw.group, raw.clip, raw.noise, ExactQuery { dimension, grid })
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
    fn integers_that_contradict_noise_over_clip_are_refused() {
        for (json, expected) in [
            (
                r#"{"group":"w","clip":1,"noise":1.1,"dimension":3,"s_int":134217728,"k":27}"#,
                "noise/clip = 1.1 but 2^k/s_int = 1",
            ),
            (r#"{"group":"w","clip":1,"noise":1,"s_int":134217728,"k":27}"#, "needs all of"),
            (
                r#"{"group":"w","clip":1,"noise":1,"dimension":3,"s_int":0,"k":27}"#,
                "integer sensitivity 0",
            ),
            (r#"{"group":"w","clip":1,"noise":0}"#, "noise standard deviation 0"),
            (r#"{"group":"w","clip":1,"noise":1,"mechanism":"laplace"}"#, "unknown field"),
        ] {
            let message = serde_json::from_str::<SumQuery>(json).unwrap_err().to_string();
            assert!(message.contains(expected), "{json}: {message}");
        }
    }
}
