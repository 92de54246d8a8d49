//! One mutant: its file, its change, the promise that it breaks, and the tests that notice it.

use std::collections::HashSet;
use std::fs;
use std::path::Path;

use serde::Deserialize;

use crate::Error;

/// A change of the source that breaks a promise.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mutant {
    /// Its name, to select it on the command line.
    pub name: String,
    /// The promise that it breaks.
    pub promise: String,
    /// The source file, relative to the root of the project.
    pub file: String,
    /// A piece of the file that occurs exactly once, with the change as `«before → after»`.
    pub code: String,
    /// Tests, of which at least one must fail.
    pub killed_by: Vec<Killer>,
}

/// Tests that notice a mutant.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Deserialize)]
#[serde(try_from = "String")]
pub struct Killer {
    /// The package.
    pub package: String,
    /// The name of the test target; `lib` or `bin` for unit tests.
    pub target: String,
    /// Part of the tests' names; empty for all.
    pub filter: String,
}

impl TryFrom<String> for Killer {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let mut words = text.split_whitespace().map(str::to_owned);
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some(package), Some(target), filter, None) => {
                Ok(Self { package, target, filter: filter.unwrap_or_default() })
            }
            _ => Err(format!("'{text}' is not 'PACKAGE TARGET [FILTER]'")),
        }
    }
}

impl std::fmt::Display for Killer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} {}", self.package, self.target, self.filter)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    mutant: Vec<Mutant>,
}

/// Reads the mutants of a directory of lists, in the order of file names: all of them, or those that `names` selects by
/// their own name or by that of their list.
///
/// # Errors
/// When a list cannot be read, two mutants have the same name, or a name is unknown.
pub fn read(lists: &Path, names: &[String]) -> Result<Vec<Mutant>, Error> {
    let mut files: Vec<_> = fs::read_dir(lists)?.collect::<Result<_, _>>()?;
    files.sort_by_key(fs::DirEntry::path);
    let (mut chosen, mut all, mut used) = (Vec::new(), HashSet::new(), HashSet::new());
    for file in files {
        let path = file.path();
        let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default().to_owned();
        let list: List = toml::from_str(&fs::read_to_string(&path)?)
            .map_err(|error| format!("{}: {error}", path.display()))?;
        for mutant in list.mutant {
            if !all.insert(mutant.name.clone()) {
                return Err(format!("two mutants are called {}", mutant.name).into());
            }
            let name = names.iter().find(|name| **name == stem || **name == mutant.name);
            used.extend(name);
            if name.is_some() || names.is_empty() {
                chosen.push(mutant);
            }
        }
    }
    match names.iter().find(|name| !used.contains(name)) {
        Some(unknown) => Err(format!("no mutant or list is called {unknown}").into()),
        None => Ok(chosen),
    }
}

/// A change of one file: the bytes from `start` to `end` become a choice between themselves and `after`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Change {
    start: usize,
    end: usize,
    after: String,
    number: usize,
}

impl Mutant {
    /// The unchanged piece of code, start and end of the change in it, and the replacement.
    fn parse(&self) -> Result<(String, usize, usize, &str), Error> {
        let format_error = || format!("{}: the code must have one «before → after»", self.name);
        let (head, rest) = self.code.split_once('«').ok_or_else(format_error)?;
        let (change, tail) = rest.split_once('»').ok_or_else(format_error)?;
        let (before, after) = change.split_once('→').ok_or_else(format_error)?;
        let (before, after) = (before.trim(), after.trim());
        if before == after || tail.contains('«') {
            return Err(format_error().into());
        }
        let head = head.trim_start();
        let tail = tail.trim_end();
        Ok((format!("{head}{before}{tail}"), head.len(), head.len() + before.len(), after))
    }

    fn change_in(&self, source: &str, number: usize) -> Result<Change, Error> {
        let (piece, start, end, after) = self.parse()?;
        let mut places = source.match_indices(&piece);
        match (places.next(), places.next()) {
            (Some((at, _)), None) => {
                Ok(Change { start: at + start, end: at + end, after: after.to_owned(), number })
            }
            (None, _) => Err(format!("{}: {} has no such code", self.name, self.file).into()),
            _ => Err(format!("{}: {} has this code twice", self.name, self.file).into()),
        }
    }
}

/// The source of a file with all of its mutants, each behind a switch with its number.
///
/// # Errors
/// When a mutant does not fit the source, or two of them overlap without changing the same code.
pub fn switch<'a>(
    source: &str,
    mutants: impl Iterator<Item = (usize, &'a Mutant)>,
) -> Result<String, Error> {
    let changes = mutants.map(|(number, mutant)| mutant.change_in(source, number));
    let mut changes: Vec<Change> = changes.collect::<Result<_, _>>()?;
    changes.sort_by_key(|change| (change.start, change.end));
    let (mut switched, mut at) = (String::new(), 0);
    for same in changes.chunk_by(|one, other| (one.start, one.end) == (other.start, other.end)) {
        let Some(&Change { start, end, .. }) = same.first() else { continue };
        if start < at {
            return Err(format!("two mutants overlap at '{}'", &source[start..end]).into());
        }
        let before = &source[start..end];
        let choice: String = same
            .iter()
            .map(|Change { number, after, .. }| {
                format!("if crate::mutant({number}) {{ {after} }} else ")
            })
            .collect();
        // Everything that is not a statement is an expression, which needs parentheses.
        let is_statement = before.ends_with(';') || before.ends_with('}');
        let (open, close) = if is_statement { ("", "") } else { ("(", ")") };
        switched.push_str(&source[at..start]);
        switched.push_str(&format!("{open}{choice}{{ {before} }}{close}"));
        at = end;
    }
    switched.push_str(&source[at..]);
    Ok(switched)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mutant(name: &str, code: &str) -> Mutant {
        let killed_by = vec![Killer::try_from("p t f".to_owned()).unwrap()];
        let (name, code) = (name.to_owned(), code.to_owned());
        Mutant { name, promise: String::new(), file: String::new(), code, killed_by }
    }

    #[test]
    fn mutants_become_choices_in_the_source() {
        let source = "let a = b + c;\nflush(a);\n";
        let list = [
            mutant("less", "a = «b + c → b»;"),
            mutant("more", "a = «b + c → c»;"),
            mutant("late", "«flush(a); → »"),
        ];
        let switched = switch(source, list.iter().enumerate()).unwrap();
        assert_eq!(
            switched,
            "let a = (if crate::mutant(0) { b } else if crate::mutant(1) { c } else { b + c });\n\
             if crate::mutant(2) {  } else { flush(a); }\n"
        );
    }

    #[test]
    fn mutants_that_do_not_fit_are_refused() {
        let source = "a(); a(); b(1 + 2);";
        for code in ["«a → c»()", "«x → y»", "b(1 + 2)", "«b → b»", "«1 → 2» + «2 → 1»"]
        {
            assert!(switch(source, [mutant("m", code)].iter().enumerate()).is_err(), "{code}");
        }
        let overlapping = [mutant("m", "b(«1 + 2 → 3»)"), mutant("n", "b(«1 → 2» + 2)")];
        assert!(switch(source, overlapping.iter().enumerate()).is_err());
    }
}
