//! Rounds as JSON Lines: what the ledger exports and what an accountant reads.

use serde::de::{Error, IgnoredAny};
use serde::{Deserialize, Serialize};

use super::entry::Mode;
use super::round::Rounds;

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

/// A file of rounds, and what it says about how they were chosen.
///
/// The first line may be `{"mode": "planned"}`, or `{"mode": "adaptive", "order": 8.0}` with the Rényi order that was
/// fixed before the first round. A line `{"run": N}` begins another run: shuffled epochs begin anew.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RoundsFile {
    /// Whether rounds may have been chosen from earlier outputs; none if the file does not say.
    pub mode: Option<Mode>,
    /// The Rényi order that was fixed before the first round, if one was.
    pub order: Option<f64>,
    /// The rounds of each run, in their order.
    pub runs: Vec<Vec<Rounds>>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ModeLine {
    mode: Mode,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    order: Option<f64>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RunLine {
    run: u64,
}

/// Which kind of line it is, by its keys.
#[derive(Deserialize)]
struct Keys {
    mode: Option<IgnoredAny>,
    run: Option<IgnoredAny>,
}

impl RoundsFile {
    /// Reads a file, one JSON object per line; blank lines are passed over.
    ///
    /// # Guarantee
    /// Every f64 comes back with the bits that [`to_jsonl`](Self::to_jsonl) wrote. A line with an unknown policy, an
    /// unknown field or a value out of range is refused, never guessed at.
    ///
    /// # Errors
    /// Names the first line that is wrong and why.
    pub fn from_jsonl(text: &str) -> Result<Self, LineError> {
        let mut file = Self { runs: vec![Vec::new()], ..Self::default() };
        let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        for (place, (index, line)) in lines.enumerate() {
            file.read_line(line, place == 0)
                .map_err(|cause| LineError { line: index + 1, cause })?;
        }
        file.runs.retain(|rounds| !rounds.is_empty());
        Ok(file)
    }

    fn read_line(&mut self, line: &str, first: bool) -> Result<(), serde_json::Error> {
        let keys: Keys = serde_json::from_str(line)?;
        if keys.mode.is_some() {
            let ModeLine { mode, order } = serde_json::from_str(line)?;
            if !first {
                return Err(serde_json::Error::custom("the mode is for the first line"));
            }
            let is_usable = |order: f64| mode == Mode::Adaptive && order > 1.0 && order.is_finite();
            if order.is_some_and(|order| !is_usable(order)) {
                let rule = "an order is above 1, and for adaptive rounds";
                return Err(serde_json::Error::custom(rule));
            }
            (self.mode, self.order) = (Some(mode), order);
        } else if keys.run.is_some() {
            let RunLine { .. } = serde_json::from_str(line)?;
            self.runs.push(Vec::new());
        } else {
            let rounds = serde_json::from_str(line)?;
            match self.runs.last_mut() {
                Some(run) => run.push(rounds),
                None => self.runs.push(vec![rounds]),
            }
        }
        Ok(())
    }

    /// Writes a file, one JSON object per line.
    ///
    /// # Errors
    /// None for values built by this crate; serialisation is fallible by type only.
    pub fn to_jsonl(&self) -> Result<String, serde_json::Error> {
        let mut text = String::new();
        if let Some(mode) = self.mode {
            let line = ModeLine { mode, order: self.order };
            text.push_str(&serde_json::to_string(&line)?);
            text.push('\n');
        }
        for (run, rounds) in (1..).zip(&self.runs) {
            if run > 1 {
                text.push_str(&serde_json::to_string(&RunLine { run })?);
                text.push('\n');
            }
            text.push_str(&rounds_to_jsonl(rounds)?);
        }
        Ok(text)
    }
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
