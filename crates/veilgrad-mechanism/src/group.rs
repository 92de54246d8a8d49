//! Groups of vectors that are clipped and noised together, and their estimators.

use veilgrad_events::{BudgetShare, ClipNorm, JointScale, NoiseStd, PublicCount, WeightBound};

use crate::clip::ClipRule;
use crate::pattern::{Vector, matching};
use crate::plan_error::PlanError;
use crate::{Quantile, Structure};

/// A group of vectors with one clip norm, one noise level and one estimator.
///
/// Vectors are selected by exact name or by glob (`conv*`); the exact name of a vector is never treated as a glob.
/// Every vector of the structure must belong to exactly one group.
///
/// # Example
/// ```
/// use veilgrad_events::{ClipNorm, PublicCount};
/// use veilgrad_mechanism::Group;
///
/// // All convolutions are clipped together to norm 1, and their sum is divided by 256.
/// let group = Group::new("conv", ["conv*"], ClipNorm::new(1.0)?).average(PublicCount::new(256.0)?);
/// assert!(!group.is_sum());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Group {
    pub(crate) name: String,
    pub(crate) content: Content,
    pub(crate) noise: Option<NoiseStd>,
    pub(crate) share: Option<BudgetShare>,
    pub(crate) estimator: Estimator<String>,
    /// An option that does not apply to the content; the plan refuses it.
    pub(crate) misapplied: Option<&'static str>,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Content {
    Vectors {
        patterns: Vec<(String, JointScale)>,
        clip: ClipNorm,
        rule: ClipRule,
        weight: Option<WeightBound>,
    },
    Weight(WeightBound),
    Quantile(Quantile),
}

/// What is estimated from the sum. `G` identifies the group whose weight sum is the denominator: by name, or in a plan
/// by index.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Estimator<G> {
    Sum,
    Average(PublicCount),
    AverageOver { group: G, minimum: PublicCount },
}

impl Group {
    /// A group whose vectors are clipped as one concatenated vector, `x min(1, S/||x||)` (separate clipping; paper,
    /// section 2).
    pub fn new<P: Into<String>>(
        name: impl Into<String>,
        vectors: impl IntoIterator<Item = P>,
        clip: ClipNorm,
    ) -> Self {
        let one = JointScale::ONE;
        Self::joint(name, vectors.into_iter().map(|pattern| (pattern, one)), clip)
    }

    /// A group with joint clipping: vector j is divided by its scale `alpha_j`, the concatenation is clipped to
    /// `clip`, and the estimate is multiplied by `alpha_j` again, so that its noise has standard deviation
    /// `alpha_j sigma_g` (paper, section 2).
    ///
    /// If each of k vectors has a norm of at most its scale, the joint norm is at most `sqrt(k)`. A larger clip norm
    /// is allowed, but only adds noise.
    pub fn joint<P: Into<String>>(
        name: impl Into<String>,
        vectors: impl IntoIterator<Item = (P, JointScale)>,
        clip: ClipNorm,
    ) -> Self {
        let patterns = vectors.into_iter().map(|(pattern, alpha)| (pattern.into(), alpha));
        let (patterns, rule, weight) = (patterns.collect(), ClipRule::Shorten, None);
        Self::with_content(name, Content::Vectors { patterns, clip, rule, weight })
    }

    /// A group for the sum of the records' weights, each clamped to `[0, bound]`: a private count.
    pub fn weight(name: impl Into<String>, bound: WeightBound) -> Self {
        Self::with_content(name, Content::Weight(bound))
    }

    /// A group for the bit of a private quantile.
    pub fn quantile(name: impl Into<String>, quantile: Quantile) -> Self {
        Self::with_content(name, Content::Quantile(quantile))
    }

    /// Flat clipping: one group of all vectors that match `pattern`.
    pub fn flat(name: impl Into<String>, pattern: impl Into<String>, clip: ClipNorm) -> Vec<Self> {
        vec![Self::new(name, [pattern], clip)]
    }

    /// Per-layer clipping: a group for each of the m vectors that match `pattern`, clipped to `S*/sqrt(m)`, so that
    /// the total norm is at most `S*`.
    ///
    /// # Errors
    /// When a clip norm underflows to 0.
    pub fn per_layer(
        structure: &Structure,
        pattern: &str,
        total: ClipNorm,
    ) -> Result<Vec<Self>, PlanError> {
        Self::one_per_vector(structure, pattern, total, |_| 1.0)
    }

    /// Per-layer clipping by dimension: a group for each vector that matches `pattern`, clipped to `S* sqrt(d_g/D)`,
    /// the same bound on the root mean square of its coordinates.
    ///
    /// (The paper prints `S*/sqrt(d_g/D)`; only `S* sqrt(d_g/D)` gives the total bound `S*`.)
    ///
    /// # Errors
    /// When a clip norm underflows to 0.
    pub fn dimension_aware(
        structure: &Structure,
        pattern: &str,
        total: ClipNorm,
    ) -> Result<Vec<Self>, PlanError> {
        Self::one_per_vector(structure, pattern, total, |dimension| dimension as f64)
    }

