//! One case: inputs, expectations, tolerance.

use serde_json::Value;

/// The result of a case.
#[derive(Debug, Clone, PartialEq)]
pub enum Verdict {
    /// The expected values agree.
    Passed,
    /// The expected values do not agree, or the case could not be read.
    Failed(String),
    /// The case was not run, for this reason.
    Skipped(&'static str),
}

/// The result of running a case; an error is a failure.
pub(crate) type Outcome = Result<Verdict, String>;

/// A case of a cases file.
pub struct Case<'a> {
    value: &'a Value,
    kind: &'a str,
}

impl<'a> Case<'a> {
    /// Reads a case.
    ///
    /// # Errors
    /// When the case has no kind.
    pub fn new(value: &'a Value) -> Result<Self, String> {
        let kind = value.get("kind").and_then(Value::as_str);
        Ok(Self { value, kind: kind.ok_or_else(|| format!("a case without a kind: {value}"))? })
    }

    /// The kind of behaviour.
    #[must_use]
    pub fn kind(&self) -> &str {
        self.kind
    }

    /// The name of the case.
    #[must_use]
    pub fn name(&self) -> String {
        self.value.get("name").and_then(Value::as_str).unwrap_or("without a name").to_owned()
    }

    pub(crate) fn input(&self, key: &str) -> Result<&'a Value, String> {
        let inputs = self.value.get("inputs").ok_or("no inputs")?;
        inputs.get(key).ok_or_else(|| format!("no input '{key}'"))
    }

    pub(crate) fn number(&self, key: &str) -> Result<f64, String> {
        number(self.input(key)?)
    }

    pub(crate) fn expected(&self, key: &str) -> Result<&'a Value, String> {
        let expected = self.value.get("expected").ok_or("nothing expected")?;
        expected.get(key).ok_or_else(|| format!("no expected '{key}'"))
    }

    /// Compares numbers within the case's tolerance.
    pub(crate) fn compare(&self, what: &str, found: &[f64], expected: &Value) -> Outcome {
        self.compare_within(what, found, expected, 0.0)
    }

    /// Compares numbers that were rounded to the integer grid of a group with this clip norm.
    pub(crate) fn compare_on_grid(
        &self,
        what: &str,
        found: &[f64],
        expected: &Value,
        clip: f64,
    ) -> Outcome {
        self.compare_within(what, found, expected, 1e-6 * clip)
    }

    fn compare_within(&self, what: &str, found: &[f64], expected: &Value, grid: f64) -> Outcome {
        let expected = flatten(expected)?;
        if found.len() != expected.len() {
            return Err(format!("{what}: {found:?} is not {expected:?}"));
        }
        let tolerance = |key: &str| {
            let tolerance = self.value.get("tolerance");
            tolerance.and_then(|t| t.get(key)).and_then(Value::as_f64).unwrap_or(0.0)
        };
        let (rtol, atol) = (tolerance("rtol"), tolerance("atol"));
        for (found, expected) in found.iter().zip(&expected) {
            let allowed = (atol + rtol * expected.abs()).max(grid);
            if (found - expected).abs() > allowed || found.is_nan() {
                return Err(format!("{what}: {found} is not {expected} within {allowed}"));
            }
        }
        Ok(Verdict::Passed)
    }
}

pub(crate) fn number(value: &Value) -> Result<f64, String> {
    match value {
        Value::Number(number) => number.as_f64().ok_or_else(|| format!("{number} is not an f64")),
        Value::String(text) if text == "inf" => Ok(f64::INFINITY),
        other => Err(format!("{other} is not a number")),
    }
}

/// All numbers of a number or a nested list.
pub(crate) fn flatten(value: &Value) -> Result<Vec<f64>, String> {
    match value {
        Value::Array(items) => {
            let lists: Result<Vec<Vec<f64>>, String> = items.iter().map(flatten).collect();
            Ok(lists?.concat())
        }
        other => Ok(vec![number(other)?]),
    }
}

pub(crate) fn list(value: &Value) -> Result<&[Value], String> {
    value.as_array().map(Vec::as_slice).ok_or_else(|| format!("{value} is not a list"))
}

/// A list of vectors; a bare number is a vector of length 1.
pub(crate) fn vectors(value: &Value) -> Result<Vec<Vec<f32>>, String> {
    let items = list(value)?.iter();
    items.map(|item| Ok(flatten(item)?.into_iter().map(|x| x as f32).collect())).collect()
}

pub(crate) fn norm(vector: &[f32]) -> f64 {
    vector.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt()
}

/// Turns any error into the text of a failure.
pub(crate) fn text(error: impl ToString) -> String {
    error.to_string()
}

/// Fails with a message unless the condition holds.
pub(crate) fn require(holds: bool, message: impl Into<String>) -> Outcome {
    if holds { Ok(Verdict::Passed) } else { Err(message.into()) }
}
