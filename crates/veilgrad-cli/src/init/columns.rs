//! The columns of a table that are used.

use std::io::BufRead;

use super::answers::{Answers, Question, named};
use super::declared::{Column, Content, Unused};
use super::sample::{Proposal, Sample, propose};
use crate::argument::{Init, Words, bounds, words};
use crate::error::Error;

/// The columns that are used: declared ones, and those of the sample.
pub(super) fn columns<R: BufRead>(
    arguments: &Init,
    label: &str,
    sample: Option<&Sample>,
    answers: &mut Answers<R>,
) -> Result<(Vec<Column>, Unused), Error> {
    let text = |number: f64| number.to_string();
    let numbers = arguments.numeric.iter().map(|(name, [low, high])| {
        let bounds = [text(*low), text(*high)];
        Column { name: name.clone(), content: Content::Number { bounds, missing: false } }
    });
    let categories = arguments.categorical.iter().map(|(name, Words(words))| Column {
        name: name.clone(),
        content: Content::Words(words.clone()),
    });
    let (mut columns, mut unused): (Vec<Column>, _) =
        (numbers.chain(categories).collect(), Vec::new());
    if let Some(sample) = sample {
        let given = columns.iter().map(|column| &column.name).chain(&arguments.ignore);
        if let Some(name) = given.into_iter().find(|name| sample.column(name).is_none()) {
            return Err(Error::Usage(format!("the public sample has no column {name:?}")));
        }
        // In the order of the sample.
        let mut ordered = Vec::new();
        for (name, texts) in &sample.columns {
            let declared = columns.iter().position(|column| column.name == *name);
            if name == label || arguments.user.as_ref() == Some(name) {
                continue;
            }
            if let Some(place) = declared {
                ordered.push(columns.remove(place));
            } else if arguments.ignore.contains(name) {
                unused.push((name.clone(), "ignored".to_owned()));
            } else {
                let content = match propose(texts) {
                    Proposal::Number { bounds, missing } => Content::Number { bounds, missing },
                    Proposal::Words(words) => Content::Words(words),
                    Proposal::Nothing(why) => {
                        unused.push((name.clone(), why));
                        continue;
                    }
                };
                ordered.push(Column { name: name.clone(), content });
            }
        }
        columns = ordered;
    } else if columns.is_empty() {
        columns = ask_columns(answers)?;
    }
    match columns.is_empty() {
        true => Err(Error::Usage(
            "no column is used: declare one with --numeric or --categorical".to_owned(),
        )),
        false => Ok((columns, unused)),
    }
}

fn ask_columns<R: BufRead>(answers: &mut Answers<R>) -> Result<Vec<Column>, Error> {
    let mut columns = Vec::new();
    let flag = "--numeric NAME=LOW..HIGH, --categorical NAME=A,B,... or --public-sample FILE";
    loop {
        let text = match columns.is_empty() {
            true => "the columns to use; the first one",
            false => "the next column (an empty line: no more)",
        };
        let default = (!columns.is_empty()).then_some("");
        let parse = |answer: &str| match default {
            Some(_) => Ok(answer.to_owned()),
            None => named(answer),
        };
        let name = answers.ask(Question { flag, text }, default, parse)?;
        if name.is_empty() {
            return Ok(columns);
        }
        let text =
            format!("{name}: the bounds of numbers, as in 0..100, or all words, as in a,b,c");
        let content = answers.ask(Question { flag, text: &text }, None, |answer| {
            if answer.contains("..") {
                let bounds = bounds(answer)?.map(|bound| bound.to_string());
                return Ok(Content::Number { bounds, missing: false });
            }
            words(answer).map(|Words(words)| Content::Words(words))
        })?;
        columns.push(Column { name, content });
    }
}
