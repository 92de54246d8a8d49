//! Rounds as JSON Lines: what the ledger exports and what an accountant reads.

use crate::Rounds;

/// A line that is not a valid entry.
#[derive(Debug, thiserror::Error)]
#[error("line {line}: {cause}")]
pub struct LineError {
    line: usize,
    cause: serde_json::Error,
}

impl LineError {
    /// The number of the line, counted from 1.
    #[must_use]
    pub const fn line(&self) -> usize {
        self.line
    }
}

/// Reads rounds, one JSON object per line; blank lines are passed over.
///
/// # Guarantee
/// Every f64 comes back with the bits that [`rounds_to_jsonl`] wrote. A line with an unknown policy,
/// an unknown field or a value out of range is refused, never guessed at.
///
/// # Errors
/// Names the first line that is wrong and why.
pub fn rounds_from_jsonl(text: &str) -> Result<Vec<Rounds>, LineError> {
    text.lines()
        .enumerate()
        .filter(|(_, line)| !line.trim().is_empty())
        .map(|(index, line)| {
            serde_json::from_str(line).map_err(|cause| LineError { line: index + 1, cause })
        })
        .collect()
}

/// Writes rounds, one JSON object per line.
///
/// # Errors
/// None for values built by this crate; serialisation is fallible by type only.
pub fn rounds_to_jsonl(rounds: &[Rounds]) -> Result<String, serde_json::Error> {
    let mut text = String::new();
    for entry in rounds {
        text.push_str(&serde_json::to_string(entry)?);
        text.push('\n');
    }
    Ok(text)
}
