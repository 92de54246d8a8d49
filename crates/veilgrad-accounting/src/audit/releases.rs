//! Auditing with one canary in each of many independent releases.
//!
//! In every trial a fair coin decides whether the canary is in the data, the mechanism runs with fresh randomness, and the
//! auditor guesses from the release. Thresholds are fixed beforehand, from the claim or on other trials.

use super::binomial::{lower_bound, upper_bound};
use super::confidence::Confidence;
use super::normal::quantile;

/// An upper bound on the relative error of the normal quantile.
const QUANTILE_ERROR: f64 = 1e-9;

/// A lower bound on the mu of Gaussian differential privacy (GDP), from the number of right guesses whether the canary
/// is in.
///
/// # Guarantee
/// If every release is mu-GDP, given all before it, the bound exceeds mu with probability at most that of a false alarm.
///
/// Proof. With true positive rate t and false positive rate f a guess is right with probability `(1 + t - f)/2`. A
/// mu-GDP release has `t - f <= 2 Phi(mu/2) - 1` for every test (Dong, Roth, Su 2019), so each guess is right with
/// probability at most `p = Phi(mu/2)`, whatever came before, and the number of right guesses is stochastically at most
/// Binomial(n, p). The exact lower bound of a binomial probability is monotone in that number and exceeds p with at most the
/// stated probability; `mu = 2 Phi^-1(p)` is monotone.
///
/// # Example
/// ```
/// use veilgrad_accounting::audit::{Confidence, releases};
///
/// // 93.3 % right guesses of 100,000: what a Gaussian of mu 3 gives.
/// let mu = releases::mu(93_319, 100_000, Confidence::STANDARD);
/// assert!((0.98..1.0).contains(&(mu / 3.0)));
/// ```
#[must_use]
pub fn mu(right: u64, guesses: u64, confidence: Confidence) -> f64 {
    let p = lower_bound(right, guesses, confidence);
    if p <= 0.5 { 0.0 } else { (2.0 * quantile(p) * (1.0 - QUANTILE_ERROR)).max(0.0) }
}

/// Counts of a test for the canary: its answers in trials with and without it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Answers {
    /// Trials with the canary.
    pub with: u64,
    /// How many of them the test got right.
    pub true_positives: u64,
    /// Trials without it.
    pub without: u64,
    /// How many of them the test got wrong.
    pub false_positives: u64,
}

impl Answers {
    /// The counts of the test that says the canary is in if the score is above the threshold. Scores come with whether the
    /// canary was in.
    #[must_use]
    pub fn of_threshold(scores: &[(f64, bool)], threshold: f64) -> Self {
        let mut answers = Self::default();
        for (score, with) in scores {
            let says = u64::from(*score > threshold);
            if *with {
                answers.with += 1;
                answers.true_positives += says;
            } else {
                answers.without += 1;
                answers.false_positives += says;
            }
        }
        answers
    }

    /// The counts of the reversed test, for the absence of the canary.
    const fn reversed(self) -> Self {
        Self {
            with: self.without,
            true_positives: self.without - self.false_positives,
            without: self.with,
            false_positives: self.with - self.true_positives,
        }
    }

    /// A lower bound on epsilon at `delta`.
    ///
    /// # Guarantee
    /// If the releases are (epsilon, delta)-differentially private, the bound exceeds epsilon with probability at most that
    /// of a false alarm.
    ///
    /// Proof. (epsilon, delta) requires `t <= e^eps f + delta` of every test, in both directions: for the canary's presence
    /// and for its absence. Exact confidence bounds, each with half of the false alarms, bound `t` from below and `f` from
    /// above together, for a test and its reverse alike. So `(t - delta)/f` of these bounds is at most `e^eps`.
    #[must_use]
    pub fn epsilon(self, delta: f64, confidence: Confidence) -> f64 {
        let each = confidence.halved();
        let bound = |answers: Self| {
            let t = lower_bound(answers.true_positives, answers.with, each);
            let f = upper_bound(answers.false_positives, answers.without, each);
            ((t - delta) / f).ln()
        };
        // The log is NaN where a true positive rate is below delta; `max` ignores it.
        let bound = bound(self).max(bound(self.reversed()));
        if bound > 0.0 { bound * (1.0 - 8.0 * f64::EPSILON) } else { 0.0 }
    }
}

