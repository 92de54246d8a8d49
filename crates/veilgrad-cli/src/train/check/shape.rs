//! Whether a configuration has the keys and types of the reference. Finds all deviations, each with its line.

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::record;
use crate::problem::{Lines, Problem, similar};
use crate::train::reference::{Default, Key, ROOT, Table, Value, table, tables};

/// The steps from the root to a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    Key(String),
    /// An item of a list, counted from 0.
    Item(usize),
}

/// A change that makes a configuration readable, so that the rest of it can be checked.
#[derive(Debug)]
pub(super) enum Repair {
    Remove(Vec<Step>),
    /// Sets a value, written as in a configuration.
    Set(Vec<Step>, String),
}

/// What a walk over a configuration found.
#[derive(Debug, Default)]
pub(super) struct Shape {
    pub(super) problems: Vec<Problem>,
    pub(super) repairs: Vec<Repair>,
    /// The places of values that are wrong or missing. Other problems may be consequences of these.
    pub(super) doubtful: Vec<String>,
    pub(super) lines: Lines,
    /// Where the text has whole numbers that TOML cannot store, which no key takes.
    pub(super) unstored: Vec<Range<usize>>,
}

/// Compares a configuration with the reference.
pub(super) fn examine(index: &LineIndex, root: &DeTable<'_>) -> Shape {
    let mut walk = Walk { index, shape: Shape::default() };
    walk.note_lines("", root);
    walk.root(root);
    walk.shape
}

struct Walk<'a> {
    index: &'a LineIndex,
    shape: Shape,
}

/// A value with its place.
struct Found<'v, 'i> {
    steps: Vec<Step>,
    value: &'v Spanned<DeValue<'i>>,
    /// How messages name it.
    label: String,
}

