//! The short form of the sampling tests.

use veilgrad_events::{FixedBatch, SampleRate};
use veilgrad_statistics::sample::{CASES, fixed, poisson, shuffled_and_truncated};

/// 53 checks at 1e-9.
#[test]
fn records_are_drawn_independently_with_their_probability() {
    let mut checks = Vec::new();
    for (q, records) in CASES {
        checks.extend(poisson(SampleRate::new(q).unwrap(), records, 3_000).unwrap());
    }
    checks.extend(shuffled_and_truncated(SampleRate::new(0.2).unwrap(), 3_000).unwrap());
    checks.extend(fixed(FixedBatch::new(1000, 30).unwrap(), 3_000).unwrap());
    for check in checks {
        assert!(check.holds(), "{} {:e}", check.name, check.tail);
    }
}
