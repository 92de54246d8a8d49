//! The short form of the sampling statistics.

use veilgrad_events::{FixedBatch, SampleRate};
use veilgrad_statistics::sample::{fixed, poisson};

/// 32 checks at 1e-9.
#[test]
fn records_are_drawn_independently_with_their_probability() {
    let mut checks = Vec::new();
    for (q, records) in [(1e-3, 20_000), (0.01, 5_000), (0.03, 5_000), (0.1, 2_000), (0.5, 2_000)] {
        checks.extend(poisson(SampleRate::new(q).unwrap(), records, 3_000).unwrap());
    }
    checks.extend(fixed(FixedBatch::new(1000, 30).unwrap(), 3_000).unwrap());
    for check in checks {
        assert!(check.holds(), "{} {:e}", check.name, check.tail);
    }
}
