//! Every kind of group releases the noise that its event says.

use veilgrad_statistics::Check;
use veilgrad_statistics::release::law;

fn failed(checks: &[Check]) -> Vec<&Check> {
    checks.iter().filter(|check| !check.holds()).collect()
}

/// 22 numbers a round: 760 checks at 1e-9, on one thread and on two.
#[test]
fn every_kind_of_group_releases_the_noise_of_its_event() {
    for threads in [1, 2] {
        let checks = law(20_000, threads, 1.0).unwrap();
        assert!(checks.len() > 700, "{}", checks.len());
        assert!(failed(&checks).is_empty(), "{:?}", failed(&checks));
    }
}

#[test]
fn less_noise_than_charged_is_noticed() {
    // One percent is 9 standard deviations of all 440,000 squares together.
    assert!(!failed(&law(20_000, 1, 0.99).unwrap()).is_empty());
}
