//! Rounds as JSON Lines: the format that a ledger exports and an accountant reads.

use serde::de::{Error, IgnoredAny};
use serde::{Deserialize, Serialize};

use super::entry::Mode;
use super::round::Rounds;

/// An invalid line of a rounds file.
#[derive(Debug, thiserror::Error)]
#[error("line {line}: {cause}")]
pub struct LineError {
    line: usize,
    cause: serde_json::Error,
}

impl LineError {
    /// The line number, counted from 1.
    #[must_use]
    pub const fn line(&self) -> usize {
        self.line
    }
}

/// A JSON Lines file of rounds, optionally with the mode in which they were chosen.
///
/// The first line may be `{"mode": "planned"}`, or `{"mode": "adaptive", "order": 8.0}` with the Rényi order that was
/// fixed before the first round. A line `{"run": N}` starts another run; shuffled epochs are counted from there.
///
/// # Example
/// ```
/// use veilgrad_events::{Mode, RoundsFile};
///
/// let text = r#"{"mode": "planned"}
/// {"rounds": 100, "sampling": {"policy": "poisson", "rate": 0.01}, "queries": [{"group": "w", "clip": 1.0, "noise": 1.1}]}
/// "#;
/// let file = RoundsFile::from_jsonl(text)?;
/// assert_eq!((file.mode, file.runs[0][0].count), (Some(Mode::Planned), 100));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RoundsFile {
    /// Whether rounds may depend on earlier outputs; `None` if the file does not say.
    pub mode: Option<Mode>,
    /// The Rényi order that was fixed before the first round, if one was.
    pub order: Option<f64>,
    /// The rounds of each run, in order.
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

/// The keys that identify the kind of a line.
#[derive(Deserialize)]
struct Keys {
    mode: Option<IgnoredAny>,
    run: Option<IgnoredAny>,
}

impl RoundsFile {
    /// Reads a rounds file: one JSON object per line, blank lines ignored.
    ///
    /// # Guarantee
    /// Every f64 comes back with the bits that [`to_jsonl`](Self::to_jsonl) wrote. A line with an unknown policy, an
    /// unknown field or a value out of range is an error.
    ///
    /// # Errors
    /// Names the first invalid line and the reason.
    pub fn from_jsonl(text: &str) -> Result<Self, LineError> {
        let mut file = Self { runs: vec![Vec::new()], ..Self::default() };
        let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        for (position, (index, line)) in lines.enumerate() {
            file.read_line(line, position == 0)
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
                return Err(serde_json::Error::custom(
                    "the mode is allowed only on the first line",
                ));
            }
            let is_usable = |order: f64| mode == Mode::Adaptive && order > 1.0 && order.is_finite();
            if order.is_some_and(|order| !is_usable(order)) {
                let rule = "an order must be finite and above 1, and is only for adaptive rounds";
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

    /// Writes the file as JSON Lines, one object per line.
    ///
    /// # Errors
    /// Never for values built by this crate; only the type of serialisation allows an error.
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

/// Writes rounds as JSON Lines, one object per line.
///
/// # Errors
/// Never for values built by this crate; only the type of serialisation allows an error.
pub fn rounds_to_jsonl(rounds: &[Rounds]) -> Result<String, serde_json::Error> {
    let mut text = String::new();
    for entry in rounds {
        text.push_str(&serde_json::to_string(entry)?);
        text.push('\n');
    }
    Ok(text)
}
