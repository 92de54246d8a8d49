//! Helpers of checks.

use std::collections::HashSet;

/// The first of these reasons that holds, as an error.
pub(super) fn refuse<const N: usize>(reasons: [(bool, &str); N]) -> Result<(), String> {
    let found = reasons.into_iter().find(|(holds, _)| *holds);
    found.map_or(Ok(()), |(_, reason)| Err(reason.to_owned()))
}

/// The first value that occurs twice.
pub(super) fn repeated<'a>(values: impl IntoIterator<Item = &'a String>) -> Option<&'a str> {
    let mut seen = HashSet::new();
    values.into_iter().map(String::as_str).find(|value| !seen.insert(*value))
}

/// Whether bounds ascend, and are not too far apart for arithmetic.
pub(super) fn ascend([low, high]: [f64; 2]) -> bool {
    low < high && (high - low).is_finite()
}
