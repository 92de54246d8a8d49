//! The text of a configuration: from text to a checked configuration, or to all that is wrong with it.

use std::ops::Range;
use std::path::Path;

use serde::Deserialize;
use toml::de::DeTable;

use super::shape::{self, LineIndex, Repair, Step};
use crate::error::Error;
use crate::problem::{Lines, Problem, Problems, is_within, joined, line_of};
use crate::train::config::Config;
use crate::train::reference;

/// A configuration and where its values are.
#[derive(Debug)]
pub(crate) struct Source {
    name: String,
    lines: Lines,
    /// The places of values that are wrong or missing, which other problems may be consequences of.
    doubtful: Vec<String>,
    /// The configuration; repaired where its keys or types are wrong. `None` if it cannot be.
    config: Option<Config>,
    problems: Vec<Problem>,
    /// The exit code of the problems: that of the first one that was added.
    code: u8,
}

impl Source {
    /// Reads and checks a configuration. Files that it names are not opened.
    pub(crate) fn read(path: &Path) -> Result<Self, Error> {
        let name = path.display().to_string();
        let text = std::fs::read_to_string(path)
            .map_err(|cause| Error::File { path: name.clone(), cause })?;
        Ok(Self::examine(name, &text, Some(path.parent().unwrap_or(Path::new("")))))
    }

    /// Checks the text of a configuration. No path in it is resolved.
    pub(crate) fn of(name: &str, text: &str) -> Self {
        Self::examine(name.to_owned(), text, None)
    }

    /// Checks the text of a configuration, whose paths are relative to this directory.
    fn examine(name: String, text: &str, directory: Option<&Path>) -> Self {
        let (tree, errors) = DeTable::parse_recoverable(text);
        let index = LineIndex::new(text);
        let mut source = Self {
            name,
            lines: Lines::new(),
            doubtful: Vec::new(),
            config: None,
            problems: Vec::new(),
            code: USAGE,
        };
        if !errors.is_empty() {
            source.problems = errors.iter().map(|error| syntax(&index, error)).collect();
            return source;
        }
        let shape = shape::examine(&index, tree.get_ref());
        (source.lines, source.doubtful) = (shape.lines, shape.doubtful);
        source.problems = shape.problems;
        source.config = match shape.repairs.as_slice() {
            [] => match toml::from_str(text) {
                Ok(config) => Some(config),
                // What the types of the reference do not say, such as which keys of a record go together.
                Err(error) => {
                    source.problems.push(syntax(&index, &error));
                    None
                }
            },
            repairs => repaired(text, &shape.unstored, repairs),
        };
        if let Some(config) = &mut source.config {
            if let Some(directory) = directory {
                config.find_files(directory);
            }
            let mut found = Problems::default();
            config.check(&mut found);
            if directory.is_some() {
                config.data.check_public_files(&mut found);
            }
            source.add(found.0);
        }
        source
    }

    /// Adds problems with their lines, unless they may be consequences of others or are known.
    fn add(&mut self, problems: Vec<Problem>) {
        for mut problem in problems {
            let consequence = self.doubtful.iter().any(|place| problem.may_follow_from(place));
            if consequence || self.problems.iter().any(|known| known.text == problem.text) {
                continue;
            }
            problem.line = line_of(&self.lines, &problem.key);
            self.problems.push(problem);
        }
        self.problems.sort_by_key(|problem| problem.line.unwrap_or(usize::MAX));
    }

    /// The configuration, also if something is wrong with it. Missing and wrong values have those of the reference then.
    pub(crate) const fn config(&self) -> Option<&Config> {
        self.config.as_ref()
    }

    pub(crate) fn problems(&self) -> &[Problem] {
        &self.problems
    }

    /// The configuration, if nothing is wrong with it.
    pub(crate) fn checked(&self) -> Result<Config, Error> {
        match &self.config {
            Some(config) if self.problems.is_empty() => Ok(config.clone()),
            _ => Err(self.refused()),
        }
    }

    /// All problems, as an error.
    pub(crate) fn refused(&self) -> Error {
        let (path, problems) = (self.name.clone(), self.problems.clone());
        Error::Configuration { path, problems, code: self.code }
    }

