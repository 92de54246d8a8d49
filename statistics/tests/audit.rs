//! Audits of real runs of the mechanism. The long form is the example `audit`.

use veilgrad_statistics::audit::{Rounds, verdicts};

#[test]
fn runs_that_keep_their_claim_are_not_accused() {
    // The lower bound is several standard deviations below the claim: a false alarm in one of thousands of test runs.
    let claimed = Rounds::of_epsilon(3.0, 0.1, 50).unwrap();
    for verdict in verdicts(claimed, claimed, 1000, 20).unwrap() {
        assert!(!verdict.contradicted && verdict.epsilon_lower < 3.0, "{verdict:?}");
    }
}

/// The lower bound of each broken run is several standard deviations above the claim.
#[test]
fn half_the_noise_twice_the_rate_and_full_batches_are_flagged() {
    let claimed = Rounds::reference().unwrap();
    assert!(claimed.noise > 2.0, "{claimed:?}");
    for (what, really) in claimed.broken() {
        // For full batches, few canaries suffice, and many take long.
        let canaries = if really.rate < 1.0 { 5000 } else { 1000 };
        for verdict in verdicts(claimed, really, canaries, 1).unwrap() {
            assert!(verdict.contradicted && verdict.epsilon_lower > 3.0, "{what}: {verdict:?}");
        }
    }
}