/// The threshold with the largest expected lower bound on epsilon in `others` further trials, estimated from these scores.
#[must_use]
pub fn best_threshold(
    scores: &[(f64, bool)],
    others: usize,
    delta: f64,
    confidence: Confidence,
) -> f64 {
    const CANDIDATES: usize = 200;
    let mut sorted: Vec<f64> =
        scores.iter().map(|(score, _)| *score).filter(|s| !s.is_nan()).collect();
    sorted.sort_by(f64::total_cmp);
    let candidates = (1..CANDIDATES).filter_map(|i| sorted.get(sorted.len() * i / CANDIDATES));
    let (these, others) = (scores.len().max(1) as u64, others as u64);
    let expected_bound = |threshold: f64| {
        let counts = Answers::of_threshold(scores, threshold);
        let scaled = |count: u64| count.saturating_mul(others) / these;
        let answers = Answers {
            with: scaled(counts.with),
            true_positives: scaled(counts.true_positives),
            without: scaled(counts.without),
            false_positives: scaled(counts.false_positives),
        };
        answers.epsilon(delta, confidence)
    };
    let mut best = (f64::NEG_INFINITY, 0.0);
    for threshold in candidates {
        let bound = expected_bound(*threshold);
        if bound > best.0 {
            best = (bound, *threshold);
        }
    }
    best.1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::audit::normal::normal;

    /// Reproducible uniform numbers, for tests.
    pub(crate) fn uniforms(mut state: u64) -> impl FnMut() -> f64 {
        move || {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = state;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
        }
    }

    /// Scores of a Gaussian release with and without a canary.
    fn gaussian(mu: f64, trials: usize, seed: u64) -> Vec<(f64, bool)> {
        let mut uniform = uniforms(seed);
        let mut trial = || {
            let with = uniform() < 0.5;
            let noise = (-2.0 * uniform().max(1e-300).ln()).sqrt()
                * (2.0 * std::f64::consts::PI * uniform()).cos();
            (noise + if with { mu } else { 0.0 }, with)
        };
        (0..trials).map(|_| trial()).collect()
    }

    fn right(scores: &[(f64, bool)], threshold: f64) -> u64 {
        scores.iter().filter(|(score, with)| (*score > threshold) == *with).count() as u64
    }

    #[test]
    fn mu_of_exactly_known_gaussians_is_within_three_percent_and_never_above() {
        // 60 audits with a false alarm probability of 1e-6 each. A ratio below 0.97 is 2.6 standard deviations off: once
        // in 200 audits.
        let confidence = Confidence::with_false_alarms(1e-6).unwrap();
        let mut low = 0;
        for seed in 0..60 {
            let found = mu(right(&gaussian(3.0, 100_000, seed), 1.5), 100_000, confidence) / 3.0;
            assert!(found <= 1.0, "{found}");
            low += u32::from(found < 0.97);
        }
        // Five or more have probability below 1e-4.
        assert!(low < 5, "{low}");
    }

    #[test]
    fn a_tenth_less_noise_is_flagged() {
        let confidence = Confidence::with_false_alarms(1e-6).unwrap();
        let found = mu(right(&gaussian(3.0 / 0.9, 100_000, 1), 1.5), 100_000, confidence);
        assert!(found > 3.0, "{found}");
        // More noise than claimed is not flagged.
        let found = mu(right(&gaussian(2.7, 100_000, 1), 1.5), 100_000, confidence);
        assert!(found < 3.0, "{found}");
    }

    #[test]
    fn wrong_guesses_give_no_bound() {
        let scores = gaussian(3.0, 10_000, 3);
        let wrong = 10_000 - right(&scores, 1.5);
        assert_eq!(mu(wrong, 10_000, Confidence::STANDARD), 0.0);
        assert_eq!(mu(0, 0, Confidence::STANDARD), 0.0);
    }

    /// Randomised response that tells the truth with probability `e^eps/(1 + e^eps)` has exactly this epsilon.
    #[test]
    fn epsilon_of_randomised_response_is_approached_and_not_exceeded_too_often() {
        let epsilon: f64 = 1.5;
        let truth = epsilon.exp() / (1.0 + epsilon.exp());
        let (mut sum, mut above) = (0.0, 0);
        for seed in 0..200 {
            let mut uniform = uniforms(1000 + seed);
            let scores: Vec<(f64, bool)> = (0..20_000)
                .map(|_| {
                    let with = uniform() < 0.5;
                    let says = with == (uniform() < truth);
                    (f64::from(u8::from(says)), with)
                })
                .collect();
            let found = Answers::of_threshold(&scores, 0.5).epsilon(0.0, Confidence::STANDARD);
            sum += found;
            above += u32::from(found > epsilon);
        }
        assert!((0.94..1.0).contains(&(sum / 200.0 / epsilon)), "{sum}");
        // 5 % of 200, and four standard deviations: 10 + 12.
        assert!(above <= 22, "{above}");
    }

    #[test]
    fn epsilon_of_a_gaussian_at_a_large_delta_is_close() {
        // The exact epsilon of mu = 1 at delta 0.01, from the closed form of its profile.
        let delta = |epsilon: f64| normal(0.5 - epsilon) - epsilon.exp() * normal(-0.5 - epsilon);
        let (mut exact, mut high) = (0.0, 10.0);
        while high - exact > 1e-9 {
            let middle = 0.5 * (exact + high);
            if delta(middle) > 0.01 { exact = middle } else { high = middle }
        }
        let pilot = gaussian(1.0, 100_000, 7);
        let threshold = best_threshold(&pilot, 400_000, 0.01, Confidence::STANDARD);
        let answers = Answers::of_threshold(&gaussian(1.0, 400_000, 8), threshold);
        let found = answers.epsilon(0.01, Confidence::STANDARD);
        assert!((0.85..=1.0).contains(&(found / exact)), "{found} {exact}");
    }
}
