//! The distribution of the number of runs of a private tuning.

use serde::{Deserialize, Serialize};

/// The distribution of the secret number K of runs of a private tuning, of which only the best is released.
///
/// # Guarantee
/// Every value can be drawn exactly: gamma is the f64 that is stored, and a Poisson mean is a multiple of 2^-20.
///
/// # Example
/// ```
/// use veilgrad_events::RunCount;
///
/// let number = RunCount::poisson(10.0)?;
/// assert_eq!(number.name(), "poisson");
/// assert!(RunCount::geometric(0.0).is_err() && RunCount::poisson(0.3).is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "RawCount", into = "RawCount")]
pub struct RunCount(Law);

#[derive(Debug, Clone, Copy, PartialEq)]
enum Law {
    Geometric(f64),
    Logarithmic(f64),
    Poisson(f64),
}

/// A distribution as plain numbers, as a ledger stores it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "distribution", rename_all = "kebab-case", deny_unknown_fields)]
pub enum RawCount {
    /// `P(K = k) = gamma (1 - gamma)^(k-1)` for k = 1, 2, ...
    Geometric {
        /// In (0, 1].
        gamma: f64,
    },
    /// `P(K = k)` in proportion to `(1 - gamma)^k / k` for k = 1, 2, ...; always 1 if gamma is 1.
    Logarithmic {
        /// In (0, 1].
        gamma: f64,
    },
    /// The Poisson distribution. There may be no run at all.
    Poisson {
        /// A multiple of 2^-20 in (0, 2^30].
        mean: f64,
    },
}

/// A number of runs has no such distribution.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RunCountError {
    /// Gamma is out of range.
    #[error("gamma {0} of a number of runs is not in (0, 1]")]
    Gamma(f64),
    /// The mean cannot be drawn exactly.
    #[error("a Poisson mean of {0} runs is not a multiple of 2^-20 in (0, 2^30]")]
    Mean(f64),
}

impl RunCount {
    /// The geometric distribution.
    ///
    /// # Errors
    /// When gamma is not in (0, 1].
    pub fn geometric(gamma: f64) -> Result<Self, RunCountError> {
        checked(gamma).map(|gamma| Self(Law::Geometric(gamma)))
    }

    /// The logarithmic distribution.
    ///
    /// # Errors
    /// When gamma is not in (0, 1].
    pub fn logarithmic(gamma: f64) -> Result<Self, RunCountError> {
        checked(gamma).map(|gamma| Self(Law::Logarithmic(gamma)))
    }

    /// The Poisson distribution.
    ///
    /// # Errors
    /// When the mean is not a multiple of 2^-20 in (0, 2^30].
    pub fn poisson(mean: f64) -> Result<Self, RunCountError> {
        const GRAIN: f64 = (1u64 << 20) as f64;
        // Scaling by a power of two is exact.
        let is_multiple = (mean * GRAIN).fract() == 0.0;
        match mean > 0.0 && mean <= (1u64 << 30) as f64 && is_multiple {
            true => Ok(Self(Law::Poisson(mean))),
            false => Err(RunCountError::Mean(mean)),
        }
    }

    /// The distribution as plain numbers.
    #[must_use]
    pub const fn raw(self) -> RawCount {
        match self.0 {
            Law::Geometric(gamma) => RawCount::Geometric { gamma },
            Law::Logarithmic(gamma) => RawCount::Logarithmic { gamma },
            Law::Poisson(mean) => RawCount::Poisson { mean },
        }
    }

    /// The name of the family.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self.0 {
            Law::Geometric(_) => "geometric",
            Law::Logarithmic(_) => "logarithmic",
            Law::Poisson(_) => "poisson",
        }
    }
}

fn checked(gamma: f64) -> Result<f64, RunCountError> {
    // False for NaN.
    let is_valid = gamma > 0.0 && gamma <= 1.0;
    if is_valid { Ok(gamma) } else { Err(RunCountError::Gamma(gamma)) }
}

impl TryFrom<RawCount> for RunCount {
    type Error = RunCountError;

    fn try_from(raw: RawCount) -> Result<Self, RunCountError> {
        match raw {
            RawCount::Geometric { gamma } => Self::geometric(gamma),
            RawCount::Logarithmic { gamma } => Self::logarithmic(gamma),
            RawCount::Poisson { mean } => Self::poisson(mean),
        }
    }
}

impl From<RunCount> for RawCount {
    fn from(count: RunCount) -> Self {
        count.raw()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_distributions_that_can_be_drawn_are_read() {
        for good in [
            r#"{"distribution":"geometric","gamma":0.1}"#,
            r#"{"distribution":"logarithmic","gamma":1.0}"#,
            r#"{"distribution":"poisson","mean":2.5}"#,
        ] {
            let read: RunCount = serde_json::from_str(good).unwrap();
            assert_eq!(serde_json::to_string(&read).unwrap(), good);
        }
        for bad in [
            r#"{"distribution":"geometric","gamma":0.0}"#,
            r#"{"distribution":"geometric","gamma":1.5}"#,
            r#"{"distribution":"poisson","mean":0.1}"#,
            r#"{"distribution":"poisson","mean":-1.0}"#,
            r#"{"distribution":"poisson","mean":4294967296.0}"#,
            r#"{"distribution":"uniform","mean":2.0}"#,
            r#"{"distribution":"poisson","mean":2.0,"more":1}"#,
        ] {
            assert!(serde_json::from_str::<RunCount>(bad).is_err(), "{bad}");
        }
        assert!(RunCount::logarithmic(f64::NAN).is_err() && RunCount::poisson(f64::NAN).is_err());
    }
}
