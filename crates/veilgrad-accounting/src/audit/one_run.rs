//! Auditing with many canaries in one run: how many right guesses a trade-off curve allows.

use super::confidence::Confidence;
use super::curve::Curve;

/// Guesses about which canaries are in the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Guesses {
    /// How many canaries there are; each is in the data with probability 1/2.
    pub canaries: u64,
    /// For how many of them a guess was made. Fixed before the run; the auditor chooses which ones afterwards.
    pub made: u64,
    /// How many of these guesses were right.
    pub right: u64,
}

/// Whether guesses about the canaries of one run contradict a trade-off curve.
///
/// # Guarantee
/// If the run is as private as the curve says, for each canary and whatever else is in the data, this is true with
/// probability at most that of a false alarm. (Mahloujifar, Melis, Chaudhuri, "Auditing f-differential privacy in one
/// run", arXiv 2410.22235; the idea of one run is Steinke, Nasr, Jagielski, arXiv 2305.08846.)
///
/// Proof. Let m be the number of canaries, c that of guesses made, W that of right ones, `p_k = P(W = k)`, and
/// `g(t)` the curve: a test with true positive rate at least t has a false positive rate of at least g(t), where either of
/// the canary's states may count as positive. g is increasing and convex, and `g(0) = 0`.
///
/// *One step.* Fix canary i, a state b and all other coins. The event "i is guessed to be b, and k - 1 or more of the other
/// guesses are right" depends on the release alone. If the coin of i is b, then `W >= k` and i is guessed right; if not,
/// `W >= k - 1` and i is guessed wrong. So with `A = P(W >= k, i right)` and `B = P(W >= k - 1, i wrong)`, averaged over
/// coins and states (g is convex): `B >= g(A)`. Averaged over all i, with `R_k = sum_{j >= k} j p_j / m` and
/// `H_k = sum_{j >= k} (c - j) p_j / m`:
///
/// `H_{k-1} >= g(R_k)` for every k.  (1)
///
/// *The least total.* Suppose `P(W >= r) >= a` for the number r of right guesses and the probability a of a false alarm.
/// Moving probability from some j to j - 1 increases no R and decreases no H except `H_j`, so (1) still holds for all other
/// H. So all probability above r may be moved to r, and any excess over a there to r - 1. Then, for k = r - 1 down
/// to 1, any excess of `p_k` over the least value that (1) requires for `H_k` may be moved to k - 1. The result has
/// `p_r = a`, each `p_k` the least with `H_k >= g(R_{k+1})`, and an unchanged total of 1. Hence if these least values add up
/// to more than 1, `P(W >= r) < a`.
///
/// In that case the curve is contradicted. Rounding errors can only prevent a contradiction.
#[must_use]
pub fn contradicts(guesses: Guesses, curve: &Curve, confidence: Confidence) -> bool {
    let Guesses { canaries, made, right } = guesses;
    if right > made || made > canaries || right == 0 {
        return false;
    }
    let (m, c) = (canaries as f64, made as f64);
    // Raised by more than the additions below can round up.
    let limit = c / m * (1.0 + 4.0 * (c + 8.0) * f64::EPSILON);
    let alarm = confidence.false_alarms();
    let mut r = alarm * right as f64 / m;
    let mut h = alarm * (c - right as f64) / m;
    for k in (0..right).rev() {
        let k = k as f64;
        let added = (curve.false_positive_rate(r) - h).max(0.0);
        h += added;
        r += added * k / (c - k);
        if r + h > limit {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::binomial::at_least;

    /// The least number of right guesses that contradicts a curve; `made + 1` if none does.
    fn least_right(canaries: u64, made: u64, curve: &Curve, confidence: Confidence) -> u64 {
        let (mut low, mut high) = (0, made + 1);
        while high - low > 1 {
            let right = low + (high - low) / 2;
            let refuted = contradicts(Guesses { canaries, made, right }, curve, confidence);
            if refuted { high = right } else { low = right }
        }
        high
    }

    /// Pure epsilon: each guess is right with probability at most `e^eps/(1 + e^eps)`, independently (Steinke et al.,
    /// Theorem 5.2), so the exact answer is a binomial tail. The general bound may be looser, never tighter.
    #[test]
    fn pure_privacy_is_contradicted_almost_where_the_binomial_tail_says() {
        for (epsilon, made) in [(0.5f64, 100), (1.0, 400), (2.0, 400), (1.0, 2000)] {
            let p = epsilon.exp() / (1.0 + epsilon.exp());
            let exact = (0..=made).find(|r| at_least(*r, made, p).upper < 0.05).unwrap();
            let curve = Curve::of_profile(vec![(epsilon, 0.0)]);
            let found = least_right(made, made, &curve, Confidence::STANDARD);
            let deviation = (made as f64 * p * (1.0 - p)).sqrt();
            assert!(found >= exact, "{epsilon} {made}: {found} {exact}");
            assert!((found - exact) as f64 <= 2.0 * deviation, "{epsilon} {made}: {found} {exact}");
        }
    }

    /// Without privacy loss every guess is right with probability 1/2.
    #[test]
    fn perfect_privacy_is_contradicted_by_more_right_guesses_than_coin_tosses_give() {
        let curve = Curve::gaussian(0.0);
        let found = least_right(1000, 1000, &curve, Confidence::STANDARD);
        assert!((520..=600).contains(&found), "{found}");
    }

    #[test]
    fn impossible_counts_contradict_nothing() {
        let curve = Curve::gaussian(0.5);
        let counts = |canaries, made, right| Guesses { canaries, made, right };
        for guesses in [counts(10, 20, 15), counts(10, 5, 6), counts(0, 0, 0), counts(100, 50, 0)] {
            assert!(!contradicts(guesses, &curve, Confidence::STANDARD), "{guesses:?}");
        }
        let all_right = counts(1000, 200, 200);
        assert!(contradicts(all_right, &curve, Confidence::STANDARD));
        // Nothing contradicts delta = 1.
        let no_privacy = Curve::of_profile(vec![(0.0, 1.0)]);
        assert!(!contradicts(all_right, &no_privacy, Confidence::STANDARD));
    }

    #[test]
    fn larger_mu_and_higher_confidence_need_more_right_guesses() {
        let least = |mu: f64, alarm: f64| {
            let confidence = Confidence::with_false_alarms(alarm).unwrap();
            least_right(2000, 400, &Curve::gaussian(mu), confidence)
        };
        for (mu, more) in [(0.2, 0.3), (0.5, 0.8), (1.0, 1.5)] {
            assert!(least(mu, 0.05) < least(more, 0.05), "{mu}");
            assert!(least(mu, 0.05) < least(mu, 1e-4), "{mu}");
        }
    }
}