    /// Whether a value at one of these places, or at a place around or below one, is wrong or missing.
    pub(crate) fn is_wrong(&self, places: &[String]) -> bool {
        let touches = |key: &String, place: &String| is_within(key, place) || is_within(place, key);
        places.iter().any(|place| {
            let by_problem = |problem: &Problem| match problem.relies_on.as_slice() {
                [] => !problem.key.is_empty() && touches(&problem.key, place),
                // The key is that of the table if one of several keys is missing in it.
                keys => {
                    is_within(&problem.key, place) || keys.iter().any(|key| touches(key, place))
                }
            };
            self.problems.iter().any(by_problem)
                || self.doubtful.iter().any(|key| touches(key, place))
        })
    }

    /// An error of planning, with the line of the key that it names first. Other errors stay as they are.
    pub(crate) fn locate(&self, error: Error) -> Error {
        let Error::Usage(text) = error else { return error };
        let key = named_key(&text);
        let line = key.as_ref().and_then(|key| line_of(&self.lines, key));
        let problem = Problem { line, ..Problem::new(key.unwrap_or_default(), text) };
        let (path, problems) = (self.name.clone(), vec![problem]);
        Error::Configuration { path, problems, code: USAGE }
    }

    /// Adds a problem that was found later, with the exit code that it has if no other one is known.
    pub(crate) fn add_later(&mut self, problem: Problem, code: u8) {
        if self.problems.is_empty() {
            self.code = code;
        }
        self.add(vec![problem]);
    }
}

/// The exit code of a configuration that breaks a rule.
const USAGE: u8 = 2;

impl Config {
    /// The configuration of a text.
    ///
    /// # Errors
    /// All that is wrong with it, one problem a line.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let source = Source::of("", text);
        source.checked().map_err(|_| joined(&source.problems))
    }
}

/// An error of the TOML reader, without its picture of the line.
fn syntax(index: &LineIndex, error: &toml::de::Error) -> Problem {
    let line = error.span().map(|span| index.line(span.start));
    let text = error.message().trim_end().replace('\n', "; ");
    Problem { line, ..Problem::new("", text) }
}

/// A configuration in which wrong and missing values are replaced. Numbers that cannot be stored are among these.
fn repaired(text: &str, unstored: &[Range<usize>], repairs: &[Repair]) -> Option<Config> {
    let mut text = text.to_owned();
    for place in unstored {
        let zero = format!("{:<1$}", 0, place.len());
        text.replace_range(place.clone(), &zero);
    }
    let mut root = toml::Value::Table(toml::from_str(&text).ok()?);
    for repair in repairs {
        match repair {
            Repair::Remove(steps) => {
                let (Step::Key(name), above) = steps.split_last()? else { continue };
                if let Some(table) = at(&mut root, above).and_then(toml::Value::as_table_mut) {
                    table.remove(name);
                }
            }
            Repair::Set(steps, example) => {
                let (Step::Key(name), above) = steps.split_last()? else { continue };
                let example: toml::Table = toml::from_str(&format!("x = {example}")).ok()?;
                let table = at(&mut root, above)?.as_table_mut()?;
                table.insert(name.clone(), example.get("x")?.clone());
            }
        }
    }
    Config::deserialize(root).ok()
}

/// The value at a place. Tables that are missing are made.
fn at<'v>(root: &'v mut toml::Value, steps: &[Step]) -> Option<&'v mut toml::Value> {
    steps.iter().try_fold(root, |value, step| match step {
        Step::Key(name) => {
            let entry = value.as_table_mut()?.entry(name.clone());
            Some(entry.or_insert_with(|| toml::Value::Table(toml::Table::new())))
        }
        Step::Item(number) => value.as_array_mut()?.get_mut(*number),
    })
}

/// The place that a message names first, as in `[privacy] delta` or `[[model.layers]] 2`.
pub(crate) fn named_key(text: &str) -> Option<String> {
    let (_, rest) = text.split_once('[')?;
    let (path, rest) = rest.trim_start_matches('[').split_once(']')?;
    let table = reference::table(path)?;
    let mut words = rest.trim_start_matches(']').split_whitespace();
    let word = words.next().unwrap_or_default().trim_end_matches([':', ',']);
    if word.parse::<usize>().is_ok() {
        return Some(format!("{path}[{word}]"));
    }
    let is_key = table.keys.iter().any(|key| key.name == word);
    Some(if is_key { format!("{path}.{word}") } else { path.to_owned() })
}
