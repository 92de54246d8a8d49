//! Rounds: one sample and the queries asked of it.

use std::sync::Arc;

use serde::{Deserialize, Serialize, Serializer};

use super::query::SumQuery;
use super::sampling::Sampling;
use super::unit::{NoiseMultiplier, UnitError};

/// One sample and all sum queries asked of it.
///
/// The queries share the sample, so they must not be composed as if each had drawn its own. Together
/// they are one Gaussian query, see [`Round::noise_multiplier`].
///
/// # Example
/// ```
/// use veilgrad_events::{ClipNorm, NoiseStd, Round, Sampling, SumQuery};
///
/// // Two groups on one sample compose to one Gaussian: 1/z^2 = 1/2^2 + 1/2^2.
/// let query = |group: &str| -> Result<_, Box<dyn std::error::Error>> {
///     Ok(SumQuery::new(group, ClipNorm::new(1.0)?, NoiseStd::new(2.0)?))
/// };
/// let round = Round::new(Sampling::All {}, vec![query("weights")?, query("accuracy")?])?;
/// let z = round.noise_multiplier()?.get();
/// assert!((z - 2f64.sqrt()).abs() < 1e-9);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Round {
    sampling: Sampling,
    // Shared, because charges, permits and sums all hold the round.
    queries: Arc<[SumQuery]>,
}

/// A round that cannot be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RoundError {
    /// It has no queries.
    #[error("a round needs at least one query")]
    NoQuery,
    /// Noise is correlated over more rounds than records are kept apart.
    #[error(
        "the noise of query '{query}' is correlated over {bands} rounds, in which a record may take part only once: use \
         cyclic Poisson sampling with at least {bands} groups"
    )]
    Separation {
        /// The query.
        query: String,
        /// The number of bands of its strategy.
        bands: u64,
    },
}

impl Round {
    /// A round that asks these queries of one sample.
    ///
    /// # Errors
    /// When there is no query, or the noise of one is correlated over more rounds than the sampling keeps records apart.
    pub fn new(sampling: Sampling, queries: Vec<SumQuery>) -> Result<Self, RoundError> {
        if queries.is_empty() {
            return Err(RoundError::NoQuery);
        }
        if let Some(query) = queries.iter().find(|q| q.separation() > sampling.separation()) {
            let (query, bands) = (query.group().to_owned(), query.separation());
            return Err(RoundError::Separation { query, bands });
        }
        Ok(Self { sampling, queries: queries.into() })
    }

    /// How the sample was drawn.
    #[must_use]
    pub const fn sampling(&self) -> Sampling {
        self.sampling
    }

    /// The queries that share the sample.
    #[must_use]
    pub fn queries(&self) -> &[SumQuery] {
        &self.queries
    }

    /// Whether both rounds have the same sampling and the same queries, except that a query with an integer grid may have
    /// another clip norm, with noise in proportion.
    ///
    /// # Guarantee
    /// The privacy loss of a query with a grid depends on its integers alone, so both rounds have the same. Adaptive
    /// clipping changes clip norms and nothing else.
    #[must_use]
    pub fn differs_in_clip_norms_at_most(&self, other: &Self) -> bool {
        let alike = |(one, other): (&SumQuery, &SumQuery)| match (one.grid(), other.grid()) {
            (Some(grid), Some(other_grid)) => {
                (one.group(), one.dimension(), grid, one.strategy())
                    == (other.group(), other.dimension(), other_grid, other.strategy())
            }
            _ => one == other,
        };
        self.sampling == other.sampling
            && self.queries.len() == other.queries.len()
            && self.queries.iter().zip(other.queries.iter()).all(alike)
    }

    /// The noise multiplier of the single Gaussian query that all queries of this round compose to. With correlated noise: of
    /// all rounds that measure a record once.
    ///
    /// # Guarantee
    /// Scaling each group by `1/sigma_g` turns the round into a single Gaussian sum query of
    /// sensitivity `S* = sqrt(sum_g (S_g/sigma_g)^2)` and standard deviation 1 (paper, section 3);
    /// `z = 1/S*`. The returned value is a lower bound on that `z`: rounding can only overstate the
    /// privacy loss.
    ///
    /// # Errors
    /// When `z` is too small for an f64; the round then has no meaningful guarantee.
    pub fn noise_multiplier(&self) -> Result<NoiseMultiplier, UnitError> {
        if let [query] = self.queries() {
            return NoiseMultiplier::new(query.noise_ratio_down());
        }
        let ratios = || self.queries.iter().map(SumQuery::sensitivity_ratio);
        let largest = ratios().fold(0.0, f64::max);
        if largest == 0.0 {
            // Every ratio underflowed, so the true multiplier is above any finite f64.
            return NoiseMultiplier::new(f64::MAX);
        }
        // Divided by the largest ratio, so that the squares do not overflow and their sum does not underflow.
        let sum: f64 = ratios().map(|r| (r / largest) * (r / largest)).sum();
        let s_star = largest * sum.sqrt();
        if !s_star.is_finite() {
            return NoiseMultiplier::new(0.0);
        }
        // Each of the few roundings above has a relative error of at most 2^-53; 2^-50 per query covers them.
        let slack = (self.queries.len() as f64 + 4.0) * 2f64.powi(-50);
        NoiseMultiplier::new((1.0 / s_star * (1.0 - slack)).min(f64::MAX))
    }
}

