//! `veilgrad init`: writes a commented configuration from declarations.
//!
//! # Guarantee
//! The private data is never opened, not even for its header: the first line of a file without a header is a record. Names,
//! bounds, categories and classes come from flags, from answers, or from a file that the user declares public.

mod answers;
mod columns;
mod declared;
mod sample;
mod text;

use std::io::{BufRead, IsTerminal};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde_json::json;
use veilgrad_data::table::is_table;

use crate::advice;
use crate::argument::{Common, Init, Words, bounds, words};
use crate::error::Error;
use crate::output::{print_answer, write_file};
use crate::path;
use crate::train::check::Source;
use answers::{Answers, Question, named};
use columns::columns;
use declared::{Declared, FileKind, Target};
use sample::{Label, Sample, propose_label};

pub(crate) fn run(arguments: &Init, common: &Common) -> Result<(), Error> {
    let output = arguments.output.clone().unwrap_or_else(|| {
        let name = arguments.data.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let stem = name.split('.').next().filter(|stem| !stem.is_empty()).unwrap_or("config");
        PathBuf::from(format!("{stem}.toml"))
    });
    let shown = output.display();
    if !arguments.force && std::fs::symlink_metadata(&output).is_ok() {
        return Err(Error::Usage(format!(
            "{shown} is there already; choose another -o, or pass --force to replace it"
        )));
    }
    let public = [&arguments.public_sample, &arguments.test, &arguments.test_labels];
    for file in public.into_iter().flatten() {
        refuse_private(file, &arguments.data)?;
    }
    let stdin = std::io::stdin();
    let terminal = stdin.is_terminal().then(|| stdin.lock());
    let declared = declare(arguments, &mut Answers { terminal })?;
    let directory = output.parent().filter(|path| *path != Path::new(""));
    let text =
        text::configuration(&relative(declared, directory.unwrap_or(Path::new("."))), &output);
    // It is checked as every configuration is, and the files that it names are not opened.
    Source::of(&shown.to_string(), &text).checked()?;
    write_file(&output, text.as_bytes())?;
    let document = json!({ "schema": 1, "config": shown.to_string() });
    let next = format!(
        "{shown} is written; the private data was not opened\n\
        Read it, then: veilgrad check {shown}\n"
    );
    print_answer(common.json, &document, &next)
}

/// Refuses a public file that is the private one, by file metadata alone.
fn refuse_private(public: &Path, private: &Path) -> Result<(), Error> {
    let identity =
        |path: &Path| std::fs::metadata(path).ok().map(|found| (found.dev(), found.ino()));
    let same = identity(public).is_some_and(|found| identity(private) == Some(found));
    match same || public == private {
        true => Err(Error::Usage(format!(
            "{} is the private data: proposals and tests need a public file",
            public.display()
        ))),
        false => Ok(()),
    }
}

/// Paths relative to the directory of the configuration.
fn relative(mut declared: Declared, directory: &Path) -> Declared {
    let mut files = vec![&mut declared.train];
    files.extend(declared.test.as_mut());
    if let FileKind::Array { labels, test_labels, users, .. } = &mut declared.kind {
        files.extend(labels.as_mut());
        files.extend(test_labels.as_mut());
        files.extend(users.as_mut().map(|(ids, _)| ids));
    }
    for file in files {
        // What does not exist yet is named as it was, if that means the same.
        if file.exists() || directory != Path::new(".") {
            *file = path::relative(directory, file);
        }
    }
    declared
}

