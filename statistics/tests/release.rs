//! Every kind of group releases the noise of its event.

use veilgrad_statistics::Check;
use veilgrad_statistics::release::{law, law_on_threads};

fn failed(checks: &[Check]) -> Vec<&Check> {
    checks.iter().filter(|check| !check.holds()).collect()
}

/// 31 numbers per round: 1489 checks at 1e-9.
#[test]
fn every_kind_of_group_releases_the_noise_of_its_event() {
    let checks = law(20_000, 1.0).unwrap();
    assert_eq!(checks.len(), 31 * 2 + 31 * 30 / 2 + 31 * 31 + 1);
    assert!(failed(&checks).is_empty(), "{:?}", failed(&checks));
}

/// 18 checks at 1e-9.
#[test]
fn threads_blocks_groups_and_rounds_have_independent_noise() {
    for threads in [1, 2] {
        let checks = law_on_threads(40, threads).unwrap();
        assert!(failed(&checks).is_empty(), "{:?}", failed(&checks));
    }
}

#[test]
fn less_noise_than_charged_is_noticed() {
    // One percent less noise is 11 standard deviations of the sum of all 620,000 squares.
    assert!(!failed(&law(20_000, 0.99).unwrap()).is_empty());
}