/// Identical rounds, each composed to one Gaussian query: all that an accountant needs to know.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Folded {
    /// The number of rounds.
    pub count: u64,
    /// How each sample was drawn.
    pub sampling: Sampling,
    /// The noise multiplier of all queries of a round together, rounded down.
    pub noise_multiplier: NoiseMultiplier,
}

impl TryFrom<&Rounds> for Folded {
    type Error = UnitError;

    fn try_from(rounds: &Rounds) -> Result<Self, UnitError> {
        let noise_multiplier = rounds.round.noise_multiplier()?;
        Ok(Self { count: rounds.count, sampling: rounds.round.sampling(), noise_multiplier })
    }
}

/// A number of identical consecutive rounds, stored once.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(try_from = "RawRounds<Vec<SumQuery>>")]
pub struct Rounds {
    /// The number of rounds.
    pub count: u64,
    /// Each of these rounds.
    pub round: Round,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawRounds<Q> {
    rounds: u64,
    sampling: Sampling,
    queries: Q,
}

impl TryFrom<RawRounds<Vec<SumQuery>>> for Rounds {
    type Error = RoundError;
    fn try_from(raw: RawRounds<Vec<SumQuery>>) -> Result<Self, RoundError> {
        Ok(Self { count: raw.rounds, round: Round::new(raw.sampling, raw.queries)? })
    }
}

impl Serialize for Rounds {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (sampling, queries) = (self.round.sampling, self.round.queries());
        RawRounds { rounds: self.count, sampling, queries }.serialize(serializer)
    }
}