/// The declarations: from flags, from the public sample, and from answers.
fn declare<R: BufRead>(arguments: &Init, answers: &mut Answers<R>) -> Result<Declared, Error> {
    let sample = match &arguments.public_sample {
        Some(path) if is_table(&arguments.data) => {
            let delimiter = arguments.delimiter.and_then(|delimiter| u8::try_from(delimiter).ok());
            let header = arguments.header.as_ref().map(|Words(names)| names.clone());
            Some(Sample::read(path, delimiter, header)?)
        }
        Some(_) => {
            let why = "--public-sample is for tables: the shape and the bounds of arrays are flags";
            return Err(Error::Usage(why.to_owned()));
        }
        None => None,
    };
    let records = match arguments.records {
        Some(records) => records,
        None => answers.ask(
            Question {
                flag: "--records",
                text: "a public number of records, about as many as there are",
            },
            None,
            |answer| match answer.parse::<u64>() {
                Ok(records) if records > 0 => Ok(records),
                _ => Err(format!("{answer:?} is not a whole number of 1 or more")),
            },
        )?,
    };
    let positive = |answer: &str| match answer.parse::<f64>() {
        Ok(number) if number > 0.0 && number.is_finite() => Ok(number),
        _ => Err(format!("{answer:?} is not a positive number")),
    };
    let epsilon = match arguments.epsilon {
        Some(epsilon) => epsilon.get(),
        None => answers.ask(
            Question {
                flag: "--epsilon",
                text: "the target epsilon (1 is strong, 3 usual, above 10 weak)",
            },
            None,
            positive,
        )?,
    };
    let delta = match arguments.delta {
        Some(delta) => delta.get(),
        None => answers.ask(
            Question { flag: "--delta", text: "delta, below one over the number of records" },
            Some(&format!("{:e}", advice::delta(records))),
            |answer| {
                positive(answer).and_then(|delta| match delta < 1.0 {
                    true => Ok(delta),
                    false => Err(format!("{answer:?} is not below 1")),
                })
            },
        )?,
    };
    let (kind, label) = match is_table(&arguments.data) {
        true => table(arguments, sample.as_ref(), answers)?,
        false => array(arguments, answers)?,
    };
    Ok(Declared {
        train: arguments.data.clone(),
        test: arguments.test.clone(),
        public_sample: arguments.public_sample.clone(),
        dataset: arguments.dataset.clone(),
        records,
        epsilon,
        delta,
        label,
        kind,
    })
}

/// Refuses flags that are for another kind of file.
fn refuse_flags(flags: &[(&str, bool)], kind: &str) -> Result<(), Error> {
    match flags.iter().find(|(_, given)| *given) {
        Some((flag, _)) => Err(Error::Usage(format!("{flag} is for {kind}"))),
        None => Ok(()),
    }
}

fn table<R: BufRead>(
    arguments: &Init,
    sample: Option<&Sample>,
    answers: &mut Answers<R>,
) -> Result<(FileKind, Target), Error> {
    let flags = [
        ("--labels", arguments.labels.is_some()),
        ("--test-labels", arguments.test_labels.is_some()),
        ("--shape", !arguments.shape.is_empty()),
        ("--bounds", arguments.bounds.is_some()),
        ("--arrays", arguments.arrays.is_some()),
        ("--user-ids", arguments.user_ids.is_some()),
    ];
    refuse_flags(
        &flags,
        "arrays; columns of tables have their own bounds: --numeric NAME=LOW..HIGH",
    )?;
    let label = match &arguments.label {
        Some(label) => label.clone(),
        None => answers.ask(
            Question { flag: "--label", text: "the column with the label" },
            None,
            named,
        )?,
    };
    let proposed = match sample.map(|sample| sample.column(&label)) {
        Some(Some(texts)) => Some(propose_label(texts)),
        Some(None) => {
            return Err(Error::Usage(format!(
                "--label: the public sample has no column {label:?}"
            )));
        }
        None => None,
    };
    let target = target(arguments, proposed, answers)?;
    let user = arguments.user.clone();
    let user = user.zip(arguments.max_examples.map(std::num::NonZeroU32::get));
    let (columns, unused) = columns(arguments, &label, sample, answers)?;
    let (delimiter, header) = (arguments.delimiter, arguments.header.clone());
    let header = header.map(|Words(names)| names);
    let kind = FileKind::Table { label, user, delimiter, header, columns, unused };
    Ok((kind, target))
}

