//! Limits of the quadratures over outputs that compute a cumulant.

/// Quadratures cover at least `[-REACH, REACH]`: a standard normal output lies outside with probability below 1e-40.
pub(crate) const REACH: f64 = 13.5;
/// At most this many nodes; a cumulant that needs more is bounded in closed form instead.
pub(crate) const MOST: usize = 1 << 14;
/// Sums with terms above e^LOG_SUM_FROM are computed as log-sum-exp, since e^709 overflows.
pub(crate) const LOG_SUM_FROM: f64 = 200.0;
/// Below this noise multiplier cumulants are bounded in closed form: the number of nodes grows like 1/z^2.
pub(crate) const LEAST_NOISE: f64 = 0.01;