/// Run-length encoding: joins identical consecutive rounds into one entry.
///
/// Counts whose sum would exceed `u64::MAX` stay separate entries: no round is ever lost.
pub fn run_length(rounds: impl IntoIterator<Item = Rounds>) -> Vec<Rounds> {
    let mut joined: Vec<Rounds> = Vec::new();
    for next in rounds {
        if let Some(last) = joined.last_mut()
            && last.round == next.round
            && let Some(count) = last.count.checked_add(next.count)
        {
            last.count = count;
            continue;
        }
        joined.push(next);
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ClipNorm, IntegerGrid, NoiseStd};
    use proptest::prelude::*;

    fn round(tuples: &[(f64, f64)]) -> Round {
        let queries = tuples
            .iter()
            .map(|&(s, sigma)| {
                SumQuery::new("g", ClipNorm::new(s).unwrap(), NoiseStd::new(sigma).unwrap())
            })
            .collect();
        Round::new(Sampling::All {}, queries).unwrap()
    }

    #[test]
    fn groups_fold_to_one_gaussian() {
        // Conformance case ledger_effective_z: tuples (4, 2) and (5, 1).
        let z = round(&[(4.0, 2.0), (5.0, 1.0)]).noise_multiplier().unwrap().get();
        assert!((z / 0.18569533817705186 - 1.0).abs() < 1e-12, "{z}");
        assert!(z <= 0.18569533817705186);
    }

    #[test]
    fn the_multiplier_of_one_query_is_noise_over_clip_rounded_down() {
        assert_eq!(round(&[(1.0, 1.1)]).noise_multiplier().unwrap().get(), 1.1);
        for (clip, noise) in [(3.0, 1.0), (0.1, 0.7), (1e-3, 1.234), (7.0, 1e-300)] {
            let z = round(&[(clip, noise)]).noise_multiplier().unwrap().get();
            assert!(z.mul_add(clip, -noise) <= 0.0, "{noise} over {clip}: {z}");
        }
    }

    #[test]
    fn extreme_ratios_fold_without_overflow() {
        let z = round(&[(1e200, 1e-90), (1.0, 1.0)]).noise_multiplier().unwrap().get();
        assert!((z / 1e-290 - 1.0).abs() < 1e-12);
        assert!(round(&[(1e300, 1e-300)]).noise_multiplier().is_err());
        assert!(round(&[(1e-300, 1e300)]).noise_multiplier().unwrap().get() > 1e300);
    }

    #[test]
    fn only_clip_norms_of_queries_with_a_grid_may_differ() {
        let exact = |group: &str, clip: f64, dimension: u64, s_int: u32| {
            let grid = IntegerGrid::new(s_int, 27).unwrap();
            SumQuery::exact(group, ClipNorm::new(clip).unwrap(), dimension, grid).unwrap()
        };
        let of = |queries: Vec<SumQuery>| Round::new(Sampling::All {}, queries).unwrap();
        let base = of(vec![exact("g", 1.0, 3, 1 << 26), exact("h", 2.0, 1, 1 << 25)]);
        let alike = |queries: Vec<SumQuery>| base.differs_in_clip_norms_at_most(&of(queries));
        let second = || exact("h", 2.0, 1, 1 << 25);
        assert!(alike(vec![exact("g", 0.1, 3, 1 << 26), second()]));
        for other in [
            exact("g", 1.0, 3, 1 << 24),
            exact("g", 1.0, 4, 1 << 26),
            exact("f", 1.0, 3, 1 << 26),
            SumQuery::new("g", base.queries()[0].clip(), base.queries()[0].noise()),
        ] {
            assert!(!alike(vec![other, second()]));
        }
        assert!(!alike(vec![second(), exact("g", 1.0, 3, 1 << 26)]));
        assert!(!alike(vec![exact("g", 1.0, 3, 1 << 26)]));
        let fixed = Sampling::Fixed(crate::FixedBatch::new(9, 3).unwrap());
        let sampled = Round::new(fixed, base.queries().to_vec()).unwrap();
        assert!(!base.differs_in_clip_norms_at_most(&sampled));
        // Without a grid, privacy depends on clip norm and noise.
        let plain = round(&[(1.0, 2.0)]);
        assert!(plain.differs_in_clip_norms_at_most(&plain));
        assert!(!plain.differs_in_clip_norms_at_most(&round(&[(0.5, 1.0)])));
    }

    #[test]
    fn the_integer_grid_decides_if_there_is_one() {
        let grid = IntegerGrid::new(1 << 26, 27).unwrap();
        let query = SumQuery::exact("g", ClipNorm::new(0.1).unwrap(), 1, grid).unwrap();
        let round = Round::new(Sampling::All {}, vec![query]).unwrap();
        let z = round.noise_multiplier().unwrap().get();
        assert!(z <= 2.0 && z > 2.0 * (1.0 - 1e-14), "{z}");
    }

    #[test]
    fn correlated_noise_needs_records_that_are_kept_apart() {
        let strategy = crate::BandedStrategy::new(2, vec![4, 3, 1]).unwrap();
        let (clip, grid) = (ClipNorm::new(1.0).unwrap(), IntegerGrid::new(1 << 20, 27).unwrap());
        let query = SumQuery::correlated("g", clip, 1, grid, strategy).unwrap();
        let cyclic = |groups| Sampling::CyclicPoisson {
            rate: crate::SampleRate::new(0.5).unwrap(),
            groups: std::num::NonZeroU64::new(groups).unwrap(),
            first_round: 0,
        };
        assert!(Round::new(cyclic(3), vec![query.clone()]).is_ok());
        assert!(Round::new(cyclic(4), vec![query.clone()]).is_ok());
        let poisson = Sampling::Poisson { rate: crate::SampleRate::new(0.5).unwrap() };
        for sampling in [Sampling::All {}, poisson, cyclic(2)] {
            let error = Round::new(sampling, vec![query.clone()]).unwrap_err();
            assert_eq!(error, RoundError::Separation { query: "g".to_owned(), bands: 3 });
        }
    }

    proptest! {
        #[test]
        fn the_fold_is_a_tight_lower_bound(tuples in prop::collection::vec((1e-6f64..1e6, 1e-6f64..1e6), 1..20)) {
            let z = round(&tuples).noise_multiplier().unwrap().get();
            let s_star2: f64 = tuples.iter().map(|(s, sigma)| (s / sigma).powi(2)).sum();
            prop_assert!(z <= s_star2.sqrt().recip() * (1.0 + 1e-15));
            prop_assert!(z > s_star2.sqrt().recip() * (1.0 - 1e-13));
        }
    }

    #[test]
    fn run_length_joins_only_identical_neighbours_and_loses_no_round() {
        let (a, b) = (round(&[(1.0, 1.0)]), round(&[(1.0, 2.0)]));
        let rounds = |count, round: &Round| Rounds { count, round: round.clone() };
        assert_eq!(
            run_length([rounds(2, &a), rounds(3, &a), rounds(1, &b), rounds(4, &a)]),
            [rounds(5, &a), rounds(1, &b), rounds(4, &a)]
        );
        let full = [rounds(u64::MAX, &a), rounds(1, &a)];
        assert_eq!(run_length(full.clone()), full);
    }
}