fn array<R: BufRead>(
    arguments: &Init,
    answers: &mut Answers<R>,
) -> Result<(FileKind, Target), Error> {
    let flags = [
        ("--label", arguments.label.is_some()),
        ("--numeric", !arguments.numeric.is_empty()),
        ("--categorical", !arguments.categorical.is_empty()),
        ("--ignore", !arguments.ignore.is_empty()),
        ("--user", arguments.user.is_some()),
        ("--delimiter", arguments.delimiter.is_some()),
        ("--header", arguments.header.is_some()),
    ];
    refuse_flags(&flags, "tables (.csv, .tsv, .jsonl, .parquet)")?;
    let file = |flag: &'static str,
                text: &'static str,
                given: &Option<PathBuf>,
                answers: &mut Answers<R>| {
        match given {
            Some(path) => Ok(path.clone()),
            None => answers
                .ask(Question { flag, text }, None, |answer| named(answer).map(PathBuf::from)),
        }
    };
    let arrays = arrays(arguments, answers)?;
    // The labels of an archive are one of its arrays, unless they have a file of their own.
    let labels = match (&arguments.labels, &arrays) {
        (None, Some(_)) => None,
        (given, _) => Some(file("--labels", "the file with the labels", given, answers)?),
    };
    let test_labels = match (&arguments.test, &arguments.test_labels, &arrays) {
        (None, ..) | (_, None, Some(_)) => None,
        (_, given, _) => {
            let text = "the file with the labels of the public examples";
            Some(file("--test-labels", text, given, answers)?)
        }
    };
    let users = arguments.user_ids.clone();
    let users = users.zip(arguments.max_examples.map(std::num::NonZeroU32::get));
    let shape = match arguments.shape.as_slice() {
        [] => answers.ask(
            Question { flag: "--shape", text: "the shape of an example, as in 28,28" },
            None,
            |answer| {
                let sides = answer.split(',').map(|side| side.trim().parse::<usize>());
                let sides = sides.collect::<Result<Vec<_>, _>>();
                sides.map_err(|_| format!("{answer:?} is not ROWS,COLUMNS,..."))
            },
        )?,
        shape => shape.to_vec(),
    };
    let bounds = match arguments.bounds {
        Some(bounds) => bounds,
        None => answers.ask(
            Question { flag: "--bounds", text: "the bounds of all numbers, as in 0..255" },
            None,
            bounds,
        )?,
    };
    let target = target(arguments, None, answers)?;
    Ok((FileKind::Array { labels, test_labels, arrays, users, shape, bounds }, target))
}

/// The names of the arrays of an .npz file: examples, labels and, if there are any, ids of users.
fn arrays<R: BufRead>(
    arguments: &Init,
    answers: &mut Answers<R>,
) -> Result<Option<Vec<String>>, Error> {
    let is_archive =
        |path: &Path| path.extension().is_some_and(|end| end.eq_ignore_ascii_case("npz"));
    let parse = |answer: &str| match words(answer)? {
        Words(names) if (2..=3).contains(&names.len()) => Ok(names),
        Words(_) => Err(format!("{answer:?} is not INPUTS,LABELS or INPUTS,LABELS,USERS")),
    };
    match &arguments.arrays {
        Some(Words(names)) => parse(&names.join(","))
            .map(Some)
            .map_err(|why| Error::Usage(format!("--arrays: {why}"))),
        None if is_archive(&arguments.data) => {
            let text = "the names of the arrays with examples and labels, as in x,y";
            answers.ask(Question { flag: "--arrays", text }, None, parse).map(Some)
        }
        None => Ok(None),
    }
}

/// What the label is: declared, else proposed, else asked for.
fn target<R: BufRead>(
    arguments: &Init,
    proposed: Option<Result<Label, String>>,
    answers: &mut Answers<R>,
) -> Result<Target, Error> {
    if let Some([low, high]) = arguments.label_bounds {
        return Ok(Target::Bounds([low.to_string(), high.to_string()]));
    }
    if let Some(classes) = &arguments.classes {
        return parse_target(classes).map_err(|why| Error::Usage(format!("--classes: {why}")));
    }
    match proposed {
        Some(Ok(Label::Classes(classes))) => return Ok(Target::Classes(classes)),
        Some(Ok(Label::Bounds(bounds))) => return Ok(Target::Bounds(bounds)),
        Some(Err(why)) if answers.terminal.is_none() => {
            return Err(Error::Usage(format!("--classes or --label-bounds is missing: {why}")));
        }
        _ => {}
    }
    let text = "the classes, as in no,yes; or the bounds of a label that is a number, as in 0..100";
    answers.ask(Question { flag: "--classes or --label-bounds", text }, None, |answer| {
        if answer.contains("..") {
            return Ok(Target::Bounds(bounds(answer)?.map(|bound| bound.to_string())));
        }
        parse_target(answer)
    })
}

/// Names of classes, or how many there are.
fn parse_target(text: &str) -> Result<Target, String> {
    if let Ok(count) = text.trim().parse::<u64>() {
        return Ok(Target::Count(count));
    }
    match words(text)? {
        Words(names) if names.len() >= 2 => Ok(Target::Classes(names)),
        Words(_) => Err(format!("{text:?} is one class: there are two or more")),
    }
}

#[cfg(test)]
mod tests;
