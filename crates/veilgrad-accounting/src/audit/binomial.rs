//! Exact confidence bounds on a binomial probability (Clopper and Pearson 1934).

use super::confidence::Confidence;
use crate::binomial::at_least;

/// A lower confidence bound on the probability of success: the largest p at which `successes` or more have at most the
/// probability of a false alarm.
pub(super) fn lower_bound(successes: u64, trials: u64, confidence: Confidence) -> f64 {
    let successes = successes.min(trials);
    if successes == 0 {
        return 0.0;
    }
    let alarm = confidence.false_alarms();
    let (mut low, mut high) = (0.0, successes as f64 / trials as f64);
    // Bisection to the precision of f64; at the lower end the tail is at most the probability of a false alarm.
    for _ in 0..60 {
        let middle = 0.5 * (low + high);
        let is_rare = at_least(successes, trials, middle).upper <= alarm;
        if is_rare { low = middle } else { high = middle }
    }
    low
}

/// An upper confidence bound on the probability of success.
pub(super) fn upper_bound(successes: u64, trials: u64, confidence: Confidence) -> f64 {
    1.0 - lower_bound(trials.saturating_sub(successes), trials, confidence)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::binomial::tests::slow_tail;

    /// Published intervals: 0 of 10, 5 of 10 and 10 of 10 at 95 % two-sided, which is 97.5 % on each side.
    #[test]
    fn bounds_are_those_of_clopper_and_pearson() {
        let each_side = Confidence::with_false_alarms(0.025).unwrap();
        for (successes, lower, upper) in
            [(0, 0.0, 0.308_497_1), (5, 0.187_086_0, 0.812_914_0), (10, 0.691_502_9, 1.0)]
        {
            assert!((lower_bound(successes, 10, each_side) - lower).abs() < 1e-6);
            assert!((upper_bound(successes, 10, each_side) - upper).abs() < 1e-6);
        }
    }

    /// The probability that the bound exceeds the truth, summed over all outcomes, is at most that of a false alarm.
    #[test]
    fn a_bound_is_wrong_no_more_often_than_it_may() {
        for (trials, p, alarms) in [(40, 0.3, 0.05), (300, 0.69, 0.05), (300, 0.9, 0.001)] {
            let confidence = Confidence::with_false_alarms(alarms).unwrap();
            let first_wrong = (0..=trials).find(|k| lower_bound(*k, trials, confidence) > p);
            let wrong = first_wrong.map_or(0.0, |k| slow_tail(k, trials, p));
            assert!(wrong <= alarms && wrong > 0.2 * alarms, "{trials} {p}: {wrong}");
        }
    }
}
