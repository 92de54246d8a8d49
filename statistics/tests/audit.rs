//! Audits of runs of the mechanism as it ships. The long form is the example `audit`.

use veilgrad_statistics::audit::{Rounds, verdicts};

#[test]
fn runs_that_keep_their_claim_are_not_accused() {
    // The bound is several standard deviations below the claim; one false alarm in these would be one in thousands.
    let claimed = Rounds::of_epsilon(3.0, 0.1, 50).unwrap();
    for verdict in verdicts(claimed, claimed, 1000, 20).unwrap() {
        assert!(!verdict.contradicted && verdict.epsilon_lower < 3.0, "{verdict:?}");
    }
}

#[test]
fn half_the_noise_twice_the_rate_and_full_batches_are_flagged() {
    let few = Rounds::of_epsilon(3.0, 0.1, 50).unwrap();
    // Twice the rate shows less than the other two: more rounds show it better.
    let many = Rounds::of_epsilon(3.0, 0.05, 300).unwrap();
    for (index, claimed) in [(0, few), (1, many), (2, few)] {
        let (what, really) = claimed.broken()[index];
        for verdict in verdicts(claimed, really, 5000, 2).unwrap() {
            assert!(verdict.contradicted && verdict.epsilon_lower > 3.0, "{what}: {verdict:?}");
        }
    }
}
