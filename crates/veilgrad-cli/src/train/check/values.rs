//! Rules of single values.

use std::collections::HashSet;

/// The first value that occurs twice.
pub(super) fn repeated<'a>(values: impl IntoIterator<Item = &'a String>) -> Option<&'a str> {
    let mut seen = HashSet::new();
    values.into_iter().map(String::as_str).find(|value| !seen.insert(*value))
}

/// Whether bounds ascend, and are not too far apart for arithmetic.
pub(super) fn ascend([low, high]: [f64; 2]) -> bool {
    low < high && (high - low).is_finite()
}
