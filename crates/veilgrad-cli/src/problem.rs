//! What is wrong with a configuration, and where.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

/// One thing that is wrong with a configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Problem {
    /// The line of the configuration; of its table, if a key is missing. `None` if the table is missing, too.
    pub(crate) line: Option<usize>,
    /// The place of the value, as in `data.columns[2].bounds`; items are counted from 1.
    pub(crate) key: String,
    /// The value and the rule.
    pub(crate) text: String,
    /// What was probably meant.
    pub(crate) suggestion: Option<String>,
    /// The places of other values that the rule depends on.
    #[serde(skip)]
    pub(crate) relies_on: Vec<String>,
}

impl Problem {
    pub(crate) fn new(key: impl Into<String>, text: impl Into<String>) -> Self {
        let (key, text) = (key.into(), text.into());
        Self { line: None, key, text, suggestion: None, relies_on: Vec::new() }
    }

    /// Whether the problem may be a consequence of a value that is wrong or missing at this place: it is about that value, or
    /// relies on it.
    pub(crate) fn may_follow_from(&self, place: &str) -> bool {
        is_within(&self.key, place)
            || self.relies_on.iter().any(|key| is_within(key, place) || is_within(place, key))
    }
}

/// Whether a place is another one, or below it: `data.columns[2].name` is within `data.columns[2]` and `data.columns`.
pub(crate) fn is_within(place: &str, outer: &str) -> bool {
    let rest = place.strip_prefix(outer);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(line) = self.line {
            write!(f, "line {line}: ")?;
        }
        f.write_str(&self.text)?;
        self.suggestion.iter().try_for_each(|suggestion| write!(f, "; {suggestion}"))
    }
}

/// Problems as one text, a line for each.
pub(crate) fn joined(problems: &[Problem]) -> String {
    let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
    lines.join("\n")
}

/// Collects problems.
#[derive(Debug, Default)]
pub(crate) struct Problems(pub(crate) Vec<Problem>);

impl Problems {
    /// Adds a problem of the value at this place.
    pub(crate) fn add(&mut self, key: impl Into<String>, text: impl Into<String>) {
        self.0.push(Problem::new(key, text));
    }

    /// Adds problems of rules that also depend on the values at these places. They are not reported if one of those is wrong
    /// itself.
    pub(crate) fn relying_on<K: ToString>(&mut self, keys: &[K], check: impl FnOnce(&mut Self)) {
        let before = self.0.len();
        check(self);
        for problem in self.0.iter_mut().skip(before) {
            problem.relies_on.extend(keys.iter().map(ToString::to_string));
        }
    }

    /// Adds a problem if it holds.
    pub(crate) fn refuse(&mut self, holds: bool, key: &str, text: impl Into<String>) {
        if holds {
            self.add(key, text);
        }
    }

    /// Adds the error of a value that its type refuses.
    pub(crate) fn check<T, E: fmt::Display>(
        &mut self,
        value: Result<T, E>,
        key: &str,
        table: &str,
    ) {
        if let Err(error) = value {
            self.add(key, format!("{table} {error}"));
        }
    }
}

/// The lines of all values, by their places.
pub(crate) type Lines = BTreeMap<String, usize>;

/// The line of a place, or of the innermost table around it.
pub(crate) fn line_of(lines: &Lines, key: &str) -> Option<usize> {
    let mut place = key;
    loop {
        if let Some(line) = lines.get(place) {
            return Some(*line);
        }
        place = &place[..place.rfind(['.', '['])?];
    }
}

/// The known word that is most similar to an unknown one, if one is similar at all.
pub(crate) fn similar<'a>(
    unknown: &str,
    known: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    /// Below this, words have little in common: `lr` and `rate`.
    const LEAST: f64 = 0.75;
    /// Longer words are not mistyped keys, and comparing them would take long.
    const LONGEST: usize = 64;
    if unknown.len() > LONGEST {
        return None;
    }
    let similarity =
        |word: &str| strsim::jaro_winkler(&unknown.to_lowercase(), &word.to_lowercase());
    let words = known.into_iter().map(|word| (similarity(word), word));
    let best = words.max_by(|(one, _), (other, _)| one.total_cmp(other));
    best.filter(|(similarity, _)| *similarity >= LEAST).map(|(_, word)| word)
}