    /// A group for each matching vector; the squared clip norms are in proportion to `portion(dimension)`.
    fn one_per_vector(
        structure: &Structure,
        pattern: &str,
        total: ClipNorm,
        portion: impl Fn(usize) -> f64,
    ) -> Result<Vec<Self>, PlanError> {
        let chosen = matching(structure, pattern)?;
        let whole: f64 = chosen.iter().map(|vector| portion(vector.dimension)).sum();
        let group = |Vector { name, dimension, .. }| {
            // Rounded down, so that the sum of squares is at most the squared total.
            let clip =
                total.get() * (portion(dimension) / whole).sqrt() * (1.0 - 4.0 * f64::EPSILON);
            let clip =
                ClipNorm::new(clip).map_err(|error| PlanError::Unit(name.to_owned(), error))?;
            Ok(Self::new(name, [name], clip))
        };
        chosen.into_iter().map(group).collect()
    }

    /// Normalises every record to norm `S` instead of clipping only the longer ones ("automatic" clipping). A zero
    /// record stays zero. Only for groups of vectors.
    #[must_use]
    pub fn normalised(mut self) -> Self {
        match &mut self.content {
            Content::Vectors { rule, .. } => *rule = ClipRule::Normalise,
            _ => self.misapplied = Some("normalised"),
        }
        self
    }

    /// Multiplies each record's clipped vector by its weight, clamped to `[0, bound]`; the sensitivity becomes
    /// `bound * S`. Only for groups of vectors.
    #[must_use]
    pub fn weighted(mut self, bound: WeightBound) -> Self {
        match &mut self.content {
            Content::Vectors { weight, .. } => *weight = Some(bound),
            _ => self.misapplied = Some("weighted"),
        }
        self
    }

    /// Sets the standard deviation of the noise on the sum, instead of what the allocation would choose.
    #[must_use]
    pub fn noise(mut self, noise: NoiseStd) -> Self {
        self.noise = Some(noise);
        self
    }

    /// Sets the group's share of the round's `1/z^2`, instead of what the allocation would choose.
    #[must_use]
    pub fn share(mut self, share: BudgetShare) -> Self {
        self.share = Some(share);
        self
    }

    /// Estimates the average with a fixed public denominator, `q n` (paper, section 1), instead of
    /// the sum.
    #[must_use]
    pub fn average(mut self, denominator: PublicCount) -> Self {
        if matches!(self.content, Content::Quantile(_)) {
            self.misapplied = Some("averaged");
        }
        self.estimator = Estimator::Average(denominator);
        self
    }

    /// Estimates the average with the private weight sum of group `weights` as denominator, but at
    /// least `minimum`: the estimator `f_c` of McMahan et al. 2018.
    #[must_use]
    pub fn average_over(mut self, weights: impl Into<String>, minimum: PublicCount) -> Self {
        if !matches!(self.content, Content::Vectors { .. }) {
            self.misapplied = Some("averaged over weights");
        }
        self.estimator = Estimator::AverageOver { group: weights.into(), minimum };
        self
    }

    /// Whether the group estimates the sum, not an average.
    #[must_use]
    pub const fn is_sum(&self) -> bool {
        matches!(self.estimator, Estimator::Sum)
    }

    /// The same group with every glob replaced by the names that it matches in `structure`, so that it matches
    /// nothing else in a larger structure.
    ///
    /// # Errors
    /// When a pattern is not a glob.
    pub fn named(mut self, structure: &Structure) -> Result<Self, PlanError> {
        if let Content::Vectors { patterns, .. } = &mut self.content {
            let mut names = Vec::new();
            for (text, alpha) in patterns.iter() {
                let vectors = matching(structure, text)?.into_iter();
                names.extend(vectors.map(|vector| (vector.name.to_owned(), *alpha)));
            }
            *patterns = names;
        }
        Ok(self)
    }

    /// The same group with one more vector, of scale 1. Only for groups of vectors.
    #[must_use]
    pub fn with_vector(mut self, vector: impl Into<String>) -> Self {
        match &mut self.content {
            Content::Vectors { patterns, .. } => patterns.push((vector.into(), JointScale::ONE)),
            _ => self.misapplied = Some("joined with a vector"),
        }
        self
    }

    /// The name of the group.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    fn with_content(name: impl Into<String>, content: Content) -> Self {
        let name = name.into();
        let estimator = Estimator::Sum;
        Self { name, content, noise: None, share: None, estimator, misapplied: None }
    }
}