impl Walk<'_> {
    fn line(&self, offset: usize) -> usize {
        self.index.line(offset)
    }

    fn note_lines(&mut self, prefix: &str, found: &DeTable<'_>) {
        for (key, value) in found {
            let name: &str = key.get_ref();
            let place =
                if prefix.is_empty() { name.to_owned() } else { format!("{prefix}.{name}") };
            self.shape.lines.insert(place.clone(), self.line(key.span().start));
            self.note_value(&place, value);
        }
    }

    fn note_value(&mut self, place: &str, value: &Spanned<DeValue<'_>>) {
        match value.get_ref() {
            DeValue::Integer(number) if stored(number).is_none() => {
                self.shape.unstored.push(value.span());
            }
            DeValue::Table(below) => self.note_lines(place, below),
            DeValue::Array(items) => {
                for (number, item) in (1..).zip(items) {
                    let place = format!("{place}[{number}]");
                    self.shape.lines.insert(place.clone(), self.line(item.span().start));
                    self.note_value(&place, item);
                }
            }
            _ => {}
        }
    }

    fn add(
        &mut self,
        steps: &[Step],
        line: Option<usize>,
        text: String,
        suggestion: Option<String>,
    ) {
        let problem = Problem::new(place(steps), text);
        self.shape.problems.push(Problem { line, suggestion, ..problem });
    }

    fn root(&mut self, root: &DeTable<'_>) {
        for (key, value) in root {
            let name: &str = key.get_ref();
            let steps = vec![Step::Key(name.to_owned())];
            let line = Some(self.line(key.span().start));
            if let (Some((path, _)), Some(found)) =
                (ROOT.iter().find(|(path, _)| *path == name), value.get_ref().as_table())
            {
                if let Some(declared) = table(path) {
                    self.table(&steps, found, declared, declared.label, line);
                }
                continue;
            }
            let names = ROOT.map(|(path, _)| path);
            let known = similar(name, names);
            let suggestion =
                match tables().find(|table| table.keys.iter().any(|key| key.name == name)) {
                    Some(owner) if known.is_none() => {
                        Some(format!("`{name}` is a key of {}", owner.label.trim_end_matches(':')))
                    }
                    _ => Some(known.map_or_else(
                        || format!("tables are {}", listed(names)),
                        |known| format!("did you mean [{known}]?"),
                    )),
                };
            self.add(&steps, line, format!("{name} is not a table of a configuration"), suggestion);
            self.shape.doubtful.push(name.to_owned());
            self.shape.doubtful.extend(known.map(str::to_owned));
            self.shape.repairs.push(Repair::Remove(steps));
        }
        for (path, required) in ROOT {
            let there = root.iter().any(|(key, _)| key.get_ref() == path);
            let (true, false, Some(declared)) = (required, there, table(path)) else { continue };
            let steps = vec![Step::Key(path.to_owned())];
            self.add(&steps, None, format!("[{path}] is missing"), None);
            let keys = declared.keys.iter().filter(|key| key.default == Default::Required);
            for key in keys {
                self.repair(&[steps.clone(), vec![Step::Key(key.name.to_owned())]].concat(), key);
            }
            // Nothing is known about what else would be in it.
            self.shape.doubtful.push(path.to_owned());
        }
    }

    /// Checks the keys of a table, which messages call `label`.
    fn table(
        &mut self,
        steps: &[Step],
        found: &DeTable<'_>,
        declared: &'static Table,
        label: &str,
        line: Option<usize>,
    ) {
        let kind_key = declared.keys.iter().find(|key| key.name == "kind");
        let kinds = match kind_key.map(|key| key.value) {
            Some(Value::OneOf(words)) => words,
            _ => &[],
        };
        let written = found.iter().find(|(key, _)| key.get_ref() == "kind");
        let written = written.and_then(|(_, value)| value.get_ref().as_str());
        // Of a kind that is not known, any key may be right.
        let kind = written.filter(|kind| kinds.contains(kind));
        // The rest of the configuration is checked as with the most similar kind.
        let assumed = match kind {
            Some(_) => None,
            None => similar(written.unwrap_or_default(), kinds.iter().copied())
                .or_else(|| kinds.first().copied()),
        };
        for (name, value) in found {
            let line = Some(self.line(name.span().start));
            let name: &str = name.get_ref();
            let steps = [steps, &[Step::Key(name.to_owned())]].concat();
            let keys = || declared.keys.iter().filter(|key| key.is_for(kind));
            match keys().find(|key| key.name == name) {
                Some(key) => {
                    if assumed.is_some() && !key.is_for(assumed) {
                        self.shape.doubtful.push(place(&steps));
                        self.shape.repairs.push(Repair::Remove(steps.clone()));
                    }
                    let found = Found { steps, value, label: format!("{label} {name}") };
                    self.value(&found, key);
                }
                None => {
                    let names: Vec<&str> = keys().map(|key| key.name).collect();
                    self.unknown(steps, name, &names, label, line);
                }
            }
        }
        for key in declared.keys {
            let there = found.iter().any(|(name, _)| name.get_ref() == key.name);
            let needed = key.default == Default::Required && key.is_for(kind.or(assumed));
            if there || !needed {
                continue;
            }
            let steps = [steps, &[Step::Key(key.name.to_owned())]].concat();
            // A table without kind needs that alone: its other keys depend on it.
            if assumed.is_some() && !key.kinds.is_empty() {
                self.repair(&steps, key);
                continue;
            }
            let wanted = key.value.describe();
            self.add(&steps, line, format!("{label} {} is missing: {wanted}", key.name), None);
            self.repair(&steps, key);
        }
        if let (Some(kind), Some(_)) = (assumed, kind_key) {
            let steps = [steps, &[Step::Key("kind".to_owned())]].concat();
            self.shape.repairs.push(Repair::Set(steps, format!("{kind:?}")));
        }
    }

    fn unknown(
        &mut self,
        steps: Vec<Step>,
        name: &str,
        names: &[&str],
        label: &str,
        line: Option<usize>,
    ) {
        let known = similar(name, names.iter().copied());
        let owner = tables().find(|table| table.keys.iter().any(|key| key.name == name));
        let suggestion = match (known, owner) {
            (_, Some(owner)) if owner.label != label && known.is_none() => {
                format!("`{name}` is a key of {}", owner.label.trim_end_matches(':'))
            }
            (Some(known), _) => format!("did you mean `{known}`?"),
            (None, _) => format!("its keys are {}", listed(names.iter().copied())),
        };
        self.add(&steps, line, format!("{label} has no key `{name}`"), Some(suggestion));
        let above = place(&steps[..steps.len().saturating_sub(1)]);
        self.shape.doubtful.push(place(&steps));
        self.shape.doubtful.extend(known.map(|known| format!("{above}.{known}")));
        self.shape.repairs.push(Repair::Remove(steps));
    }

    /// Makes a wrong or missing value readable.
    fn repair(&mut self, steps: &[Step], key: &Key) {
        self.shape.doubtful.push(place(steps));
        let steps = steps.to_vec();
        self.shape.repairs.push(match key.default {
            Default::Required => Repair::Set(steps, key.example.to_owned()),
            Default::Absent | Default::Is(_) => Repair::Remove(steps),
        });
    }

    /// Checks which keys a record has, after those keys; `before` is how many problems there were then.
    fn record(&mut self, found: &Found<'_, '_>, inner: &DeTable<'_>, before: usize) {
        let names: Vec<&str> = inner.iter().map(|(name, _)| name.get_ref().as_ref()).collect();
        let (place, line) = (place(&found.steps), self.line(found.value.span().start));
        let (mut problems, form) = record::combination(&names);
        // A key that is mistyped is not missing.
        problems.retain(|(key, _)| !self.shape.doubtful.contains(&format!("{place}.{key}")));
        let is_mistyped = self.shape.problems.len() > before;
        for (key, text) in problems.into_iter().filter(|(key, _)| !(key.is_empty() && is_mistyped))
        {
            let steps = match key {
                "" => found.steps.clone(),
                key => [found.steps.as_slice(), &[Step::Key(key.to_owned())]].concat(),
            };
            self.add(&steps, Some(line), text, None);
        }
        if self.shape.problems.len() > before {
            self.shape.doubtful.push(place);
            self.shape.repairs.push(Repair::Set(found.steps.clone(), form.to_owned()));
        }
    }

    /// Checks a value, and what is below it.
    fn value(&mut self, found: &Found<'_, '_>, key: &'static Key) {
        let before = self.shape.problems.len();
        match (below(key.value), found.value.get_ref()) {
            (Some(path), DeValue::Table(inner)) if !matches!(key.value, Value::Tables(_)) => {
                if let Some(declared) = table(path) {
                    let line = self.line(found.value.span().start);
                    self.table(&found.steps, inner, declared, declared.label, Some(line));
                    if path == record::PATH {
                        self.record(found, inner, before);
                    }
                }
                return;
            }
            (Some(path), DeValue::Array(items)) if matches!(key.value, Value::Tables(_)) => {
                for (number, item) in (0..).zip(items) {
                    let steps = [found.steps.as_slice(), &[Step::Item(number)]].concat();
                    let line = self.line(item.span().start);
                    match (item.get_ref(), table(path)) {
                        (DeValue::Table(inner), Some(declared)) => {
                            let label = format!("{} {}:", declared.label, number + 1);
                            self.table(&steps, inner, declared, &label, Some(line));
                        }
                        (other, _) => {
                            let text =
                                format!("{}: expected tables, found {}", found.label, shown(other));
                            self.add(&steps, Some(line), text, None);
                        }
                    }
                }
            }
            _ => {
                if let Some((offset, text, suggestion)) = mismatch(found.value, key.value) {
                    let line = self.line(offset);
                    self.add(
                        &found.steps,
                        Some(line),
                        format!("{}: {text}", found.label),
                        suggestion,
                    );
                }
            }
        }
        let items_wrong = matches!(found.value.get_ref(), DeValue::Array(items)
            if matches!(key.value, Value::Tables(_)) && items.iter().all(|item| item.get_ref().is_table()));
        if self.shape.problems.len() > before && !items_wrong {
            self.repair(&found.steps, key);
        }
    }
}

/// The table that a value may be, or be a list of.
const fn below(value: Value) -> Option<&'static str> {
    match value {
        Value::Table(path) | Value::Tables(path) => Some(path),
        Value::Either(_, Value::Table(path)) => Some(path),
        _ => None,
    }
}

/// Why a value is not of a type: the place in the text, the reason, and a suggestion.
fn mismatch(
    found: &Spanned<DeValue<'_>>,
    wanted: Value,
) -> Option<(usize, String, Option<String>)> {
    let (start, value) = (found.span().start, found.get_ref());
    let wrong = |suggestion| {
        let text = format!("expected {}, found {}", wanted.describe(), shown(value));
        Some((start, text, suggestion))
    };
    match (wanted, value) {
        (Value::Text | Value::Path, DeValue::String(_))
        | (Value::Boolean, DeValue::Boolean(_))
        | (Value::Number, DeValue::Float(_)) => None,
        (Value::Number, DeValue::Integer(number)) if stored(number).is_some() => None,
        (Value::Character, DeValue::String(text)) if text.chars().count() == 1 => None,
        (Value::Whole(_) | Value::WholeTo(..), DeValue::Integer(number)) => {
            let (least, most) = match wanted {
                Value::Whole(least) => (least, LARGEST),
                Value::WholeTo(least, most) => (least, most),
                _ => return None,
            };
            match whole(number) {
                Some(number) if number < i128::from(least) => wrong(None),
                Some(number) if number <= i128::from(most) => None,
                _ => {
                    let text = format!("expected at most {most}, found {}", shown(value));
                    Some((start, text, None))
                }
            }
        }
        (Value::Boolean, DeValue::String(text)) if text == "true" || text == "false" => {
            wrong(Some(format!("did you mean {text}, without quotes?")))
        }
        (Value::Number | Value::Whole(_) | Value::WholeTo(..), DeValue::String(text))
            if text.parse::<f64>().is_ok() =>
        {
            wrong(Some(format!("did you mean {text}, without quotes?")))
        }
        (Value::OneOf(words), DeValue::String(text)) => {
            if words.contains(&text.as_ref()) {
                return None;
            }
            wrong(
                similar(text, words.iter().copied()).map(|word| format!("did you mean `{word}`?")),
            )
        }
        (Value::Pair(_), DeValue::Array(items)) if items.len() != 2 => {
            let text = format!("expected two values, found {}", items.len());
            Some((start, text, None))
        }
        (Value::List(&Value::Path), DeValue::Array(items)) if items.is_empty() => {
            Some((start, "expected at least one file".to_owned(), None))
        }
        (Value::Pair(each) | Value::List(each), DeValue::Array(items)) => {
            items.iter().find_map(|item| mismatch(item, *each))
        }
        (Value::Either(one, other), _) => {
            let (first, second) = (mismatch(found, *one)?, mismatch(found, *other)?);
            // A list that is nearly right has a better message than one of another type.
            if matches!((other, value), (Value::List(_), DeValue::Array(_))) {
                return Some(second);
            }
            wrong(first.2.or(second.2))
        }
        _ => wrong(None),
    }
}

/// The largest whole number of TOML.
const LARGEST: u64 = i64::MAX as u64;

/// A whole number that TOML can store.
fn stored(number: &toml::de::DeInteger<'_>) -> Option<i64> {
    whole(number).and_then(|number| i64::try_from(number).ok())
}

fn whole(number: &toml::de::DeInteger<'_>) -> Option<i128> {
    i128::from_str_radix(number.as_str(), number.radix()).ok()
}

/// A value in a message. Configurations are public.
fn shown(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => {
            let short: String = text.chars().take(40).collect();
            let more = if short.len() < text.len() { "..." } else { "" };
            format!("{short:?}{more}")
        }
        DeValue::Integer(number) => number.to_string(),
        DeValue::Float(number) => number.to_string(),
        DeValue::Boolean(boolean) => boolean.to_string(),
        DeValue::Datetime(_) => "a date or time".to_owned(),
        DeValue::Array(_) => "a list".to_owned(),
        DeValue::Table(_) => "a table".to_owned(),
    }
}

fn listed<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let names: Vec<String> = names.into_iter().map(|name| format!("`{name}`")).collect();
    names.join(", ")
}

/// The lines of a text.
pub(super) struct LineIndex(Vec<usize>);

impl LineIndex {
    pub(super) fn new(text: &str) -> Self {
        let ends = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
        Self(ends.map(|(offset, _)| offset).collect())
    }

    /// The line of a byte of the text, counted from 1.
    pub(super) fn line(&self, offset: usize) -> usize {
        1 + self.0.partition_point(|end| *end < offset)
    }
}

/// A place, as it is written in problems.
pub(super) fn place(steps: &[Step]) -> String {
    let mut place = String::new();
    for step in steps {
        match step {
            Step::Key(name) if place.is_empty() => place.push_str(name),
            Step::Key(name) => place.push_str(&format!(".{name}")),
            Step::Item(number) => place.push_str(&format!("[{}]", number + 1)),
        }
    }
    place
}
